"""Machines over ssh that do not do what they should: they hang, break off, have the wrong Python or no room."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.session.remote import machine as remote
from gpudash.telemetry.records import State
from tests.nvml_stub.build import without_driver
from tests.programs import program
from tests.ssh_server.linking import linking, problem, until, until_gone
from tests.ssh_server.server import Client, ssh_server

pytestmark = pytest.mark.timeout(280)

SOON_S = 2.0
"""In place of a minute that a test does not wait."""

GREETING = '{"gpudash": 1, "product": "EPYC", "cores": 64, "capacity_source": "RAM"}'
READING = '{"time_s": 5, "table": "host", "device": null, "used_bytes": 7, "total_bytes": 9, "free_bytes": 2}'
NO_GPU = '{"gpus": [], "problem": -1}'


@pytest.fixture
def silent(client: Client) -> Iterator[None]:
    """A machine "alpha" that takes a connection and says nothing."""
    program("ssh")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client.name("alpha", listening.getsockname()[1])
        yield


@pytest.mark.usefixtures("silent")
def test_a_machine_that_hangs_before_its_banner_is_one_sentence_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "QUIET_S", SOON_S)
    with linking("ssh://alpha") as fleet:
        assert problem(fleet) == "alpha has not told anything within 2.0 s; see what ssh alpha says; it is tried again."
        assert fleet.unlinked == ("alpha",)


@pytest.mark.usefixtures("silent")
def test_leaving_a_machine_that_hangs_before_its_banner_waits_for_nothing() -> None:
    with linking("ssh://alpha") as fleet:
        until(fleet, lambda: fleet.machines[0]._connection)


def test_half_a_line_and_silence_is_a_machine_that_has_told_nothing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "QUIET_S", SOON_S)
    with ssh_server(tmp_path / "a", client, "alpha") as server:
        says(tmp_path, f"/bin/echo -n '{GREETING[:20]}'")
        with linking("ssh://alpha") as fleet:
            assert problem(fleet).startswith("alpha has not told anything within 2.0 s")
        until_gone(server)


def test_half_a_reading_and_silence_is_a_gap_and_a_lost_link(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "GAP_S", SOON_S / 2)
    monkeypatch.setattr(remote, "SILENT_S", SOON_S)
    with ssh_server(tmp_path / "a", client, "alpha") as server:
        says(
            tmp_path, *(f"/bin/echo '{line}'" for line in (GREETING, NO_GPU, READING)), f"/bin/echo -n '{READING[:30]}'"
        )
        with linking("ssh://alpha") as fleet:
            machine = fleet.machines[0]
            until(fleet, lambda: fleet.gpus())
            until(fleet, lambda: machine.store.latest("host", "used_bytes").state is State.LOST)
            assert problem(fleet) == "The link to alpha was lost (nothing came for 2.0 s); it is tried again."
        until_gone(server)


def says(folder: Path, *commands: str) -> None:
    """Have the machine "alpha" run these in place of what it is sent, and then wait until it is left."""
    enter = folder / "a" / "enter"
    enter.write_text("\n".join(["#!/bin/sh", *commands, "exec /bin/cat > /dev/null", ""]))


BROKEN = (
    "alpha did not run the reader (exit code 127: error while loading shared libraries); "
    "see what ssh alpha python3 --version says."
)

PYTHONS = {
    "Python 2 alone": ("python2", "exit 0", "alpha has no python3 on its PATH; install Python 3.8 or newer there."),
    "a python3 that is older than its own options": (
        "python3",
        "echo 'Unknown option: -I' >&2; exit 2",
        "The python3 of alpha is older than 3.4; the reader needs 3.8 or newer there.",
    ),
    "a python3 that is broken": (
        "python3",
        "echo 'error while loading shared libraries' >&2; exit 127",
        BROKEN,
    ),
}


@pytest.mark.parametrize("kind", PYTHONS)
def test_a_machine_with_the_wrong_python_says_which(client: Client, tmp_path: Path, kind: str) -> None:
    name, does, sentence = PYTHONS[kind]
    there = tmp_path / "there"
    there.mkdir()
    (there / name).write_text(f"#!/bin/sh\n{does}\n")
    (there / name).chmod(0o755)
    with ssh_server(tmp_path / "a", client, "alpha", variables={"PATH": str(there)}), linking("ssh://alpha") as fleet:
        assert problem(fleet) == sentence
        assert fleet.machines[0].state == "given up"


def test_a_machine_whose_disks_are_full_or_cannot_be_written_is_read_as_any_other(
    client: Client, tmp_path: Path
) -> None:
    """No file may grow by a byte there (ulimit -f 0), and there is no folder for temporary ones."""
    variables = {**without_driver(tmp_path), "TMPDIR": "/nonexistent", "HOME": "/nonexistent"}
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables) as server:
        enter = tmp_path / "a" / "enter"
        enter.write_text(enter.read_text().replace("exec /bin/sh", "ulimit -f 0; exec /bin/sh"))
        with linking("ssh://alpha") as fleet:
            until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)
            assert fleet.problem is None and fleet.machines[0].left_out == 0
        until_gone(server)

"""Getting into machines over ssh, through real sshd's on loopback: passwords, host keys, jump hosts, configuration, and
trying again by hand."""

from __future__ import annotations

import getpass
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudash.session.remote.fleet import SshFleet
from gpudash.session.remote.machine import RemoteMachine
from gpudash.sources.ssh.asking import SshQuestion
from gpudash.telemetry.records import SourceFailed, SourceRecovered
from tests.end_to_end.conftest import Command, Play, environment
from tests.end_to_end.machines_scenario import ANSWERS, MACHINES
from tests.nvml_stub.build import without_driver
from tests.ssh_server.linking import PATIENCE_S, Terminal, linking, log_of, problem, until, until_gone
from tests.ssh_server.server import PASSWORD, Client, ssh_server

pytestmark = pytest.mark.timeout(280)


def asked(fleet: SshFleet, machine: RemoteMachine | None = None) -> SshQuestion:
    """What ssh asks, once it does."""
    of = machine or fleet.machines[0]
    until(fleet, lambda: of.question)
    found = of.question
    assert found is not None
    return found


def linked(fleet: SshFleet) -> None:
    """Wait for readings of every machine."""
    count = len(fleet.machines)
    until(fleet, lambda: len(fleet.gpus()) == count and not any(gpu.stale for gpu in fleet.gpus()))


def test_a_password_logs_in_and_is_asked_for_anew_only_by_hand(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables, password=True) as server:
        with linking("ssh://alpha", asks=True) as fleet:
            machine = fleet.machines[0]
            question = asked(fleet)
            assert question.prompt.strip().endswith("'s password:") and question.kind == "secret" and not question.again
            question.answer(PASSWORD)
            linked(fleet)
            assert "Accepted password for" in server.log
            server.cut()
            until(fleet, lambda: machine.state == "given up")
            assert "alpha wants a password; Reconnect" in problem(fleet) and machine.question is None
            with machine.store.lock:
                before = machine.store.series("host", "used_bytes", None)
                count = 0 if before is None else len(before)
            assert count > 0 and fleet.unlinked == ("alpha",)
            fleet.link_again()
            asked(fleet).answer(PASSWORD)
            linked(fleet)
            with machine.store.lock:
                after = machine.store.series("host", "used_bytes", None)
                assert after is not None and len(after) > count  # what was told before is still there
            kinds = [type(event) for event in log_of(machine)]
            assert SourceFailed in kinds and SourceRecovered in kinds and fleet.unlinked == ()
        until_gone(server)


def test_a_wrong_password_is_asked_for_again_and_then_told(client: Client, tmp_path: Path) -> None:
    with (
        ssh_server(tmp_path / "a", client, "alpha", password=True) as server,
        linking("ssh://alpha", asks=True) as fleet,
    ):
        for attempt in range(3):
            question = asked(fleet)
            assert question.again is (attempt > 0)
            question.answer("wrong")
        assert "alpha did not accept the password; try again with another" in problem(fleet)
        assert server.log.count("Failed password for") == 3


def test_a_password_that_is_refused_to_ssh_ends_the_attempt(client: Client, tmp_path: Path) -> None:
    with (
        ssh_server(tmp_path / "a", client, "alpha", password=True) as server,
        linking("ssh://alpha", asks=True) as fleet,
    ):
        asked(fleet).refuse()
        assert problem(fleet) == "The login to alpha was cancelled; Reconnect asks again."
        assert "Failed password" not in server.log


def test_closing_while_ssh_asks_ends_the_question_and_everything_else(client: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "a", client, "alpha", password=True) as server:
        with linking("ssh://alpha", asks=True) as fleet:
            question = asked(fleet)
        assert not question.open
        question.answer(PASSWORD)  # too late, and no harm
        until_gone(server)


def test_an_unknown_host_key_is_shown_as_ssh_says_it_and_accepted_by_yes(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables, known=False) as server:
        with linking("ssh://alpha", asks=True) as fleet:
            question = asked(fleet)
            assert question.kind == "text" and "fingerprint is SHA256:" in question.prompt
            assert client.known_hosts.read_text() == ""
            question.answer("yes")
            linked(fleet)
        assert server.key in client.known_hosts.read_text()


def test_in_a_terminal_a_password_logs_in_before_the_window_opens(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables, password=True) as server:
        shown = {**environment(tmp_path / "home", client.environment()), "QT_QPA_PLATFORM": "offscreen"}
        with Terminal(["open", "ssh://alpha"], shown) as terminal:
            terminal.until("'s password:")
            terminal.answer(PASSWORD)
            awaited(terminal, lambda: any("python" in name for name in server.programs()))
            terminal.process.send_signal(signal.SIGTERM)
            terminal.ended()
        until_gone(server)
    assert "Traceback" not in terminal.text and PASSWORD not in terminal.text


def awaited(terminal: Terminal, holds: Callable[[], bool]) -> None:
    """Wait until it is so, while the command runs."""
    end, never = time.monotonic() + PATIENCE_S, threading.Event()
    while not holds():
        assert time.monotonic() < end and terminal.process.poll() is None, terminal.text
        never.wait(0.05)


def test_in_a_terminal_monitor_takes_a_password_and_tells_of_a_wrong_one(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables, password=True):
        shown = environment(tmp_path / "home", client.environment())
        with Terminal(["monitor", "ssh://alpha", "--seconds", "2"], shown) as terminal:
            terminal.until("'s password:")
            terminal.answer(PASSWORD)
            assert terminal.ended() == 0
        assert "GiB" in terminal.text and "Traceback" not in terminal.text
        with Terminal(["monitor", "ssh://alpha", "--seconds", "2"], shown) as terminal:
            for count in range(1, 4):
                terminal.until("'s password:", count)
                terminal.answer("wrong")
            assert terminal.ended() == 2
        assert "alpha did not accept the password" in terminal.text and "Traceback" not in terminal.text


def behind_a_gate(client: Client) -> None:
    """Let ssh's configuration send everything of ``.lab`` through the host "gate", by a file that it includes."""
    (client.folder / "lab.conf").write_text("Host *.lab !gate.lab\n  ProxyJump gate\n")
    with (client.folder / "config").open("a") as config:
        config.write(f"Host *\n  Include {client.folder / 'lab.conf'}\n")


def test_a_machine_behind_a_jump_host_is_linked_as_the_configuration_says(
    client: Client, gpudash: Command, tmp_path: Path
) -> None:
    """By Host patterns, an Include and ProxyJump; user and port are those of the address."""
    with (
        ssh_server(tmp_path / "gate", client, "gate") as gate,
        ssh_server(tmp_path / "a", client, "a.lab", variables=without_driver(tmp_path)) as inner,
    ):
        config = client.folder / "config"
        user = getpass.getuser()
        wrong = config.read_text().replace(f"Port {inner.port}\n  User {user}", "Port 1\n  User nobody-here")
        config.write_text(wrong)
        behind_a_gate(client)
        with linking(f"ssh://{user}@a.lab:{inner.port}") as fleet:
            linked(fleet)
            assert fleet.gpus()[0].host == f"{user}@a.lab:{inner.port}"
            assert gate.log.count("Accepted publickey") == inner.log.count("Accepted publickey") == 1
        until_gone(gate, inner)
        told = gpudash("monitor", f"ssh://{user}@a.lab:{inner.port}", "--seconds", "5", "--json")
        assert told.code == 0 and told.document["status"] == "finished"
        assert gate.log.count("Accepted publickey") == 2
        until_gone(gate, inner)


def test_a_jump_host_asks_for_its_own_password_first(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with (
        ssh_server(tmp_path / "gate", client, "gate", password=True) as gate,
        ssh_server(tmp_path / "a", client, "a.lab", variables=variables, password=True) as inner,
    ):
        behind_a_gate(client)
        with linking("ssh://a.lab", asks=True) as fleet:
            asked(fleet).answer(PASSWORD)
            until(fleet, lambda: "Accepted password" in gate.log)
            asked(fleet).answer(PASSWORD)
            linked(fleet)
            assert "Accepted password" in inner.log
        until_gone(gate, inner)


def refused(options: list[str], client: Client, tmp_path: Path, *, known: bool = True) -> str:
    """What is said where a jump host of these options lies before a machine."""
    with (
        ssh_server(tmp_path / "gate", client, "gate", options=options, known=known),
        ssh_server(tmp_path / "a", client, "a.lab"),
    ):
        behind_a_gate(client)
        with linking("ssh://a.lab") as fleet:
            return problem(fleet)


def test_a_jump_host_that_lets_nobody_pass_is_named_as_such(client: Client, tmp_path: Path) -> None:
    told = refused(["AuthorizedKeysFile none"], client, tmp_path)
    assert told == "The jump host of a.lab accepts none of your keys for that user; see what ssh -v a.lab says."


def test_a_jump_host_that_wants_a_password_which_nobody_can_give_is_named_as_such(
    client: Client, tmp_path: Path
) -> None:
    told = refused(["PasswordAuthentication yes", "PubkeyAuthentication no"], client, tmp_path)
    assert told.startswith("The jump host of a.lab wants a password; Reconnect")


def test_a_jump_host_that_ssh_does_not_know_is_named_as_such(client: Client, tmp_path: Path) -> None:
    told = refused([], client, tmp_path, known=False)
    assert told.startswith("The jump host of a.lab is not known to ssh yet; log in once in a terminal")


def test_a_machine_that_its_jump_host_cannot_reach_is_the_one_that_is_told_of(client: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "gate", client, "gate"):
        client.name("a.lab", 1)
        behind_a_gate(client)
        with linking("ssh://a.lab") as fleet:
            assert problem(fleet).startswith("a.lab refuses the connection")


def test_what_was_refused_is_linked_by_hand_once_it_is_mended(client: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "a", client, "alpha", variables=without_driver(tmp_path)) as server:
        keys = tmp_path / "a" / "authorized_keys"
        key = keys.read_text()
        keys.write_text("")
        with linking("ssh://alpha", "ssh://nobody.invalid") as fleet:
            alpha, nobody = fleet.machines
            until(fleet, lambda: alpha.state == "given up" and nobody.problem)
            keys.write_text(key)
            fleet.link_again()
            until(fleet, lambda: alpha.state == "linked" and fleet.gpus())
            until(fleet, lambda: nobody.problem)
            assert fleet.unlinked == ("nobody.invalid",)
        until_gone(server)


def test_in_the_window_ssh_asks_in_a_dialog_and_reconnect_asks_again(
    client: Client, play: Play, tmp_path: Path
) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables, password=True) as server:
        answers = {MACHINES: "ssh://alpha", ANSWERS: f"\nwrong\n{PASSWORD}"}
        seen = play("login", {**client.environment(), **answers})
        until_gone(server)
        assert server.log.count("Failed password") == server.log.count("Accepted password") == 1
    titles, words, again = zip(*seen["asked"], strict=True)
    assert set(titles) == {"Log In to alpha"} and again == (False, False, True)
    assert all(asked.endswith("'s password:") for asked in words)
    assert [told.split("\n")[0] for told in seen["problems"]] == [
        "The login to alpha was cancelled; Reconnect asks again."
    ]
    assert not seen["reconnect"]
    kept = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    assert kept == []

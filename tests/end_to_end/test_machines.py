"""Machines over ssh, through real sshd's on loopback: what is read, what goes wrong, and what is left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.session import Replay
from gpudash.telemetry.records import SourceFailed, SourceRecovered, State, Warning
from tests.end_to_end.conftest import Command, Play, environment
from tests.end_to_end.machines_scenario import MACHINES
from tests.nvml_stub.build import GIB, MIB, StubGpu, gb10, h100_in_halves, without_driver
from tests.programs import program
from tests.ssh_server.linking import PATIENCE_S, Terminal, linking, log_of, problem, until, until_gone, with_gpus
from tests.ssh_server.server import Client, make_key, ssh_server

pytestmark = pytest.mark.timeout(280)

PASSPHRASE = "correct horse"


@pytest.fixture
def locked(client: Client, tmp_path: Path) -> Client:
    """The user's side, whose key has a passphrase."""
    return replace(client, key=make_key(program("ssh-keygen"), tmp_path / "locked", PASSPHRASE))


def test_two_machines_are_shown_with_their_gpus_or_memory_and_warned_of(client: Client, tmp_path: Path) -> None:
    pid = os.getpid()
    gpus = [StubGpu(0), StubGpu(1, used=136 * GIB, processes=((pid, 130 * GIB, "C"),))]
    with ExitStack() as servers:
        variables = with_gpus(tmp_path, gpus)
        first = servers.enter_context(ssh_server(tmp_path / "a", client, "alpha", variables=variables))
        second = servers.enter_context(ssh_server(tmp_path / "b", client, "beta", variables=without_driver(tmp_path)))
        with linking("ssh://alpha", f"ssh://beta:{second.port}") as fleet:
            until(fleet, lambda: len(fleet.gpus()) == 3 and all(gpu.used_bytes for gpu in fleet.gpus()))
            until(fleet, lambda: fleet.gpus()[0].utilisation is not None)
            shown = {gpu.key.rpartition("/")[2]: gpu for gpu in fleet.gpus()}
            assert fleet.gpus()[0].uuid == gpus[1].uuid  # the fullest
            gpu = shown[gpus[1].uuid]
            assert (gpu.host, gpu.index, gpu.product, gpu.total_bytes) == ("alpha", 1, "NVIDIA H200", 141 * GIB)
            assert (gpu.used_bytes, gpu.utilisation, gpu.stale, gpu.is_host) == (136 * GIB, 0.37, False, False)
            memory = shown["host"]
            assert memory.host == f"beta:{second.port}" and memory.is_host and memory.index is None
            assert fleet.problem is None
            until(fleet, lambda: any("alpha GPU 1 is 97 % full" in warning.text for warning in fleet.warnings()))
            alpha, beta = fleet.machines
            assert beta.gpu_problem is not None and "no NVIDIA driver" in beta.gpu_problem and not beta.driver_fails
            until(fleet, lambda: any(isinstance(event, Warning) for event in log_of(alpha)))
            told = next(event for event in log_of(alpha) if isinstance(event, Warning))
            assert told.device == gpus[1].uuid and told.actions == ("save_recording",)
            until(fleet, lambda: alpha.store.processes(gpus[1].uuid))
            assert [row["memory_bytes"] for row in alpha.store.processes(gpus[1].uuid)] == [130 * GIB]
            assert first.sessions() and second.sessions()
        until_gone(first, second)


def test_mig_instances_and_a_gpu_that_shares_the_memory_are_read_over_ssh(client: Client, tmp_path: Path) -> None:
    whole, *parts = h100_in_halves(processes=((os.getpid(), GIB, "C"),))
    with ExitStack() as servers:
        for name, gpus in (("alpha", [whole, *parts]), ("beta", [gb10(processes=((os.getpid(), 5 * GIB, "C"),))])):
            (tmp_path / name).mkdir()
            variables = with_gpus(tmp_path / name, gpus)
            servers.enter_context(ssh_server(tmp_path / name / "sshd", client, name, variables=variables))
        with linking("ssh://alpha", "ssh://beta") as fleet:
            until(fleet, lambda: len(fleet.gpus()) == 3 and not any(gpu.stale for gpu in fleet.gpus()))
            shown = {gpu.name: gpu for gpu in fleet.gpus()}
            assert shown.keys() == {"alpha GPU 0:0", "alpha GPU 0:1", "beta GPU 0"}
            for part in parts:
                gpu = shown[f"alpha GPU 0:{part.instance}"]
                assert (gpu.uuid, gpu.used_bytes, gpu.total_bytes) == (part.uuid, part.used, 40_448 * MIB)
            alpha, beta = fleet.machines
            assert [gpu.instances for gpu in alpha.gpus] == [2, 0, 0] and alpha.gpus[2].parent == whole.uuid
            until(fleet, lambda: alpha.store.processes(parts[1].uuid))
            assert [row["memory_bytes"] for row in alpha.store.processes(parts[1].uuid)] == [GIB]
            assert alpha.store.processes(whole.uuid) == []
            assert beta.gpus[0].shared_memory
            until(fleet, lambda: beta.store.latest("host", "total_bytes").value == shown["beta GPU 0"].total_bytes)
            until(fleet, lambda: beta.store.processes(gb10().uuid))
            assert [row["memory_bytes"] for row in beta.store.processes(gb10().uuid)] == [5 * GIB]


def test_a_killed_connection_is_a_gap_and_a_sentence_and_is_linked_again(client: Client, tmp_path: Path) -> None:
    card = StubGpu(0)
    with ssh_server(tmp_path / "a", client, "alpha", variables=with_gpus(tmp_path, [card])) as server:
        with linking("ssh://alpha") as fleet:
            machine = fleet.machines[0]
            machine.hold()
            until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)
            with closing(machine.replay()) as replay:
                server.cut()
                until(fleet, lambda: any(isinstance(event, SourceFailed) for event in log_of(machine)))
                until(fleet, lambda: any(isinstance(event, SourceRecovered) for event in log_of(machine)))
                failed = next(event for event in log_of(machine) if isinstance(event, SourceFailed))
                assert failed.text.startswith("The link to alpha was lost") and "it is tried again" in failed.text
                until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)
                assert machine.state == "linked" and machine.problem is None

                def gaps() -> list[bool]:
                    with replay.store.lock:
                        series = replay.store.series("gpu", "used_bytes", card.uuid)
                        values = [] if series is None else series.newest(len(series))[1].tolist()
                    return [value != value for value in values]

                until(fleet, lambda: True in gaps() and not gaps()[-1])
                kept = gaps()
                assert not kept[0] and not kept[-1]  # a gap, with readings before and after it
            machine.release()
        until_gone(server)


def test_a_machine_that_is_gone_for_good_stays_a_gap(client: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables) as server, linking("ssh://alpha") as fleet:
        until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)
        server.stop()
        until(fleet, lambda: fleet.gpus()[0].stale)
        machine = fleet.machines[0]
        until(fleet, lambda: "refuses the connection" in (machine.problem or ""))
        with machine.store.lock:
            assert machine.store.latest("host", "used_bytes").state is State.LOST
        assert [event for event in log_of(machine) if isinstance(event, SourceFailed)]


def test_a_wrong_host_key_is_refused_in_one_sentence(client: Client, tmp_path: Path) -> None:
    other = make_key(program("ssh-keygen"), tmp_path / "other")
    public = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    client.known_hosts.write_text(f"alpha {public}\n")
    with ssh_server(tmp_path / "a", client, "alpha", known=False), linking("ssh://alpha") as fleet:
        told = problem(fleet)
        assert "The host key of alpha is not the one that is known" in told
        assert fleet.machines[0].state == "given up"
        command = shlex.split(told.partition("if that is right: ")[2].removesuffix("."))
        assert command[:3] == ["ssh-keygen", "-f", str(client.known_hosts)]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        assert client.known_hosts.read_text() == ""


def test_a_machine_that_ssh_does_not_know_says_how_to_make_it_known(client: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "a", client, "alpha", known=False), linking("ssh://alpha") as fleet:
        assert "alpha is not known to ssh yet" in problem(fleet) and "ssh alpha" in problem(fleet)


def test_a_password_that_nobody_can_be_asked_for_is_one_sentence(client: Client, tmp_path: Path) -> None:
    options = ["PasswordAuthentication yes", "PubkeyAuthentication no"]
    with ssh_server(tmp_path / "a", client, "alpha", options=options), linking("ssh://alpha") as fleet:
        told = problem(fleet)
        assert (
            "alpha wants a password; Reconnect, or opening ssh://alpha from a terminal" in told
            and "ssh-copy-id alpha" in told
        )


def test_a_key_that_is_not_accepted_is_one_sentence(client: Client, tmp_path: Path) -> None:
    options = ["AuthorizedKeysFile none"]
    with ssh_server(tmp_path / "a", client, "alpha", options=options), linking("ssh://alpha") as fleet:
        assert "alpha accepts none of your keys" in problem(fleet)


def test_a_machine_without_python_is_one_sentence(client: Client, tmp_path: Path) -> None:
    variables = {"PATH": str(tmp_path)}
    with ssh_server(tmp_path / "a", client, "alpha", variables=variables), linking("ssh://alpha") as fleet:
        assert "alpha has no python3 on its PATH" in problem(fleet)


def test_a_port_where_nothing_listens_and_a_name_that_nobody_has_are_tried_again(client: Client) -> None:
    program("sshd", "/usr/sbin/sshd")
    client.name("alpha", 1)
    with linking("ssh://alpha", "ssh://nobody.invalid") as fleet:
        alpha, nobody = fleet.machines
        until(fleet, lambda: alpha.problem and nobody.problem)
        assert "alpha refuses the connection" in (alpha.problem or "")
        assert "There is no host called nobody.invalid" in (nobody.problem or "")
        until(fleet, lambda: alpha.state == nobody.state == "waiting")


def test_a_shell_that_talks_first_is_passed_over(client: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "a", client, "alpha", variables=without_driver(tmp_path)):
        enter = tmp_path / "a" / "enter"
        enter.write_text(enter.read_text().replace("exec /bin/sh", 'echo "Welcome to {alpha}"; echo {; exec /bin/sh'))
        with linking("ssh://alpha") as fleet:
            until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)


def test_a_passphrase_is_asked_for_through_askpass(
    locked: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "askpass"
    script.write_text(f"#!/bin/sh\necho {shlex.quote(PASSPHRASE)}\n")
    script.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(script))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", locked, "alpha", variables=variables), linking("ssh://alpha") as fleet:
        until(fleet, lambda: fleet.gpus() and not fleet.gpus()[0].stale)


def test_in_a_terminal_ssh_asks_before_the_window_opens(locked: Client, tmp_path: Path) -> None:
    variables = without_driver(tmp_path)
    with ssh_server(tmp_path / "a", locked, "alpha", variables=variables) as server:
        shown = {**environment(tmp_path / "home", locked.environment()), "QT_QPA_PLATFORM": "offscreen"}
        with Terminal(["open", "ssh://alpha"], shown) as terminal:
            terminal.until("Enter passphrase for key")
            terminal.answer(PASSPHRASE)
            end, never = time.monotonic() + PATIENCE_S, threading.Event()
            while not any("python" in name for name in server.programs()):
                assert time.monotonic() < end and terminal.process.poll() is None, terminal.text
                never.wait(0.05)
            terminal.process.send_signal(signal.SIGTERM)
            terminal.ended()
        until_gone(server)
    assert "Traceback" not in terminal.text


def test_a_wrong_passphrase_in_a_terminal_is_one_sentence_and_no_window(locked: Client, tmp_path: Path) -> None:
    with ssh_server(tmp_path / "a", locked, "alpha") as server:
        shown = {**environment(tmp_path / "home", locked.environment()), "QT_QPA_PLATFORM": "offscreen"}
        with Terminal(["open", "ssh://alpha"], shown) as terminal:
            for count in range(1, 4):
                terminal.until("Enter passphrase for key", count)
                terminal.answer("wrong")
            assert terminal.ended() == 2
        until_gone(server)
    assert "alpha accepts none of your keys" in terminal.text and "Traceback" not in terminal.text


def test_the_terminal_shows_a_machine_as_it_shows_this_one(client: Client, gpudash: Command, tmp_path: Path) -> None:
    gpus = [StubGpu(0, used=7 * GIB)]
    with ssh_server(tmp_path / "a", client, "alpha", variables=with_gpus(tmp_path, gpus)) as server:
        told = gpudash("monitor", "ssh://alpha", "--seconds", "5", "--json", env=client.environment())
        assert told.code == 0 and told.stderr == ""
        document = told.document
        assert (document["status"], document["machine"], document["error"]) == ("finished", "ssh://alpha", None)
        host, gpu = document["devices"]
        assert (host["name"], gpu["uuid"], gpu["product"]) == ("cpu", gpus[0].uuid, "NVIDIA H200")
        assert gpu["metrics"]["used_bytes"]["last"] == 7 * GIB and host["metrics"]["used_bytes"]["last"] > 0
        table = gpudash("monitor", "ssh://alpha", "--seconds", "5", env=client.environment())
        assert table.code == 0
        assert "GPU 0" in table.stdout and "7.59 / 141.0 GiB" in table.stdout.replace(" of ", " / ")
        until_gone(server)


def test_a_machine_that_cannot_be_reached_is_one_sentence_in_the_terminal(client: Client, gpudash: Command) -> None:
    program("sshd", "/usr/sbin/sshd")
    client.name("alpha", 1)
    told = gpudash("monitor", "ssh://alpha", "--seconds", "20", "--json", env=client.environment())
    assert told.code == 2
    assert told.document["error"]["message"].startswith("alpha refuses the connection")
    mixed = gpudash("monitor", "ssh://alpha", "--simulate", "8GiB", env=client.environment())
    assert mixed.code == 2 and "--simulate and --notify are for this machine" in mixed.stderr


def test_several_machines_are_lines_recordings_and_a_page_without_a_window(
    client: Client, gpudash: Command, tmp_path: Path
) -> None:
    gpus = [StubGpu(0, used=7 * GIB)]
    folder = tmp_path / "nodes"
    with ExitStack() as servers:
        variables = with_gpus(tmp_path, gpus)
        servers.enter_context(ssh_server(tmp_path / "a", client, "alpha", variables=variables))
        servers.enter_context(ssh_server(tmp_path / "b", client, "beta", variables=without_driver(tmp_path)))
        machines = ("ssh://alpha", "ssh://beta")
        streamed = gpudash(
            *("monitor", *machines, "--seconds", "5", "--json-lines", "--record", str(folder)), env=client.environment()
        )
        assert streamed.code == 0, streamed.stderr
        lines = [json.loads(line) for line in streamed.stdout.splitlines()]
        assert {line["machine"] for line in lines} == {"alpha", "beta"}
        told = [line for line in lines if line["machine"] == "alpha" and line.get("device") == gpus[0].uuid]
        used = [line for line in told if line["table"] == "gpu"]  # its processes have lines of their own
        assert used[-1]["used_bytes"] == 7 * GIB
        files = sorted(folder.iterdir())
        assert [file.name.rpartition("-")[2] for file in files] == ["alpha.gpudash", "beta.gpudash"]
        assert all(f"Recording: {file}" in streamed.stderr for file in files)
        with closing(Replay(files[0])) as replay:
            assert [gpu.uuid for gpu in replay.gpus] == [gpus[0].uuid]
        summed = gpudash("monitor", *machines, "--seconds", "5", "--json", env=client.environment())
        assert [found["machine"] for found in summed.document["machines"]] == list(machines)
        table = gpudash("monitor", *machines, "--seconds", "5", env=client.environment())
        assert "alpha GPU 0" in table.stdout and "beta cpu" in table.stdout


def test_several_machines_are_served_on_one_page_with_their_names(client: Client, tmp_path: Path) -> None:
    gpus = [StubGpu(0, used=7 * GIB)]
    with ExitStack() as servers:
        servers.enter_context(
            ssh_server(tmp_path / "a", client, "alpha", variables=with_gpus(tmp_path, gpus)),
        )
        servers.enter_context(ssh_server(tmp_path / "b", client, "beta", variables=without_driver(tmp_path)))
        command = [sys.executable, "-m", "gpudash", "monitor", "ssh://alpha", "ssh://beta", "--serve", ":0"]
        shown = environment(tmp_path / "home", client.environment())
        process = subprocess.Popen(command, env=shown, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            place = next(line for line in process.stderr if line.startswith("Serving at ")).split()[2].rstrip(";")
            wanted = f'gpudash_gpu_memory_used_bytes{{gpu="0",machine="alpha",uuid="{gpus[0].uuid}"}} {7 * GIB:.0f}'
            linked = 'gpudash_machine_linked{machine="beta"} 1.0'  # the other may be linked sooner
            page, until_s, never = "", time.monotonic() + PATIENCE_S, threading.Event()
            while not (wanted in exact(page) and linked in page) and time.monotonic() < until_s:
                never.wait(0.1)
                with urllib.request.urlopen(place) as answer:
                    page = answer.read().decode()
            assert wanted in exact(page) and linked in page, page
            assert 'gpudash_host_memory_used_bytes{machine="beta"}' in page
            process.send_signal(signal.SIGINT)
            _table, messages = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, messages
        finally:
            process.kill()


def exact(page: str) -> set[str]:
    """The lines of a scrape, with labels in order and whole numbers."""
    found = set()
    for line in page.splitlines():
        name, braced, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        if braced and not line.startswith("#"):
            found.add(f"{name}{{{','.join(sorted(labels.split(',')))}}} {float(value):.0f}")
    return found


def test_the_window_opens_on_two_machines_and_on_one_of_them_live(client: Client, play: Play, tmp_path: Path) -> None:
    gpus = [StubGpu(0), StubGpu(1, used=136 * GIB)]
    with ExitStack() as servers:
        variables = with_gpus(tmp_path, gpus)
        running = [
            servers.enter_context(ssh_server(tmp_path / "a", client, "alpha", variables=variables)),
            servers.enter_context(ssh_server(tmp_path / "b", client, "beta", variables=without_driver(tmp_path))),
        ]
        seen = play("machines", {**client.environment(), MACHINES: "ssh://alpha ssh://beta", "MACHINES_GPUS": "3"})
        until_gone(*running)
    assert seen["gpus"][0][:3] == ["alpha", gpus[1].uuid, "NVIDIA H200"]
    assert [host for host, _uuid, _product, is_host in seen["gpus"] if is_host] == ["beta"]
    assert seen["words"][0].startswith("2 machines · 2 GPUs · ")
    assert seen["selected"] == gpus[1].uuid and not seen["panel"] and seen["notices"] == []
    assert seen["head"].startswith("Machine alpha: live over ssh since ")
    assert "alpha GPU 1 is 97 % full: 136.6 of 141.0 GiB" in seen["banner"]
    title, titles = seen["compared"]
    assert title.startswith("alpha · GPU 1 vs ") and titles[0] == "MEMORY USED"
    for name in ("compared-light", "overview-light", "overview-dark", "machine-light", "machine-dark"):
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000

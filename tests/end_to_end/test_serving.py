"""``--serve`` as people use it: a real monitor on the stand-in driver, scraped, refused, and attacked."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import Command, Stub, start_python
from tests.nvml_stub.build import GIB, Scenario, StubGpu
from tests.programs import program
from tests.unit.session.serving.certificates import certificate

SECRET = "0123456789abcdef0123"

PATIENCE_S = 180.0

GAP_S = 0.5
"""Longest that no reading may be taken, whatever clients do."""

LEAK_BYTES = 8 * 1024**2


class Serving:
    """A running ``gpudash`` that serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self.said = process.stderr.readline()
        found = re.search(r"(https?)://(\S+):(\d+)/metrics", self.said)
        assert found is not None, self.said + process.stderr.read()
        self.url, self.port = found[0], int(found[3])

    def scrape(self, **headers: str) -> str:
        """A scrape in the text format."""
        request = urllib.request.Request(self.url, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    def until(self, *wanted: str) -> str:
        """A scrape that has all of ``wanted``."""
        return self._scrape_until(lambda text: all(line in text for line in wanted))

    def until_at_least(self, series: str, least: float) -> str:
        """A scrape in which ``series`` is ``least`` or more."""
        return self._scrape_until(lambda text: value(text, series) >= least)

    def _scrape_until(self, holds: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(text := self.scrape()):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def client(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def end(self) -> str:
        """Interrupt it; what it said on standard error."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=PATIENCE_S)[1]


Start = Callable[..., Serving]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts commands that serve; they are ended after the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, env: dict[str, str] | None = None) -> Serving:
        running.append(start_python(home, "-m", "gpudash", *arguments, extra=env, stdout=subprocess.DEVNULL))
        return Serving(running[-1])

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def value(text: str, sample: str) -> float:
    """The number of a sample, by its name and labels."""
    (found,) = re.findall(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found)


def test_what_is_scraped_is_what_is_recorded(start: Start, stub: Stub, tmp_path: Path) -> None:
    recording = tmp_path / "r.gpudash"
    gpus = [StubGpu(number, used=(number + 1) * GIB) for number in range(3)]
    serving = start("monitor", "--serve", ":0", "--record", str(recording), env=stub(Scenario(gpus)))
    assert "alert rules: " in serving.said
    labels = [f'{{gpu="{gpu.number}",uuid="{gpu.uuid}"}}' for gpu in gpus]
    text = serving.until(*(f"gpudash_gpu_temperature_celsius{each}" for each in labels))
    for number, each in enumerate(labels):
        assert value(text, f"gpudash_gpu_memory_used_bytes{each}") == (number + 1) * GIB
        assert value(text, f"gpudash_gpu_memory_total_bytes{each}") == 141 * GIB
        assert value(text, f"gpudash_gpu_utilisation_ratio{each}") == 0.37
        assert value(text, f"gpudash_gpu_power_watts{each}") == 120.5
        assert value(text, f"gpudash_gpu_sm_clock_hertz{each}") == 1.98e9
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    stub(Scenario(gpus).lose(2))
    text = serving.until(f'gpudash_gpu_state{{gpu="2",state="lost",uuid="{gpus[2].uuid}"}} 1.0')
    assert f"gpudash_gpu_memory_used_bytes{labels[2]}" not in text
    assert f"gpudash_gpu_memory_used_bytes{labels[1]}" in text
    assert "Traceback" not in serving.end()
    assert serving.process.returncode == 0
    with sqlite3.connect(recording) as database:
        recorded = "select distinct used_bytes from gpu where device = ? and used_bytes is not null"
        for number, gpu in enumerate(gpus):
            assert database.execute(recorded, (gpu.uuid,)).fetchall() == [((number + 1) * GIB,)]


def test_nothing_listens_unless_it_is_asked_for(start: Start, home: Path) -> None:
    quiet = start_python(home, "-m", "gpudash", "monitor", "--no-record", "--json-lines", stderr=subprocess.DEVNULL)
    try:
        assert quiet.stdout is not None
        for _ in range(20):  # readings have been taken, so that everything runs
            assert quiet.stdout.readline()
        assert listening(quiet.pid) == []
        serving = start("monitor", "--no-record", "--serve", ":0")
        assert listening(serving.process.pid) == [("127.0.0.1", serving.port)]
    finally:
        quiet.kill()
        quiet.communicate()


def listening(pid: int) -> list[tuple[str, int]]:
    """Where a process listens for connections from the network."""
    found = psutil.Process(pid).net_connections("inet")
    return [(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN]


def test_another_machine_needs_token_and_tls(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    guards = ("--serve-cert", str(cert), "--serve-key", str(key))
    serving = start("monitor", "--no-record", "--serve", "0.0.0.0:0", *guards, env={"GPUDASH_SERVE_TOKEN": SECRET})
    assert listening(serving.process.pid) == [("0.0.0.0", serving.port)]
    context = ssl.create_default_context(cafile=str(cert))
    url = f"https://127.0.0.1:{serving.port}/metrics"
    right, wrong = (
        urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}) for token in (SECRET, "wrong")
    )
    with urllib.request.urlopen(right, timeout=PATIENCE_S, context=context) as answer:
        assert b"gpudash_build_info" in answer.read()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(wrong, timeout=PATIENCE_S, context=context)
    with refusal.value:
        assert refusal.value.code == 401
    assert SECRET not in serving.said + serving.end()


def test_a_mistake_is_one_sentence_and_leaves_no_recording(gpudash: Command, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = gpudash("monitor", "--serve", f":{port}")
    said = f"Port {port} of 127.0.0.1 is in use. Give another port: --serve ADDRESS:PORT, with port 0 any free one.\n"
    assert (outcome.code, outcome.stdout, outcome.stderr) == (2, "", said)
    assert not list(home.rglob("*.gpudash"))


def test_a_run_serves_its_steps_and_its_peaks_beside_what_was_predicted(start: Start) -> None:
    arguments = ("run", "training", "--no-record", "--device", "sim:0", "--simulate", "2GiB", "--steps", "100000")
    serving = start(*arguments, "--serve", ":0")
    labels = 'device="sim:0",run="1",workload="training"'
    serving.until(f"gpudash_run_loss{{{labels}}}", "gpudash_run_predicted_peak_bytes")
    text = serving.until_at_least(f"gpudash_run_step{{{labels}}}", 3)  # in the first the optimizer has no state yet
    assert value(text, f"gpudash_run_steps{{{labels}}}") == 100_000
    predicted, peak = (
        value(text, f'gpudash_run_{which}peak_bytes{{device="sim:0",kind="allocated",run="1",workload="training"}}')
        for which in ("predicted_", "")
    )
    assert predicted == pytest.approx(peak, rel=0.01)
    assert value(text, 'gpudash_gpu_info{gpu="sim:0",host="' + socket.gethostname() + _SIMULATED) == 1
    serving.end()


_SIMULATED = (
    '",index="0",product="Simulated GPU",shared_memory="false",simulated="true",torch_name="sim:0",uuid="SIM-0-2GiB"}'
)


def test_a_watched_program_is_served_and_does_not_learn_the_token(start: Start, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = f"import os, time; open({str(seen)!r}, 'w').write(repr(dict(os.environ))); time.sleep(600)"
    serving = start(
        *("watch", "--no-record", "--serve", ":0", "--", sys.executable, "-c", code),
        env={"GPUDASH_SERVE_TOKEN": SECRET},
    )
    deadline = time.monotonic() + PATIENCE_S
    while not seen.exists() or not seen.read_text(encoding="utf-8").endswith("}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert SECRET not in seen.read_text(encoding="utf-8")
    assert "GPUDASH_SOCKET" in seen.read_text(encoding="utf-8")
    text = serving.scrape(Authorization=f"Bearer {SECRET}")
    assert value(text, 'gpudash_run_status{device="cpu",run="1",status="running",workload="watch"}') == 1
    with pytest.raises(urllib.error.HTTPError) as refusal:
        serving.scrape()
    with refusal.value:
        assert refusal.value.code == 401
    serving.end()


WINDOW = """
import os, sys
from PySide6.QtCore import QTimer
from gpudash.ui.app import run

def begin(workspace):
    timer = QTimer(workspace)
    timer.timeout.connect(lambda: os.path.exists(sys.argv[1]) and workspace.window().close())
    timer.start(50)

code, joined = run(begin=begin)
sys.exit(code if joined else 9)
"""
"""A window that closes when a file is there."""


def test_a_window_serves_while_it_is_open_where_the_settings_say_so(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    closing = tmp_path / "closing"
    (home / "settings.toml").write_text('serve = "localhost:0"\nrecord = false\n', encoding="utf-8")
    window = start_python(
        home, "-c", WINDOW, str(closing), extra={"QT_QPA_PLATFORM": "offscreen"}, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (places := listening(window.pid)):
            assert window.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ((_, port),) = places
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=PATIENCE_S) as answer:
            assert b"gpudash_build_info" in answer.read()
        closing.touch()
        told = window.communicate(timeout=PATIENCE_S)[1]
        assert (window.returncode, "Traceback" in told) == (0, False), told
    finally:
        window.kill()
        window.communicate()


ATTACKS = (
    b"",
    b"GET /metr",
    b"\x16\x03\x01garbage" * 9,
    b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000,
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n",
)
"""What hostile clients send: nothing, half of it, garbage, too much, and requests whose answers they never read."""


def attack(serving: Serving, connections: int) -> None:
    """Open so many connections, send on each what an attack sends, ask once like Prometheus, and leave."""
    clients: list[socket.socket] = []
    try:
        for number in range(connections):
            clients.append(serving.client())
            try:
                clients[-1].sendall(ATTACKS[number % len(ATTACKS)])
            except OSError:
                continue  # the server was done with it first
        assert "gpudash_build_info" in serving.scrape()
    finally:
        for client in clients:
            client.close()


def test_a_thousand_hostile_clients_neither_stall_the_monitor_nor_leave_anything_behind(
    start: Start,
    stub: Stub,
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    recording = tmp_path / "r.gpudash"
    scenario = Scenario([StubGpu(0)])
    try:
        serving = start("monitor", "--serve", ":0", "--record", str(recording), env=stub(scenario))
        serving.until("gpudash_gpu_energy_joules_total", "gpudash_host_memory_used_bytes")
        attack(serving, 200)  # what is taken once, for good, is taken now
        process = psutil.Process(serving.process.pid)
        before = settled(process)
        attack(serving, 1000)
        after = settled(process)
        assert after[0] == before[0]
        assert after[1] - before[1] < LEAK_BYTES
        serving.end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with sqlite3.connect(recording) as database:
        for table in ("host", "gpu"):
            rows = database.execute(f"select time_s from {table} where used_bytes is not null order by time_s")
            times = [time_s for (time_s,) in rows]
            assert max(late - early for early, late in pairwise(times)) < GAP_S
            assert len(times) > 20


def settled(process: psutil.Process) -> tuple[int, int]:
    """Open descriptors and memory of a process, once it has let go of all its clients."""
    deadline = time.monotonic() + PATIENCE_S
    while [each for each in process.net_connections("tcp") if each.status != psutil.CONN_LISTEN]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return len(os.listdir(f"/proc/{process.pid}/fd")), process.memory_info().rss  # noqa: PTH208

"""A fleet through a real Prometheus server: three monitors that serve, and two other exporters' pages."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from gpudash.session.fleet import Fleet, FleetView
from gpudash.sources.prometheus.address import read_address
from gpudash.system.settings import Settings
from gpudash.units import MIB
from tests.end_to_end.conftest import Play, start_python
from tests.end_to_end.fleet_scenario import ADDRESS
from tests.nvml_stub.build import GIB, Scenario, StubGpu, variables
from tests.prometheus_server.exporter import exporter
from tests.prometheus_server.server import prometheus

pytestmark = pytest.mark.timeout(280)  # a scenario has PLAY_S in the window

PAGES = Path(__file__).parents[1] / "prometheus_server" / "pages"

MACHINES, GPUS_EACH = 3, 2

STEPS_S = [*(1.5 * n for n in range(40)), *(60.0 + 15.0 * n for n in range(20))]
"""When a stub's memory becomes another; the later ones are for a machine that takes minutes to come here."""

PATIENCE_S = 180.0

LATE_S, SCRAPE_S = 15.0, 1.5
"""How old a figure may be when it is scraped by a machine that is busy, and how long scraping it may take."""


class NamedGpu(StubGpu):
    """A GPU of one of several machines."""

    @property
    def uuid(self) -> str:
        return f"GPU-{self.name[-1]}{self.number:07x}-1111-2222-3333-444444444444"


def stub_gpu(machine: int, number: int) -> NamedGpu:
    """Its memory grows by steps, so that every figure says when it was read; the later machine is the fuller one."""
    base = (20 + 30 * machine + 10 * number) * GIB
    steps = [(since, base + n * 7 * MIB) for n, since in enumerate(STEPS_S)]
    return NamedGpu(number, name=f"NVIDIA H200 of machine {machine}", used=steps)


@dataclass
class Monitor:
    """A ``gpudash monitor`` that serves and records."""

    process: subprocess.Popen[str]
    recording: Path
    address: str = ""


@pytest.fixture(scope="module")
def monitors(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Monitor]]:
    """Three of them on the stand-in driver, each with two GPUs of its own."""
    folder = tmp_path_factory.mktemp("monitors")
    found = []
    for machine in range(MACHINES):
        played = folder / f"scenario{machine}"
        Scenario(gpus=[stub_gpu(machine, number) for number in range(GPUS_EACH)]).begin_now().write(played)
        recording = folder / f"machine{machine}.gpudash"
        command = ("-m", "gpudash", "monitor", "--serve", "127.0.0.1:0", "--record", str(recording))
        process = start_python(folder, *command, extra=variables(driver, played), stdout=subprocess.DEVNULL)
        found.append(Monitor(process, recording))
    try:
        for monitor in found:
            monitor.address = _announced(monitor.process)
        yield found
    finally:
        for monitor in found:
            monitor.process.send_signal(signal.SIGINT)
        for monitor in found:
            monitor.process.communicate(timeout=60)


def _announced(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"Serving at http://([\d.:]+)/metrics", line)
        if found is not None:
            return found[1]
    pytest.fail("the monitor ended before it served")


@pytest.fixture(scope="module")
def server(monitors: list[Monitor], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus server that scrapes the monitors and two other exporters once a second."""
    with ExitStack() as stack:
        dcgm = stack.enter_context(exporter((PAGES / "dcgm-exporter.txt").read_text()))
        smi = stack.enter_context(exporter((PAGES / "nvidia_gpu_exporter.txt").read_text()))
        targets = {"gpudash": [m.address for m in monitors], "dcgm": [dcgm.address], "smi": [smi.address]}
        yield stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), targets))


OTHERS = 3
"""GPUs of the two other exporters' pages."""


@pytest.fixture
def fleet(server: str) -> Iterator[Fleet]:
    """A fleet that has seen every GPU."""
    found = Fleet(read_address(server), settings=Settings())
    until(lambda: found.poll() > 0 and len(found.gpus()) == MACHINES * GPUS_EACH + OTHERS)
    yield found
    assert found.close()


def until(true: Callable[[], bool]) -> None:
    """Ask again and again until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.1)


def recorded(monitor: Monitor, uuid: str) -> list[tuple[float, int]]:
    """Wall-clock time and used memory of every reading of a GPU."""
    with sqlite3.connect(f"file:{monitor.recording}?mode=ro", uri=True) as database:
        query = "select value from meta where key = 'wall_clock_origin'"
        began_s = datetime.fromisoformat(database.execute(query).fetchone()[0]).timestamp()
        query = "select time_s, used_bytes from gpu where device = ? and used_bytes is not null order by time_s"
        return [(began_s + time_s, used) for time_s, used in database.execute(query, (uuid,))]


def shown(view: FleetView) -> list[tuple[float, int]]:
    """Wall-clock time and used memory of every scrape that a view shows."""
    with view.store.lock:
        series = view.store.series("gpu", "used_bytes", view.gpus[0].uuid)
        assert series is not None
        times, values = series.window(*view.extent_s, 4096)
    return [(view.began_wall_s + t, int(v)) for t, v in zip(times, values, strict=True) if v == v]


def test_every_gpu_is_shown_once_fullest_first_whoever_exports_it(fleet: Fleet) -> None:
    gpus = fleet.gpus()
    assert fleet.problem is None and fleet.server_version.startswith("2.")
    fullness = [gpu.fullness for gpu in gpus]
    assert fullness == sorted(fullness, reverse=True) and len({gpu.key for gpu in gpus}) == len(gpus)
    assert [gpu.exporter for gpu in gpus].count("gpudash") == MACHINES * GPUS_EACH
    assert gpus[0].name == "node7 GPU 0" and gpus[0].exporter == "dcgm"  # 98 % of 40 GiB
    own = [gpu for gpu in gpus if gpu.exporter == "gpudash"]
    assert [(gpu.product, gpu.index) for gpu in own] == [
        (f"NVIDIA H200 of machine {machine}", number) for machine in (2, 1, 0) for number in (1, 0)
    ]
    assert len({gpu.host for gpu in own}) == MACHINES  # one machine here: they go by the addresses they are scraped at
    assert all(
        gpu.total_bytes == 141 * GIB and gpu.values["driver_reserved_bytes"] == 600 * MIB and not gpu.stale
        for gpu in own
    )
    assert [warning.text for warning in fleet.warnings()][:1] == [
        "node7 GPU 0 is 98 % full: 39.0 of 40.0 GiB, 0.61 of it the driver's own."
    ]


def test_what_the_fleet_shows_equals_what_the_monitors_recorded(fleet: Fleet, monitors: list[Monitor]) -> None:
    keys = {gpu.uuid: gpu.key for gpu in fleet.gpus()}
    for machine, monitor in enumerate(monitors):
        for number in range(GPUS_EACH):
            uuid = stub_gpu(machine, number).uuid
            scraped: list[tuple[float, int]] = []

            def enough(uuid: str = uuid, scraped: list[tuple[float, int]] = scraped) -> bool:
                with closing(fleet.view(keys[uuid], fleet.now_s() - 300, fleet.now_s(), 1000)) as view:
                    assert view.settle(60) and not view.notices
                    scraped[:] = shown(view)
                return len({used for _time, used in scraped}) >= 3

            until(enough)
            until(lambda uuid=uuid, last=scraped[-1][0], m=monitor: recorded(m, uuid)[-1][0] > last)
            readings = recorded(monitor, uuid)
            for time_s, used in scraped:
                near = {value for at, value in readings if time_s - LATE_S <= at <= time_s + SCRAPE_S}
                assert used in near, (time_s, used, sorted(near))
            order = [used for _time, used in scraped]
            assert order == sorted(order)


def test_the_window_opens_on_the_fleet_and_on_one_gpus_past(
    fleet: Fleet, server: str, play: Play, tmp_path: Path
) -> None:
    seen = play("fleet", {ADDRESS: f"prometheus:{server}", "FLEET_GPUS": str(len(fleet.gpus()))})
    assert {uuid for uuid, _product, _total in seen["gpus"]} == {gpu.uuid for gpu in fleet.gpus()}
    assert seen["first"] == fleet.gpus()[0].key
    assert seen["notices"] == [] and seen["samples"] > 3
    for name in ("overview", "past"):
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000

"""A run's own process counts as ours: in the host's memory and CPU time, and among the processes of a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.sources.host import HostReader
from gpudash.sources.monitor import Monitor
from gpudash.sources.processes import read_process

pytestmark = pytest.mark.process

HELD = 64 * 2**20
SCRIPT = f"held = b'x' * {HELD}; print('held', flush=True); input()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that holds memory until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.communicate("\n")


def process_bytes(reader: HostReader, now_s: float) -> int:
    (sample,) = reader.read(now_s)
    found = sample.values["process_bytes"]
    assert isinstance(found, int)
    return found


def test_its_memory_is_added_to_ours_while_it_is_adopted(child: subprocess.Popen[str]) -> None:
    reader = HostReader()
    before = process_bytes(reader, 0.0)
    reader.hosted = child.pid
    assert process_bytes(reader, 0.1) - before > HELD // 2
    reader.hosted = None
    assert process_bytes(reader, 0.2) - before < HELD // 2
    reader.close()


def test_one_that_is_gone_adds_nothing(child: subprocess.Popen[str]) -> None:
    reader = HostReader()
    before = process_bytes(reader, 0.0)
    child.kill()
    child.wait(10)
    reader.hosted = child.pid
    assert read_process(child.pid) is None
    assert abs(process_bytes(reader, 0.1) - before) < HELD // 2
    reader.close()


def test_no_cpu_share_is_made_across_the_moment_it_comes_or_goes(child: subprocess.Popen[str]) -> None:
    reader = HostReader()
    reader.read(0.0)
    reader.hosted = child.pid
    (came,) = reader.read(100.0)
    (stays,) = reader.read(200.0)
    reader.hosted = None
    (gone,) = reader.read(300.0)
    shares = ["process_cpu_utilisation" in sample.values for sample in (came, stays, gone)]
    assert shares == [False, True, False]
    reader.close()


def test_a_gpus_readings_count_it_at_once(tmp_path: Path) -> None:
    reader = HostReader()
    monitor = Monitor(lambda _record: None, lambda: 0.0, host=reader, root=tmp_path)
    before = monitor._family()
    monitor.adopt(4711)
    assert monitor._family() == before | {4711}
    monitor.adopt(None)
    assert monitor._family() == before
    assert monitor.stop()

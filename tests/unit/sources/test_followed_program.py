"""A watched program's processes are shown in place of ours."""

from __future__ import annotations

import os

from gpudash.sources.monitor import Monitor
from gpudash.telemetry.records import Record


def test_its_memory_stands_in_place_of_ours_and_its_processes_are_listed() -> None:
    told: list[Record] = []
    monitor = Monitor(told.append, lambda: 1.0)
    (own,) = monitor._host.read(0.0)
    parent = os.getppid()
    monitor.follow(lambda: {parent: 5, 999_999_999: 7})
    (watched,) = monitor._host.read(0.1)
    assert watched.values["process_bytes"] == 12
    assert {parent, os.getpid()} <= monitor._family()
    monitor._processes.read(0.0)
    assert parent in {sample.values["pid"] for sample in monitor._processes.read(0.1)}
    monitor.follow(None)
    (again,) = monitor._host.read(0.2)
    assert again.values["process_bytes"] > 2**20 and own.values["process_bytes"] > 2**20
    monitor.stop()

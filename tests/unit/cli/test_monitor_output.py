"""What ``gpudash monitor`` hands to programs: lines in order of time, and figures of what was read."""

from __future__ import annotations

import json

import pytest

from gpudash.cli.terminal.monitoring import JsonLines, memory_text
from gpudash.session.live.session import metrics
from gpudash.telemetry.records import Sample, State
from gpudash.telemetry.store import Store
from gpudash.units import GIB


def test_lines_are_in_order_of_time_though_a_slow_reading_comes_later(capfd: pytest.CaptureFixture[str]) -> None:
    lines = JsonLines()
    for time_s in (0.10, 0.20, 0.15, 0.30, 0.05):
        lines.put(Sample(time_s, "host", None, {"used_bytes": 1}))
    assert lines.close(10.0)
    told = [json.loads(line)["time_s"] for line in capfd.readouterr().out.splitlines()]
    assert told == [0.05, 0.10, 0.15, 0.20, 0.30]


def test_figures_leave_gaps_out_and_say_why_the_newest_reading_is_missing() -> None:
    store = Store()
    for time_s, used in ((0.0, 30), (1.0, 10), (2.0, 20)):
        store.apply(Sample(time_s, "gpu", "GPU-1", {"used_bytes": used, "power_w": 50.0}))
        store.apply(Sample(time_s, "host", None, {"used_bytes": 7}))
    store.apply(Sample(3.0, "gpu", "GPU-1", {"used_bytes": 40, "power_w": None}, {"power_w": State.STALE}))
    store.apply(Sample(3.0, "gpu", "GPU-1", {"no_such_ratio": None}, {"no_such_ratio": State.NOT_SUPPORTED}))
    told = metrics(store, "GPU-1")
    assert told["used_bytes"] == {"last": 40, "min": 10.0, "max": 40.0, "mean": 25.0, "state": "ok"}
    assert told["power_w"] == {"last": None, "min": 50.0, "max": 50.0, "mean": 50.0, "state": "stale"}
    assert "no_such_ratio" not in told, "never read"
    assert metrics(store, None)["used_bytes"]["mean"] == 7.0


def test_the_tables_memory_is_what_is_not_free_as_in_the_overview_of_machines() -> None:
    store = Store()
    values = {"used_bytes": 2 * GIB, "total_bytes": 40 * GIB, "driver_reserved_bytes": GIB // 2}
    store.apply(Sample(1.0, "gpu", "MIG-1", values))
    assert memory_text(store, "gpu", "MIG-1") == "2.50 of 40.0 GiB"

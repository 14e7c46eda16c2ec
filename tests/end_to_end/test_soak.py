"""Watching costs what its first minutes cost: of a quarter of an hour, with GPUDASH_SOAK_TICKS=72000 of an hour."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gpudash.units import MIB
from tests.end_to_end.conftest import Stub, environment
from tests.end_to_end.soak import TICKS_A_REFRESH
from tests.nvml_stub.build import Scenario, StubGpu
from tests.programs import told_by

pytestmark = pytest.mark.long

TICKS = int(os.environ.get("GPUDASH_SOAK_TICKS", "18000"))
LEAST_LEAK = 64
"""Bytes a tick; what Python keeps of one object of every tick is more."""

MOST_GROWTH = 2 * MIB
"""After the first six minutes, however long it goes on, beside what the curves take."""


@pytest.mark.thorough
@pytest.mark.timeout(660)
def test_thousands_of_ticks_and_refreshes_hold_on_to_nothing(home: Path, tmp_path: Path, stub: Stub) -> None:
    recording = tmp_path / "long.gpudash"
    cost = told_by(
        "end_to_end.soak",
        str(recording),
        str(TICKS),
        environment={**environment(home), **stub(Scenario([StubGpu(0)])), "QT_QPA_PLATFORM": "offscreen"},
        patience_s=600,  # it counts what is held, not how long that takes
    )
    _growing, first, *later = cost["marks"]  # until the second, curves leave memory behind as they move to more
    assert len(later) >= 3
    assert cost["refreshes"] >= int(TICKS / TICKS_A_REFRESH) - 1
    assert cost["misuse"] == 0
    for mark in later:
        for name in ("threads", "descriptors", "handles", "objects"):
            assert mark[name] == first[name], (name, cost["marks"])
    ticks = later[-1]["ticks"] - first["ticks"]
    assert later[-1]["rss"] - first["rss"] < min(MOST_GROWTH, LEAST_LEAK * ticks), cost["marks"]
    with sqlite3.connect(recording) as database:
        assert database.execute("select count(*) from host").fetchone() == (TICKS,)

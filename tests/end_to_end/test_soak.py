"""An hour of watching costs what its first minutes cost."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpudash.units import MIB
from tests.end_to_end.conftest import environment
from tests.end_to_end.soak import REFRESHES, TICKS
from tests.nvml_stub.build import Scenario, StubGpu, build, compiler
from tests.nvml_stub.build import environment as stub_environment


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_72000_ticks_and_20000_refreshes_hold_on_to_nothing(home: Path, tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("the stand-in driver needs a C compiler")
    library = build(tmp_path / "nvml")
    Scenario([StubGpu(0)]).write(tmp_path / "scenario")
    variables = {**stub_environment(library, tmp_path / "scenario"), "QT_QPA_PLATFORM": "offscreen"}
    recording = tmp_path / "hour.gpudash"
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.soak", str(recording)],
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        timeout=600,  # it counts what is held, not how long that takes
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    first, *later = cost["marks"]
    assert cost["refreshes"] >= REFRESHES - 1
    assert cost["misuse"] == 0
    for mark in later:
        assert mark["rss"] - first["rss"] < 2 * MIB, cost["marks"]
        for name in ("threads", "descriptors", "handles", "objects"):
            assert mark[name] == first[name], (name, cost["marks"])
    with sqlite3.connect(recording) as database:
        assert database.execute("select count(*) from host").fetchone() == (TICKS,)

"""A prediction under a cap on what torch may reserve."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpudash.devices.names import Simulation
from gpudash.session.predicting import estimates as session_estimates
from gpudash.session.predicting import estimator
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.specs import TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB
from tests.unit.session.conftest import Make
from tests.unit.session.test_estimates import ECHO


@pytest.mark.parametrize(("cap", "allowed"), [(MemoryCap(size=GIB), GIB), (MemoryCap(share=0.5), 4 * GIB)])
def test_the_process_is_told_of_no_more_room_than_the_cap_leaves_beside_the_context(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cap: MemoryCap, allowed: int
) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(estimator, "COMMAND", (sys.executable, "-I", str(script)))
    monkeypatch.setattr(session_estimates, "OWN_CODE_COMMAND", (sys.executable, "-I", str(script)))
    estimates = make(simulation=Simulation((8 * GIB, 2 * GIB))).session.estimates
    for ask in (
        lambda: estimates.ask(TrainingSpec(), "sim:0", memory_cap=cap),
        lambda: estimates.ask_callable("a:b", 3, "sim:0", memory_cap=cap),
    ):
        ask()
        answer = estimates.wait(30.0)
        assert answer is not None and answer.estimate is not None
        told = json.loads(answer.estimate.method)
        assert told["target"]["free_bytes"] == allowed + CONTEXT_BYTES
        others = {target["device"]: target["free_bytes"] for target in told["elsewhere"]}
        assert others["sim:1"] == GIB + CONTEXT_BYTES
        assert others["cpu"] == estimates.target("cpu").free_bytes


@pytest.mark.parametrize(("device", "words"), [("cpu", "reserves on a GPU only"), ("sim:0", "sim:0 has 8.00 GiB")])
def test_a_cap_that_a_device_cannot_bear_is_refused(make: Make, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(simulation=Simulation((8 * GIB,))).session.estimates.ask(
            TrainingSpec(), device, memory_cap=MemoryCap(size=9 * GIB)
        )

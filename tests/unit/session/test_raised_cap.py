"""A prediction under a cap on what torch may reserve."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpudash.devices import Simulation
from gpudash.memory.estimate import Alternative, Estimate, Target
from gpudash.session import estimator
from gpudash.session.raised_cap import with_raised_cap
from gpudash.simulator.card import CONTEXT_BYTES
from gpudash.specs import TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import Make
from tests.unit.session.test_estimates import ECHO

LARGER = Alternative("a card with 16.0 GiB", fits=True)
SMALLER = Alternative("batch 4", {"batch": 4}, fits=True)
SHORT = Estimate(
    "training", "sim:0", 3 * GIB, 3 * GIB + MIB // 2, fits=False, margin_bytes=MIB, alternatives=(SMALLER, LARGER)
)
CARD = Target("sim:0", 8 * GIB, 7 * GIB, CONTEXT_BYTES)


@pytest.mark.parametrize("cap", [MemoryCap(size=2 * GIB), MemoryCap(share=0.25)])
def test_a_higher_cap_is_offered_in_place_of_a_larger_card(cap: MemoryCap) -> None:
    raised, *others = with_raised_cap(SHORT, CARD, cap).alternatives
    assert raised == Alternative("a memory cap of 3.00 GiB", peak_reserved_bytes=SHORT.peak_reserved_bytes, fits=True)
    assert others == [SMALLER]


def test_no_cap_is_offered_that_is_above_what_is_free() -> None:
    found = with_raised_cap(SHORT, replace(CARD, free_bytes=3 * GIB), MemoryCap(size=2 * GIB))
    assert found.alternatives == (SMALLER,)


def test_a_cap_that_is_not_what_is_short_changes_nothing() -> None:
    assert with_raised_cap(SHORT, CARD, MemoryCap(size=4 * GIB)) is SHORT
    fitting = replace(SHORT, fits=True)
    assert with_raised_cap(fitting, CARD, MemoryCap(size=2 * GIB)) is fitting


@pytest.mark.parametrize(("cap", "allowed"), [(MemoryCap(size=GIB), GIB), (MemoryCap(share=0.5), 4 * GIB)])
def test_the_process_is_told_of_no_more_room_than_the_cap_leaves_beside_the_context(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cap: MemoryCap, allowed: int
) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(estimator, "COMMAND", (sys.executable, "-I", str(script)))
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

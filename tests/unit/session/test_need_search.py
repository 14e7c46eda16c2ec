"""The search for a remedy that works, over reruns that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import MemoryState, RefusedRequest
from gpudash.memory.predicting.estimate import Target
from gpudash.session.watching.need import finding
from gpudash.session.watching.need.failed_run import FailedRun, RemedyFailsError
from gpudash.session.watching.need.finding import TRIALS_S, NeedSearch
from gpudash.session.watching.need.numberless_run import FullCard
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import GIB

NEED = Need(2 * GIB, 2 * GIB, GIB, 2 * GIB, steps=3, is_whole=True, seconds=10.0)


class Rerun:
    """A rerun that takes half of the time for trials, and with which no remedy does."""

    is_requested = False
    limit_s = 20.0
    seconds = TRIALS_S / 2
    waited_s = 0.0
    cards = ()
    tried: list[Remedy]

    def __init__(self, *_request: Any, remedy: Remedy | None = None, requested: bool = False) -> None:
        self._remedy = remedy

    def find(self) -> Need:
        if self._remedy is None:
            return NEED
        self.tried.append(self._remedy)
        raise RemedyFailsError(self._remedy)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Remedy]:
    """Remedies that a rerun has tried."""
    monkeypatch.setattr(finding, "NumberlessRun", Rerun)
    Rerun.tried = []
    return Rerun.tried


def out_of_memory() -> Explanation:
    request = RefusedRequest(GIB, GIB)
    state = MemoryState(device="cuda:0", capacity=GIB, device_free=0, reserved=GIB, request=request)
    return explain(state).with_remedies(
        tuple(Remedy(f"batch {size}", command=("python", "train.py", f"--batch={size}")) for size in (8, 4, 2, 1))
    )


def search(notes: list[str], *, find_need: bool | None = None) -> NeedSearch:
    return NeedSearch(
        WatchRequest(("python", "train.py"), find_need=find_need),
        {},
        {},
        FailedRun(seconds=30.0, step=2, torch="2.13.0"),
        FullCard(Target("cuda:0", "", GIB, GIB), 0),
        notes.append,
    )


def test_remedies_are_tried_for_some_minutes_and_the_others_where_the_user_asks_for_it(tried: list[Remedy]) -> None:
    notes: list[str] = []
    found = search(notes).explained(out_of_memory())
    assert [remedy.change for remedy in tried] == ["batch 8", "batch 4"]
    assert notes[-1] == "Remedies were tried for 5 min 00 s; --find-need tries the others, too."
    assert found.need == NEED


def test_all_remedies_are_tried_where_the_user_asks_for_it(tried: list[Remedy]) -> None:
    search([], find_need=True).explained(out_of_memory())
    assert [remedy.change for remedy in tried] == ["batch 8", "batch 4", "batch 2", "batch 1"]


def test_what_a_rerun_waits_for_processors_that_others_have_is_not_taken_from_the_time_for_trials(
    tried: list[Remedy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rerun, "waited_s", TRIALS_S / 4)
    search([]).explained(out_of_memory())
    assert [remedy.change for remedy in tried] == ["batch 8", "batch 4", "batch 2", "batch 1"]

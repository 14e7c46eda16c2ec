"""The search for a remedy that works, over reruns that are made up."""

from __future__ import annotations

import re
from array import array
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import MemoryState, RefusedRequest
from gpudash.memory.explaining.whole_need import NUMBERLESS, CardRequests, room_of
from gpudash.memory.predicting.estimate import Target
from gpudash.memory.predicting.fit import peaks
from gpudash.session.watching.need import finding
from gpudash.session.watching.need.failed_run import FailedRun, RemedyFailsError
from gpudash.session.watching.need.finding import TRIALS_S, NeedSearch
from gpudash.session.watching.need.numberless_run import FullCard
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import GIB, MIB

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


def test_the_time_that_a_rerun_may_take_counts_down_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = search([])
    doing: list[str] = []

    class Watched(Rerun):
        def find(self) -> Need:
            for self.seconds, self.waited_s in ((0.0, 0.0), (5.0, 0.0), (12.0, 4.0), (60.0, 4.0)):
                doing.append(asked.doing)
            raise RemedyFailsError(Remedy("none"))

    monkeypatch.setattr(finding, "NumberlessRun", Watched)
    with suppress(RemedyFailsError):
        asked.explained(out_of_memory())
    left = [re.search(r"this try for up to (\d+) s more", text) for text in doing]
    assert [match and int(match[1]) for match in left] == [20, 15, 12, None]
    assert "12.0 s so far" in doing[2] and "1 min 00 s so far" in doing[3]
    assert "the processors are busy" in doing[-1] and asked.doing == ""


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


SAMPLE = 5 * MIB
"""Bytes for each sample of a batch."""


class BatchRerun(Rerun):
    """A rerun of a program that has a batch of 512, which its diff makes smaller."""

    seconds = 1.0
    waited_s = 0.0
    weights = 100 * MIB

    def __init__(self, *request: Any, remedy: Remedy | None = None, requested: bool = False) -> None:
        super().__init__(*request, remedy=remedy, requested=requested)
        size = 512 if remedy is None else int(remedy.patch.rpartition("+batch_size = ")[2].split()[0])
        sizes = [self.weights, size * SAMPLE]
        trace = Trace(array("q", [1, 2, -2]), array("q", sizes), [WEIGHTS, ACTIVATIONS])
        most = peaks(trace)
        self.cards = (CardRequests(0, trace, AllocatorSettings(), 0, 0, most.allocated, most.reserved, 1.0),)
        self._found: Explanation = request[3]

    def find(self) -> Need:
        (card,) = self.cards
        need = replace(
            NEED, pytorch_bytes=card.room(), peak_allocated_bytes=card.peak_allocated_bytes, found_by=NUMBERLESS
        )
        if self._remedy is None:
            return need
        self.tried.append(self._remedy)
        if not card.fits(self._found):
            raise RemedyFailsError(self._remedy, need)
        return need


def halved(folder: Path, size: int) -> Remedy:
    """What the explanation offers of a script with a batch of 512."""
    (folder / "train.py").write_text("batch_size = 512\n")
    patch = f"--- train.py\n+++ train.py\n@@ -1 +1 @@\n-batch_size = 512\n+batch_size = {size}\n"
    change = (
        f"train.py:1: a batch of {size} in place of 512, {512 // size} of them for each optimizer step to train alike"
    )
    return Remedy(change, patch=patch, verified_by="replay")


def of_script(folder: Path, size: int) -> Explanation:
    """What is found for a script that is offered a batch of this size."""
    found = out_of_memory().with_remedies((halved(folder, size),))
    request = WatchRequest(("python", "train.py"), folder)
    card = FullCard(Target("cuda:0", "", GIB, GIB), 0)
    return NeedSearch(request, {}, {}, FailedRun(30.0, 2, "2.13.0"), card, lambda _text: None).explained(found)


@pytest.mark.parametrize("size", [128, 256], ids=["the halved one fits", "it does not"])
def test_the_largest_batch_that_fits_is_found_beside_the_halved_one(
    tmp_path: Path, tried: list[Remedy], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(finding, "NumberlessRun", BatchRerun)
    found = of_script(tmp_path, size)
    edits = [remedy for remedy in found.remedies if remedy.patch]
    assert [remedy.fits for remedy in edits] == [True] * len(edits)
    assert len(edits) == (2 if size == 128 else 1)
    largest = edits[-1]
    assert largest.change == "train.py:1: a batch of 184 in place of 512"
    assert 184 * SAMPLE + BatchRerun.weights <= room_of(found) < 192 * SAMPLE + BatchRerun.weights
    assert largest.patch == tried[-1].patch and largest.verified_by == NUMBERLESS
    assert "the largest" in largest.note and largest.predicted_peak_bytes == NEED.peak_reserved_bytes // 2


def test_where_not_even_a_batch_of_one_fits_that_is_said(
    tmp_path: Path, tried: list[Remedy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "NumberlessRun", BatchRerun)
    monkeypatch.setattr(BatchRerun, "weights", GIB)
    found = of_script(tmp_path, 128)
    assert not any(remedy.patch for remedy in found.remedies)
    assert found.remedies_note.endswith("Even a batch of 1 does not fit (train.py:1).")
    assert "+batch_size = 1" in tried[-1].patch

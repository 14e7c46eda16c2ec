"""What a whole run needs, from what it asked of a card with room to spare."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from gpudash.memory.allocator.trace import TEMPORARY, Trace
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.explanation_text import failure_title, report
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest
from gpudash.memory.explaining.whole_need import (
    NUMBERLESS,
    CardRequests,
    need_of,
    need_text,
    room_of,
    variables_of,
    with_need,
    with_reruns_of,
    with_settings_replayed,
    with_tried,
    without_need,
)
from gpudash.memory.predicting.fit import run_on
from gpudash.telemetry.explanation import Explanation, Need, Remedy, explanation_from_json
from gpudash.units import GIB, MIB

BOUND = Remedy("at least 20 MiB for PyTorch", verified_by="replay")
SETTING = Remedy("expandable segments", allocator="expandable_segments:True", verified_by="replay")
UNTRIED = Remedy("half the batch: up to 4 MiB less at this moment")


def requests(**changed: Any) -> CardRequests:
    """100 MiB are held, 30 MiB come and go twice, then 40 MiB: what was cached is released where room is short."""
    written = {
        "index": 0,
        "events": [1, 2, -2, 3, -3, 4, -4],
        "sizes": [100 * MIB, 30 * MIB, 30 * MIB, 40 * MIB],
        "streams": [],
        "is_whole": True,
        "context_bytes": 300 * MIB,
        "others_bytes": 50 * MIB,
        "peak_allocated_bytes": 140 * MIB,
        "peak_reserved_bytes": 170 * MIB,
        "fraction": 1.0,
        "settings": "",
    }
    return CardRequests.from_json({**written, **changed}, addresses_fall=False)


def found_of(*remedies: Remedy) -> Explanation:
    request = RefusedRequest(GIB, GIB)
    found = explain(MemoryState(device="sim:0", capacity=GIB, device_free=0, reserved=GIB, request=request))
    return found.with_remedies(remedies, "The recording ends here.")


def need(asked: CardRequests, *, is_whole: bool = True) -> Need:
    return need_of(asked, steps=8, is_whole=is_whole, seconds=12.0)


def test_the_need_is_the_smallest_card_on_which_all_requests_are_served() -> None:
    asked = requests()
    found = need(asked)
    assert found.pytorch_bytes == 140 * MIB
    assert found.capacity_bytes == (140 + 300 + 50) * MIB
    assert asked.trace is not None
    assert run_on(asked.trace, found.pytorch_bytes).fits
    assert not run_on(asked.trace, found.pytorch_bytes - 2 * MIB).fits


def test_where_pytorch_may_have_a_part_of_the_card_alone_the_card_is_as_much_larger() -> None:
    found = need(requests(fraction=0.1))
    assert found.pytorch_bytes == 140 * MIB
    assert int(0.1 * found.capacity_bytes) >= 140 * MIB > int(0.1 * (found.capacity_bytes - 100))


@pytest.mark.parametrize(("changed", "is_whole"), [({"is_whole": False}, True), ({}, False)])
def test_of_a_part_of_the_requests_or_of_the_run_the_need_is_the_peak_with_room_to_spare(
    changed: dict[str, Any], is_whole: bool
) -> None:
    assert need(requests(**changed), is_whole=is_whole).pytorch_bytes == 170 * MIB


@pytest.mark.parametrize("changed", [{"events": None}, {"settings": "nonsense"}, {"index": "x"}])
def test_what_is_no_list_of_requests_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        requests(**changed)


def test_the_need_takes_the_place_of_the_bound_and_what_would_have_fitted_is_said() -> None:
    told = with_need(found_of(SETTING, BOUND, UNTRIED), need(requests()))
    setting, figure, untried = told.remedies
    assert (setting, untried) == (SETTING, UNTRIED)
    assert figure.change == "490 MiB of the card (140 MiB for PyTorch, and its context): a card with 4 GiB"
    assert (figure.fits, figure.verified_by) == (True, "rerun")
    assert told.remedies_note == "The same command ran to its end on a larger simulated GPU in 12.0 s."
    assert failure_title(told.remedies) == "This would have fit"
    assert explanation_from_json(told.to_json()) == told


@pytest.mark.parametrize(("setting", "does"), [("max_split_size_mb:20", True), ("expandable_segments:True", False)])
def test_whether_a_setting_of_the_allocator_does_is_known_by_a_replay_of_what_the_rerun_asked_for(
    setting: str, does: bool
) -> None:
    tight = full(100 * MIB, requested=50 * MIB)
    remedy = Remedy(setting, allocator=setting, flags=f"PYTORCH_CUDA_ALLOC_CONF={setting}", verified_by="replay")
    sizes = [100 * MIB, 60 * MIB] if does else [100 * MIB, 60 * MIB, 50 * MIB]
    told = with_settings_replayed(tight.with_remedies((remedy, UNTRIED), ""), [numberless(*sizes)])
    if not does:
        assert told.remedies == (UNTRIED,)
        return
    assert told.remedies[0] == replace(remedy, fits=True, predicted_peak_bytes=160 * MIB)
    # explained anew, it is still known
    assert with_reruns_of(tight.with_remedies((UNTRIED, remedy), ""), told).remedies == told.remedies


def test_the_need_of_some_steps_is_not_said_to_fit_the_whole_run() -> None:
    told = with_need(found_of(BOUND), need(requests(), is_whole=False))
    assert "520 MiB of the card (170 MiB for PyTorch, and its context), for 8 steps" in told.remedies[0].change
    assert told.remedies[0].fits is None
    assert failure_title(told.remedies) == "This request would have succeeded with"
    assert "what only comes later, such as an evaluation, is not in the figure" in "\n".join(report(told))


def test_where_it_was_not_found_the_bound_stays_and_a_sentence_says_why() -> None:
    told = without_need(found_of(BOUND), "What the whole run needs is not known: the search was stopped.")
    assert told.remedies == (BOUND,) and told.need is None
    assert told.remedies_note.endswith("What the whole run needs is not known: the search was stopped.")


def card(sizes: list[int], followed: int = 8) -> dict[str, Any]:
    """What a run without numbers answers of a card on which blocks of these sizes stay."""
    trace = Trace(array("q", range(1, len(sizes) + 1)), array("q", sizes), [TEMPORARY] * len(sizes), followed=followed)
    return {"index": 0, "trace": trace.to_json(), "fraction": 1.0}


def full(*live: int, requested: int, simulated: bool = True) -> Explanation:
    """A card of 500 MiB, 300 of them for the context, on which blocks were live when one was refused."""
    request = RefusedRequest(requested, requested)
    groups = [AllocationGroup(size, 1) for size in live]
    state = MemoryState(
        device="sim:0" if simulated else "cuda:0",
        capacity=500 * MIB,
        device_free=200 * MIB - sum(live),
        reserved=sum(live),
        context_bytes=300 * MIB,
        groups=groups,
        request=request,
        simulated=simulated,
    )
    return explain(state)


def numberless(*sizes: int) -> CardRequests:
    return CardRequests.of_answer(card(list(sizes)), "", context_bytes=300 * MIB, others_bytes=0)


def test_a_run_without_numbers_agrees_that_runs_out_at_the_same_request_with_as_much_in_use() -> None:
    found = full(100 * MIB, 60 * MIB, requested=50 * MIB)
    assert numberless(100 * MIB, 60 * MIB, 50 * MIB, 400 * MIB).agrees_with(found)
    assert not numberless(100 * MIB, 60 * MIB, 90 * MIB).agrees_with(found)  # another request
    assert not numberless(140 * MIB, 10 * MIB, 50 * MIB, 50 * MIB).agrees_with(found)  # less in use
    assert not numberless(100 * MIB, 60 * MIB).agrees_with(found)  # it fits


def test_of_a_real_card_the_bytes_in_use_decide_within_two_percent() -> None:
    found = full(100 * MIB, 60 * MIB, requested=50 * MIB, simulated=False)
    assert numberless(101 * MIB, 60 * MIB, 60 * MIB).agrees_with(found)
    assert not numberless(115 * MIB, 60 * MIB, 60 * MIB).agrees_with(found)


def test_the_need_of_a_run_without_numbers_is_that_of_its_requests_and_says_how_it_was_found() -> None:
    asked = numberless(100 * MIB, 60 * MIB, 50 * MIB)
    found = need_of(asked, steps=4, is_whole=True, seconds=3.0, found_by=NUMBERLESS)
    assert (found.pytorch_bytes, found.capacity_bytes) == (210 * MIB, 510 * MIB)
    told = with_need(full(100 * MIB, 60 * MIB, requested=50 * MIB), found)
    assert told.remedies_note.endswith("ran without numbers, on a GPU that is not there, to its end in 3.0 s.")
    assert told.remedies[0].verified_by == "rerun without numbers"
    part = replace(found, is_whole=False, remark="ended after step 4; what comes later was not run")
    assert "for 4 steps in 3.0 s: ended after step 4; what comes later was not run." in need_text(part)


def test_a_remedy_is_tried_under_the_cap_that_it_sets_and_not_under_the_one_of_before() -> None:
    found = replace(full(100 * MIB, requested=50 * MIB), allowed_bytes=120 * MIB)
    asked = numberless(100 * MIB, 50 * MIB)
    assert not asked.on(room_of(found)).fits
    assert asked.fits(found)
    assert not replace(asked, fraction=0.24).fits(found)


def test_a_peak_with_room_to_spare_is_not_shown_of_a_card_that_has_less() -> None:
    spare = replace(need(requests()), peak_reserved_bytes=32 * GIB)
    card = next(remedy for remedy in with_need(found_of(BOUND), spare).remedies if remedy.fits)
    assert card.predicted_peak_bytes == spare.pytorch_bytes
    found = found_of(SETTING)
    tried = with_tried(found, found.remedies[0], spare).remedies[0]
    assert tried.predicted_peak_bytes == room_of(found) < spare.peak_reserved_bytes


def test_a_remedy_that_sets_a_variable_gives_its_value_as_a_shell_has_it() -> None:
    assert variables_of(Remedy("x", flags="NAME='a:[1, 2]'")) == {"NAME": "a:[1, 2]"}
    assert variables_of(Remedy("x", flags="--batch 4")) == {}


def test_recordings_of_before_have_no_need() -> None:
    written = found_of(BOUND).to_json()
    del written["need"]
    assert explanation_from_json(written).need is None
    assert replace(found_of(BOUND), need=need(requests())).need is not None

"""What a recorded run would have done on another card: the answers are those of a run that was made there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings
from gpudash.memory.allocator.device_memory import GRANULE
from gpudash.memory.snapshot.history.model import DeviceSnapshot, TraceEntry
from gpudash.memory.snapshot.replay.placements import replay
from gpudash.memory.snapshot.replay.trace_program import Windows, compiled
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED, ReplayRun, Rerun
from gpudash.memory.snapshot.replay.what_if import WhatIf, WhatIfAnswer
from gpudash.units import GIB, KIB, MIB
from tests.unit.memory.snapshot.made import EMPTIES, Made, events

SIZES = st.sampled_from((512, 40 * KIB, MIB + 1, 3 * MIB, 9 * MIB + 5, 12 * MIB, 19 * MIB + 512 * KIB, 50 * MIB))
PROGRAM = st.lists(st.one_of(SIZES, st.integers(-1000, -1)), max_size=80)


def run(program: list[int], made: Made) -> tuple[bool, int | None]:
    """Run a program: sizes are allocated, negative numbers free a live block. Whether it passed, and how far."""
    live: list[int] = []
    calls = 0
    try:
        for number in program:
            if number > 0:
                live.append(made.malloc(number))
            elif live:
                made.free(live.pop(number % len(live)))
            calls += number > 0
    except AllocationRefused:
        return False, calls
    return True, None


@given(before=st.lists(SIZES, max_size=12), program=PROGRAM)
def test_where_age_decides_the_trace_shows_which_segments_were_there_first(
    before: list[int], program: list[int]
) -> None:
    made = Made(settings=AllocatorSettings(oldest_first=True))  # whose addresses grow: the first guess is all wrong
    for address in made.before(*before):
        made.free(address)
    run(program, made)
    if made.entries:
        found = replay(made.device())
        assert found.allocations_at_real_address == found.allocations
        again = WhatIf(made.device()).answer()
        assert again.peak_reserved_bytes == made.model.statistics()["reserved_bytes.all.peak"]


@given(program=PROGRAM, share=st.floats(0.3, 1.2))
def test_a_replay_on_another_card_ends_as_the_run_itself_there(program: list[int], share: float) -> None:
    wide, narrow = Made(), Made()
    run(program, wide)
    if not wide.entries:
        return
    peak = wide.model.statistics()["reserved_bytes.all.peak"]
    narrow = Made(capacity=max(1, int(peak * share)))
    fits, calls = run(program, narrow)
    answer = WhatIf(wide.device()).answer(narrow.model.memory.capacity)
    assert answer.fits is fits
    figures = narrow.model.statistics()
    assert answer.peak_reserved_bytes == figures["reserved_bytes.all.peak"]
    assert answer.peak_allocated_bytes == figures["allocated_bytes.all.peak"]
    if fits:
        assert answer.failed_at_event is None
        assert answer.retries == figures["num_alloc_retries"]
    else:
        requests = [number for number, entry in enumerate(wide.entries) if entry.action == "alloc"]
        assert calls is not None
        assert answer.failed_at_event == requests[calls]
        assert answer.requested_bytes == [number for number in program if number > 0][calls]


def trained(steps: int = 40, keeps: int = 0, before: int = 20 * MIB) -> DeviceSnapshot:
    made = Made()
    made.before(before)
    for _ in range(steps):
        made.step(16 * MIB, keeps)
    return made.device()


def whole(device: DeviceSnapshot, capacity: int) -> ReplayRun:
    """The replay of every single event, with nothing passed over."""
    program, _, _ = compiled(device)
    alone = Windows((0, len(program.operations)), (0,), (len(program.block_at),))
    return Rerun(replace(program, windows=alone), capacity, device.settings).run()


def figures(ran: ReplayRun) -> tuple[object, ...]:
    return (
        ran.fits,
        ran.failed_at,
        ran.requested,
        ran.retries,
        ran.peak_allocated,
        ran.peak_reserved,
        ran.final_allocated,
        ran.final_reserved,
    )


@pytest.mark.parametrize("keeps", [0, 64 * KIB, 3 * MIB])
def test_passing_over_what_repeats_changes_nothing(keeps: int) -> None:
    device = trained(keeps=keeps)
    peak = whole(device, UNLIMITED).peak_reserved
    for capacity in (UNLIMITED, peak, peak - GRANULE, peak * 9 // 10, peak * 3 // 4, peak // 2):
        assert figures(WhatIf(device).run(capacity)) == figures(whole(device, capacity)), capacity


def test_equal_steps_are_run_only_until_they_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    operations = Rerun._operations

    def counted(self: Rerun, begin: int, end: int) -> None:
        ran.append(end - begin)
        operations(self, begin, end)

    monkeypatch.setattr(Rerun, "_operations", counted)
    device = trained(steps=60)
    answers = WhatIf(device)
    answers.run(None)
    assert len(answers.program.windows) >= 50
    assert sum(ran) < len(answers.program.operations) / 4


def test_runs_on_smaller_cards_go_on_from_where_the_card_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.memory.snapshot.replay.trace_replay.APART", 16)
    device = trained(steps=60, keeps=3 * MIB)
    answers = WhatIf(device)
    peak = answers.run(None).peak_reserved
    ran: list[int] = []
    operations = Rerun._operations

    def counted(self: Rerun, begin: int, end: int) -> None:
        ran.append(end - begin)
        operations(self, begin, end)

    monkeypatch.setattr(Rerun, "_operations", counted)
    found = answers.run(peak - 2 * GRANULE)
    assert not found.fits
    assert 0 < sum(ran) < len(answers.program.operations) / 4
    monkeypatch.undo()
    assert figures(found) == figures(whole(device, peak - 2 * GRANULE))


def test_what_follows_from_an_earlier_answer_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = WhatIf(trained())
    peak = answers.run(None).peak_reserved
    monkeypatch.setattr("gpudash.memory.snapshot.replay.what_if.Rerun", None)
    for capacity in (peak, peak + 1, 80 * GIB):
        assert answers.answer(capacity).fits is True


@given(program=PROGRAM)
def test_the_smallest_capacity_is_enough_and_less_is_not(program: list[int]) -> None:
    made = Made()
    run(program, made)
    if not made.entries:
        return
    smallest = WhatIf(made.device()).smallest_capacity()
    assert WhatIf(made.device()).answer(smallest).fits
    if smallest > GRANULE:
        assert not WhatIf(made.device()).answer(smallest - GRANULE).fits


def test_answers_are_told_in_words() -> None:
    device = trained(steps=4, keeps=0)
    answers = WhatIf(device)
    assert answers.answer(8 * GIB).sentence == "8.00 GiB for PyTorch: fits, 90 MiB reserved at most."
    failed = answers.answer(40 * MIB)
    assert failed.failed_at_event is not None
    asked = "16 MiB asked beside 36 MiB in use."
    assert failed.sentence == f"40 MiB for PyTorch: fails at event {failed.failed_at_event}, {asked}"
    too_little = "too little for what was there before the recording began."
    assert answers.answer(10 * MIB).sentence == f"10 MiB for PyTorch: {too_little}"
    unlimited = answers.answer(None)
    assert unlimited.smallest_capacity == WhatIf(device).smallest_capacity()
    assert unlimited.sentence.endswith("on (a 4 GiB card, for example).")


def test_retries_are_counted_in_words() -> None:
    made = Made()
    for size in (30 * MIB, 40 * MIB, 50 * MIB):
        made.free(made.malloc(size))
    answers = WhatIf(made.device())
    assert answers.answer(80 * MIB).sentence == "80 MiB for PyTorch: fits after one retry, 70 MiB reserved at most."
    assert answers.answer(50 * MIB).sentence == "50 MiB for PyTorch: fits after 2 retries, 50 MiB reserved at most."


def test_settings_that_torch_refuses_are_refused_in_its_words() -> None:
    answer = WhatIf(trained(steps=1)).answer(GIB, "max_split_size_mb:1")
    assert answer.fits is None
    assert "max_split_size_mb must be at least" in answer.sentence
    assert (
        WhatIf(trained(steps=1)).answer(GIB, "nonsense").sentence.startswith("The allocator's settings cannot be read")
    )


def test_a_capacity_that_is_none_is_refused_in_words() -> None:
    for capacity in (0, -1, 2**60):
        assert WhatIf(trained(steps=1)).answer(capacity).sentence == "A capacity lies between 1 byte and 1 PiB."


def test_without_a_trace_nothing_can_be_replayed() -> None:
    answers = WhatIf(replace(trained(), trace=events([])))
    assert not answers.prepare()
    assert answers.answer(GIB).sentence == "The snapshot has no trace, so that nothing can be replayed."


def test_expandable_segments_are_replayed_from_what_was_there() -> None:
    answers = WhatIf(trained(keeps=3 * MIB))
    there = answers.answer(None, "expandable_segments:True")
    assert there.fits
    assert there.peak_allocated_bytes <= there.peak_reserved_bytes < 2 * there.peak_allocated_bytes


def test_a_share_of_the_card_is_asked_for_each_capacity_anew() -> None:
    answers = WhatIf(trained())
    peak = answers.run(None).peak_reserved
    half = "per_process_memory_fraction:0.5"
    assert answers.answer(2 * peak, half).fits
    assert not answers.answer(peak, half).fits


def test_preparing_ends_and_makes_the_usual_questions_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = WhatIf(trained())
    pieces = 0
    while answers.prepare():
        pieces += 1
        assert pieces < 40
    monkeypatch.setattr("gpudash.memory.snapshot.replay.what_if.Rerun", None)
    assert answers.answer(24 * GIB).fits
    assert answers.answer(None).smallest_capacity
    assert answers.answer(24 * GIB, "expandable_segments:True").fits


def test_an_emptied_cache_is_emptied_again() -> None:
    made = Made()
    made.free(made.malloc(50 * MIB))
    made.empty_cache()
    made.malloc(60 * MIB)
    assert made.stack is not EMPTIES
    answer = WhatIf(made.device()).answer(70 * MIB)
    assert (answer.fits, answer.retries, answer.peak_reserved_bytes) == (True, 0, 60 * MIB)


def test_a_request_that_was_refused_has_to_have_found_memory() -> None:
    made = Made(capacity=100 * MIB)
    made.until_full(16 * MIB, keeps=4 * MIB)
    device = made.device()
    refused = next(number for number, entry in enumerate(made.entries) if entry.action == "oom")
    assert WhatIf(device).answer(100 * MIB).failed_at_event == refused
    assert WhatIf(device).answer(200 * MIB).fits


def test_steps_on_other_streams_are_not_taken_for_the_same() -> None:
    made = Made()
    for number in range(40):
        held = [
            made.malloc(size, stream=number // 20) for size in (16 * MIB, 2 * MIB, 4 * MIB, 512, 6 * MIB, 8 * MIB, MIB)
        ]
        for address in held:
            made.free(address)
    answers = WhatIf(made.device())
    assert answers.run(None).peak_reserved == made.model.statistics()["reserved_bytes.all.peak"]


def test_private_pools_keep_to_themselves() -> None:
    made = Made()
    made.malloc(4 * MIB)
    made.model.malloc(4 * MIB, pool=(0, 1))
    made.malloc(4 * MIB)
    answer = WhatIf(made.device()).answer(None)
    assert answer.peak_reserved_bytes == made.model.reserved_bytes == 40 * MIB


def test_an_answer_survives_json() -> None:
    answer = WhatIf(trained(steps=2)).answer(30 * MIB)
    assert WhatIfAnswer.from_json({**answer.to_json(), "later": 1}) == answer
    with pytest.raises(ValueError, match="no answer"):
        WhatIfAnswer.from_json({})


@given(
    st.lists(
        st.tuples(st.sampled_from(("alloc", "free_requested", "free_completed", "oom")), st.integers(0, 3)), max_size=20
    )
)
def test_a_trace_that_contradicts_itself_is_replayed_as_far_as_it_goes(rows: list[tuple[str, int]]) -> None:
    trace = events(TraceEntry(action, 2**40 + 4096 * place, 512 * (place + 1), 0) for action, place in rows)
    device = DeviceSnapshot(0, (), trace, AllocatorSettings(), ())
    answer = WhatIf(device).answer(GIB)
    assert answer.sentence

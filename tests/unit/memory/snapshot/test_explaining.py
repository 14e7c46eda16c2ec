"""Explaining a snapshot: the cause in words, and remedies that a replay has proved."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.snapshot.explaining import ENDS_HERE, FROM_AN_EARLIER_STEP, CardLimits, card_limits, explain_history
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot, TraceEntry
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.memory.snapshot.sidecar import on_card
from gpudash.telemetry.explanation import explanation_from_json
from gpudash.units import GIB, MIB, format_bytes
from tests.unit.memory.snapshot.made import (
    BACKWARD,
    FORWARD,
    KEPT,
    OPTIMIZER,
    STACKS,
    TRAIN,
    WEIGHTS,
    Made,
    events,
    explained,
)

LINES = {
    41: "loss = model(batch)",
    44: "losses.append(loss)",
}


def source(_file: str, line: int) -> str:
    return LINES.get(line, "")


def leaking(keeps: int = 4 * MIB, capacity: int = 200 * MIB) -> Made:
    made = Made(capacity=capacity)
    made.malloc(30 * MIB, WEIGHTS)
    made.until_full(16 * MIB, keeps)
    return made


def test_the_hook_that_keeps_what_a_line_allocates_is_named_beside_it() -> None:
    program = {
        30: "def remember(name):",
        31: "    def hook(module, inputs, output):",
        32: "        seen.append(output)",
        33: "    return hook",
        34: "model.register_forward_hook(remember('head'))",
        40: "def step(x):",
        44: "    out = model(x)",
    }
    snapshot = leaking().snapshot()
    found = explained(snapshot, source=lambda _file, line: program.get(line, ""))
    says = "train.py:32 (seen.append(output)), a hook, keeps 4 MiB alive per step, allocated at train.py:44: "
    assert found.headline.startswith(says)
    assert found.remedies[0].change.startswith("train.py:32: write seen.append(output.detach().cpu())")
    assert found.remedies[0].verified_by == "replay"
    history = History(snapshot.devices[0], snapshot.annotations)
    seen = on_card(found, history, history.state(int(history.ooms[-1])))
    assert seen.headline.startswith(says)


def test_a_leak_is_named_by_its_line_and_letting_go_of_it_is_proved_by_replay() -> None:
    found = explained(leaking().snapshot(), source=source)
    assert found.verdict == "leak"
    assert found.headline.startswith("train.py:44 (losses.append(loss)) keeps 4 MiB alive per step: ")
    assert found.requested_bytes is not None
    assert found.missing_bytes > 0
    remedy = found.remedies[0]
    assert remedy.change.startswith("train.py:44: write losses.append(loss.detach().cpu()), not losses.append(loss): ")
    assert remedy.verified_by == "replay"
    assert remedy.fits is True
    assert remedy.predicted_peak_bytes is not None
    assert remedy.predicted_peak_bytes < 120 * MIB
    before = format_bytes(found.refused_total_bytes)
    assert remedy.change.endswith(f" at the peak instead of {before}"), "as beside the change in the window"
    assert found.peak_without_change.startswith(before)
    row = next(row for row in report(found) if remedy.change in row)
    assert row.count(" MiB at the peak") == 1 and "peak " not in row.partition(remedy.change)[2], "it is said once"
    assert found.remedies_note.startswith("train.py:44 (losses.append(loss)) keeps loss itself, 4 MiB of every step: ")
    assert not any("a card" in other.change for other in found.remedies)


EVALUATING = {
    40: "for step, batch in enumerate(loader):",
    41: "    val = model(x_val)",
    44: "    loss = criterion(model(batch))",
    45: "    loss.backward()",
    46: "    losses.append(loss)",
    47: "    if step % 5 == 0:",
    48: "        cache[step] = val",
}
"""A training that keeps its losses, and the results of every fifth step."""


def evaluating(*, keeps: int, steps: int = 40) -> Made:
    """So many steps, of which each keeps some bytes and every fifth 20 MiB, and one whose request is refused."""
    made = Made(capacity=600 * MIB)
    made.malloc(30 * MIB, WEIGHTS)
    for step in range(steps):
        if step % 5 == 0:
            made.malloc(20 * MIB, FORWARD)
        made.step(16 * MIB, keeps)
    with suppress(AllocationRefused):
        made.malloc(500 * MIB, BACKWARD)
    return made


def test_what_every_fifth_step_keeps_is_a_leak_with_its_line_and_its_replacement() -> None:
    found = explained(evaluating(keeps=0).snapshot(), source=lambda _file, line: EVALUATING.get(line, ""))
    assert found.verdict == "leak"
    assert found.headline.startswith(
        "train.py:48 (cache[step] = val) keeps 20 MiB alive every 5 steps, allocated at train.py:41: "
    )
    assert found.growing[0].bytes_per_step == 4 * MIB
    change = found.remedies[0].change
    assert change.startswith("train.py:48: write cache[step] = val.detach().cpu(), not cache[step] = val: ")
    assert "keeps val itself, 20 MiB of every 5 steps: " in found.remedies_note
    assert explanation_from_json(found.to_json()) == found


def test_a_leak_of_every_step_and_one_of_every_fifth_are_told_at_once_with_one_patch() -> None:
    found = explained(evaluating(keeps=2 * MIB).snapshot(), source=lambda _file, line: EVALUATING.get(line, ""))
    assert [(growth.line, growth.every) for growth in found.growing] == [(41, "every 5 steps"), (44, "every step")]
    remedy = found.remedies[0]
    assert remedy.change.startswith(
        "train.py:46: write losses.append(loss.detach().cpu()), not losses.append(loss); "
        "train.py:48: write cache[step] = val.detach().cpu(), not cache[step] = val: "
    )
    assert remedy.verified_by == "replay"
    added = [line for line in remedy.patch.splitlines() if line.startswith("+ ")]
    assert added == ["+    losses.append(loss.detach().cpu())", "+        cache[step] = val.detach().cpu()"]
    assert [rewrite.line for rewrite in remedy.rewrites] == [46, 48]


def test_three_times_are_enough_for_what_the_source_shows_to_be_kept_next_to_a_certain_leak() -> None:
    found = explained(evaluating(keeps=2 * MIB, steps=14).snapshot(), source=lambda _f, line: EVALUATING.get(line, ""))
    assert [growth.every for growth in found.growing] == ["every 5 steps", "every step"]
    unknown = explained(evaluating(keeps=2 * MIB, steps=14).snapshot())
    assert [growth.every for growth in unknown.growing] == ["every step"]


def test_what_letting_go_would_take_is_what_a_run_that_does_takes() -> None:
    steps = 12
    made, mended = Made(), Made()
    for program, keeps in ((made, 4 * MIB), (mended, 0)):
        program.malloc(30 * MIB, WEIGHTS)
        for _ in range(steps):
            program.step(16 * MIB, keeps)
    found = explained(made.snapshot(), source=source)
    peak = found.remedies[0].predicted_peak_bytes
    assert peak is not None
    reserved = mended.model.statistics()["reserved_bytes.all.peak"]
    # of the line, what two steps made is there at once
    assert reserved <= peak <= reserved + 20 * MIB


def test_a_variable_holds_what_it_has_until_the_next_iteration_assigns_it_anew() -> None:
    lines = {40: "for batch in loader:", 41: "    loss = model(batch)", 44: "    losses.append(loss)"}
    made, mended = Made(), Made()
    held = 0
    for _ in range(12):
        made.step(4 * MIB)
        made.malloc(24 * MIB, FORWARD)
        mended.step(4 * MIB)
        value = mended.malloc(24 * MIB, FORWARD)
        if held:
            mended.free(held)
        held = value
    found = explained(made.snapshot(), source=lambda _file, line: lines.get(line, ""))
    reserved = mended.model.statistics()["reserved_bytes.all.peak"]
    assert found.remedies[0].predicted_peak_bytes == reserved


def test_the_line_that_keeps_a_result_is_looked_for_behind_the_one_that_made_it() -> None:
    made = Made(capacity=300 * MIB)
    for _ in range(40):
        made.step(4 * MIB)
        made.malloc(4 * MIB, FORWARD)
    lines = {41: "loss, parts = model(batch)", 46: "history += loss"}
    found = explained(made.snapshot(), source=lambda _file, line: lines.get(line, ""))
    assert found.growing[0].line == 41
    assert found.remedies_note.startswith("train.py:46 (history += loss) adds up loss: add loss.detach() instead.")


def test_what_is_kept_as_a_number_is_not_accused() -> None:
    lines = {41: "loss = model(batch)", 46: "losses.append(loss.item())"}
    made = Made()
    for _ in range(10):
        made.step(4 * MIB)
        made.malloc(4 * MIB, FORWARD)
    found = explained(made.snapshot(), source=lambda _file, line: lines.get(line, ""))
    note = "Each step leaves a tensor of 4 MiB from train.py:41 (loss = model(batch)): keep less of it, or move it "
    assert found.remedies_note == f"{note}to host memory with .detach().cpu()."


def test_the_state_is_that_at_the_refusal_and_not_at_the_end() -> None:
    made = leaking()
    at = len(made.entries) - 1
    for address in [
        block.address for segment in made.model.segments() for block in segment.blocks if block.state != "inactive"
    ]:
        made.free(address)
    made.empty_cache()
    found = explained(made.snapshot())
    assert made.model.allocated_bytes == 0
    assert found.verdict == "leak"
    assert sum(found.by_category.values()) == History(made.device()).allocated[at + 1] > 150 * MIB
    assert sum(part.bytes for part in found.parts) == found.capacity_bytes + found.beyond_bytes == 200 * MIB


def test_real_capacity_is_answered_with_the_smallest_card() -> None:
    made = Made(capacity=100 * MIB)
    made.malloc(60 * MIB, WEIGHTS)
    made.until_full(30 * MIB, 0)
    found = explained(made.snapshot())
    assert found.verdict == "real capacity"
    assert found.headline == "Memory was full of weights: 60 of 100 MiB, most from train.py:10."
    assert found.remedies[0].change == "at least 122 MiB for PyTorch"
    assert found.remedies[0].fits is None
    assert found.remedies_note == ENDS_HERE
    assert "This request would have succeeded with" in report(found)


def test_fragments_are_answered_with_expandable_segments() -> None:
    made = Made(capacity=370 * MIB)
    for address in [made.malloc(30 * MIB, FORWARD) for _ in range(12)]:
        made.free(address)
    for _ in range(24):
        # two of them and 8 MiB that nothing fits in make a segment
        made.malloc(11 * MIB, FORWARD)
    with pytest.raises(AllocationRefused):
        made.malloc(60 * MIB, FORWARD)
    found = explained(made.snapshot())
    assert found.verdict == "fragmentation"
    assert found.remedies[0].allocator == "expandable_segments:True"
    assert found.remedies[0].fits is None
    assert WhatIf(made.device()).answer(370 * MIB, "expandable_segments:True").fits


def test_without_a_failure_the_peak_is_told() -> None:
    made = Made()
    for _ in range(3):
        made.step(16 * MIB)
    found = explained(made.snapshot())
    assert found.verdict == "no failure"
    assert found.headline.startswith("Peak at 9.00 ms: 56 MiB allocated, mostly activations, most from train.py:41")
    assert found.request_words == (
        "PyTorch reserved 70 MiB at most in this recording. The file does not record the card's size."
    )
    assert not any(part.kind in ("free", "unattributed") for part in found.parts)
    assert found.capacity_bytes == sum(part.bytes for part in found.parts) == 70 * MIB
    # how many events there were before those of the file, nobody knows
    assert report(found)[-1] == f"Evidence: {len(made.entries)} events, all live bytes have a stack."


def test_below_its_peak_nothing_is_called_free_on_a_card_of_which_the_size_is_not_known() -> None:
    made = Made()
    for address in [made.malloc(60 * MIB) for _ in range(2)]:
        made.free(address)
    made.empty_cache()
    made.malloc(30 * MIB)
    found = explained(made.snapshot(), len(made.entries) - 1)
    assert [part.kind for part in found.parts] == ["category"]
    assert found.capacity_bytes == 30 * MIB


def test_any_moment_can_be_explained() -> None:
    made = Made()
    made.malloc(16 * MIB, FORWARD)
    made.malloc(4 * MIB, BACKWARD)
    found = explained(made.snapshot(), 1)
    assert found.headline == "At 1.00 ms: 16 MiB allocated, mostly activations, most from train.py:41."
    for moment in (-2, 99):
        with pytest.raises(ValueError, match=r"The trace has events 0 to 3, and no event"):
            explained(made.snapshot(), moment)


def without_trace(made: Made, trace: tuple[TraceEntry, ...] = ()) -> Snapshot:
    return replace(made.snapshot(), devices=(replace(made.device(), trace=events(trace)),))


def test_a_snapshot_without_history_says_what_is_missing_and_still_ranks() -> None:
    made = Made()
    made.malloc(40 * MIB, WEIGHTS)
    orphan = TraceEntry("free_completed", made.entries[0].address + 64 * MIB, 512, 0)
    for trace in ((), (TraceEntry("snapshot", 0, 0, 0),), (orphan,)):
        found = explained(without_trace(made, trace))
        assert found.headline == "At the time of the snapshot: 40 MiB allocated."
        assert "call torch.cuda.memory._record_memory_history() before the run" in found.remedies_note
        assert found.remedies == ()
        assert (found.owners[0].line, found.owners[0].bytes) == (10, 40 * MIB)


def test_an_empty_snapshot_says_so() -> None:
    found = explained(without_trace(Made()))
    assert found.headline == "Nothing was allocated."
    assert found.remedies_note.startswith("The snapshot holds nothing: call torch.cuda.memory._record_memory_history()")
    assert report(found) == [
        found.headline,
        found.request_words,
        found.remedies_note,
        "",
        "Evidence: no history was recorded.",
    ]


def test_blocks_from_before_the_recording_are_called_so() -> None:
    made = Made()
    made.before(100 * MIB)
    made.malloc(4 * MIB, FORWARD)
    found = explained(made.snapshot())
    assert "mostly from before the recording began" in found.headline
    assert found.evidence.without_stack_bytes == 100 * MIB


def test_a_trace_that_contradicts_its_segments_is_explained_without_replays() -> None:
    entry = TraceEntry("alloc", 0x7F0000000000, 4 * MIB, 0, stack=STACKS.index(KEPT))
    device = DeviceSnapshot(0, (), events([entry]), AllocatorSettings(), STACKS)
    found = explain_history(History(device))
    assert found.remedies == ()
    assert found.remedies_note == "The trace and the segments contradict each other, so that nothing is replayed."


def test_a_very_long_trace_is_not_replayed_for_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.memory.snapshot.explaining.MOST_EVENTS", 10)
    found = explained(leaking().snapshot())
    assert found.remedies == ()
    assert found.remedies_note.endswith("too many to try changes on the way: ask what-if questions.")


def test_two_large_steps_are_a_leak_where_the_program_shows_what_keeps_them_and_else_they_are_not() -> None:
    made = leaking(40 * MIB)
    found = explained(made.snapshot(), source=source)
    assert (found.verdict, found.growing[0].steps) == ("leak", 2)
    assert found.remedies[0].change.startswith("train.py:44: write losses.append(loss.detach().cpu())")
    assert explained(made.snapshot()).growing == ()
    let_go = {**LINES, 44: "double_buffer[step % 2] = loss"}
    kept = explained(made.snapshot(), source=lambda _file, line: let_go.get(line, ""))
    assert kept.growing == ()


def test_steps_known_from_outside_name_the_growth() -> None:
    made = Made(capacity=200 * MIB)
    times = []
    with suppress(AllocationRefused):
        while True:
            times.append((made.now_us, len(times) + 1))
            made.free(made.malloc(16 * MIB, FORWARD), FORWARD)
            made.malloc(6 * MIB, KEPT)
    found = explained(made.snapshot(), steps=times, source=source)
    assert found.verdict == "leak"
    assert found.growing[0].first_step == 1
    assert found.step == times[-1][1]


def test_the_explanation_survives_json_and_reads_as_text() -> None:
    found = explained(leaking().snapshot(), source=source)
    assert explanation_from_json(found.to_json()) == found
    text = "\n".join(report(found))
    assert "This would have fit" in text
    calm = Made()
    calm.step(16 * MIB)
    assert "This would have fit" not in "\n".join(report(explained(calm.snapshot())))


def test_a_leak_is_not_answered_with_what_only_puts_it_off() -> None:
    made = leaking()
    for found in (
        explained(made.snapshot()),
        explained(leaking(capacity=GIB).snapshot(), 600),
    ):
        assert found.growing
        assert [remedy.change[:10] for remedy in found.remedies] == ["let go of "]


def test_a_leak_that_no_replay_can_end_is_answered_with_advice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.memory.snapshot.explaining.without_kept", lambda *_: None)
    found = explained(leaking().snapshot())
    assert (found.verdict, found.remedies) == ("leak", ())
    assert found.remedies_note.startswith("Each step leaves a tensor of 4 MiB from train.py:44: keep less of it")


def test_a_setting_that_saves_next_to_nothing_is_not_told() -> None:
    made = Made()
    for address in [made.malloc(30 * MIB, FORWARD) for _ in range(2)]:
        made.free(address)
    made.malloc(50 * MIB, FORWARD)
    saved = made.model.statistics()["reserved_bytes.all.peak"]
    saved -= WhatIf(made.device()).answer(None, "expandable_segments:True").peak_reserved_bytes
    assert saved > 20 * MIB
    assert [remedy.allocator for remedy in explained(made.snapshot()).remedies] == ["expandable_segments:True"]
    made.malloc(3000 * MIB, FORWARD)
    assert explained(made.snapshot()).remedies == ()


def test_a_replay_that_keeps_more_than_the_card_let_it_is_not_what_a_setting_is_measured_by() -> None:
    made = Made(capacity=130 * MIB)
    for size in (60, 64, 70, 80, 90, 100, 110, 120):
        made.free(made.malloc(size * MIB, FORWARD))
    assert WhatIf(made.device()).run(None).peak_reserved > 500 * MIB
    assert explained(made.snapshot()).remedies == ()


def test_blocks_without_a_stack_of_the_recording_are_not_said_to_be_from_before_it() -> None:
    made = Made()
    made.malloc(100 * MIB, None)
    found = explained(made.snapshot())
    assert found.headline == "Peak at 1.00 ms: 100 MiB allocated, mostly without a recorded stack."


def test_most_is_said_to_be_from_a_line_only_where_it_is() -> None:
    made = Made()
    held = [made.malloc(4 * MIB, BACKWARD), made.malloc(100 * MIB, None), made.malloc(4 * MIB, BACKWARD)]
    for address in held:
        made.free(address, BACKWARD)
    found = explained(made.snapshot())
    assert [owner.file for owner in found.owners if owner.category == "temporary"] == [None, TRAIN]
    assert found.headline.startswith("Peak at 4.00 ms: 108 MiB allocated, mostly temporary")
    assert "most from" not in found.headline


def test_the_parts_add_up_also_where_the_segments_do_not_hold_what_the_trace_allocated() -> None:
    entry = TraceEntry("alloc", 0x7F0000000000, 4 * MIB, 0, stack=STACKS.index(KEPT))
    found = explain_history(History(DeviceSnapshot(0, (), events([entry]), AllocatorSettings(), STACKS)))
    assert (found.capacity_bytes, found.beyond_bytes) == (4 * MIB, 0)
    assert "  together 4 MiB" in report(found)
    assert found.request_words == "The file does not record the card's size."


def test_a_block_larger_than_its_segment_contradicts_it() -> None:
    made = Made()
    made.free(made.malloc(4 * MIB))
    whole = made.device()
    grown = replace(
        whole,
        trace=events(
            entry if entry.action.startswith("segment") else entry._replace(size=2**62) for entry in whole.trace
        ),
    )
    assert not History(whole).disagreeing
    assert History(grown).disagreeing


def test_a_run_that_was_refused_in_a_later_step_is_answered_with_what_the_whole_step_takes() -> None:
    made = Made(capacity=342 * MIB)
    made.malloc(30 * MIB, WEIGHTS)

    def step(layers: int) -> None:
        held = [made.malloc(30 * MIB, FORWARD) for _ in range(layers)]
        for address in reversed(held):
            gradient = made.malloc(60 * MIB, BACKWARD)
            made.free(address, BACKWARD)
            made.free(gradient, BACKWARD)
        for _ in range(4):
            made.free(made.malloc(50 * MIB, OPTIMIZER), OPTIMIZER)

    for _ in range(3):
        step(8)
    made.malloc(100 * MIB, OPTIMIZER)
    with pytest.raises(AllocationRefused):
        step(8)
    found = explained(made.snapshot())
    assert found.step == 4
    assert found.remedies_note == FROM_AN_EARLIER_STEP
    assert found.need is not None and found.need.found_by == "replay" and not found.need.is_whole
    assert f"{found.need.pytorch_bytes // MIB} MiB for PyTorch" in " ".join(one.change for one in found.remedies)
    smallest = next(remedy for remedy in found.remedies if "for PyTorch" in remedy.change)
    # a later step may take more, as with a longer batch: nothing is said to fit
    assert smallest.fits is None and smallest.change.startswith("at least ")
    assert "a later step may need more" in found.remedies_note
    row = next(row for row in report(found) if smallest.change in row)
    assert "peak " not in row and "by replay" in row, "its size is in what it says"
    size = int(smallest.change.split()[2]) * MIB
    assert size > WhatIf(made.device()).smallest_capacity()
    for room, passes in ((size, True), (size - 2 * MIB, False)):
        made = Made(capacity=room)
        made.malloc(30 * MIB, WEIGHTS)
        with nullcontext() if passes else pytest.raises(AllocationRefused):
            for _ in range(3):
                step(8)
            made.malloc(100 * MIB, OPTIMIZER)
            step(8)


def test_where_activations_fill_the_memory_smaller_ones_are_named_as_not_tried() -> None:
    made = Made(capacity=200 * MIB)
    made.malloc(30 * MIB, WEIGHTS)
    made.until_full(60 * MIB, 0)
    found = explained(made.snapshot())
    assert found.by_category["activations"] == 120 * MIB
    untried = [remedy for remedy in found.remedies if not remedy.verified_by]
    assert [remedy.change.partition(":")[0] for remedy in untried] == [
        "half the batch, two of them for each optimizer step",
        "activation checkpointing (torch.utils.checkpoint)",
        "bf16 autocast, if the activations are float32",
    ]
    assert [remedy.change.partition(": ")[2] for remedy in untried] == [
        "up to 60 MiB less at this moment",
        "up to 120 MiB less at this moment",
        "up to 60 MiB less at this moment",
    ]
    assert all(remedy.fits is None for remedy in untried)
    assert sum("not tried" in line for line in report(found)) == 3


def test_retries_are_told_and_bound_the_size_of_the_card() -> None:
    made = Made(capacity=130 * MIB)
    for size in (60, 64, 70):
        made.free(made.malloc(size * MIB, FORWARD))
    found = explained(made.snapshot())
    assert found.request_words == (
        "PyTorch reserved 124 MiB at most in this recording. The card ran short once: PyTorch released its idle cache, "
        "asked again and got the memory. So the card has between 124 and 194 MiB for PyTorch."
    )


def test_an_emptied_cache_is_no_retry() -> None:
    made = Made()
    for size in (60, 64, 70):
        made.free(made.malloc(size * MIB, FORWARD))
        made.empty_cache()
    assert card_limits(History(made.device())) == CardLimits(70 * MIB, None, 0)

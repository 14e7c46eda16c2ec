from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, WORKSPACE, Trace
from gpudash.memory.explaining.explain import explain, rejudged
from gpudash.memory.explaining.explanation_text import evidence_text, reason, remedy_rows, report
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest, other_process
from gpudash.memory.explaining.remedies import replay_remedies
from gpudash.memory.frames import Frame
from gpudash.telemetry.explanation import Evidence, Explanation, Remedy
from gpudash.units import GIB, MIB

LINE = Frame("/home/mia/model.py", 88, "forward")


def found(**changed: object) -> Explanation:
    base = MemoryState(
        device="sim:0",
        capacity=4 * GIB,
        device_free=256 * MIB,
        reserved=2 * GIB,
        context_bytes=256 * MIB,
        processes=(other_process(1536 * MIB, 4711, "python", "mia"),),
        groups=(
            AllocationGroup(GIB, 10, ACTIVATIONS, 1, "forward", "", "Net.Linear", (LINE,)),
            AllocationGroup(GIB, 9, WEIGHTS),
        ),
        request=RefusedRequest(512 * MIB, 512 * MIB),
        recorded=Evidence(41, 41, 0.9),
    )
    return explain(replace(base, **changed))  # type: ignore[arg-type]


def test_the_report_begins_with_the_cause_and_ends_with_the_evidence() -> None:
    told = found()
    lines = report(told)
    assert lines[:2] == [told.headline, told.request_words]
    assert lines[-1] == "Evidence: 41 of 41 events, recording began at 900 ms, 50 % of live bytes have no stack."
    assert "  together 4.00 GiB; asked for 512 MiB" in lines
    assert any(line.startswith("  python (pid 4711)") for line in lines)
    assert any("activations, Linear" in line and "model.py:88 forward" in line for line in lines)
    assert any("no stack recorded" in line for line in lines)


def test_a_request_is_told_with_its_segment_wherever_it_is_told() -> None:
    told = found(request=RefusedRequest(8 * MIB - 3, 270 * MIB), device_free=256 * MIB)
    size = "8 MiB, which needs a segment of 270 MiB"
    assert told.request_words == f"The last request was {size}; 14 MiB short."
    assert f"  together 4.00 GiB; asked for {size}" in report(told)


def test_the_peak_of_a_remedy_is_not_told_twice() -> None:
    figures = {"predicted_peak_bytes": 386 * MIB, "verified_by": "replay"}
    saving = Remedy("write loss.item(): 386 MiB at the peak instead of 734 MiB", fits=True, **figures)
    card = Remedy("490 MiB of the card (400 MiB for PyTorch, and its context): a card with 4 GiB", fits=True, **figures)
    measured = Remedy("write loss.item(): 390 MiB at the peak instead of 734 MiB", fits=True, **figures)
    rows = remedy_rows([saving, card, measured])
    assert rows[0] == f"{saving.change.ljust(len(card.change))}  by replay"
    assert rows[1] == f"{card.change}  by replay"
    assert rows[2].endswith("  peak 386 MiB, by replay"), "another figure than that of the change"


def test_what_a_line_keeps_of_every_step_is_said_once_beside_a_note_that_says_it() -> None:
    leaking = tuple(AllocationGroup(64 * MIB, 1, ACTIVATIONS, step, stack=(LINE,)) for step in range(1, 20))
    told = found(groups=leaking, step=20)
    noted = told.with_remedies((), "hook.py:11 (seen.append(output)) keeps output itself, 64 MiB of every step: less.")
    assert reason(told.with_remedies(())).count("64 MiB of every step") == 1
    assert reason(noted).count("64 MiB of every step") == 1


def test_a_workspace_that_no_line_asked_for_is_called_that_and_not_memory_without_a_stack() -> None:
    lines = report(found(groups=(AllocationGroup(32 * MIB, 1, WORKSPACE), AllocationGroup(GIB, 9))))
    rows = lines[lines.index("Who allocated it") + 1 :]
    assert [row.split("  ")[-1] for row in rows[1:3]] == ["no stack recorded", "workspace of cuBLAS"]


def test_remedies_are_told_with_peak_price_and_flags() -> None:
    remedy = Remedy(
        "activation checkpointing",
        {"checkpointing": True},
        flags="--checkpointing",
        predicted_peak_bytes=GIB,
        fits=True,
        verified_by="dry run",
        slowdown=1.33,
        slowdown_from="FLOPs of the dry run",
    )
    lines = report(found().with_remedies((remedy, Remedy("batch 8", changes_training=True)), "Stopped early."))
    price = "+33 % time, from FLOPs of the dry run"
    assert f"  activation checkpointing  peak 1.00 GiB, by dry run  {price}  --checkpointing" in lines
    assert any(line.split() == ["batch", "8", "not", "tried", "may", "change", "convergence"] for line in lines)
    assert "  Stopped early." in lines


def test_without_remedies_nothing_is_said_of_them() -> None:
    assert "This would have fit" not in report(found())


def test_a_missing_history_is_told() -> None:
    assert evidence_text(Evidence()) == "no history was recorded."
    told = evidence_text(Evidence(live_bytes=2, without_stack_bytes=1))
    assert told == "no history was recorded, 50 % of live bytes have no stack."


def test_where_nothing_happened_nothing_is_said_of_the_evidence() -> None:
    assert evidence_text(Evidence(0, 0, 1.3)) == ""
    lines = report(found(groups=(), reserved=0, recorded=Evidence(0, 0, 1.3)))
    assert lines[-1].startswith("  together") and not any("Evidence" in line for line in lines)


def test_a_dry_run_decides_whether_others_or_the_capacity_is_to_blame() -> None:
    told = found()
    assert told.verdict == "other process"
    too_large = rejudged(told, 5 * GIB)
    assert too_large.verdict == "real capacity" and "full of" in too_large.headline
    again = rejudged(too_large, 3 * GIB)
    assert again.verdict == "other process" and again.headline == told.headline


def test_fragments_are_not_to_blame_for_a_run_that_needs_more_than_there_is() -> None:
    pieces = {"processes": (), "idle": GIB, "usable_idle": GIB, "largest_free_block": MIB}
    told = found(groups=(AllocationGroup(GIB, 9, ACTIVATIONS),), **pieces)
    assert told.verdict == "fragmentation"
    assert rejudged(told, 9 * GIB, 2 * GIB) is told
    assert rejudged(told, 9 * GIB, 8 * GIB).verdict == "real capacity"


@pytest.mark.parametrize("alone", [GIB, 100 * GIB])
def test_a_leak_stays_a_leak_whatever_the_run_takes(alone: int) -> None:
    leaking = tuple(AllocationGroup(64 * MIB, 1, ACTIVATIONS, step, stack=(LINE,)) for step in range(1, 20))
    told = found(groups=leaking, step=20)
    assert told.verdict == "leak" and rejudged(told, alone) is told


def in_pieces() -> Trace:
    """Buffers of growing size of which a sixteenth stays, as many as fit 2 GiB, and one more."""
    trace = Trace()

    def take(size: int) -> int:
        trace.sizes.append(size)
        trace.categories.append(ACTIVATIONS)
        trace.events.append(len(trace.sizes))
        return len(trace.sizes)

    for size in range(64 * MIB, 64 * MIB + 30 * 512, 512):
        trace.events.append(-take(size))
        rest = take(size - size // 16)
        take(size // 16)
        trace.events.append(-rest)
    take(128 * MIB)
    return trace


def test_a_replay_shows_that_expandable_segments_mend_fragmentation() -> None:
    told = found(
        groups=(AllocationGroup(512 * MIB, 9, ACTIVATIONS),),
        processes=(),
        capacity=2 * GIB,
        usable_idle=GIB,
        idle=GIB,
        largest_free_block=64 * MIB,
        device_free=0,
        request=RefusedRequest(128 * MIB, 128 * MIB),
    )
    assert told.verdict == "fragmentation"
    (remedy,) = replay_remedies(in_pieces(), told)
    assert remedy.allocator == "expandable_segments:True" and remedy.verified_by == "replay"
    assert remedy.fits is None  # what came after the refused request is not in the trace
    assert remedy.predicted_peak_bytes is not None and remedy.predicted_peak_bytes < GIB


def test_a_replay_says_nothing_of_a_run_that_is_too_large() -> None:
    assert replay_remedies(in_pieces(), found()) == ()

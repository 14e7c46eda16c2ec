"""What is offered after a failure reaches what was missing, and stands under what is known of it."""

from __future__ import annotations

from dataclasses import replace

from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest, other_process
from gpudash.memory.explaining.remedies import AT_LEAST, ordered, smaller_activations, without_others
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.units import KIB, MIB


def full(activations: int, asked: int) -> Explanation:
    groups = (AllocationGroup(activations, 1, "activations"),)
    request = RefusedRequest(asked, asked)
    return explain(MemoryState("sim:0", activations, 0, activations, groups=groups, request=request))


def test_what_saves_less_than_is_missing_is_not_offered() -> None:
    found = full(680 * KIB, 6 * MIB)
    assert found.missing_bytes == 6 * MIB
    assert list(smaller_activations(found, checkpoints=False)) == []


def test_what_saves_as_much_as_is_missing_is_offered() -> None:
    words = [remedy.change for remedy in smaller_activations(full(100 * MIB, 60 * MIB), checkpoints=False)]
    assert words == ["activation checkpointing (torch.utils.checkpoint): up to 100 MiB less at this moment"]
    words = [remedy.change[:8] for remedy in smaller_activations(full(100 * MIB, 50 * MIB), checkpoints=True)]
    assert words == ["half the", "bf16 aut"]


def test_what_reaches_what_is_missing_is_offered_however_little_it_is_of_what_is_live() -> None:
    groups = (AllocationGroup(900 * MIB, 1, "weights"), AllocationGroup(20 * MIB, 1, "activations"))
    state = MemoryState("sim:0", 930 * MIB, 0, 930 * MIB, groups=groups, request=RefusedRequest(4 * MIB, 4 * MIB))
    assert len(list(smaller_activations(explain(state), checkpoints=False))) == 3
    assert list(smaller_activations(explain(replace(state, request=None)), checkpoints=False)) == []


def test_changes_that_were_tried_come_before_other_cards_and_those_before_what_nobody_tried() -> None:
    untried = Remedy("half the batch")
    bound = Remedy(f"{AT_LEAST}500 MiB for PyTorch", verified_by="replay")
    card = Remedy("600 MiB for PyTorch", fits=True, verified_by="rerun")
    past = Remedy("a batch of 4", verified_by="replay", patch="--- a\n")
    fitting = Remedy("expandable segments", fits=True, verified_by="replay", flags="X=1")
    assert ordered((untried, bound, card, past, fitting), "real capacity") == (fitting, past, card, bound, untried)


def test_where_memory_is_only_fragmented_what_keeps_the_results_comes_before_what_changes_them() -> None:
    batch = Remedy("a batch of 4", fits=True, verified_by="rerun", patch="--- a\n", changes_training=True)
    setting = Remedy("expandable segments", fits=True, verified_by="replay", flags="X=1")
    past = replace(batch, fits=None, verified_by="replay")
    freed = Remedy("free what is kept", verified_by="replay")
    card = Remedy("600 MiB for PyTorch", fits=True, verified_by="rerun")
    assert ordered((batch, setting, card, past, freed), "fragmentation") == (setting, batch, past, card, freed)
    whole = replace(freed, fits=True)
    assert ordered((card, whole), "fragmentation") == (whole, card)
    assert ordered((batch, setting, card), "real capacity") == (batch, setting, card)


def test_the_report_says_of_each_remedy_no_more_than_is_known_of_it() -> None:
    past = Remedy("a batch of 4", verified_by="replay")
    card = Remedy("600 MiB for PyTorch", fits=True, verified_by="rerun")
    lines = report(full(MIB, MIB).with_remedies((past, card, Remedy("half the batch")), "That is all."))
    begin = lines.index("This request would have succeeded with")
    assert [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in lines[begin : begin + 9]] == [
        "This request would have succeeded with",
        "a batch of 4",
        "",
        "This would have fit",
        "600 MiB for PyTorch",
        "",
        "Could be tried",
        "half the batch",
        "That is all.",
    ]


def test_a_process_that_the_program_started_is_named_with_its_command() -> None:
    child = other_process(70 * MIB, 12, "python", command="python serve.py")
    state = MemoryState("sim:0", 100 * MIB, 0, 30 * MIB, processes=(child,), request=RefusedRequest(MIB, 20 * MIB))
    found = explain(state)
    assert found.verdict == "other process"
    words = "A process that this program started, python serve.py (pid 12), holds 70 of 100 MiB"
    assert found.headline.startswith(words)
    (remedy,) = without_others(found.parts[1:2] if found.parts[1].kind == "process" else (child,), "replay")
    assert remedy.change.startswith("let python serve.py (pid 12), which this program started, end before it goes on")
    (other,) = without_others((replace(child, command=""),), "")
    assert other.change == "without the other processes: python (pid 12): 70 MiB less"

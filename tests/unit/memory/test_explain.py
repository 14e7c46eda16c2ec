from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpudash
from gpudash.memory.allocator.trace import ACTIVATIONS, CATEGORIES, GRADIENTS, WEIGHTS
from gpudash.memory.explaining.call_sites import MOST_OWNERS, growing_lines, owners
from gpudash.memory.explaining.explain import explain, parts_of
from gpudash.memory.explaining.explanation_text import place, report
from gpudash.memory.explaining.memory_state import (
    OTHER_TENSORS,
    AllocationGroup,
    MemoryState,
    RefusedRequest,
    other_process,
)
from gpudash.memory.frames import PROGRAMS, Frame, is_library, site_of
from gpudash.memory.growth_rate import growth_rate
from gpudash.specs import BUILT_IN
from gpudash.telemetry.explanation import Evidence, explanation_from_json
from gpudash.units import GIB, MIB

TRAIN = Frame("/home/mia/project/train.py", 41, "step")
MODEL = Frame("/home/mia/project/model.py", 88, "forward")
MAIN = Frame("/home/mia/project/train.py", 90, "main")
TORCH = Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward")
STANDARD = Frame("/usr/lib/python3.11/contextlib.py", 81, "inner")


def state(**changed: object) -> MemoryState:
    """A card of 8 GiB on which 6 GiB of activations are live and 512 MiB are free."""
    base = MemoryState(
        device="cuda:0",
        capacity=8 * GIB,
        device_free=512 * MIB,
        reserved=7 * GIB,
        context_bytes=512 * MIB,
        groups=(AllocationGroup(7 * GIB, 70, ACTIVATIONS, 3, "forward", "", "Net.Linear", (TORCH, MODEL, MAIN)),),
        request=RefusedRequest(GIB, GIB, 3, "forward", "", "Net.Linear", (TORCH, MODEL, MAIN)),
        step=3,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def leaking(steps: int, size: int = 64 * MIB) -> tuple[AllocationGroup, ...]:
    return tuple(
        AllocationGroup(size, 4, ACTIVATIONS, step, "forward", "", "Net", (TRAIN, MAIN)) for step in range(1, steps)
    )


VERDICTS = [
    ("real capacity", {}),
    ("impossible request", {"request": RefusedRequest(9 * GIB, 9 * GIB)}),
    ("impossible request", {"request": RefusedRequest(8 * GIB - MIB, 8 * GIB - MIB)}),
    ("impossible request", {"allowed": GIB, "request": RefusedRequest(2 * GIB, 2 * GIB)}),
    (
        "fragmentation",
        {
            "groups": (AllocationGroup(4 * GIB, 9, ACTIVATIONS),),
            "idle": 3 * GIB,
            "usable_idle": 3 * GIB,
            "largest_free_block": GIB - 1,
        },
    ),
    ("leak", {"groups": leaking(60), "step": 60, "reserved": 59 * 64 * MIB}),
    (
        "other process",
        {
            "groups": (AllocationGroup(2 * GIB, 9, WEIGHTS),),
            "reserved": 2 * GIB,
            "processes": (other_process(5 * GIB, 4711, "python", "mia"),),
        },
    ),
    ("pending frees", {"groups": (AllocationGroup(5 * GIB, 9, WEIGHTS),), "pending": 2 * GIB}),
    (
        "private pools",
        {"groups": (AllocationGroup(5 * GIB, 9, WEIGHTS),), "private_reserved": 2 * GIB, "private_idle": 2 * GIB},
    ),
    ("headroom", {"request": None}),
]


@pytest.mark.parametrize(("verdict", "changed"), VERDICTS)
def test_each_cause_is_told_by_its_numbers(verdict: str, changed: dict[str, object]) -> None:
    assert explain(state(**changed)).verdict == verdict


def test_a_limit_of_the_process_does_not_count_its_context() -> None:
    request = RefusedRequest(7 * GIB, 7 * GIB)
    assert explain(state(allowed=7 * GIB, request=request, reserved=0)).verdict != "impossible request"
    assert explain(state(allowed=7 * GIB - 1, request=request, reserved=0)).verdict == "impossible request"


def test_an_impossible_request_is_told_with_its_segment_and_the_contexts_share() -> None:
    small = state(capacity=512 * MIB, context_bytes=300 * MIB, device_free=212 * MIB, reserved=0, groups=())
    assert explain(replace(small, request=RefusedRequest(211 * MIB, 220 * MIB))).headline == (
        "No allocator setting helps: one tensor needs 211 MiB, which needs a segment of 220 MiB, and the card has "
        "512 MiB, 300 MiB of them the context's."
    )


def test_a_card_too_small_for_its_context_is_told_so() -> None:
    refused = RefusedRequest(300 * MIB, 300 * MIB, is_context=True)
    found = explain(
        state(capacity=100 * MIB, context_bytes=0, device_free=100 * MIB, reserved=0, groups=(), request=refused)
    )
    assert found.headline == "The card is too small for the context of 300 MiB itself: it has 100 MiB."
    assert found.request_words == ("The first use of the device makes its context of 300 MiB; 200 MiB short.")


def test_a_few_idle_mebibytes_in_pieces_are_no_fragmentation() -> None:
    small = state(
        idle=20 * MIB, usable_idle=20 * MIB, largest_free_block=2 * MIB, request=RefusedRequest(4 * MIB, 20 * MIB)
    )
    assert explain(replace(small, device_free=0)).verdict == "real capacity"


def test_other_processes_with_a_trifle_are_not_blamed() -> None:
    found = explain(state(processes=(other_process(600 * MIB, 1, "Xorg"),), device_free=0, reserved=6 * GIB))
    assert found.verdict == "real capacity"


def test_a_cap_of_this_process_is_not_blamed_on_the_others() -> None:
    capped = state(
        groups=(AllocationGroup(2 * GIB, 9, WEIGHTS),),
        reserved=2 * GIB,
        allowed=2 * GIB + 512 * MIB,
        device_free=2 * GIB,
        processes=(other_process(3 * GIB, 1, "python"),),
    )
    assert explain(capped).verdict == "memory cap"


CAPPED = state(
    capacity=8 * GIB,
    device_free=6 * GIB,
    context_bytes=300 * MIB,
    groups=(AllocationGroup(GIB, 9, WEIGHTS),),
    reserved=1536 * MIB,
    allowed=2 * GIB,
    request=RefusedRequest(600 * MIB, 600 * MIB),
)


def test_a_cap_that_refused_what_the_device_had_is_the_cause_in_the_first_sentence() -> None:
    found = explain(CAPPED)
    assert (found.verdict, found.allowed_bytes) == ("memory cap", 2 * GIB)
    assert found.headline == (
        "The memory cap of 2.00 GiB refused this, not the device: 6.00 of 8.00 GiB of it were free. "
        "Memory was full of weights: 1.00 of 2.00 GiB."
    )
    assert "88 MiB short" in found.request_words
    full = explain(replace(CAPPED, device_free=500 * MIB))
    assert full.verdict == "real capacity" and "cap" not in full.headline


def test_a_leak_under_a_cap_is_named_with_the_cap_and_measured_by_it() -> None:
    leak = replace(CAPPED, groups=leaking(30), step=30)
    found = explain(leak)
    assert found.verdict == "leak"
    assert found.headline.startswith("The memory cap of 2.00 GiB refused this, not the device: 6.00 of 8.00 GiB")
    assert " of 2.00 GiB after " in found.headline


def test_a_card_that_is_mostly_its_context_is_not_called_full_of_tensors() -> None:
    small = replace(CAPPED, allowed=None, capacity=440 * MIB, device_free=0, reserved=140 * MIB)
    found = explain(
        replace(small, groups=(AllocationGroup(87 * MIB, 9, WEIGHTS),), request=RefusedRequest(2 * MIB, 2 * MIB))
    )
    assert found.headline == "The context takes 300 of 440 MiB; most of the rest was weights: 87 MiB."


def test_what_a_cap_bars_is_not_called_free() -> None:
    found = explain(CAPPED)
    assert (found.part_bytes("free"), found.part_bytes("barred")) == (512 * MIB, 6 * GIB - 512 * MIB)
    assert sum(part.bytes for part in found.parts) == 8 * GIB
    lines = report(found)
    row = next(line for line in lines if "barred by the memory cap" in line)
    assert row.endswith("5.50 GiB")  # and no bar
    assert "  together 8.00 GiB, of which PyTorch may have 2.00 GiB; asked for 600 MiB" in lines
    assert explanation_from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_first_sentence_names_the_cause_and_the_second_the_request() -> None:
    found = explain(state())
    assert found.headline == "Memory was full of activations: 7.00 of 8.00 GiB, most from Linear (model.py:88)."
    assert found.request_words == (
        "The last request was 1.00 GiB (step 3, forward, Linear, model.py:88); 512 MiB short."
    )


def test_another_process_is_named_with_its_number_and_user() -> None:
    found = explain(state(**VERDICTS[6][1]))
    assert found.headline == "python (pid 4711, user mia) holds 5.00 of 8.00 GiB. This process uses 2.50 GiB."


def test_a_leak_names_line_growth_and_what_has_stayed() -> None:
    found = explain(state(**VERDICTS[5][1]), lambda file, line: "losses.append(loss)")
    assert found.headline == (
        "train.py:41 (losses.append(loss)) keeps 64 MiB alive per step: 3.69 of 8.00 GiB after 59 steps."
    )


def test_what_is_needed_is_rounded_up_and_what_is_free_down() -> None:
    found = explain(state(request=RefusedRequest(GIB + 1, GIB + 1), device_free=GIB - 1))
    assert "1.01 GiB" in found.request_words
    assert "2 B short" in found.request_words
    assert "0.99 GiB is still free" in explain(state(request=None, device_free=GIB - 1)).request_words


def test_without_a_request_the_headroom_is_told() -> None:
    found = explain(state(request=None, idle=100 * MIB))
    assert found.headline == (
        "7.50 of 8.00 GiB is in use: 7.00 GiB allocated, mostly activations, and 100 MiB idle inside PyTorch."
    )
    assert found.request_words == ("512 MiB is still free, and what lies idle inside PyTorch, 100 MiB, is used again.")
    assert found.requested_bytes is None and found.missing_bytes == 0


def test_the_site_is_the_innermost_line_of_the_users_own_code() -> None:
    assert site_of((TORCH, STANDARD, MODEL, MAIN)) == MODEL
    assert site_of((TORCH, STANDARD)) == TORCH
    assert site_of(()) is None


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3.11/threading.py", True),
        ("C:\\Python311\\Lib\\threading.py", True),
        ("/src/pytorch/torch/nn/modules/module.py", True),
        ("/opt/app/gpudash/simulator/storage.py", True),
        ("/opt/app/gpudash/workloads/running/run.py", True),
        ("/tmp/torchinductor_mia/ey/file.py", True),
        (f"/scratch/cache/ab/cab{'x7' * 24}q.py", True),
        (f"/home/mia/ab/cxy{'x7' * 24}q.py", False),
        ("<frozen importlib._bootstrap>", True),
        ("??", True),
        ("/opt/app/gpudash/workloads/programs/training_step.py", False),
        ("/venv/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py", False),
        ("/home/mia/python/train.py", False),
        ("/home/mia/torch/train.py", False),
    ],
)
def test_torch_and_the_standard_library_are_told_from_the_users_code(file: str, library: bool) -> None:
    assert is_library(Frame(file, 1, "f")) is library


def test_what_a_workload_runs_is_the_program_and_all_other_code_of_gpudash_is_not() -> None:
    package = Path(gpudash.__file__).parent
    programs = package / PROGRAMS
    files = [path for path in package.rglob("*.py") if path.parent != package]
    assert {path for path in files if not is_library(Frame(str(path), 1, "f"))} == set(programs.rglob("*.py"))
    for workload in BUILT_IN:
        module, _colon, _function = workload.run.partition(":")
        assert (package.parent / module.replace(".", "/")).with_suffix(".py").is_relative_to(programs), module


EINOPS = Frame("/venv/lib/python3.11/site-packages/einops/_backends.py", 288, "einsum")
GENERATED = Frame("/tmp/torchinductor_mia/ey/file.py", 4270, "call")


def test_a_library_and_generated_code_yield_to_the_programs_line() -> None:
    assert site_of((GENERATED, TORCH, EINOPS, TRAIN, MAIN)) == TRAIN
    assert site_of((GENERATED, TORCH, EINOPS)) == EINOPS
    assert site_of((GENERATED, TORCH)) == GENERATED


def test_an_owner_is_the_programs_line_with_the_library_that_it_called() -> None:
    other = Frame(EINOPS.file, 291, "einsum")
    stacks = ((EINOPS, TRAIN), (other, TRAIN), (TORCH, TRAIN), (EINOPS,))
    found = owners([AllocationGroup(size, 1, ACTIVATIONS, stack=stack) for size, stack in enumerate(stacks, 1)])[0]
    assert [(place(owner), owner.bytes) for owner in found] == [
        ("_backends.py:288 einsum", 4),
        (f"train.py:{TRAIN.line} {TRAIN.name}", 3),
        (f"train.py:{TRAIN.line} {TRAIN.name} (_backends.py:291 einsum)", 2),
        (f"train.py:{TRAIN.line} {TRAIN.name} (_backends.py:288 einsum)", 1),
    ]


def test_a_line_that_keeps_something_of_every_step_grows() -> None:
    (growth,) = growing_lines(leaking(20), 20)
    assert (growth.file, growth.line, growth.bytes_per_step, growth.steps) == (TRAIN.file, 41, 64 * MIB, 19)


def test_what_is_allocated_once_does_not_grow() -> None:
    once = (
        AllocationGroup(GIB, 4, WEIGHTS, 0, stack=(MODEL,)),
        AllocationGroup(GIB, 4, "optimizer state", 1, stack=(MAIN,)),
        AllocationGroup(GIB, 4, GRADIENTS, 19, stack=(TRAIN,)),
    )
    assert growing_lines(once, 20) == ()


def test_a_line_that_stopped_leaving_things_behind_long_ago_does_not_grow() -> None:
    assert growing_lines(leaking(20), 400) == ()


def every_nth(stride: int, size: int = 10 * MIB, stack: tuple[Frame, ...] = (TRAIN,)) -> tuple[AllocationGroup, ...]:
    return tuple(AllocationGroup(size, 1, ACTIVATIONS, step, stack=stack) for step in range(1, 200, stride))


@pytest.mark.parametrize("stride", [2, 10, 50])
def test_a_line_that_keeps_something_of_every_nth_step_grows_by_so_much_less_and_says_how_often(stride: int) -> None:
    (growth,) = growing_lines(every_nth(stride), 200)
    assert growth.bytes_per_step == pytest.approx(10 * MIB / stride)
    assert (growth.stride, growth.bytes_at_once, growth.every) == (stride, 10 * MIB, f"every {stride} steps")


def test_steps_that_come_again_after_two_or_three_others_are_about_regular() -> None:
    # Every tenth batch, where the optimizer steps after four.
    steps = sorted({10 * batch // 4 for batch in range(1, 80)})
    evaluated = tuple(AllocationGroup(10 * MIB, 1, ACTIVATIONS, step, stack=(TRAIN,)) for step in steps)
    (growth,) = growing_lines(evaluated, 200)
    assert growth.every == "about every 2 steps"
    assert growth.bytes_per_step == pytest.approx(4 * MIB, rel=0.02)


def test_a_line_that_keeps_something_now_and_then_does_not_grow() -> None:
    best_so_far = tuple(
        AllocationGroup(10 * MIB, 1, ACTIVATIONS, step, stack=(TRAIN,)) for step in (1, 2, 4, 9, 30, 33, 90, 198)
    )
    assert growing_lines(best_so_far, 200) == ()


def test_a_line_that_let_go_of_every_nth_step_long_ago_does_not_grow() -> None:
    assert growing_lines(every_nth(10), 400) == ()


def test_a_line_that_a_training_and_a_larger_evaluation_reach_grows_by_what_both_keep() -> None:
    groups = every_nth(1, MIB, (TRAIN, MAIN)) + every_nth(2, 100 * MIB, (TRAIN, MODEL))
    (growth,) = growing_lines(groups, 200)
    assert growth.bytes_per_step == pytest.approx(51 * MIB)


def test_the_headline_names_what_every_step_keeps_and_what_every_nth_does() -> None:
    logged = every_nth(1, 2 * MIB)
    evaluated = every_nth(5, 40 * MIB, (MODEL, MAIN))
    number = every_nth(3, 512, (MAIN,))
    found = explain(state(groups=logged + evaluated + number, step=200))
    assert found.verdict == "leak"
    place = f"model.py:{MODEL.line}"
    assert found.headline.startswith(
        f"{place} keeps 40 MiB alive every 5 steps, and train.py:{TRAIN.line} keeps 2 MiB alive per step: "
    )
    assert found.headline.endswith(" after 199 steps.")


@pytest.mark.parametrize(("first", "grows"), [(100, False), (150, False), (60, True)])
def test_a_line_that_lets_everything_go_now_and_then_does_not_grow(first: int, grows: bool) -> None:
    since = tuple(AllocationGroup(10 * MIB, 1, ACTIVATIONS, step, stack=(TRAIN,)) for step in range(first, 200))
    assert bool(growing_lines(since, 200)) is grows


def test_steps_of_very_different_sizes_are_no_steady_growth() -> None:
    wild = tuple(AllocationGroup(MIB << (step % 8), 1, ACTIVATIONS, step, stack=(TRAIN,)) for step in range(1, 30))
    assert growing_lines(wild, 30) == ()


def test_owners_are_ranked_and_the_rest_is_added_up() -> None:
    groups = tuple(
        AllocationGroup((size + 1) * MIB, 1, ACTIVATIONS, stack=(Frame("/home/mia/a.py", size + 1, "f"), MAIN))
        for size in range(MOST_OWNERS + 3)
    )
    found = explain(state(groups=groups))
    assert [owner.bytes for owner in found.owners] == sorted((owner.bytes for owner in found.owners), reverse=True)
    assert (found.rest_owners, found.rest_bytes) == (3, 6 * MIB)


def test_a_sites_total_counts_what_it_called_too() -> None:
    inner = AllocationGroup(3 * MIB, 1, ACTIVATIONS, stack=(TORCH, MODEL, MAIN))
    outer = AllocationGroup(MIB, 1, ACTIVATIONS, stack=(TORCH, MAIN))
    found = explain(state(groups=(inner, outer)))
    assert [(owner.name, owner.bytes, owner.total_bytes) for owner in found.owners] == [
        ("forward", 3 * MIB, 3 * MIB),
        ("main", MIB, 4 * MIB),
    ]


def test_the_evidence_tells_what_has_no_stack() -> None:
    groups = (AllocationGroup(3 * MIB, 1, ACTIVATIONS, stack=(MODEL,)), AllocationGroup(MIB, 2))
    found = explain(state(groups=groups, recorded=Evidence(10, 12, 0.9)))
    evidence = found.evidence
    assert (evidence.events, evidence.of_events, evidence.live_bytes) == (10, 12, 4 * MIB)
    assert evidence.without_stack_bytes == MIB
    assert found.by_category == {ACTIVATIONS: 3 * MIB, OTHER_TENSORS: MIB}


def test_an_explanation_survives_its_json() -> None:
    found = explain(state(groups=leaking(9), step=9, processes=(other_process(MIB, 1, "x", "y"),)))
    text = json.dumps({**found.to_json(), "unknown": 1})
    assert explanation_from_json(json.loads(text)) == found


@pytest.mark.parametrize("data", [{}, {"parts": 3}, {"headline": 1, "where": {"nothing": 1}}])
def test_what_is_no_explanation_is_refused_in_a_sentence(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no explanation of memory: .*\."):
        explanation_from_json(data)


sizes = st.integers(0, 2 * GIB)
groups = st.lists(
    st.builds(
        AllocationGroup,
        bytes=sizes,
        count=st.integers(1, 9),
        category=st.sampled_from([*CATEGORIES, OTHER_TENSORS]),
        step=st.integers(0, 9),
        stack=st.sampled_from([(), (TRAIN, MAIN), (TORCH, MODEL, MAIN)]),
    ),
    max_size=12,
)


@given(
    capacity=st.integers(1, 40 * GIB),
    free=sizes,
    groups=groups,
    more=sizes,
    pending=sizes,
    private_idle=sizes,
    context=st.none() | sizes,
    others=st.lists(sizes, max_size=3),
    request=st.none() | st.builds(RefusedRequest, st.integers(1, GIB), st.integers(1, 4 * GIB)),
    allowed=st.none() | sizes,
)
def test_the_parts_add_up_to_the_capacity_and_what_exceeds_it(
    capacity: int,
    free: int,
    groups: list[AllocationGroup],
    more: int,
    pending: int,
    private_idle: int,
    context: int | None,
    others: list[int],
    request: RefusedRequest | None,
    allowed: int | None,
) -> None:
    given_state = MemoryState(
        device="cuda:0",
        capacity=capacity,
        device_free=free,
        reserved=sum(group.bytes for group in groups) + pending + private_idle + more,
        context_bytes=context,
        processes=tuple(other_process(size, number, "p") for number, size in enumerate(others)),
        groups=tuple(groups),
        pending=pending,
        private_idle=private_idle,
        request=request,
        allowed=allowed,
        step=9,
    )
    parts, beyond = parts_of(given_state)
    assert sum(part.bytes for part in parts) == capacity + beyond
    assert all(part.bytes > 0 for part in parts)
    found = explain(given_state)
    assert sum(owner.bytes for owner in found.owners) + found.rest_bytes == given_state.allocated
    assert sum(found.by_category.values()) == given_state.allocated
    assert explanation_from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_every_nth_step_keeps_is_not_made_more_by_what_the_newest_step_still_holds() -> None:
    kept = {4 * number: 4 * MIB for number in range(1, 10)}
    rate = growth_rate({**kept, 37: 4 * MIB}, 38)
    assert rate is not None and rate.bytes_per_step * rate.stride == 4 * MIB

from __future__ import annotations

from typing import Any

import pytest

from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, WORKSPACE
from gpudash.memory.explaining.explain import explain, parts_of
from gpudash.memory.explaining.memory_state import OTHER_TENSORS, RefusedRequest
from gpudash.memory.snapshot.device_state import Known, held_in
from gpudash.units import GIB, MIB

TORCH = "/venv/lib/python3.11/site-packages/torch"
USER = {"filename": "/home/mia/train.py", "line": 41, "name": "step"}
CALL = {"filename": f"{TORCH}/nn/modules/module.py", "line": 1500, "name": "_call_impl"}
KNOWN = Known(capacity=8 * GIB, device_free=GIB, product="NVIDIA GeForce RTX 4090", time_s=9.0, began_s=0.5)


def block(state: str, size: int, *frames: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": state, "size": size, "requested_size": size, "frames": list(frames), **more}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    size = sum(found["size"] for found in blocks)
    kind = {"device": 0, "segment_type": "large", "segment_pool_id": (0, 0), "stream": 0, **more}
    return {"address": address, "total_size": size, "blocks": list(blocks), **kind}


def snapshot(*segments: dict[str, Any], trace: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"segments": list(segments), "device_traces": [trace or []]}


def test_every_kind_of_block_has_its_part() -> None:
    found = held_in(
        snapshot(
            segment(
                0,
                block("active_allocated", 2 * GIB, USER),
                block("inactive", GIB),
                block("active_pending_free", 512 * MIB),
            ),
            segment(8 * GIB, block("inactive", 256 * MIB), block("active_allocated", MIB), segment_pool_id=(0, 1)),
            segment(9 * GIB, block("active_allocated", GIB), device=1),
        ),
        0,
        KNOWN,
    )
    assert (found.allocated, found.idle, found.pending) == (2 * GIB + MIB, GIB, 512 * MIB)
    assert (found.private_reserved, found.private_idle) == (257 * MIB, 256 * MIB)
    parts, beyond = parts_of(found)
    assert sum(part.bytes for part in parts) == 8 * GIB and not beyond


def test_only_the_pool_a_request_asks_counts_as_usable() -> None:
    small = segment(0, block("inactive", 2 * MIB), segment_type="small")
    large = segment(MIB << 4, block("inactive", 16 * MIB), block("active_allocated", MIB), block("inactive", 8 * MIB))
    found = held_in(snapshot(small, large), 0, KNOWN, RefusedRequest(20 * MIB, 20 * MIB))
    assert (found.idle, found.usable_idle, found.largest_free_block) == (26 * MIB, 24 * MIB, 16 * MIB)
    assert held_in(snapshot(small, large), 0, KNOWN, RefusedRequest(512, 2 * MIB)).usable_idle == 2 * MIB


def test_a_blocks_step_is_told_by_when_it_was_allocated() -> None:
    blocks = [block("active_allocated", MIB, USER) for _ in range(4)]
    trace = [{"action": "alloc", "addr": at * MIB, "size": MIB, "time_us": 100 + 10 * at} for at in range(1, 4)]
    known = Known(8 * GIB, GIB, steps=((110, 1), (120, 2)))
    found = held_in(snapshot(segment(0, *blocks), trace=trace), 0, known)
    assert sorted((group.step, group.count) for group in found.groups) == [(0, 1), (1, 1), (2, 2)]
    assert found.step == 2 and found.recorded.events == 3


def test_a_leak_is_found_in_a_snapshot() -> None:
    steps = 30
    blocks = [block("active_allocated", 64 * MIB, CALL, USER) for _ in range(steps)]
    trace = [
        {"action": "alloc", "addr": at * 64 * MIB, "size": 64 * MIB, "time_us": 1000 * at + 500} for at in range(steps)
    ]
    known = Known(2 * GIB, 16 * MIB, steps=tuple((1000 * at, at + 1) for at in range(steps + 1)))
    request = RefusedRequest(64 * MIB, 64 * MIB)
    found = explain(held_in(snapshot(segment(0, *blocks), trace=trace), 0, known, request))
    assert found.verdict == "leak"
    assert found.headline.startswith("train.py:41 keeps 64 MiB alive per step")


def test_known_categories_win_over_what_stacks_say() -> None:
    data = snapshot(segment(0, block("active_allocated", MIB, CALL, USER), block("active_allocated", MIB, CALL, USER)))
    found = held_in(data, 0, Known(GIB, MIB, categories={MIB: WEIGHTS}))
    assert {group.category: group.bytes for group in found.groups} == {ACTIVATIONS: MIB, WEIGHTS: MIB}


@pytest.mark.parametrize(
    ("file", "name", "category"),
    [
        (f"{TORCH}/optim/adam.py", "_init_group", OPTIMIZER_STATE),
        (f"{TORCH}/autograd/graph.py", "_engine_run_backward", GRADIENTS),
        (f"{TORCH}/nn/modules/module.py", "_apply", WEIGHTS),
        (f"{TORCH}/nn/modules/module.py", "_call_impl", ACTIVATIONS),
        ("/home/mia/train.py", "main", OTHER_TENSORS),
    ],
)
def test_a_stack_tells_what_it_allocated(file: str, name: str, category: str) -> None:
    frames = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {**CALL, "filename": file, "name": name},
    ]
    (group,) = held_in(snapshot(segment(0, block("active_allocated", MIB, *frames))), 0, KNOWN).groups
    assert group.category == category
    assert group.stack == ((file, CALL["line"], name),)


def test_the_oldest_block_of_the_workspaces_size_without_a_line_is_cublas_workspace() -> None:
    size = 32 * MIB
    blocks = [block("active_allocated", size, *frames) for frames in ((USER,), (), (), ())]
    trace = [{"action": "alloc", "addr": at * size, "size": size, "time_us": 90 + 10 * (at != 2)} for at in range(4)]
    data, known = snapshot(segment(0, *blocks), trace=trace), {3 * size: GRADIENTS}
    groups = held_in(data, 0, Known(GIB, MIB, categories=known, workspace_bytes=size)).groups
    assert sorted((group.category, group.count) for group in groups) == [
        (GRADIENTS, 1),
        (OTHER_TENSORS, 1),
        (OTHER_TENSORS, 1),
        (WORKSPACE, 1),
    ]
    assert WORKSPACE not in [group.category for group in held_in(data, 0, Known(GIB, MIB)).groups]


def test_old_snapshots_without_addresses_frames_and_pools_are_understood() -> None:
    old = {"address": 0, "device": 0, "total_size": 3 * MIB, "stream": 0, "segment_type": "large"}
    bare = [{"state": "active_allocated", "size": MIB}, {"state": "inactive", "size": 2 * MIB}]
    found = held_in({"segments": [{**old, "blocks": bare}]}, 0, KNOWN)
    assert (found.allocated, found.idle, found.recorded.events) == (MIB, 2 * MIB, 0)
    assert found.groups[0].stack == ()


def test_of_a_refused_request_it_is_known_how_the_blocks_lay() -> None:
    small = segment(0, block("active_allocated", MIB), block("inactive", MIB), segment_type="small")
    large = segment(
        1 << 30,
        block("inactive", 16 * MIB),
        block("active_allocated", 4 * MIB, USER),
        block("active_pending_free", MIB),
    )
    found = held_in(snapshot(small, large), 0, KNOWN, RefusedRequest(20 * MIB, 20 * MIB)).blocks
    assert found is not None and found.consistent
    assert found.segments == (21 * MIB, 2 * MIB), "the large ones first"
    assert found.begin == (16 * MIB, 20 * MIB, 21 * MIB)
    assert found.bytes == (4 * MIB, MIB, MIB)
    assert found.waits == (False, True, False)
    assert [found.lines[label] for label in found.label] == ["train.py:41 step", "", ""]
    assert held_in(snapshot(small, large), 0, KNOWN).blocks is None

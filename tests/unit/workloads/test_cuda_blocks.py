"""Following a CUDA device by torch's own record, which stands in here for one."""

from __future__ import annotations

import _thread
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpudash.memory.explaining.explain import explain
from gpudash.units import GIB, MIB
from gpudash.workloads import live_blocks
from gpudash.workloads.live_blocks import CudaBlocks
from gpudash.workloads.post_mortem import PostMortem, Wanted, collector_for
from tests.unit.torch_names import set_in_torch_c

USER = {"filename": "/home/mia/train.py", "line": 41, "name": "step"}


class Cuda:
    """What `CudaBlocks` asks of torch.

    Attributes:
        observers: told of an out-of-memory, as torch does.
        recording: how history was last switched.
        blocks: (bytes, state) of one segment.
        trace: events of the history.
    """

    def __init__(self) -> None:
        self.observers: list[Any] = []
        self.recording: Any = "never"
        self.blocks = [(3 * GIB, "active_allocated"), (GIB, "inactive")]
        self.trace: list[dict[str, Any]] = []

    def record(self, enabled: str | None, **options: Any) -> None:
        self.recording = enabled, options

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {"size": size, "requested_size": size, "state": state, "frames": [USER]} for size, state in self.blocks
        ]
        segment = {
            "device": 0,
            "address": 0,
            "total_size": sum(size for size, _ in self.blocks),
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "blocks": blocks,
        }
        return {"segments": [segment], "device_traces": [self.trace]}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    set_in_torch_c(monkeypatch, "_cuda_attach_out_of_memory_observer", fake.observers.append)
    set_in_torch_c(monkeypatch, "_cuda_record_memory_history", None)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fake.snapshot)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _index: (2 * GIB, 8 * GIB))
    properties = SimpleNamespace(total_memory=8 * GIB, name="NVIDIA GeForce RTX 4090", major=8, minor=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(live_blocks, "_observing", [])
    return fake


def test_history_is_kept_with_pythons_stacks_while_a_run_is_followed(cuda: Cuda) -> None:
    blocks = CudaBlocks(0, lambda: 1.0)
    blocks.start()
    enabled, options = cuda.recording
    assert enabled == "all" and options["stacks"] == "python" and options["max_entries"] > 0
    blocks.stop()
    assert cuda.recording == (None, {})


def test_torchs_observer_is_attached_once_and_told_only_while_a_run_is_followed(cuda: Cuda) -> None:
    for _ in range(2):
        blocks = CudaBlocks(0, lambda: 1.0)
        blocks.start()
        blocks.stop()
    (observer,) = cuda.observers
    observer(0, GIB, 8 * GIB, 0)
    assert blocks.refused is None


def test_an_out_of_memory_is_kept_with_step_stage_and_stack(cuda: Cuda) -> None:
    blocks = CudaBlocks(0, lambda: 1.5)
    blocks.start()
    blocks.step, blocks.stage = 7, "forward"
    (observer,) = cuda.observers
    observer(1, 5 * GIB, 8 * GIB, 2 * GIB)
    assert blocks.refused is None
    observer(0, 5 * GIB, 8 * GIB, 2 * GIB)
    blocks.stop()
    state = blocks.refused
    assert state is not None and state.request is not None
    assert (state.capacity, state.device_free, state.reserved, state.allowed) == (8 * GIB, 2 * GIB, 4 * GIB, None)
    assert (state.request.bytes, state.request.step, state.request.stage) == (5 * GIB, 7, "forward")
    assert any(frame.name.startswith("test_an_out_of_memory") for frame in state.request.stack)
    assert explain(state).verdict == "real capacity"


def test_an_out_of_memory_on_the_thread_of_a_backward_pass_is_that_of_the_line_that_waits_for_it(cuda: Cuda) -> None:
    blocks = CudaBlocks(0, lambda: 1.5)
    blocks.start()
    # torch's thread has no line of Python below the observer
    _thread.start_new_thread(cuda.observers[0], (0, 5 * GIB, 8 * GIB, 2 * GIB))
    pause, looks = threading.Event(), 0
    while blocks.refused is None and looks < 1000:
        looks += int(not pause.wait(0.01))
    blocks.stop()
    assert blocks.refused is not None and blocks.refused.request is not None
    assert any(frame.name.startswith("test_an_out_of_memory_on_the_thread") for frame in blocks.refused.request.stack)


def test_a_limit_of_the_process_is_told_from_the_capacity(cuda: Cuda) -> None:
    blocks = CudaBlocks(0, lambda: 1.5)
    blocks.start()
    cuda.observers[0](0, 5 * GIB, 4 * GIB, 4 * GIB)
    blocks.stop()
    assert blocks.refused is not None and blocks.refused.allowed == 4 * GIB


@pytest.mark.parametrize(("settings", "segment"), [("", 20 * MIB), ("large_segment_size_mb:64", 64 * MIB)])
def test_the_segment_of_a_request_is_that_of_torchs_settings(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, settings: str, segment: int
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    blocks = CudaBlocks(0, lambda: 1.5)
    blocks.start()
    cuda.observers[0](0, 5 * MIB, 8 * GIB, 0)
    blocks.stop()
    assert blocks.refused is not None and blocks.refused.request is not None
    assert (blocks.refused.request.bytes, blocks.refused.request.segment_bytes) == (5 * MIB, segment)


def test_an_error_of_the_observer_does_not_reach_the_code_that_asked(cuda: Cuda, monkeypatch: Any) -> None:
    blocks = CudaBlocks(0, lambda: 1.5)
    blocks.start()
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", dict)
    cuda.observers[0](0, GIB, 8 * GIB, 0)
    blocks.stop()
    assert blocks.refused is None


def test_growth_is_found_by_when_blocks_were_allocated(cuda: Cuda, monkeypatch: Any) -> None:
    now_us = [0]
    monkeypatch.setattr(live_blocks.time, "time_ns", lambda: now_us[0] * 1000)
    blocks = CudaBlocks(0, lambda: now_us[0] / 1e6)
    told: list[Any] = []
    post_mortem = PostMortem(blocks, lambda: 0.0, Wanted(on_growth=told.append))
    monkeypatch.setattr("gpudash.workloads.post_mortem.CHECK_PERIOD_S", 0.0)
    monkeypatch.setattr("gpudash.workloads.post_mortem.CHECK_SHARE", 1e9)
    post_mortem._next_check_s = 0.0
    cuda.blocks = []
    with post_mortem.following():
        for step in range(1, 12):
            now_us[0] += 1000
            post_mortem.step = step
            address = len(cuda.blocks) * 64 * MIB
            cuda.blocks.append((64 * MIB, "active_allocated"))
            cuda.trace.append({"action": "alloc", "addr": address, "size": 64 * MIB, "time_us": now_us[0] + 1})
    ((growth,),) = told
    assert (growth.file, growth.line) == ("/home/mia/train.py", 41)
    assert growth.bytes_per_step == 64 * MIB


def test_the_processes_and_the_context_are_told_by_the_session(cuda: Cuda) -> None:
    from gpudash.memory.explaining.memory_state import Surroundings, other_process

    around = Surroundings((other_process(GIB, 4711, "python"),), 512 * MIB)
    post_mortem = PostMortem(CudaBlocks(0, lambda: 0.0), lambda: 2.0, Wanted(lambda: around))
    with post_mortem.following():
        cuda.observers[0](0, 3 * GIB, 8 * GIB, 2 * GIB)
    found = post_mortem.explanation()
    assert found is not None
    assert found.part_bytes("process") == GIB and found.part_bytes("context") == 512 * MIB
    assert found.part_bytes("unattributed") == 8 * GIB - 2 * GIB - 4 * GIB - GIB - 512 * MIB


def test_modules_are_followed_only_while_a_run_is(cuda: Cuda) -> None:
    blocks = CudaBlocks(0, lambda: 0.0)
    blocks.start()
    model = nn.Linear(2, 2)
    model(torch.zeros(1, 2))
    assert [category for _, category in blocks._tracker.roots()] == ["weights", "weights"]
    blocks.stop()
    other = nn.Linear(2, 2)
    other(torch.zeros(1, 2))
    assert len(list(blocks._tracker.roots())) == 2


def test_the_cpu_is_not_followed() -> None:
    assert collector_for(torch.device("cpu"), lambda: 0.0) is None


def test_without_torchs_record_cuda_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
    assert collector_for(torch.device("cuda", 0), lambda: 0.0) is None

"""The table and the timeline made of a profile's events."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from gpudash.workloads.profiling import MOST_ROWS, CallFrames, operators, timeline


@dataclass
class Fake:
    """An event as torch tells it; times in µs."""

    name: str
    start: float
    end: float
    cpu_parent: Fake | None = None
    thread: int = 1
    device_type: Any = torch.autograd.DeviceType.CPU
    device_index: int = 0
    self_cpu_memory_usage: int = 0
    cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0
    device_memory_usage: int = 0
    self_device_time_total: float = 0.0
    device_time_total: float = 0.0
    is_user_annotation: bool = False
    input_shapes: list[Any] = field(default_factory=list)

    @property
    def time_range(self) -> Any:
        return SimpleNamespace(start=self.start, end=self.end)

    @property
    def cpu_time_total(self) -> float:
        return self.end - self.start

    self_cpu_time_total = cpu_time_total


def test_an_operator_that_calls_itself_counts_the_inner_time_once_in_its_total() -> None:
    outer = Fake("aten::to", 0, 10)
    found = operators([outer, Fake("aten::to", 2, 6, outer)], CallFrames(), 0)["operators"]

    assert [(row["calls"], row["cpu_total_seconds"], row["cpu_self_seconds"]) for row in found] == [(2, 10e-6, 14e-6)]


def test_the_largest_of_every_ranking_are_kept_and_the_rest_is_counted() -> None:
    events = [Fake(f"slow {n}", n, n + 1 + n / 1e3) for n in range(100)]
    events += [Fake(f"large {n}", n, n + 0.001, self_cpu_memory_usage=n + 1) for n in range(100)]
    found = operators(events, CallFrames(), 0)

    names = {row["name"] for row in found["operators"]}
    assert {"slow 99", "large 99"} <= names and {"slow 0", "large 0"}.isdisjoint(names)
    assert len(names) == 2 * MOST_ROWS and found["operators_left_out"] == 200 - 2 * MOST_ROWS
    assert found["operators"][0]["name"] == "slow 99"


def test_annotations_are_spans_and_no_operators() -> None:
    step = Fake("step 1", 0, 9, is_user_annotation=True)
    found = operators([step, Fake("aten::add", 1, 2, step)], CallFrames(), 0)

    assert [row["name"] for row in found["operators"]] == ["aten::add"]
    assert found["timeline"]["names"] == ["step 1", "aten::add"]


def test_a_gpus_kernels_lie_in_a_lane_of_their_own_below_the_threads() -> None:
    kernel = Fake("gemm", 5, 9, device_type=torch.autograd.DeviceType.CUDA)
    found = timeline([Fake("aten::mm", 1, 2), Fake("aten::t", 2, 3), Fake("aten::mm", 3, 4, thread=2), kernel])

    assert found["lanes"] == ["CPU", "CPU thread 2", "cuda:0"]
    assert found["spans"] == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 1], [1, 0, 0, 2, 1], [2, 0, 2, 4, 4]]
    assert found["seconds"] == 8e-6


def test_nothing_recorded_is_an_empty_picture() -> None:
    found = operators([], CallFrames(), 0)

    assert found["operators"] == [] and found["timeline"]["spans"] == []

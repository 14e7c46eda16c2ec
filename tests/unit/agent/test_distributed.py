"""What a rank tells of itself: who it is, its steps, how long it was blocked in them, its memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.agent.stepping import distributed, step_clock
from gpudash.agent.stepping.distributed import (
    COLLECTIVES,
    EVERY,
    EVERY_ON_CUDA,
    EVERY_WITH_EVENTS,
    MEMORY_PERIOD_S,
    STALLED_S,
    Distributed,
)
from gpudash.agent.stepping.step_clock import StepClock
from gpudash.agent.stepping.steps import Steps
from gpudash.simulator.as_cuda import answering
from gpudash.simulator.operations import collectives


class Model:
    """A DistributedDataParallel, as far as it is looked at; its logger tells what the test says."""

    made = 0

    def __init__(self, device: str = "cpu") -> None:
        self.device_type = device.partition(":")[0]
        self.module = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=device)]))
        self.rate = 0
        self.reported: dict[str, int] = {}
        self.logger = SimpleNamespace(_get_ddp_logging_data=lambda: SimpleNamespace(ints_map=dict(self.reported)))
        self._ddp_init_helper("parameters", capacity=25)

    def _ddp_init_helper(self, *_args: Any, **_kwargs: Any) -> str:
        Model.made += 1
        return "helped"

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def measured(self, iteration: int, communicated_ns: int, overlap_ns: int) -> None:
        """What torch would tell at the beginning of the next forward pass."""
        self.reported = {
            "iteration": iteration,
            "backward_comm_time": communicated_ns,
            "backward_compute_comm_overlap_time": overlap_ns,
        }


class Told(Distributed):
    """Keeps what is told, on a clock that the test moves."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []
        self.steps = Steps()
        super().__init__(self.posted.append, self.kept.append, self.steps)

    def rows(self, *, last: bool = False) -> list[list[Any]]:
        self.posted.clear()
        self.report({}, last=last)
        return [row for message in self.posted if message["type"] == "rank_steps" for row in message["steps"]]


class Clock:
    """Stands for the module `time`."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter

    def time_ns(self) -> int:
        return round(self.now_s * 1e9)


OPTIMIZER = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device="cpu")]}])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(distributed, "time", made)
    return made


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.distributed with two ranks, of which this is the second."""
    made = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        get_rank=lambda: 1,
        get_backend=lambda: "gloo",
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", made)  # type: ignore[arg-type]
    return made


def followed() -> tuple[Told, Any]:
    kind = type("Followed", (Model,), {"_ddp_init_helper": Model._ddp_init_helper})
    told = Told()
    told.follow(SimpleNamespace(DistributedDataParallel=kind))
    return told, kind


def test_a_model_that_is_made_introduces_the_rank_once(group: SimpleNamespace) -> None:
    told, kind = followed()
    model, _second = kind(), kind()
    facts = {"type": "rank", "strategy": "ddp", "device": "cpu", "world_size": 2, "rank": 1, "backend": "gloo"}
    assert told.kept == [facts] and model.rate == EVERY
    assert model._ddp_init_helper() == "helped"


def test_on_cuda_only_some_iterations_are_measured(group: SimpleNamespace) -> None:
    _told, kind = followed()
    assert kind("cuda:1").rate == EVERY_ON_CUDA > 1


def test_torch_is_not_made_to_print_what_it_measures(group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    _told, kind = followed()
    assert kind().rate == 0


def test_a_model_is_made_also_where_it_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    told, kind = followed()
    monkeypatch.setattr(told, "_made", lambda _model: 1 / 0)
    assert kind().rate == 0


def test_each_step_tells_what_was_measured_of_it(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    model = kind()
    for number in range(1, 4):
        if number > 1:  # the forward pass has told of the iteration before
            model.measured(number - 1, 30_000_000 * (number - 1), 10_000_000)
        clock.now_s += 0.1
        told.stepped(OPTIMIZER)
        told.steps.note("logging", number, 0.5 / number, 0.25)
    first, second = told.rows()
    assert first == [1, 100_100_000, pytest.approx(0.1), pytest.approx(0.08), 0.02, 0.5, 0.25, None]
    assert second[3:6] == [pytest.approx(0.05), 0.05, 0.25]
    (last,) = told.rows(last=True)
    assert last[0] == 3 and last[3:] == [None, None, pytest.approx(0.5 / 3), 0.25, None]


def test_an_iteration_that_was_not_measured_has_no_parts(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    model = kind()
    model.measured(1, 30, 10)
    for _ in range(3):
        clock.now_s += 0.1
        told.stepped(OPTIMIZER)
    assert [row[4] for row in told.rows()] == [None, None]


def test_a_model_that_is_gone_is_not_asked(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    kind().measured(1, 30, 10)
    told.stepped(OPTIMIZER)
    told.stepped(OPTIMIZER)
    assert [row[4] for row in told.rows()] == [None]


def test_a_rank_without_such_a_model_tells_its_steps_from_the_second_on(group: SimpleNamespace, clock: Clock) -> None:
    told, optimizer = Told(), fsdp_optimizer()
    for _ in range(3):
        clock.now_s += 0.2
        told.stepped(optimizer)
    assert told.kept[0]["strategy"] == "fsdp"
    assert [(row[0], row[2], row[3]) for row in told.rows(last=True)] == [
        (2, pytest.approx(0.2), None),
        (3, pytest.approx(0.2), None),
    ]


def fsdp_optimizer() -> SimpleNamespace:
    weight = type("DTensor", (), {"device": "cpu"})()
    return SimpleNamespace(param_groups=[{"params": [weight]}])


def test_without_such_a_model_the_waits_for_collectives_are_timed_and_left_out_of_computing(
    group: SimpleNamespace, clock: Clock
) -> None:
    class Work:
        def wait(self, seconds: float) -> bool:
            clock.now_s += seconds
            return True

    assert "wait" in vars(torch.distributed.Work)
    before, told, optimizer = Work.wait, Told(), fsdp_optimizer()
    undo = told.follow_waits(Work)
    for _ in range(3):
        clock.now_s += 0.2
        assert Work().wait(0.1)
        told.stepped(optimizer)
    found = [(row[2], row[3], row[4]) for row in told.rows(last=True)]
    assert found == [(pytest.approx(0.3), pytest.approx(0.2), pytest.approx(0.1))] * 2
    undo()
    assert Work.wait is before


def test_waits_that_only_put_streams_in_order_tell_nothing(group: SimpleNamespace, clock: Clock) -> None:
    group.get_backend = lambda: "nccl"
    told, optimizer = Told(), fsdp_optimizer()
    told.follow_waits(type("Work", (), {"wait": lambda _self: True}))
    for _ in range(3):
        clock.now_s += 0.2
        told.stepped(optimizer)
    assert [(row[3], row[4]) for row in told.rows(last=True)] == [(None, None)] * 2


class Gpu:
    """A GPU that is some seconds behind the program: its streams' time, and events on them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.passed_s = 0.0
        self.recorded = 0
        self.stream, self.capturing = "computing", False
        for name, fake in (
            ("current_stream", lambda: self.stream),
            ("is_current_stream_capturing", lambda: self.capturing),
            ("Event", lambda enable_timing: self.Event(self, enable_timing)),
        ):
            assert hasattr(torch.cuda, name)
            monkeypatch.setattr(torch.cuda, name, fake)

    class Event:
        def __init__(self, gpu: Gpu, timing: bool) -> None:
            assert timing
            self.gpu = gpu

        def record(self) -> None:
            self.at_s = self.gpu.now_s
            self.gpu.recorded += 1

        def query(self) -> bool:
            return self.at_s <= self.gpu.passed_s

        def elapsed_time(self, end: Any) -> float:
            return 1e3 * (end.at_s - self.at_s)


def nccl_rank(group: SimpleNamespace, gpu: Gpu, held_s: float = 0.3) -> tuple[Told, Any, Any, Any]:
    """A rank of NCCL's, with what measures in place; a process group and a stream, whose calls hold the GPU so long."""
    group.get_backend = lambda: "nccl"

    class Group:
        def allreduce(self) -> None:
            gpu.now_s += held_s

    class Stream:
        def wait_event(self) -> None:
            gpu.now_s += held_s

    assert "allreduce" in vars(torch.distributed.ProcessGroup) and "wait_event" in vars(torch.cuda.Stream)
    told = Told()
    weight = type("DTensor", (), {"device": "cuda:0"})()
    told.follow_streams(Group, Stream)
    return told, SimpleNamespace(param_groups=[{"params": [weight]}]), Group, Stream


def test_where_waits_do_not_block_events_tell_how_long_the_stream_was_held(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    told, optimizer, kind, _stream = nccl_rank(group, gpu)
    for _ in range(2 * EVERY_WITH_EVENTS + 1):
        clock.now_s += 0.5
        kind().allreduce()
        gpu.passed_s = gpu.now_s
        told.stepped(optimizer)
    measured = {row[0]: (row[3], row[4]) for row in told.rows(last=True) if row[4] is not None}
    assert measured == {
        number: (pytest.approx(0.2), pytest.approx(0.3))
        for number in (EVERY_WITH_EVENTS + 1, 2 * EVERY_WITH_EVENTS + 1)
    }


def test_a_step_is_told_once_the_gpu_has_passed_it_and_nobody_waits_for_that(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    told, optimizer, kind, _stream = nccl_rank(group, gpu)
    for _ in range(EVERY_WITH_EVENTS + 3):
        clock.now_s += 0.5
        kind().allreduce()
        told.stepped(optimizer)
    assert [row[0] for row in told.rows()] == list(range(2, EVERY_WITH_EVENTS + 1)), "the measured one is late"
    gpu.passed_s = gpu.now_s
    told.stepped(optimizer)
    first = told.rows()[0]
    assert (first[0], first[4]) == (EVERY_WITH_EVENTS + 1, pytest.approx(0.3))


def test_a_gpu_that_is_too_far_behind_costs_the_figure_and_not_the_step(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    told, optimizer, kind, _stream = nccl_rank(group, gpu)
    for _ in range(100):
        clock.now_s += 0.5
        kind().allreduce()
        told.stepped(optimizer)
    rows = told.rows(last=True)
    assert [row[0] for row in rows] == list(range(2, 101)) and all(row[4] is None for row in rows)


def test_other_streams_and_graphs_that_are_captured_are_left_alone(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    told, optimizer, kind, stream = nccl_rank(group, gpu)
    for _ in range(EVERY_WITH_EVENTS):
        told.stepped(optimizer)
    told._stream_waits.next_step(measure=True)
    gpu.stream = "communicating"
    kind().allreduce()
    gpu.stream, gpu.capturing = "computing", True
    kind().allreduce()
    gpu.capturing = False
    stream().wait_event()  # the program's own
    assert gpu.recorded == 0
    namespace = {"__name__": "torch.distributed.fsdp._fully_shard", "stream": stream()}
    exec("def wait(): stream.wait_event()", namespace)
    namespace["wait"]()  # type: ignore[operator]
    assert gpu.recorded == 2


def test_what_measures_streams_is_undone(group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def allreduce(self) -> None: ...

    before = Group.allreduce
    undo = Told().follow_streams(Group, None)
    assert Group.allreduce is not before
    undo()
    assert Group.allreduce is before


def test_every_collective_that_is_measured_is_one_of_torchs() -> None:
    assert set(COLLECTIVES) <= vars(torch.distributed.ProcessGroup).keys()


def test_the_time_until_the_next_batch_is_told_of_each_step_and_left_out_of_computing(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Batches:
        left = 3

        def __next__(self) -> int:
            clock.now_s += 0.05
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def __iter__(self) -> Batches:
            return self

    monkeypatch.setattr(step_clock, "time", clock)
    told, kind = followed()
    model = kind()
    StepClock().follow_input(SimpleNamespace(_BaseDataLoaderIter=Batches), told.loaded)
    for number, _batch in enumerate(Batches(), 1):
        clock.now_s += 0.1
        model.measured(number, 40_000_000, 10_000_000)
        told.stepped(OPTIMIZER)
    rows = told.rows(last=True)
    assert [row[7] for row in rows] == [pytest.approx(0.05)] * 3
    assert rows[1][3] == pytest.approx(0.15 - 0.03 - 0.05)


@pytest.mark.parametrize("change", [{"is_initialized": lambda: False}, {"get_world_size": lambda: 1}])
def test_a_program_of_one_process_tells_nothing(group: SimpleNamespace, change: dict[str, Any]) -> None:
    vars(group).update(change)
    told, kind = followed()
    kind()
    told.stepped(OPTIMIZER)
    assert not told.report({}, last=True) and not told.posted and not told.kept


def test_a_torch_without_distributed_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    told = Told()
    told.stepped(OPTIMIZER)
    assert not told.kept


def test_memory_is_told_now_and_then_and_at_the_end(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    kind()
    assert told.report({}) and told.report({})
    (message,) = told.posted
    assert message["type"] == "rank_memory" and message["used_bytes"] > 2**20
    clock.now_s += MEMORY_PERIOD_S
    told.report({})
    told.report({}, last=True)
    assert len(told.posted) == 3


def test_a_rank_that_makes_no_step_for_a_while_tells_where_its_main_thread_stands_until_it_goes_on(
    group: SimpleNamespace, clock: Clock
) -> None:
    told, kind = followed()
    kind()
    told.report({})
    told.posted.clear()
    for _ in range(4):
        clock.now_s += STALLED_S / 2
        told.report({})
    (message,) = [one for one in told.posted if one["type"] == "rank_place"]
    assert __file__ in [file for file, _line, _name in message["frames"]]
    told.stepped(OPTIMIZER)
    clock.now_s += STALLED_S
    told.report({})
    assert len([one for one in told.posted if one["type"] == "rank_place"]) == 2


def test_the_memory_of_a_gpu_is_what_its_allocator_says(group: SimpleNamespace) -> None:
    told, kind = followed()
    kind("cuda:1")
    told.report({"cuda:0": {"allocated_bytes": 1}, "cuda:1": {"allocated_bytes": 5, "capacity_bytes": 9}})
    (message,) = told.posted
    assert (message["allocated_bytes"], message["capacity_bytes"], message["used_bytes"]) == (5, 9, None)


def test_of_a_gpu_whose_allocator_says_nothing_no_memory_is_told(group: SimpleNamespace) -> None:
    told, kind = followed()
    kind("cuda:1")
    assert told.report({"cuda:0": {"allocated_bytes": 1}}, last=True)
    assert told.posted == []


def test_a_peak_that_has_risen_is_told_at_once(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    kind("cuda:0")
    for peak in (5, 5, 7):
        told.report({"cuda:0": {"allocated_bytes": 1, "peak_allocated_bytes": peak}})
    assert [message["peak_allocated_bytes"] for message in told.posted] == [5, 7]


def test_on_a_simulated_gpu_that_answers_for_cuda_the_collectives_themselves_are_timed(
    group: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, answering.__name__, answering)
    monkeypatch.setattr(answering, "is_answering", lambda: True)
    monkeypatch.setattr(collectives.spent, "seconds", 9.0)
    told, kind = followed()
    kind("cuda:1")
    assert told.kept[0]["device"] == "sim:1"
    for blocked_s in (0.03, 0.01):
        clock.now_s += 0.1
        collectives.spent.seconds += blocked_s
        told.stepped(OPTIMIZER)
    assert [row[3:5] for row in told.rows(last=True)] == [
        [pytest.approx(0.07), pytest.approx(0.03)],
        [pytest.approx(0.09), pytest.approx(0.01)],
    ]
    told.report({"sim:1": {"allocated_bytes": 5}, "sim:0": {"allocated_bytes": 7}}, last=True)
    assert told.posted[-1]["allocated_bytes"] == 5


def test_a_child_of_a_rank_is_none(group: SimpleNamespace, clock: Clock) -> None:
    told, kind = followed()
    kind()
    told.stepped(OPTIMIZER)
    told.forked()
    assert not told.report({}, last=True)

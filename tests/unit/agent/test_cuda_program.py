"""What is asked of torch where there is CUDA, on a stand-in that has its functions and no GPU."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.cuda import memory

from gpudash.agent.attach.lasting import NAME, Lasting
from gpudash.agent.memory import gpus as figures
from gpudash.agent.memory import history, simulating
from gpudash.agent.memory.gpus import Gpus
from gpudash.agent.stepping.batch_shapes import BatchShapes
from gpudash.agent.stepping.steps import Steps
from gpudash.agent.wire import Message

FRAMES = [{"filename": "train.py", "line": 3, "name": "step"}, {"filename": "train.py", "line": 9, "name": "<module>"}]
STATS = {
    "allocated_bytes": {"all": {"current": 1024, "peak": 4096}},
    "reserved_bytes": {"all": {"current": 2048, "peak": 8192}},
    "num_alloc_retries": 1,
    "num_ooms": 2,
}


class FakeTorch:
    """torch with one GPU: CUDA is initialised when `initialise` is called."""

    __version__ = "2.2.0"

    def __init__(self) -> None:
        self.version = SimpleNamespace(cuda="12.1")
        self.calls: list[Any] = []
        self.queued: list[Callable[[], None]] = []
        self.initialised = False
        self.full: Callable[..., None] | None = None
        self.recording = False
        self.snapshot: dict[str, Any] = {"segments": [], "device_traces": []}
        self._C = SimpleNamespace(
            _cuda_memoryStats=lambda index: STATS,
            _cuda_attach_out_of_memory_observer=lambda call: setattr(self, "full", call),
            _cuda_record_memory_history=None,
            _cuda_isHistoryEnabled=lambda: self.recording,
        )
        properties = SimpleNamespace(total_memory=2**34, name="H100", uuid="0123")
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialised,
            device_count=lambda: 1,
            get_device_properties=lambda index: properties,
            _lazy_call=self.queued.append,
            memory=SimpleNamespace(_record_memory_history=self.record, _snapshot=lambda: self.snapshot),
        )

    def initialise(self) -> None:
        self.initialised = True
        for call in self.queued:
            call()

    def record(self, *args: Any, **kwargs: Any) -> None:
        if "global_record_annotations" in kwargs:
            raise TypeError("torch 2.2 knows no such argument")
        self.calls.append((args, kwargs))


class Watched:
    """`Gpus` on a `FakeTorch`, and what it tells."""

    def __init__(self, torch: FakeTorch, **config: Any) -> None:
        self.torch = torch
        self.steps = Steps()
        self.reported: list[Message] = []
        self.lasting = Lasting()
        self.lasting.claim(lambda: True)
        report = self.reported.append
        shapes = BatchShapes(torch)
        self.gpus = Gpus(torch, config, report, report, self.steps, self._report_steps, self.lasting, shapes)
        self.gpus.attach()

    def _report_steps(self) -> None:
        self.reported.append({"type": "steps", "steps": self.steps.take()})

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.reported if message["type"] == kind]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setattr(simulating, "backend", lambda: None)
    monkeypatch.setattr(sys, NAME, {"given": set(), "now": {}}, raising=False)
    return made


def test_nothing_is_initialised_or_read_before_the_program_does(torch: FakeTorch) -> None:
    watched = Watched(torch, history=True)
    assert watched.gpus.report() is False
    assert [message["type"] for message in watched.reported] == ["torch"] and torch.calls == []
    (told,) = watched.reported
    assert told == {
        "type": "torch",
        "version": "2.2.0",
        "cuda": "12.1",
        "simulated": False,
        "history": True,
        "problem": None,
    }
    assert len(torch.queued) == 2


def test_figures_are_told_as_they_are_and_nothing_is_reset(torch: FakeTorch) -> None:
    watched = Watched(torch)
    torch.initialise()
    assert watched.gpus.report() is True and watched.gpus.report() is True
    (told,) = watched.of("allocator")
    assert told["devices"]["cuda:0"] == {
        "allocated_bytes": 1024,
        "reserved_bytes": 2048,
        "peak_allocated_bytes": 4096,
        "peak_reserved_bytes": 8192,
        "allocation_retries": 1,
        "ooms": 2,
        "capacity_bytes": 2**34,
        "product": "H100",
        "uuid": "GPU-0123",
    }


def test_history_begins_with_cuda_unless_the_program_records_itself(torch: FakeTorch) -> None:
    Watched(torch, history=True, history_entries=500)
    torch.initialise()
    assert torch.calls == [(("all",), {"context": "alloc", "stacks": "python", "max_entries": 500})]
    torch.calls.clear()
    torch.recording = True
    torch.initialise()
    assert torch.calls == []


def test_what_torch_refuses_never_reaches_the_program(torch: FakeTorch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("this allocator knows no observers")

    torch._C._cuda_attach_out_of_memory_observer = refuse
    torch.cuda.memory._record_memory_history = refuse
    watched = Watched(torch, history=True)
    torch.initialise()
    assert watched.gpus.report() and watched.gpus.report()
    assert [(told["history"], told["problem"]) for told in watched.of("torch")] == [
        (True, None),
        (False, "No memory history is recorded: this allocator knows no observers."),
    ]
    watched.gpus.forked()
    assert watched.of("torch")[-1]["history"] is False


def test_an_out_of_memory_is_told_with_exact_figures_and_its_snapshot(torch: FakeTorch, tmp_path: Path) -> None:
    watched = Watched(torch, report=str(tmp_path))
    torch.initialise()
    watched.steps.note("logging", 4)
    assert torch.full is not None
    torch.full(0, 2**30, 2**34, 2**20)
    (told,) = watched.of("oom")
    path = told.pop("snapshot")
    assert told == {
        "type": "oom",
        "device": "cuda:0",
        "requested_bytes": 2**30,
        "capacity_bytes": 2**34,
        "free_bytes": 2**20,
        "allocated_bytes": 1024,
        "reserved_bytes": 2048,
        "allowed_bytes": None,
        "step": 5,
        "problem": None,
        "shapes": [],
    }
    assert pickle.loads(Path(path).read_bytes()) == torch.snapshot


def test_a_share_that_the_program_allows_itself_is_told_beside_the_gpus_memory(torch: FakeTorch) -> None:
    assert callable(memory.get_per_process_memory_fraction)
    torch.cuda.memory.get_per_process_memory_fraction = lambda _device: 0.25
    watched = Watched(torch)
    torch.initialise()
    assert torch.full is not None
    torch.full(0, 2**30, 2**32, 2**29)  # torch gives the limit in place of the GPU's memory
    (told,) = watched.of("oom")
    assert (told["capacity_bytes"], told["allowed_bytes"]) == (2**34, 2**32)


def test_figures_that_fail_at_an_out_of_memory_do_not_hide_it(torch: FakeTorch) -> None:
    watched = Watched(torch)
    torch.initialise()
    del torch._C._cuda_memoryStats
    assert torch.full is not None
    torch.full(0, 1, 2, 3)
    (told,) = watched.of("oom")
    assert (told["allocated_bytes"], told["snapshot"], told["problem"]) == (None, None, None)


def test_figures_that_can_no_longer_be_read_are_said_once(torch: FakeTorch) -> None:
    watched = Watched(torch)
    torch.initialise()
    torch._C._cuda_memoryStats = lambda index: 1 / 0
    assert [watched.gpus.report() for _ in range(3)] == [False] * 3
    assert [told["problem"] for told in watched.of("torch")] == [
        None,
        "The allocator's figures can no longer be read: ZeroDivisionError: division by zero.",
    ]


def test_a_child_forked_after_cuda_shows_no_gpu(torch: FakeTorch) -> None:
    torch.initialised = False
    assert figures.devices_of("cuda") == 0


def segment(*blocks: tuple[int, str]) -> dict[str, Any]:
    found = [{"size": size, "state": state, "frames": FRAMES} for size, state in blocks]
    return {"device": 0, "address": 4096, "total_size": sum(size for size, _ in blocks), "blocks": found}


@pytest.mark.timed
def test_what_is_live_is_told_by_stack_and_the_step_of_its_birth(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(torch, history=True)
    torch.initialise()
    monkeypatch.setattr(watched.steps, "label_at", lambda time_us: time_us // 100)
    torch.snapshot = {
        "segments": [segment((512, "active_allocated"), (512, "inactive"), (1024, "active_allocated"))],
        "device_traces": [
            [
                {"action": "alloc", "addr": 4096, "size": 500, "time_us": 320},
                {"action": "free_completed", "addr": 4608, "size": 500, "time_us": 330},
            ]
        ],
    }
    watched.gpus.report()
    (stacks,), (held,) = watched.of("stacks"), watched.of("held")
    assert stacks["stacks"] == {"1": [("train.py", 3, "step"), ("train.py", 9, "<module>")]}
    assert held["device"] == "cuda:0" and held["holdings"] == [[1024, 1, 0, 1], [512, 1, 3, 1]]
    torch.snapshot["device_traces"] = [[]]
    monkeypatch.setattr(history.time, "monotonic", lambda: 1e12)
    watched.gpus.report()
    assert watched.of("held")[1]["holdings"] == [[1024, 1, 0, 1], [512, 1, 3, 1]], "births outlive the ring"
    assert len(watched.of("stacks")) == 1, "a stack is told once"


def test_a_torch_without_a_history_says_so(torch: FakeTorch) -> None:
    del torch._C._cuda_record_memory_history
    watched = Watched(torch, history=True)
    assert "built without CUDA" in watched.of("torch")[0]["problem"]


def test_a_torch_without_an_observer_says_so(torch: FakeTorch) -> None:
    del torch._C._cuda_attach_out_of_memory_observer
    assert "does not report when" in Watched(torch).of("torch")[0]["problem"]
    torch.version.cuda = None
    assert Watched(torch).of("torch")[0]["problem"] is None


def test_torch_is_given_its_callbacks_once_however_often_one_attaches(torch: FakeTorch) -> None:
    for _ in range(3):
        watched = Watched(torch, history=True)
        torch.initialise()
        watched.gpus.detach()
        watched.lasting.release()
    assert len(torch.queued) == 2
    assert [args for args, _ in torch.calls] == [("all",), (None,)] * 3
    torch.calls.clear()
    torch.initialise()
    assert torch.calls == [] and torch.full is not None
    torch.full(0, 1, 2, 3)
    assert watched.of("oom") == []
    again = Watched(torch)
    torch.full(0, 1, 2, 3)
    assert len(again.of("oom")) == 1


def test_a_history_of_the_programs_own_goes_on(torch: FakeTorch) -> None:
    torch.recording = torch.initialised = True
    watched = Watched(torch, history=True)
    watched.gpus.detach()
    assert torch.calls == []


def test_whatever_else_goes_wrong_is_a_sentence(torch: FakeTorch) -> None:
    del torch.cuda._lazy_call
    problem = Watched(torch).of("torch")[0]["problem"]
    assert problem.startswith("Not everything can be watched in this program: AttributeError") and problem.endswith(".")


@pytest.mark.timed
def test_stacks_without_end_are_told_again_under_new_numbers(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_NUMBERED", 2)
    now = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(history.time, "monotonic", lambda: next(now))
    watched = Watched(torch, history=True)
    torch.initialise()
    for line in (1, 2, 3, 4, 1):
        frames = [{"filename": "made.py", "line": line, "name": "f"}]
        block = {"size": 512, "state": "active_allocated", "frames": frames}
        torch.snapshot["segments"] = [{"device": 0, "address": 0, "total_size": 512, "blocks": [block]}]
        watched.gpus.report()
    told = [(number, stack[0][1]) for message in watched.of("stacks") for number, stack in message["stacks"].items()]
    assert told == [("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 1)]
    assert [held["holdings"][0][3] for held in watched.of("held")] == [1, 2, 3, 4, 5]


def test_every_request_of_cuda_is_told_once_and_after_a_gap_what_is_live(torch: FakeTorch) -> None:
    watched = Watched(torch, history=True)
    torch.initialise()

    def event(action: str, address: int, time_us: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": 500, "time_us": time_us}

    def report(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
        torch.snapshot = {"segments": [segment((512, "active_allocated"))], "device_traces": [trace]}
        watched.gpus._history._next_s = 0.0
        before = len(watched.of("requests"))
        watched.gpus.report()
        return watched.of("requests")[before:]

    first = [event("alloc", 4096, 10), event("free_requested", 8192, 11)]
    (told,) = report(first)
    assert told["rows"][:3] == [10, 4096, 500] and told["rows"][4:] == [11, 8192, 0, 0] and "live" not in told
    assert report(first) == []
    (more,) = report([*first, event("alloc", 8192, 12)])
    assert more["rows"][:3] == [12, 8192, 500]
    (late,) = report([event("alloc", 512, 90), event("alloc", 1024, 91)])
    assert late["live"][1] == 512, "the trace holds nothing that was told: some of it is gone"

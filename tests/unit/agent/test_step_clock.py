"""Into which parts the agent divides a step: all of the time between two steps is of exactly one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo import trace_rules
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

from gpudash.agent.stepping import step_clock
from gpudash.agent.stepping.step_clock import (
    BACKWARD_CALL,
    PARTS,
    PERIOD_S,
    SETTINGS,
    StepClock,
    leave_out_of_compiling,
)
from gpudash.agent.stepping.steps import OptimizerSteps, Steps
from tests.unit.agent.dashboard import Dashboard, unwatched


class Time:
    """Stands for the module `time`."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter


class Optimizer:
    """Something that can be counted."""


class Program:
    """A program whose parts take as long as the test says, in seconds, with the agent's clock around them."""

    def __init__(self, time: Time) -> None:
        class Batches:
            """An iterator of a loader, as far as it is looked at."""

            def __init__(self, **settings: Any) -> None:
                self._num_workers = 0
                self._pin_memory = self._persistent_workers = False
                self._prefetch_factor = None
                self._num_yielded = 0
                vars(self).update({f"_{name}": setting for name, setting in settings.items()})

            def __next__(self) -> None:
                time.now_s += 0.5
                self._num_yielded += 1

        self.time = time
        self.loaded: list[float] = []
        self.kind = Batches
        self.batches = Batches()
        self.clock = StepClock()
        self._optimizer = Optimizer()
        self._counter = OptimizerSteps(Steps(), None, self.clock)
        self._autograd = SimpleNamespace(_engine_run_backward=self.takes)
        self.undo = [
            self.clock.follow_input(SimpleNamespace(_BaseDataLoaderIter=Batches), self.loaded.append),
            self.clock.follow_backward(self._autograd),
        ]

    def takes(self, seconds: float) -> None:
        self.time.now_s += seconds

    def backward(self, seconds: float) -> None:
        self._autograd._engine_run_backward(seconds)

    def optimizer_steps(self, seconds: float) -> None:
        self._counter.begins(self._optimizer, (), {})
        self.takes(seconds)
        self._counter.stepped(self._optimizer, (), {})

    def step(self) -> None:
        """A step with a batch: 0.5 s for that, 0.2 forward, 0.3 backward, 0.05 between, 0.1 optimizer, 0.15 after."""
        next(self.batches)
        self.takes(0.2)
        self.backward(0.3)
        self.takes(0.05)
        self.optimizer_steps(0.1)
        self.takes(0.15)

    def parts(self) -> dict[str, float]:
        """Parts that took time, of all steps so far."""
        found = self.clock.take(last=True)
        assert found is not None
        return {part: round(found[part], 6) for part in PARTS if found[part]}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    time = Time()
    monkeypatch.setattr(step_clock, "time", time)
    return Program(time)


def test_every_name_of_torch_that_the_clock_needs_is_there() -> None:
    assert "__next__" in vars(dataloader._BaseDataLoaderIter)
    iterator: Any = iter(DataLoader(TensorDataset(torch.zeros(1))))
    assert iterator._num_yielded == 0 and all(hasattr(iterator, name) for name in SETTINGS[:3])
    assert hasattr(torch.autograd, BACKWARD_CALL)
    assert hasattr(optimizers, "register_optimizer_step_pre_hook")
    assert isinstance(trace_rules.SKIP_DIRS, list) and hasattr(trace_rules, "_recompile_re")


def test_all_of_the_time_between_two_steps_is_of_a_part(program: Program) -> None:
    for _ in range(3):
        program.step()
    assert program.parts() == {"input": 1.0, "forward": 0.4, "backward": 0.6, "optimizer": 0.2, "other": 0.4}
    assert program.loaded == pytest.approx([0.5] * 3)


def test_the_first_step_is_of_none_since_nobody_knows_where_it_began(program: Program) -> None:
    program.step()
    assert program.clock.take(last=True) is None


def test_of_a_program_without_a_loader_no_input_is_told(program: Program) -> None:
    for _ in range(2):
        program.takes(0.7)
        program.backward(0.3)
        program.optimizer_steps(0.1)
    found = program.clock.take(last=True)
    assert found is not None and "loader" not in found
    assert (found["input"], found["forward"]) == (0.0, pytest.approx(0.7))


def test_batches_of_an_evaluation_are_no_input_of_the_training(program: Program) -> None:
    program.step()
    with torch.no_grad():
        next(program.batches)
    program.step()
    parts = program.parts()
    assert (parts["input"], parts["other"]) == (0.5, 0.7)


def test_the_passes_within_a_step_of_the_optimizer_are_none_of_it(program: Program) -> None:
    program.step()
    program._counter.begins(program._optimizer, (), {})
    program.takes(0.2)
    program.backward(0.3)
    program.takes(0.1)
    program._counter.stepped(program._optimizer, (), {})
    assert program.parts() == {"forward": 0.2, "backward": 0.3, "optimizer": 0.1, "other": 0.15}


def test_a_step_of_an_optimizer_within_the_backward_pass_is_of_that(program: Program) -> None:
    program.step()
    inner = SimpleNamespace(_engine_run_backward=lambda: program.optimizer_steps(0.1))
    program.clock.follow_backward(inner)
    inner._engine_run_backward()
    program.optimizer_steps(0.2)
    assert program.parts() == {"forward": 0.15, "backward": 0.1, "optimizer": 0.2}


def test_a_batch_that_another_thread_asks_for_holds_up_no_step(program: Program) -> None:
    program.step()
    thread = threading.Thread(target=next, args=(program.batches,))
    thread.start()
    thread.join()
    program.optimizer_steps(0.1)
    assert "input" not in program.parts() and len(program.loaded) == 2


def test_the_first_batch_of_workers_is_told_apart(program: Program) -> None:
    program.step()
    for _ in range(2):
        program.batches = program.kind(num_workers=2, prefetch_factor=2)
        program.step()
        program.step()
    parts = program.parts()
    assert (parts["first_batch"], parts["input"]) == (1.0, 1.0)
    assert program.clock.take(last=True) is None, "nothing has come since"


def test_the_loader_that_is_waited_for_longest_is_the_one_that_is_told(program: Program) -> None:
    program.step()
    program.step()
    program.batches = program.kind(num_workers=3, pin_memory=True)
    for _ in range(4):
        program.step()
    found = program.clock.take(last=True)
    assert found is not None and found["cores"] >= 1 and found["passes"] == 1
    assert found["loader"] == {
        "num_workers": 3,
        "pin_memory": True,
        "persistent_workers": False,
        "prefetch_factor": None,
    }


def test_sums_are_reported_once_a_second_at_most_and_grow(program: Program) -> None:
    program.step()
    program.step()
    first = program.clock.take()
    program.optimizer_steps(0.1)
    assert first is not None and program.clock.take() is None
    program.takes(PERIOD_S)
    second = program.clock.take()
    assert second is not None and (first["steps"], second["steps"]) == (1, 2)
    assert second["input"] == first["input"]


def test_an_error_of_the_program_passes_and_its_time_counts(program: Program) -> None:
    def fails() -> None:
        program.takes(0.3)
        raise RuntimeError("its own")

    program.step()
    autograd = SimpleNamespace(_engine_run_backward=fails)
    program.clock.follow_backward(autograd)
    with pytest.raises(RuntimeError, match="its own"):
        autograd._engine_run_backward()
    program.optimizer_steps(0.1)
    assert program.parts()["backward"] == 0.3


def test_everything_is_put_back(program: Program) -> None:
    assert program.kind.__next__.__qualname__.startswith("StepClock")
    for undo in program.undo:
        undo()
    assert program.kind.__next__.__qualname__.endswith("Batches.__next__")
    assert program._autograd._engine_run_backward == program.takes


def test_every_way_to_a_gradient_is_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, BACKWARD_CALL, getattr(torch.autograd, BACKWARD_CALL))
    clock = StepClock()
    undo = clock.follow_backward(torch.autograd)
    clock.step_ended()
    spent = []
    weight = torch.ones(2, requires_grad=True)
    summed: Callable[[], Any] = weight.sum
    for passes in (
        lambda: summed().backward(),
        lambda: torch.autograd.backward([weight.sum()]),
        lambda: torch.autograd.grad(weight.sum(), weight),
    ):
        passes()
        clock.step_ended()
        found = clock.take(last=True)
        assert found is not None
        spent.append(found["backward"])
    undo()
    assert 0 < spent[0] < spent[1] < spent[2]


def test_a_child_of_a_fork_begins_anew(program: Program) -> None:
    program.step()
    program.step()
    program.clock.forked()
    program.step()
    assert program.clock.take(last=True) is None


def test_the_compiler_passes_by_the_agent_until_it_leaves() -> None:
    own = str(Path(step_clock.__file__).parent)
    undo = leave_out_of_compiling(trace_rules)
    assert trace_rules.check_file(step_clock.__file__).skipped
    undo()
    assert own not in trace_rules.SKIP_DIRS and not trace_rules.check_file(step_clock.__file__).skipped
    leave_out_of_compiling(SimpleNamespace())()


LOADING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Items(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, at):
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
        return torch.ones(4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Items(), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""

COMPILED = """
import warnings, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
@torch.compile(backend="aot_eager")
def step(batch):
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    return loss
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        step(torch.ones(2, 4))
print([str(one.message)[:60] for one in caught if "trace the builtin" in str(one.message)])
"""


@pytest.mark.process
def test_a_program_that_waits_for_its_loader_says_so(dashboard: Dashboard) -> None:
    done = dashboard.run("-c", LOADING)
    assert done.returncode == 0, done.stderr
    newest = [message["parts"] for message in dashboard.of("steps") if "parts" in message][-1]
    assert newest["steps"] == 7 and newest["loader"]["num_workers"] == 0
    assert max(PARTS, key=lambda part: float(newest[part])) == "input"
    assert not dashboard.of("fault")


@pytest.mark.process
def test_a_step_that_is_compiled_is_warned_of_nothing(dashboard: Dashboard) -> None:
    done = dashboard.run("-c", COMPILED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == unwatched("-c", COMPILED).stdout == "[]\n"
    assert not dashboard.of("fault")

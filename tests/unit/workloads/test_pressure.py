"""The patterns by which memory fills: on the CPU for real, and against the model of torch's CUDA allocator."""

from __future__ import annotations

import gc
import inspect
import io
import weakref
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocationRefused, AllocatorSettings, CachingAllocator, DeviceMemory
from gpudash.specs import PressureSpec, build
from gpudash.telemetry.records import StageFinished, StepFinished
from gpudash.units import GIB, MIB
from gpudash.workloads.program_code import code
from gpudash.workloads.programs import pressure, pressure_sizes
from gpudash.workloads.programs import pressure as pressure_leak
from gpudash.workloads.programs import pressure as pressure_patterns
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused
from tests.unit.workloads.conftest import Reported, context_on

PATTERNS = ["ramp", "leak", "sawtooth", "fragmentation", "spike"]
FAST: dict[str, Any] = {"step": "1MiB", "rate": 1000, "hold": 0}


def spec_of(**values: Any) -> PressureSpec:
    made = build(PressureSpec, {**FAST, **values})
    assert isinstance(made, PressureSpec)
    return made


class Taken:
    """In a tensor's place: bytes of a card."""

    def __init__(self, size: int) -> None:
        self.nbytes = size


class Card:
    """A GPU whose allocator is the model's: `torch.empty` takes from it, a dropped tensor gives back."""

    def __init__(self, capacity: int, told: Reported, **settings: Any) -> None:
        self.allocator = CachingAllocator(DeviceMemory(capacity), AllocatorSettings(**settings))
        self.levels: list[int] = []
        self.context = Context(
            SimpleNamespace(type="sim"),  # type: ignore[arg-type]
            run_id=1,
            emit=told.append,
            clock=lambda: 0.0,
            memory=lambda: MemoryLevel(0, capacity, capacity),
        )

        self.context.wait = lambda seconds: None  # type: ignore[method-assign]
        self.context.free_cache = self.allocator.empty_cache  # type: ignore[method-assign]

    def empty(self, size: int, **_: Any) -> Any:
        address = self.allocator.malloc(size)
        self.levels.append(self.allocator.allocated_bytes)
        tensor = Taken(size)
        weakref.finalize(tensor, self.allocator.free, address)
        return tensor

    def refusal(self, monkeypatch: pytest.MonkeyPatch, spec: PressureSpec) -> AllocationRefused:
        """The refusal that ends a run of ``spec``."""
        monkeypatch.setattr(torch, "empty", self.empty)
        try:
            pressure.run(spec, self.context)
        except AllocationRefused as refusal:
            return refusal.with_traceback(None)
        pytest.fail("memory did not run out")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_stays_within_its_cap_and_ends_on_the_cpu(context: Context, told: Reported, pattern: str) -> None:
    announced: list[int] = []
    context._refuse = lambda size, memory: announced.append(size)  # type: ignore[func-returns-value]
    result = pressure.run(spec_of(pattern=pattern, cap=5 * MIB), context)
    context.flush()

    assert 0 < result["allocated_bytes"] <= result["cap_bytes"] == 5 * MIB
    steps = [event for event in told if isinstance(event, StepFinished)]
    assert steps[-1].step == steps[-1].steps == result["allocations"]
    names = {event.name for event in told if isinstance(event, StageFinished)}
    assert {"hold", "free"} <= names and announced


@settings(deadline=None, max_examples=40)
@given(pattern=st.sampled_from(PATTERNS), step=st.integers(2000, 200_000), cap=st.integers(1024, 100_000))
def test_no_pattern_passes_its_cap_whatever_the_step(pattern: str, step: int, cap: int) -> None:
    context = context_on()
    context.wait = lambda seconds: None  # type: ignore[method-assign]
    context.free_cache = lambda: None  # type: ignore[method-assign]

    result = pressure.run(spec_of(pattern=pattern, step=step, cap=cap), context)

    assert result["allocated_bytes"] <= cap


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_was_held_is_let_go_when_the_run_is_stopped(
    context: Context, told: Reported, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    empty, append_loss = torch.empty, pressure_leak.train_step

    def watched_empty(*given: Any, **named: Any) -> torch.Tensor:
        alive.append(weakref.ref(memory := empty(*given, **named)))
        return memory

    def watched_step(*given: Any) -> None:
        append_loss(*given)
        alive.append(weakref.ref(given[-1][-1]))

    monkeypatch.setattr(torch, "empty", watched_empty)
    monkeypatch.setattr(pressure_leak, "train_step", watched_step)
    context.progress = lambda step, steps: told.requests.stop.set()  # type: ignore[method-assign]
    try:
        pressure.run(spec_of(pattern=pattern, cap=5 * MIB, hold=3600), context)
    except Cancelled:
        monkeypatch.undo()

    gc.collect()
    assert told.requests.stop.is_set() and alive and all(memory() is None for memory in alive)


@pytest.mark.parametrize("pattern", ["ramp", "sawtooth", "fragmentation", "spike"])
def test_memory_that_runs_out_ends_the_run_and_is_all_given_back(
    monkeypatch: pytest.MonkeyPatch, told: Reported, pattern: str
) -> None:
    card = Card(GIB, told)

    card.refusal(monkeypatch, spec_of(pattern=pattern, until="oom", step="16MiB"))

    assert max(card.levels) > 0 and card.allocator.allocated_bytes == 0


@pytest.mark.parametrize(
    ("step", "idle"), [("1KiB", 0.75), ("3MiB", 0.75), ("16MiB", 0.8), ("64MiB", 0.9), ("100MB", 0.9)]
)
def test_fragmentation_leaves_memory_idle_in_holes_that_the_request_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, told: Reported, step: str, idle: float
) -> None:
    card = Card(4 * GIB, told)
    spec = spec_of(pattern="fragmentation", until="oom", step=step)

    refusal = card.refusal(monkeypatch, spec)

    assert refusal.reserved > 3.8 * GIB
    assert refusal.reserved - refusal.allocated >= idle * refusal.reserved
    assert refusal.size < 1.1 * max(spec.step, pressure_sizes.OWN_SEGMENT)
    assert refusal.reserved - refusal.allocated > 10 * refusal.size


@pytest.mark.parametrize("buffer_bytes", [1, 2**20, 2**20 + 1, 2**20 + 512, 2**24 + 1])
def test_no_more_of_a_buffer_is_kept_than_it_has(buffer_bytes: int) -> None:
    assert 0 < pressure_sizes.kept_bytes(buffer_bytes) <= buffer_bytes


@pytest.mark.parametrize(("first", "cap"), [(MIB + 1, MIB), (MIB, MIB + 1), (1, 1), (64 * MIB, 10 * MIB)])
def test_a_cap_smaller_than_the_first_buffer_is_filled_by_one(first: int, cap: int) -> None:
    assert list(pressure_sizes.growing(first, cap)) == [cap]


@pytest.mark.parametrize("remedy", [{"expandable_segments": True}, {"roundup_power2_divisions": 4}])
def test_the_settings_made_against_fragmentation_let_the_same_requests_go_on_for_longer(
    monkeypatch: pytest.MonkeyPatch, told: Reported, remedy: dict[str, Any]
) -> None:
    spec = spec_of(pattern="fragmentation", until="oom", step="64MiB")
    plain, mended = Card(2 * GIB, told), Card(2 * GIB, told, **remedy)

    plain.refusal(monkeypatch, spec)
    mended.refusal(monkeypatch, spec)

    assert len(mended.levels) > 1.5 * len(plain.levels)


def test_a_sawtooth_falls_back_and_has_no_higher_teeth(monkeypatch: pytest.MonkeyPatch, told: Reported) -> None:
    card = Card(4 * GIB, told)
    monkeypatch.setattr(torch, "empty", card.empty)

    pressure.run(spec_of(pattern="sawtooth", step="64MiB", cap="256MiB"), card.context)

    tooth = [64 * MIB * number for number in (1, 2, 3, 4)]
    assert card.levels == tooth * pressure_sizes.TEETH


def test_a_sawtooth_without_cap_has_teeth_of_twice_the_height(monkeypatch: pytest.MonkeyPatch, told: Reported) -> None:
    card = Card(GIB, told)

    card.refusal(monkeypatch, spec_of(pattern="sawtooth", until="oom", step="16MiB"))

    tops = [level for level, after in zip(card.levels, card.levels[1:], strict=False) if after < level]
    assert tops == [128 * MIB, 256 * MIB, 512 * MIB, GIB]


def test_a_spike_is_one_short_allocation_of_most_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, told: Reported
) -> None:
    card = Card(10 * GIB, told)
    monkeypatch.setattr(torch, "empty", card.empty)
    monkeypatch.delattr(torch, "sim", raising=False)  # there after tests that simulated a GPU

    result = pressure.run(spec_of(pattern="spike", step="64MiB"), card.context)

    assert card.levels == [64 * MIB, pytest.approx(8 * GIB, abs=2 * MIB)]
    assert result["cap_bytes"] == 8 * GIB and card.allocator.allocated_bytes == 0


def test_the_pages_of_a_simulated_gpu_are_not_written_and_those_of_the_cpu_are(
    monkeypatch: pytest.MonkeyPatch, told: Reported, context: Context
) -> None:
    card = Card(GIB, told)
    monkeypatch.setattr(torch, "empty", card.empty)
    pressure.run(spec_of(pattern="ramp", cap="2MiB"), card.context)
    monkeypatch.undo()

    assert pressure_patterns.filled(4096, context).tolist() == [1] * 4096


def test_a_leaks_step_keeps_what_its_loss_needs_for_another_backward_pass() -> None:
    samples, sizes = 1000, {}
    context = context_on()
    inputs, targets = pressure_leak._batch(samples, 0, context)
    model = pressure_leak.small_model()
    losses: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pressure_leak.train_step(model, optimizer, inputs, targets, losses)

    known = {tensor.untyped_storage().data_ptr() for tensor in (inputs, targets, *model.parameters())}
    kept = sum(size for place, size in sizes.items() if place not in known)
    assert kept == pytest.approx(samples * pressure_sizes.SAMPLE_BYTES, rel=0.01)
    assert losses[0].grad_fn is not None
    losses[0].backward()


def test_a_leak_trains_while_it_loses_about_a_step_of_memory_in_each_step(context: Context, told: Reported) -> None:
    result = pressure.run(spec_of(pattern="leak", step="256KiB", cap="8MiB"), context)
    context.flush()

    losses = [event.loss for event in told if isinstance(event, StepFinished)]
    assert result["allocations"] == len(losses) == 32
    assert result["allocated_bytes"] == pytest.approx(8 * MIB, rel=0.01)
    assert losses[0] is not None and losses[-1] is not None and losses[-1] < 0.6 * losses[0]


def test_the_line_that_leaks_is_one_of_an_ordinary_training_step() -> None:
    source = inspect.getsource(pressure_leak.train_step)

    (line,) = [line for line in source.splitlines() if "losses.append" in line]
    assert line.strip() == "losses.append(functional.cross_entropy(model(inputs), targets))"


def test_the_guard_ends_any_pattern(told: Reported) -> None:
    for pattern in PATTERNS:
        context = context_on(reported=told, refuse=lambda size, memory: "no" if size >= 500_000 else None)
        with pytest.raises(GuardRefused):
            pressure.run(spec_of(pattern=pattern, cap="4MiB"), context)


def test_until_out_of_memory_is_refused_on_the_cpu_with_the_way_out() -> None:
    (problem,) = spec_of(until="oom").problems("cpu")

    assert problem.startswith("--until oom: on the CPU that would take the whole machine down")
    assert "--device sim:0" in problem and "--memory-cap" in problem
    assert spec_of(until="oom").problems("sim:0") == spec_of(until="oom").problems("cuda:0") == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_shown_program_runs_up_to_its_cap_and_compiles_without_one(pattern: str) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code(spec_of(pattern=pattern, cap="3MiB"), "cpu"), "shown.py", "exec"), {})
    endless = code(spec_of(pattern=pattern, until="oom"), "cuda:0")

    assert printed.getvalue() and "gpudash" not in endless
    compile(endless, "shown.py", "exec")

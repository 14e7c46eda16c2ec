"""Runs a workload on sizes alone, in a process of its own, and records its requests to the allocator.

A training can also run as one of several ranks.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Self

import torch
from torch import nn

from gpudash.memory.allocator.trace import Trace, repeated
from gpudash.memory.predicting.architecture import WORKSPACE_VARIABLE, Architecture
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.device.storage import OutOfMemoryError
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.ranks import NoRanksError, emulate_storages, first_rank_of, replicated
from gpudash.specs import PipelineSpec, Spec, TrainingSpec
from gpudash.workloads.running.context import Context, MemoryLevel
from gpudash.workloads.running.run import resolve
from gpudash.workloads.running.run_errors import Cancelled

STEPS = 3
"""How many steps are followed: the second has the optimizer's state, and the third shows what keeps growing."""

MOST_STEPS = 20_000
"""The most steps followed of a workload that grows by design; more would take minutes."""


class EnoughSteps(Cancelled):
    """All steps to be followed have been taken."""


class DryStage:
    """A stage that is neither timed nor reported."""

    memory = "pageable"

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker = tracker
        self._name = name

    def __enter__(self) -> Self:
        self._outer, self._tracker.stage = self._tracker.stage, self._name
        return self

    def __exit__(self, *error: object) -> None:
        self._tracker.stage = self._outer

    def report(self, **facts: Any) -> None:
        """Do nothing: there is no observer."""

    def describe(self, tensor: torch.Tensor) -> None:
        """Do nothing: the tensor has no contents."""


class DryContext(Context):
    """The context of a workload in a dry run: a device without numbers, and a host without any either.

    Args:
        tracker: called when a step starts.
        steps: the number of steps after which the run ends.
        alike: whether its steps are alike, so that nothing new follows the last one.
        level: the assumed memory usage of the device.
        devices: how many there are.
        wrap: converts a model on the device to what one of several ranks trains.
    """

    def __init__(
        self,
        tracker: Tracker,
        steps: int,
        level: MemoryLevel | None,
        *,
        alike: bool,
        devices: int = 1,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        super().__init__(
            torch.device("sim", 0), run_id=0, emit=lambda _event: None, clock=time.monotonic, memory=lambda: level
        )
        self.devices = tuple(torch.device("sim", index) for index in range(devices))
        self.host = "meta"
        self._tracker = tracker
        self._limit = steps
        self._alike = alike
        self._wrap = wrap

    def spread(self, model: nn.Module) -> nn.Module:
        if self._wrap is None:
            return model
        return self._wrap(model)

    def stage(self, name: str, **facts: Any) -> Any:
        return DryStage(self._tracker, name)

    def stage_seconds(self, name: str) -> float:
        return 1.0

    def begin_steps(self) -> None:
        self._tracker.step = 1

    def progress(self, step: int, steps: int) -> None:
        self.steps_done = step
        if step >= self._limit or (self._alike and step >= steps):
            self._tracker.finish()
            # Everything is freed from here on, which is not part of the run.
            raise EnoughSteps
        self._tracker.step = step + 1

    def wait(self, seconds: float) -> None:
        pass

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        pass

    def memory(self) -> MemoryLevel | None:
        if self._memory is not None:
            return self._memory()
        return None

    def free_cache(self) -> None:
        torch.sim.empty_cache()  # type: ignore[attr-defined]

    def use_threads(self, threads: int) -> None:
        pass


def trace_of(
    spec: Spec,
    dry: DryRun,
    level: MemoryLevel | None = None,
    steps: int = STEPS,
    capacity: int | None = None,
    architecture: Architecture = A100,
) -> Trace:
    """The requests of ``spec`` to the allocator from start to end.

    If the steps of a workload are alike, ``steps`` of them are followed and the last one is repeated. For a training
    on several devices the first rank is followed, whose shards are the largest.

    Args:
        dry: of this process.
        level: the device's memory usage; a workload may choose its size by it.
        capacity: bytes at which memory runs out and the trace ends; unbounded by default.
        architecture: of the GPU.

    Raises:
        DataDependentError, LeftTheDeviceError: as for `DryRun.record`.
    """
    return traces_of(spec, dry, level, steps, capacity, (architecture,))[0]


def traces_of(
    spec: Spec,
    dry: DryRun,
    level: MemoryLevel | None = None,
    steps: int = STEPS,
    capacity: int | None = None,
    architectures: Sequence[Architecture] = (A100,),
) -> list[Trace]:
    """Like `trace_of`, for each of the devices over which a model is split.

    Args:
        architectures: of the GPUs, one for each device.
    """
    spread = isinstance(spec, TrainingSpec) and bool(spec.rank_devices)
    steps += spread  # DistributedDataParallel rebuilds its buckets in the second step
    short, wanted = shortened(spec.rank_spec if isinstance(spec, TrainingSpec) else spec, steps)
    limit = MOST_STEPS
    if wanted is not None:
        limit = steps
    program = _Program(short, limit, level, alike=wanted is not None)
    with one_of(spec, dry) if isinstance(spec, TrainingSpec) and spread else nullcontext() as program.wrap:
        found = dry.record_each(program, architectures, trusting=True, capacity=capacity)
    traces = [replace(trace, followed=program.followed).counting(**_items(spec)) for trace in found]
    # Steps that leave something behind add up: the trace is extended to as many as the run really has.
    return [repeated(trace, wanted) if wanted is not None and keeps_growing(trace) else trace for trace in traces]


def _items(spec: Spec) -> dict[str, Any]:
    """What a step of ``spec`` processes on all ranks together; a workload that trains nothing counts its steps."""
    if not isinstance(spec, TrainingSpec):
        return {"items": 1, "unit": "steps"}
    ranks = 1
    if spec.rank_devices:
        ranks = spec.world_size
    items = ranks * spec.rank_spec.step_batch
    unit = "samples"
    if spec.model == "transformer":
        items *= spec.sequence
        unit = "characters"
    return {"items": items, "unit": unit, "ranks": ranks, "batch": spec.rank_batch}


def flops_of(spec: Spec, dry: DryRun, level: MemoryLevel | None = None) -> int:
    """Floating-point operations of the first step, as torch's own counter counts them (matrix products, convolutions,
    attention)."""
    short, _ = shortened(spec.rank_spec if isinstance(spec, TrainingSpec) else spec, 1)
    # A second card only for a model that is split: its products are counted on both.
    cards = (A100,) * (2 if isinstance(short, TrainingSpec) and short.is_split else 1)
    work = dry.record_each(_Program(short, 1, level, alike=True), cards, trusting=True)[0].work
    if work is None:
        return 0
    return work.flops


class _Program:
    """A run of ``spec`` in a dry run, see `DryContext`.

    Attributes:
        followed: number of steps taken.
        wrap: as in `DryContext`.
    """

    wrap: Callable[[nn.Module], nn.Module] | None = None

    def __init__(self, spec: Spec, limit: int, level: MemoryLevel | None, *, alike: bool) -> None:
        self.followed = 0
        self._spec = spec
        self._limit = limit
        self._level = level
        self._alike = alike

    def __call__(self, tracker: Tracker) -> None:
        workload: Callable[[Any, Context], Mapping[str, Any]] = resolve(self._spec)
        split = isinstance(self._spec, TrainingSpec) and self._spec.is_split
        devices = 1
        if split:
            devices = 2
        context = DryContext(tracker, self._limit, self._level, alike=self._alike, devices=devices, wrap=self.wrap)
        configured = os.environ.get(WORKSPACE_VARIABLE)
        # As in a run: workloads that choose sizes at random choose the same ones.
        torch.manual_seed(self._spec.seed)
        try:
            with suppress(EnoughSteps, OutOfMemoryError):
                workload(self._spec, context)
        finally:
            self.followed = context.steps_done
            if configured is None:  # a run may have set it, for the rest of its process only
                os.environ.pop(WORKSPACE_VARIABLE, None)


def shortened(spec: Spec, steps: int) -> tuple[Spec, int | None]:
    """``spec`` shortened so that it can be followed from its first step, and how many equal steps it really has.

    ``None`` means that its steps differ and all must be followed. A training's data are generated for one step more
    than is followed, unless all of them are on the device.
    """
    if isinstance(spec, TrainingSpec):
        # Moved in the first epoch, if at all, so that the memory for moving is followed.
        changed: dict[str, Any] = {"move_at_epoch": min(spec.move_at_epoch, 1)}
        if spec.batches != "resident" and spec.steps > steps + 1:
            changed |= {"steps": steps + 1, "epochs": 1}
        return spec.model_copy(update=changed), spec.steps
    if isinstance(spec, PipelineSpec) and spec.move != "direct":
        # Numbers decide nothing there, and drawing them takes time.
        return spec.model_copy(update={"fill": "ones"}), spec.repeat
    repeat = getattr(spec, "repeat", None)
    if repeat is not None:
        return (spec, int(repeat))
    return (spec, None)


def keeps_growing(trace: Trace) -> bool:
    """Whether the last step leaves more allocated than before it."""
    if trace.steps < STEPS:
        return False
    first, behind = trace.step_events(trace.steps)
    return sum(_signed(trace, event) for event in trace.events[first:behind]) > 0


def _signed(trace: Trace, event: int) -> int:
    size = trace.sizes[abs(event) - 1]
    if event > 0:
        return size
    return -size


@contextmanager
def one_of(spec: TrainingSpec, dry: DryRun) -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Run this process as the first of several ranks, see `first_rank_of`.

    Yields:
        a function that converts a model on the simulated device to the one that this rank trains.
    """
    with first_rank_of(spec.world_size):
        yield lambda model: _spread(model, spec, dry)


def _spread(model: nn.Module, spec: TrainingSpec, dry: DryRun) -> nn.Module:
    """``model`` as the first rank trains it: only the last pass of a step reduces gradients."""
    from gpudash.workloads.programs.parallel.rank_training import reduce_gradients, shared

    if spec.parallel == "ddp":
        spread = replicated(model, dry.backend.engine)
    else:
        try:
            emulate_storages(dry.backend.engine)
        except (ImportError, AttributeError):
            raise NoRanksError(f"PyTorch {torch.__version__} has no FSDP2 that can be followed.") from None
        spread = shared(model, spec, torch.device(DEVICE, 0))
    passes = itertools.count(1)

    def begins(_model: nn.Module, _inputs: Any) -> None:
        reduce_gradients(spread, next(passes) % spec.micro_batches == 0)

    if spec.micro_batches > 1:
        spread.register_forward_pre_hook(begins, prepend=True)
    return spread

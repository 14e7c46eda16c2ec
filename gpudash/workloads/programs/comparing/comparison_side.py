"""One side of a comparison: runs the workload on its device, a repetition with a given number of steps at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from gpudash.specs import Spec
from gpudash.system.processes import resident_bytes, waited_seconds
from gpudash.telemetry.records import Event, Note, StageFinished, StepFinished, Topic, Transfer
from gpudash.workloads.running.accelerators import module_of, synchronize
from gpudash.workloads.running.context import Context

if TYPE_CHECKING:
    from gpudash.workloads.running.run import Workload


WARM_UP = 2
"""How many first steps of a repetition do not count: until then the allocator's and the CPU's caches are not warm."""

POLL_S = 0.02
"""Seconds between two polls of the process's memory."""


@dataclass(frozen=True)
class Repetition:
    """The result of one repetition; everything except the curves covers the measured steps only.

    Attributes:
        times: seconds of each measured step; on the CPU without the time in which other programs had its core.
        lost: fraction of the measured time in which other programs had the core, 0 to 1.
        copied, computed: fractions of the measured time in stages that copy between memories, and in others; 0 to 1.
        losses, accuracies: step by step from the first, if the workload reports them.
        peak_bytes: highest memory use of the process seen between two steps.
        strays: tensors that the placement audit found on other devices.
        result: the workload's own result.
    """

    times: list[float]
    lost: float
    copied: float
    computed: float
    losses: list[float]
    accuracies: list[float]
    peak_bytes: int | None
    strays: list[str]
    result: Mapping[str, Any]

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step.

        This is the time of a run divided by its steps. The shortest steps, as in Python's `timeit`, and the median
        ignore what a device does only at every tenth step, and for asynchronous GPU work they show only the time to
        launch it. Disturbed repetitions are handled when repetitions are combined.
        """
        return statistics.fmean(self.times)

    @property
    def kept_seconds(self) -> float:
        """Seconds of a step without its copies."""
        return self.step_seconds * (1 - self.copied)


@dataclass
class _Heard:
    """What a repetition's events have reported so far."""

    copy_seconds: float = 0.0
    compute_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


class Side:
    """A workload on one device.

    Attributes:
        retries_before: number of retries of the device's allocator before the comparison.

    Args:
        context: of the whole comparison.
        device: where this side computes.
        label: its name: "cpu", "cuda:0", or "A" and "B" on one device.
        workload: the function.
    """

    def __init__(self, context: Context, device: str, label: str, workload: Workload) -> None:
        self.device = device
        self.label = label
        self.repetitions: list[Repetition] = []
        self._context = context
        self._workload = workload
        self._torch_device = torch.device(device)
        self.retries_before = 0
        if self._torch_device.type == "cuda":
            self.retries_before = retries(self._torch_device)
            if self._torch_device != context.device:  # otherwise the worker reads its peak
                torch.cuda.reset_peak_memory_stats(self._torch_device)

    def run(self, spec: Spec, at_step: Callable[[], None] | None = None) -> Repetition:
        """Run one repetition of ``spec``; its data and weights are created again from the same seed.

        Args:
            spec: the workload, with the number of steps for the repetition.
            at_step: called after every step.
        """
        heard = _Heard()
        part = self._context.sibling(_Part, self._torch_device, lambda event: self._hear(event, heard))
        part.heard, part.at_step = heard, at_step
        torch.manual_seed(spec.seed)
        return self._on_device(lambda: part.whole(lambda: self._workload(spec, part)))

    def measure(self, spec: Spec) -> Repetition:
        """Run a repetition that counts."""
        repetition = self.run(spec)
        self.repetitions.append(repetition)
        return repetition

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per step of every repetition that counts."""
        return [repetition.step_seconds for repetition in self.repetitions]

    @property
    def kept_seconds(self) -> list[float]:
        """Seconds per step without copies, of every repetition that counts."""
        return [repetition.kept_seconds for repetition in self.repetitions]

    def _on_device(self, call: Callable[[], Repetition]) -> Repetition:
        device = self._torch_device
        if device.type == "cpu":
            return call()
        with module_of(device).device(device):
            return call()

    def _hear(self, event: Event, heard: _Heard) -> None:
        if isinstance(event, StageFinished):
            if event.copied and event.from_device != event.to_device:
                heard.copy_seconds += event.seconds
            else:
                heard.compute_seconds += event.seconds
            self._context.report(replace(event, name=f"{self.label}: {event.name}", device=event.device or self.device))
        elif isinstance(event, StepFinished):
            if event.loss is not None:
                heard.losses.append(event.loss)
            if event.accuracy is not None:
                heard.accuracies.append(event.accuracy)
        elif isinstance(event, Note) and event.topic == Topic.PLACEMENT:
            heard.strays = list(map(str, event.details.get("strays", ())))
        elif isinstance(event, Transfer):
            self._context.report(event)


def retries(device: torch.device) -> int:
    """Number of times torch's allocator had to release memory and retry on ``device``, since the process started."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


class _Part(Context):
    """The context of one repetition: records when its measured steps start and end.

    Attributes:
        at_step: called after every step.
    """

    heard: _Heard
    at_step: Callable[[], None] | None = None
    _began_s = 0.0
    _before = (0.0, 0.0)
    _polled_s = 0.0
    _peak: int | None = None
    _waited_s = _whole_s = _lost_s = 0.0
    _times: list[float]

    def begin_steps(self) -> None:
        super().begin_steps()
        self._count()

    def progress(self, step: int, steps: int) -> None:
        if step == steps:
            self._settle()
        ended = time.perf_counter()
        self._times.append(self._own(ended - self._began_s))
        super().progress(step, steps)
        if step == min(WARM_UP, steps - 1):
            self._count()
        if ended - self._polled_s > POLL_S:
            self._polled_s, now = ended, resident_bytes()
            self._peak = max(now or 0, self._peak or 0) or None
        if self.at_step is not None:
            self.at_step()
        self._begin_step()

    def whole(self, call: Callable[[], Mapping[str, Any]]) -> Repetition:
        """Let ``call`` run the workload, and return its repetition."""
        self._count()
        result = call()
        self.flush()
        self._settle()
        ended = time.perf_counter()
        times = self._times or [self._own(ended - self._began_s)]  # a workload without steps counts as one
        seconds = max(self._whole_s, 1e-9)
        copied = (self.heard.copy_seconds - self._before[0]) / seconds
        computed = (self.heard.compute_seconds - self._before[1]) / seconds
        return Repetition(
            times=times,
            lost=min(1.0, self._lost_s / seconds),
            copied=min(1.0, copied),
            computed=min(1.0, computed, max(0.0, 1 - copied)),
            losses=self.heard.losses,
            accuracies=self.heard.accuracies,
            peak_bytes=self._peak,
            strays=self.heard.strays,
            result=result,
        )

    def _count(self) -> None:
        """Start counting: stages reported so far belong to what came before."""
        self.flush()
        self._settle()
        self._times, self._whole_s, self._lost_s = [], 0.0, 0.0
        self._before = self.heard.copy_seconds, self.heard.compute_seconds
        self._begin_step()

    def _settle(self) -> None:
        """Wait for the GPU's queued work, which belongs to the steps before."""
        synchronize(self.device)

    def _begin_step(self) -> None:
        self._waited_s = waited_seconds()
        self._began_s = time.perf_counter()

    def _own(self, seconds: float) -> float:
        """Seconds of a step that were its own.

        A CPU does nothing for a thread that waits for a core; a GPU continues, so there all of them count.
        """
        waited = waited_seconds() - self._waited_s
        if waited >= seconds:  # it waited between the steps, while these figures were read
            waited = 0.0
        self._whole_s += seconds
        self._lost_s += waited
        if self.device.type == "cpu":
            return seconds - waited
        return seconds


GROWING = {"training": ("batch", 4), "matmul": ("size", 2), "pipeline": ("size", 4)}
"""Workload → the field that a sweep enlarges, and the factor for each step."""


def _changed(spec: Spec, fields: dict[str, Any]) -> Spec:
    """``spec`` with other values for some fields.

    Raises:
        ValidationError: the result is not a valid spec.
    """
    return type(spec).model_validate({**spec.model_dump(exclude_unset=True), **fields})


def with_steps(spec: Spec, steps: int) -> Spec:
    """``spec`` with ``steps`` steps, in a single epoch if it has epochs; unchanged if it has no steps."""
    name = type(spec).steps_field
    if name is None:
        return spec
    fields: dict[str, Any] = {name: steps}
    if "epochs" in type(spec).model_fields:
        fields["epochs"] = 1
    return _changed(spec, fields)


def whole_steps(spec: Spec) -> int | None:
    """Steps of the whole run; ``None`` if it has no steps."""
    name = type(spec).steps_field
    if name is None:
        return None
    return int(getattr(spec, name))


def resident(spec: Spec) -> Spec | None:
    """``spec`` with its data on the device from the start; ``None`` if they already are, or cannot be."""
    if getattr(spec, "batches", "resident") == "resident":
        return None
    return _changed(spec, {"batches": "resident"})


def size_of(spec: Spec) -> tuple[str, int] | None:
    """The field that enlarges the pieces of work, and its value; ``None`` if there is none."""
    name, _factor = GROWING.get(spec.name, ("", 0))
    if not name:
        return None
    value = getattr(spec, name)
    return name, int(spec.bytes if value is None else value)  # type: ignore[attr-defined]  # a pipeline by rows


def enlarged(spec: Spec, size: int) -> Spec | None:
    """``spec`` with larger pieces of work; ``None`` beyond the largest allowed size."""
    name, _factor = GROWING[spec.name]
    try:
        return _changed(spec, {name: size})
    except ValidationError:
        return None

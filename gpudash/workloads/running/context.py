"""The context of a workload: its device, and methods to report progress, announce allocations and check for Stop.

Copies are summed up rather than recorded one by one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpudash.system.processes import give_back
from gpudash.telemetry.records import EpochFinished, Event, Note, StepFinished, Transfer
from gpudash.workloads.profiling import ProfileRequest, Profiling
from gpudash.workloads.running.accelerators import module_of
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused
from gpudash.workloads.running.stages import Stage, StageFollower, Stages

if TYPE_CHECKING:
    import torch
    from torch import nn


_Kind = TypeVar("_Kind", bound="Context")

PROGRESS_PERIOD_S = 0.05
"""Shortest time in seconds between two reported steps without a metric; those with one are all reported."""

RECENT_STEPS = 20
"""How many of the latest steps' seconds are kept, for comparison with profiled ones."""


@dataclass(frozen=True)
class MemoryLevel:
    """Memory use of the run's device, in bytes, at the latest reading."""

    used_bytes: int
    free_bytes: int
    total_bytes: int


class Requests:
    """What other threads request from the run: stop, release cached memory, explain what it holds, or a profile.

    Attributes:
        profile: the steps to profile; ``None`` again when the profile has been reported.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.because: str | None = None
        self.free_cache = threading.Event()
        self.explain = threading.Event()
        self.profile: ProfileRequest | None = None

    def take_explain(self) -> bool:
        """Whether an explanation is requested; resets the request."""
        wanted = self.explain.is_set()
        self.explain.clear()
        return wanted


class Context:
    """A run from the view of its workload. Used by the worker's thread only.

    Attributes:
        device: where to compute.
        devices: for a split model, those of its halves, the first of which is ``device``; otherwise that alone.
        host: where host tensors are created: "cpu"; "meta", without numbers, in a dry run.
        warn_ratio: memory level for a warning, 0 to 1.
        link_bytes_per_second: theoretical rate of the link to the device, if known.
        steps_done: the latest step reported.
        kept: facts that belong to the result even if the run does not reach its end.
        peaks: reads the run's highest allocated and reserved bytes so far, on a GPU.
        energy_counter: reads the energy counter of "cpu" or a GPU: time and joules, or why there is none.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        run_id: int,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        requests: Requests | None = None,
        refuse: Callable[[int, str], str | None] | None = None,
        memory: Callable[[], MemoryLevel | None] | None = None,
        warn_ratio: float = 0.85,
        link_bytes_per_second: float | None = None,
    ) -> None:
        self.device = device
        self.devices: tuple[torch.device, ...] = (device,)
        self.host = "cpu"
        self.warn_ratio = warn_ratio
        self.link_bytes_per_second = link_bytes_per_second
        self.steps_done = 0
        self.kept: dict[str, Any] = {}
        self.peaks: Callable[[], Mapping[str, int | None]] | None = None
        self.energy_counter: Callable[[str], tuple[float, float] | str] | None = None
        self._run_id = run_id
        self._emit = emit
        self._clock = clock
        self._requests = requests or Requests()
        self._refuse = refuse
        self._memory = memory
        self._traffic = Traffic(emit, clock, run_id)
        self._stages = Stages(emit, clock, run_id, device, self._copied)
        self._metrics: dict[str, Any] = {}
        self._untold: tuple[int, int, float] | None = None
        self._step_reported_s = -PROGRESS_PERIOD_S
        self._step_ended_s = clock()
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._profiling: Profiling | None = None

    def stage(self, name: str, **facts: Any) -> Stage:
        """Time a block as a stage called ``name``: CUDA events on a GPU, the monotonic clock on the CPU.

        Args:
            facts: fields of `StageFinished`; `Stage.emit` adds more.
        """
        return self._stages.open(name, facts)

    def spread(self, model: nn.Module) -> nn.Module:
        """``model``, which is on the device, as this run trains it: one of several ranks wraps it."""
        return model

    def stage_seconds(self, name: str) -> float:
        """Duration of the latest execution of stage ``name``, waiting for the GPU; NaN if there was none."""
        return self._stages.newest_seconds(name)

    def follow(self, follower: StageFollower) -> None:
        """Keep ``follower`` informed about the run's step and stage."""
        self._stages.follower = follower

    def metric(self, name: Literal["loss", "accuracy", "throughput"], value: float) -> None:
        """Set a metric for the step that the next `progress` reports."""
        self._metrics[name] = value

    def progress(self, step: int, steps: int) -> None:
        """Report the end of ``step`` of ``steps``; steps without a metric at most 20 times a second."""
        now = self._clock()
        seconds = now - self._step_ended_s
        self._step_ended_s = now
        self.steps_done = step
        if self._stages.follower is not None:
            self._stages.follower.step = step + 1
        # A step with a metric is always reported; of the others one now and then, and the last.
        if self._metrics or now - self._step_reported_s >= PROGRESS_PERIOD_S or step == steps:
            self._report_step(step, steps, seconds, now)
        else:
            self._untold = (step, steps, seconds)
        if self._requests.profile is not None:
            # A profiled step takes longer than usual: it is no reference for others.
            self._profile(step, seconds, last=step == steps)
        else:
            self._step_seconds.append(seconds)

    def begin_steps(self) -> None:
        """Start the first step's time now, after all one-time work."""
        if self._requests.profile is not None and self._requests.profile.from_start:
            self._new_profiling(self._requests.profile).begin(1)
        self._step_ended_s = self._clock()
        if self._stages.follower is not None:
            self._stages.follower.step = 1

    def step(
        self,
        step: int,
        steps: int,
        *,
        loss: float | None = None,
        accuracy: float | None = None,
        throughput: float | None = None,
    ) -> None:
        """Report a step with its metrics: loss in nats, accuracy as a ratio, throughput in items per second."""
        for name, value in (("loss", loss), ("accuracy", accuracy), ("throughput", throughput)):
            if value is not None:
                self._metrics[name] = value
        self.progress(step, steps)

    def epoch(
        self, epoch: int, *, loss: float, accuracy: float, seconds: float, device: str, observation: str
    ) -> EpochFinished:
        """Report the end of an epoch."""
        ended = EpochFinished(
            time_s=self._clock(),
            run_id=self._run_id,
            epoch=epoch,
            device=device,
            loss=loss,
            accuracy=accuracy,
            seconds=seconds,
            observation=observation,
        )
        self._emit(ended)
        return ended

    def transfer(
        self,
        from_device: str,
        to_device: str,
        bytes: int,
        seconds: float,
        *,
        memory: Literal["pageable", "pinned"] = "pageable",
        blocking: bool = True,
    ) -> None:
        """Report a copy of ``bytes`` that took ``seconds``; copies of a kind are summed between two events."""
        self._traffic.add((from_device, to_device, memory, blocking), bytes, seconds)

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Report a fact as text, with its figures in ``details``."""
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def keep(self, **facts: Any) -> None:
        """Add facts to the result, however the run ends."""
        self.kept.update(facts)

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """Announce an allocation of ``size`` bytes of ``memory``: "cpu" or the run's device, the default.

        Raises:
            GuardRefused: it would cross the guard's level; the run then ends as out of memory.
            Cancelled: the run was asked to stop.
        """
        self.check_cancelled()
        if self._refuse is None:
            return
        sentence = self._refuse(size, memory or str(self.device))
        if sentence is not None:
            raise GuardRefused(sentence, size)

    def memory(self) -> MemoryLevel | None:
        """Memory use of the run's device; ``None`` without a reading."""
        if self._memory is not None:
            return self._memory()
        return None

    def check_cancelled(self) -> None:
        """Call this between operations.

        Raises:
            Cancelled: the run was asked to stop.
        """
        # In order of importance: first stopping, then what the user requested between two operations.
        self.check_stopped()
        if self._requests.free_cache.is_set():
            self.free_cache()
        if self._profiling is not None:
            self._profiling.end_if_long()

    def check_stopped(self) -> None:
        """Only the check for Stop in `check_cancelled`: for use inside torch's calls, in whichever thread they run.

        Raises:
            Cancelled: the run was asked to stop.
        """
        if self._requests.stop.is_set():
            raise Cancelled(self._requests.because)

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or less if the run is asked to stop.

        Raises:
            Cancelled: it was asked to stop.
        """
        # The wait ends at once when Stop is pressed.
        self._requests.stop.wait(max(0.0, seconds))
        self.check_cancelled()

    def sibling(self, kind: type[_Kind], device: torch.device, emit: Callable[[Event], None]) -> _Kind:
        """A context for the same run on ``device``, with steps and stages of its own.

        Args:
            kind: its class.
            device: where the part of the run computes.
            emit: receives that part's events; `emit` passes them on.
        """
        # Memory level and link belong to one device: for another, nothing is known here.
        same = device == self.device
        return kind(
            device,
            run_id=self._run_id,
            emit=emit,
            clock=self._clock,
            requests=self._requests,
            refuse=self._refuse,
            memory=self._memory if same else None,
            warn_ratio=self.warn_ratio,
            link_bytes_per_second=self.link_bytes_per_second if same else None,
        )

    def energy(self, device: str) -> tuple[float, float] | str:
        """The energy counter of "cpu" or a GPU: when it was read (s) and its value (J), or why there is none."""
        if self.energy_counter is None:
            return "nothing reads it"
        return self.energy_counter(device)

    def report(self, event: Event) -> None:
        """Pass on an event that a part of the run has reported."""
        self._emit(event)

    def free_cache(self) -> None:
        """Release idle memory: torch's cached segments and the host's freed heap."""
        self._requests.free_cache.clear()
        if self.device.type != "cpu":
            module_of(self.device).empty_cache()  # of all devices of its kind
        give_back()

    def use_threads(self, threads: int) -> None:
        """Let torch use ``threads`` CPU threads for the rest of the run."""
        import torch

        torch.set_num_threads(threads)

    def flush(self) -> None:
        """Report everything that was held back."""
        self._stages.flush()
        self._traffic.flush()
        if self._untold is not None:
            step, steps, seconds = self._untold
            self._report_step(step, steps, seconds, self._clock())

    def end_profile(self) -> None:
        """Report the profile so far: the run has reached its end."""
        if self._requests.profile is not None:
            # Created here if profiling was requested and no step has ended since.
            (self._profiling or self._new_profiling(self._requests.profile)).end()
            self._profiling = self._requests.profile = None

    def drop_profile(self) -> None:
        """Leave the profiler, if it is on: the run was stopped or has failed."""
        if self._requests.profile is not None:
            (self._profiling or self._new_profiling(self._requests.profile)).drop()
            self._profiling = self._requests.profile = None

    def drop_stages(self) -> None:
        """Forget stages that a broken device will never complete."""
        self._stages.drop()

    def _profile(self, step: int, seconds: float, *, last: bool) -> None:
        """Pass a step to the requested profile; the time for that belongs to no step."""
        request = self._requests.profile
        if request is None:
            return
        profiling = self._profiling or self._new_profiling(request)
        profiling.step_ended(step, seconds, last=last)
        if profiling.done:
            self._profiling = self._requests.profile = None
        self._step_ended_s = self._clock()

    def _new_profiling(self, request: ProfileRequest) -> Profiling:
        # the first step includes one-time work
        first = 1
        if self.steps_done > RECENT_STEPS:
            first = 0
        # Profiled steps are compared with steps without a profiler.
        plain = list(self._step_seconds)[first:]
        self._profiling = Profiling(request, self.device, self.note, self._stages.annotate_with, plain)
        return self._profiling

    def _copied(self, stage: Stage, seconds: float) -> None:
        facts = stage.facts
        source, target = facts.get("from_device"), facts.get("to_device")
        if facts.get("bytes") and source and target and source != target:
            self._traffic.add((source, target, stage.memory, stage.memory == "pageable"), facts["bytes"], seconds)

    def _report_step(self, step: int, steps: int, seconds: float, now_s: float) -> None:
        # Stages before their step, so that the step is complete in the recording.
        self._stages.settle()
        self._emit(
            StepFinished(time_s=now_s, run_id=self._run_id, step=step, steps=steps, seconds=seconds, **self._metrics)
        )
        self._metrics.clear()
        self._step_reported_s = now_s
        self._untold = None


REPORT_PERIOD_S = 0.05
"""Shortest time in seconds between two events for the same kind of copy: the default resolution of memory readings."""

Kind = tuple[str, str, Literal["pageable", "pinned"], bool]
"""From, to, type of host memory, blocking."""


@dataclass(slots=True)
class _Sum:
    reported_s: float | None = None
    bytes: int = 0
    seconds: float = 0.0


class Traffic:
    """The copies of one run, summed by kind between two events."""

    def __init__(self, emit: Callable[[Event], None], clock: Callable[[], float], run_id: int) -> None:
        self._emit = emit
        self._clock = clock
        self._run_id = run_id
        self._sums: dict[Kind, _Sum] = {}

    def add(self, kind: Kind, size: int, seconds: float) -> None:
        """Add a copy of ``size`` bytes that took ``seconds``."""
        total = self._sums.setdefault(kind, _Sum())
        total.bytes += size
        total.seconds += seconds
        now = self._clock()
        # The first of its kind at once: a single copy must not wait for the end of the run.
        if total.reported_s is None or now - total.reported_s >= REPORT_PERIOD_S:
            self._report(kind, total, now)

    def flush(self) -> None:
        """Report what was not yet reported."""
        for kind, total in self._sums.items():
            if total.bytes:
                self._report(kind, total, self._clock())

    def _report(self, kind: Kind, total: _Sum, now_s: float) -> None:
        source, target, memory, blocking = kind
        self._emit(
            Transfer(
                time_s=now_s,
                run_id=self._run_id,
                from_device=source,
                to_device=target,
                memory=memory,
                blocking=blocking,
                bytes=total.bytes,
                seconds=total.seconds,
            )
        )
        total.reported_s, total.bytes, total.seconds = now_s, 0, 0.0

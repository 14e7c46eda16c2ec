"""Times the named stages of a run without slowing it down."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from gpudash.telemetry.records import Event, StageFinished
from gpudash.workloads.running.accelerators import synchronize

if TYPE_CHECKING:
    import torch

REPORT_PERIOD_S = 0.2
"""Shortest time in seconds between two events of the same stage; executions in between are summed."""

FIRST_VALUES = 9
"""The most elements shown of a stage's tensor: a whole 3×3."""


Annotate = Callable[[str], AbstractContextManager[Any]]
"""Opens a span with this name in the running profile."""


class StageFollower(Protocol):
    """Notified of a run's position.

    Attributes:
        step: number of the step that has started, from 1; 0 before the first.
        stage: name of the innermost running stage, "" outside of any.
    """

    step: int
    stage: str


class Stage:
    """One execution of a stage: a context manager that times its block.

    Facts (fields of `StageFinished`) may be reported inside the block or, so that they are not timed, right after it:
    the event is sent when the next stage starts.
    """

    __slots__ = ("_begun", "_outer", "_span", "_stages", "facts", "memory", "name")

    memory: Literal["pageable", "pinned"]
    """Type of the host memory in a copy; a copy between two devices counts as a transfer too."""

    def __init__(self, stages: Stages, name: str, facts: dict[str, Any]) -> None:
        self._stages = stages
        self.name = name
        self.facts = facts
        self.memory = "pageable"
        self._span: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Self:
        follower = self._stages.follower
        if follower is not None:
            self._outer, follower.stage = follower.stage, self.name
        if self._stages.annotate is not None:
            self._span = self._stages.annotate(self.name)
            self._span.__enter__()
        self._begun = self._stages.timing.begin()
        return self

    def __exit__(
        # Even if the block raised: a profile's span must not stay open, but the stage is not reported.
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._stages.closed(self, self._begun)
        if self._span is not None:
            self._span.__exit__(None, None, None)
        follower = self._stages.follower
        if follower is not None:
            follower.stage = self._outer

    def report(self, **facts: Any) -> None:
        """Add facts about the stage."""
        self.facts.update(facts)

    def describe(self, tensor: torch.Tensor) -> None:
        """Add shape, dtype, device, leaf or not, and the first values of ``tensor`` (copied back if necessary)."""
        first = tensor.detach().reshape(-1)[:FIRST_VALUES].cpu().tolist()
        self.facts.update(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            is_cuda=tensor.is_cuda,
            is_leaf=tensor.is_leaf,
            first_values=tuple(map(float, first)),
        )


@dataclass(slots=True)
class _Tally:
    """Executions of one stage that were not reported yet."""

    reported_s: float | None = None
    count: int = 0
    seconds: float = 0.0
    bytes: int | None = None
    flops: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class HostTiming:
    """Times a block by the monotonic clock: on the CPU an operation is complete when its call returns."""

    begin = staticmethod(time.perf_counter)

    @staticmethod
    def end(begun: float) -> float:
        return time.perf_counter() - begun

    @staticmethod
    def seconds(span: float, *, wait: bool) -> float | None:  # noqa: ARG004 - as CudaTiming's; there is never a wait
        return span


class CudaTiming:
    """Times a block by CUDA events on the current stream, and reads the result only after the GPU has passed them.

    An event belongs to the device where it was first recorded, so events are reused per device.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[Any]] = defaultdict(list)

    def begin(self) -> Any:
        event = self._event()
        event.record()
        return event

    def end(self, begun: Any) -> tuple[Any, Any]:
        event = self._event()
        event.record()
        return begun, event

    def seconds(self, span: tuple[Any, Any], *, wait: bool) -> float | None:
        """Seconds between the two events; ``None`` if the GPU has not passed them and ``wait`` is false."""
        begun, ended = span
        if wait:
            ended.synchronize()
        elif not ended.query():
            return None
        seconds: float = begun.elapsed_time(ended) / 1e3
        # An event can be recorded again after it was read.
        self._idle[begun.device.index] += span
        return seconds

    def _event(self) -> Any:
        import torch

        idle = self._idle[torch.cuda.current_device()]
        return idle.pop() if idle else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class WaitingTiming(HostTiming):
    """Times a block by the clock on an asynchronous device, by waiting for it before and after.

    Args:
        wait: waits for the device.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    # Twice: work queued before must not count, work queued in the block must.
    def begin(self) -> float:
        self._wait()
        return time.perf_counter()

    def end(self, begun: float) -> float:  # type: ignore[override]  # static in the base class
        self._wait()
        return time.perf_counter() - begun


def _timing(device: torch.device) -> CudaTiming | HostTiming:
    if device.type == "cuda":
        return CudaTiming()
    if device.type in ("xpu", "mps"):
        return WaitingTiming(partial(synchronize, device))
    return HostTiming()


class Stages:
    """The stages of one run; each is reported at most once per `REPORT_PERIOD_S`, with its executions summed.

    Attributes:
        follower: called with the running stage.
        annotate: names a stage in the running profile; ``None`` without one.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        run_id: int,
        device: torch.device,
        on_copied: Callable[[Stage, float], None] | None = None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._run_id = run_id
        self._on_copied = on_copied
        self.follower: StageFollower | None = None
        self.annotate: Annotate | None = None
        self.timing: Any = _timing(device)
        self._closed: deque[tuple[Stage, Any]] = deque()
        self._tallies: dict[str, _Tally] = {}
        self._newest_seconds: dict[str, float] = {}

    def annotate_with(self, annotate: Annotate | None) -> None:
        """Name stages that start from now on in a profile; ``None`` stops that."""
        self.annotate = annotate

    def open(self, name: str, facts: dict[str, Any]) -> Stage:
        """Create a stage that is about to start."""
        # Completed ones are read while the device works, never by waiting for it.
        if self._closed:
            self.settle()
        return Stage(self, name, facts)

    def closed(self, stage: Stage, begun: Any) -> None:
        """Add a stage whose block has been left."""
        self._closed.append((stage, self.timing.end(begun)))

    def settle(self, *, wait: bool = False) -> None:
        """Sum up the completed stages, and report those that are due."""
        closed = self._closed
        now = self._clock()
        while closed:
            stage, span = closed[0]
            # In order: a stage whose end the GPU has not passed holds up the later ones.
            seconds = self.timing.seconds(span, wait=wait)
            if seconds is None:
                return
            closed.popleft()
            self._add(stage, seconds, now)

    def newest_seconds(self, name: str) -> float:
        """Duration of the latest execution of ``name``, waiting for the GPU; NaN if there was none."""
        self.settle(wait=True)
        return self._newest_seconds.get(name, math.nan)

    def flush(self) -> None:
        """Report everything that was not reported, waiting for the GPU."""
        self.settle(wait=True)
        for name, tally in self._tallies.items():
            if tally.count:
                self._report(name, tally, self._clock())

    def drop(self) -> None:
        """Forget stages that the device will never complete after an error."""
        self._closed.clear()

    def _add(self, stage: Stage, seconds: float, now_s: float) -> None:
        tally = self._tallies.get(stage.name)
        if tally is None:
            tally = self._tallies[stage.name] = _Tally()
        tally.count += 1
        tally.seconds += seconds
        self._newest_seconds[stage.name] = seconds
        tally.facts = stage.facts
        if stage.facts:
            if stage.facts.get("copied") and self._on_copied is not None:
                self._on_copied(stage, seconds)
            size = stage.facts.get("bytes")
            if size is not None:
                tally.bytes = (tally.bytes or 0) + size
            flops = stage.facts.get("flops")
            if flops is not None:
                tally.flops = (tally.flops or 0.0) + flops
        if tally.reported_s is None or now_s - tally.reported_s >= REPORT_PERIOD_S:
            self._report(stage.name, tally, now_s)

    def _report(self, name: str, tally: _Tally, now_s: float) -> None:
        facts = {**tally.facts, "bytes": tally.bytes, "flops": tally.flops}
        self._emit(
            StageFinished(
                time_s=now_s, run_id=self._run_id, name=name, seconds=tally.seconds, count=tally.count, **facts
            )
        )
        tally.reported_s, tally.count, tally.seconds, tally.bytes, tally.flops = now_s, 0, 0.0, None, None

"""Timing the named stages of a run without slowing it down."""

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
"""Shortest time between two events of the same stage; what happens in between is added up."""

FIRST_VALUES = 9
"""Elements shown of a stage's tensor: the whole of a 3×3."""


Annotate = Callable[[str], AbstractContextManager[Any]]
"""Opens a span called as the text says in the profile that is on."""


class StageFollower(Protocol):
    """Is kept up to date on where a run is.

    Attributes:
        step: number of the step that has begun, from 1; 0 before the first.
        stage: name of the innermost stage that is on, "" outside of them.
    """

    step: int
    stage: str


class Stage:
    """One execution of a stage: a context manager that times its block.

    Facts (fields of `StageFinished`) may be told inside the block or, so as not to be timed, right after it: the
    event leaves when the next stage begins.
    """

    __slots__ = ("_begun", "_outer", "_span", "_stages", "facts", "memory", "name")

    memory: Literal["pageable", "pinned"]
    """What the host's end of a copy is; a copy between two devices counts as a transfer too."""

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
        # Also of a block that raised: the span of a profile must not stay open, the stage itself is not told.
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
        """Add shape, dtype, device, leaf or not, and the first values of ``tensor`` (copied back if need be)."""
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
    """Executions of one stage that have not been told yet."""

    reported_s: float | None = None
    count: int = 0
    seconds: float = 0.0
    bytes: int | None = None
    flops: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class HostTiming:
    """Times a block by the monotonic clock: on the CPU an operation is over when its call returns."""

    begin = staticmethod(time.perf_counter)

    @staticmethod
    def end(begun: float) -> float:
        return time.perf_counter() - begun

    @staticmethod
    def seconds(span: float, *, wait: bool) -> float | None:  # noqa: ARG004 - as CudaTiming's; there is never a wait
        return span


class CudaTiming:
    """Times a block by CUDA events on the current stream, and asks for the result only when the GPU has passed them.

    An event belongs to the device on which it was first recorded: those of each are used again there alone.
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
        """Seconds between the two events; ``None`` while the GPU has not passed them and ``wait`` is false."""
        begun, ended = span
        if wait:
            ended.synchronize()
        elif not ended.query():
            return None
        seconds: float = begun.elapsed_time(ended) / 1e3
        # An event that has been read can be recorded again.
        self._idle[begun.device.index] += span
        return seconds

    def _event(self) -> Any:
        import torch

        idle = self._idle[torch.cuda.current_device()]
        return idle.pop() if idle else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class WaitingTiming(HostTiming):
    """Times a block by the clock on a device that works on behind its calls: by waiting for it, before and after.

    Args:
        wait: for the device.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    # Twice: what was queued before must not count, what the block queued must.
    def begin(self) -> float:
        self._wait()
        return time.perf_counter()

    def end(self, begun: float) -> float:  # type: ignore[override]  # of the base it is static
        self._wait()
        return time.perf_counter() - begun


def _timing(device: torch.device) -> CudaTiming | HostTiming:
    if device.type == "cuda":
        return CudaTiming()
    if device.type in ("xpu", "mps"):
        return WaitingTiming(partial(synchronize, device))
    return HostTiming()


class Stages:
    """The stages of one run; each is reported at most once in `REPORT_PERIOD_S`, its executions added up.

    Attributes:
        follower: called with the stage that is on.
        annotate: names a stage in the profile that is on; ``None`` without one.
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
        """Name the stages that begin from now on in a profile; ``None``: no more."""
        self.annotate = annotate

    def open(self, name: str, facts: dict[str, Any]) -> Stage:
        """A stage about to begin."""
        # What is over is read while the device works on, never by waiting for it.
        if self._closed:
            self.settle()
        return Stage(self, name, facts)

    def closed(self, stage: Stage, begun: Any) -> None:
        """Take in a stage whose block has been left."""
        self._closed.append((stage, self.timing.end(begun)))

    def settle(self, *, wait: bool = False) -> None:
        """Add up the stages that are over, and tell those that are due."""
        closed = self._closed
        now = self._clock()
        while closed:
            stage, span = closed[0]
            # In order: a stage whose end the GPU has not passed holds up those behind it.
            seconds = self.timing.seconds(span, wait=wait)
            if seconds is None:
                return
            closed.popleft()
            self._add(stage, seconds, now)

    def newest_seconds(self, name: str) -> float:
        """How long the newest execution of ``name`` took, waiting for the GPU; NaN when there was none."""
        self.settle(wait=True)
        return self._newest_seconds.get(name, math.nan)

    def flush(self) -> None:
        """Tell everything that has not been told, waiting for the GPU."""
        self.settle(wait=True)
        for name, tally in self._tallies.items():
            if tally.count:
                self._report(name, tally, self._clock())

    def drop(self) -> None:
        """Forget stages whose end the device will not report any more, after an error of the device."""
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

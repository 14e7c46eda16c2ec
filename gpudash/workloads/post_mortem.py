"""Records during a run which code allocated what, so that out-of-memory can be explained and growth detected early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.explaining.call_sites import GrowthNotice, growing_lines
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, Surroundings
from gpudash.memory.explaining.remedies import replay_remedies
from gpudash.system.foreign_files import source_line
from gpudash.telemetry.explanation import Explanation, Growth
from gpudash.telemetry.records import Event, RunEnd

if TYPE_CHECKING:
    import torch

CHECK_PERIOD_S = 0.1
"""Shortest time in seconds between two searches for lines that grow."""

CHECK_SHARE = 0.02
"""Fraction of a run's time that those searches may take."""


class Collector(Protocol):
    """Knows what a device holds.

    Attributes:
        step, stage: of the run, set from outside.
        refused: the state at the latest out-of-memory; ``None`` if there was none.
    """

    step: int
    stage: str
    refused: MemoryState | None

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording; what was found stays."""

    def now(self) -> MemoryState:
        """The current state."""

    def sites(self) -> Sequence[AllocationGroup]:
        """What is live, each with the program's line that allocated it, without the rest of the stack."""

    def trace(self) -> Trace | None:
        """The requests to the device, up to and including the refused one; ``None`` if unknown."""

    def settings(self) -> AllocatorSettings | None:
        """The settings of the device's allocator; ``None`` for torch's own."""


@dataclass(frozen=True)
class Wanted:
    """What a run's memory is recorded for.

    Attributes:
        surroundings: returns what else holds memory of the device now; called if the collector cannot know.
        on_growth: called with the growing lines when they are first detected.
        on_explained: called with an explanation that was requested during the run.
        is_requested: whether one is requested; the call resets the request.
        replays: whether an out-of-memory is replayed to find what would have let the run continue; pointless if it
            fills the memory on purpose.
    """

    surroundings: Callable[[], Surroundings] | None = None
    on_growth: Callable[[Sequence[Growth]], None] | None = None
    on_explained: Callable[[Explanation], None] | None = None
    is_requested: Callable[[], bool] | None = None
    replays: bool = True


class PostMortem:
    """Records one run on a GPU, simulated or not. Used by the worker's thread only.

    Attributes:
        step: number of the current step; setting it marks the moment between two steps, when growth is checked.
        stage: name of the run's current activity.
    """

    def __init__(self, collector: Collector, clock: Callable[[], float], wanted: Wanted) -> None:
        self._collector = collector
        self._clock = clock
        self._wanted = wanted
        self._next_check_s = time.perf_counter() + CHECK_PERIOD_S
        self._notice = GrowthNotice()

    @property
    def step(self) -> int:
        return self._collector.step

    @step.setter
    def step(self, step: int) -> None:
        self._collector.step = step
        now = time.perf_counter()
        if now >= self._next_check_s:
            self._check_growth()
            # The duration of a check determines the time until the next: at most `CHECK_SHARE` of the run.
            ended = time.perf_counter()
            self._next_check_s = ended + max(CHECK_PERIOD_S, (ended - now) / CHECK_SHARE)
        wanted = self._wanted
        # After the first step: before that, a step has kept little.
        if step > 1 and wanted.is_requested is not None and wanted.on_explained is not None and wanted.is_requested():
            wanted.on_explained(self._explained(self._collector.now()))

    @property
    def stage(self) -> str:
        return self._collector.stage

    @stage.setter
    def stage(self, stage: str) -> None:
        self._collector.stage = stage

    @contextmanager
    def following(self) -> Iterator[PostMortem]:
        """Record allocations in the block."""
        self._collector.start()
        try:
            yield self
        finally:
            self._collector.stop()

    def explanation(self) -> Explanation | None:
        """Why memory ran out; ``None`` if it did not."""
        state = self._collector.refused
        if state is None:
            return None
        found, trace = self._explained(state), self._collector.trace()
        if trace is None or not self._wanted.replays:
            return found
        return found.with_remedies(replay_remedies(trace, found, self._collector.settings()))

    def _explained(self, state: MemoryState) -> Explanation:
        # A simulated card knows what else is on it; with CUDA only the driver does.
        if state.context_bytes is None and self._wanted.surroundings is not None:
            around = self._wanted.surroundings()
            state = replace(state, processes=around.processes, context_bytes=around.context_bytes)
        return explain(replace(state, time_s=self._clock() if state.request is None else state.time_s), source_line)

    def _check_growth(self) -> None:
        on_growth = self._wanted.on_growth
        if on_growth is None:
            return
        growing = growing_lines(self._collector.sites(), self._collector.step)
        if self._notice.is_due(growing):
            on_growth(growing)


def explained(ending: Event, post_mortem: PostMortem | None) -> Event:
    """``ending`` with the reason why memory ran out, if it did and the reason is known."""
    if post_mortem is None or not isinstance(ending, RunEnd) or ending.status != "out_of_memory":
        return ending
    if ending.error not in ("cuda", "sim"):
        return ending
    return replace(ending, explanation=post_mortem.explanation())


def collector_for(device: torch.device, clock: Callable[[], float]) -> Collector | None:
    """The collector for ``device``; ``None`` for the CPU, and for CUDA if this torch records no history."""
    if device.type == "sim":
        from gpudash.workloads.live_blocks import SimulatedBlocks
        from gpudash.workloads.running.sim_backend import in_use

        backend = in_use()
        if backend is None:
            return None
        return SimulatedBlocks(backend, device.index or 0, clock)
    if device.type == "cuda":
        from gpudash.workloads.live_blocks import CudaBlocks, can_record

        if can_record():
            return CudaBlocks(device.index or 0, clock)
        return None
    return None

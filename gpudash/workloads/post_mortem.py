"""Keeping, for a run's sake, who allocated what: so that a full memory can be explained, and growth be told early."""

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
"""Shortest time between two looks for lines that grow."""

CHECK_SHARE = 0.02
"""Part of a run's time that those looks may take."""


class Collector(Protocol):
    """Knows what a device holds.

    Attributes:
        step, stage: of the run, set from outside.
        refused: the state at the newest out-of-memory, ``None`` without one.
    """

    step: int
    stage: str
    refused: MemoryState | None

    def start(self) -> None:
        """Begin to follow."""

    def stop(self) -> None:
        """End `start`; what was found stays."""

    def now(self) -> MemoryState:
        """The present state."""

    def sites(self) -> Sequence[AllocationGroup]:
        """What is live, each with the line of the program that allocated it and no more of its stack."""

    def trace(self) -> Trace | None:
        """What had been asked of the device, up to and with what was refused; ``None`` when that is not known."""

    def settings(self) -> AllocatorSettings | None:
        """Of the device's allocator; ``None`` for torch's own."""


@dataclass(frozen=True)
class Wanted:
    """What a run's memory is followed for.

    Attributes:
        surroundings: what else holds memory of the device now; asked where the collector cannot know.
        on_growth: given the lines that grow, when they are first found to.
        on_explained: given an explanation that was asked for while the run goes on.
        is_requested: whether one is; asking takes the wish back.
        replays: whether an out-of-memory is replayed to see what would have let the run go on; in vain where it fills
            the memory by design.
    """

    surroundings: Callable[[], Surroundings] | None = None
    on_growth: Callable[[Sequence[Growth]], None] | None = None
    on_explained: Callable[[Explanation], None] | None = None
    is_requested: Callable[[], bool] | None = None
    replays: bool = True


class PostMortem:
    """Follows one run on a GPU, simulated or not. Used by the worker's thread only.

    Attributes:
        step: number of the present step; setting it is the moment between two steps, at which growth is looked for.
        stage: name of what the run is doing.
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
            # The time that a look takes decides how soon the next may come: `CHECK_SHARE` of the run at most.
            ended = time.perf_counter()
            self._next_check_s = ended + max(CHECK_PERIOD_S, (ended - now) / CHECK_SHARE)
        wanted = self._wanted
        # Behind the first step: before it little is there that a step keeps.
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
        """Follow what is allocated in the block."""
        self._collector.start()
        try:
            yield self
        finally:
            self._collector.stop()

    def explanation(self) -> Explanation | None:
        """Why memory ran out; ``None`` when it did not."""
        state = self._collector.refused
        if state is None:
            return None
        found, trace = self._explained(state), self._collector.trace()
        if trace is None or not self._wanted.replays:
            return found
        return found.with_remedies(replay_remedies(trace, found, self._collector.settings()))

    def _explained(self, state: MemoryState) -> Explanation:
        # A simulated card knows what else is on it; of CUDA only the driver does.
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
    """``ending`` with the reason why memory ran out, if it did and that is known."""
    if post_mortem is None or not isinstance(ending, RunEnd) or ending.status != "out_of_memory":
        return ending
    if ending.error not in ("cuda", "sim"):
        return ending
    return replace(ending, explanation=post_mortem.explanation())


def collector_for(device: torch.device, clock: Callable[[], float]) -> Collector | None:
    """What can follow ``device``; ``None`` for the CPU, and for CUDA where this torch keeps no history."""
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

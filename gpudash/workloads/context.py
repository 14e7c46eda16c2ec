"""What a workload is given: its device, and the ways to tell what it does, to ask for memory and to be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gpudash.telemetry.records import EpochFinished, Event, Note, StepFinished
from gpudash.workloads.endings import Cancelled, GuardRefused
from gpudash.workloads.host_heap import give_back
from gpudash.workloads.stages import Follower, Stage, Stages
from gpudash.workloads.traffic import Traffic

if TYPE_CHECKING:
    import torch

PROGRESS_PERIOD_S = 0.05
"""Shortest time between two steps that carry no metric; those with one are all told."""


@dataclass(frozen=True)
class MemoryLevel:
    """How full the memory of the run's device is, in bytes, at the newest reading."""

    used_bytes: int
    free_bytes: int
    total_bytes: int


class Wishes:
    """What other threads want of the run: to stop, to give idle memory back, or to explain what it holds."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.because: str | None = None
        self.free_cache = threading.Event()
        self.explain = threading.Event()

    def take_explain(self) -> bool:
        """Whether an explanation is wanted; the wish is then fulfilled."""
        wanted = self.explain.is_set()
        self.explain.clear()
        return wanted


class Context:
    """A run as its workload sees it. Used by the worker's thread only.

    Attributes:
        device: where to compute.
        host: where tensors of the host are made: "cpu"; "meta", without numbers, in a dry run.
        warn_ratio: memory level of a warning, 0 to 1.
        link_bytes_per_second: theoretical rate of the link to the device, where it is known.
        steps_done: the newest step told.
        kept: facts that belong to the result even when the run does not reach its end.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        run_id: int,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        wishes: Wishes | None = None,
        refuse: Callable[[int, str], str | None] | None = None,
        memory: Callable[[], MemoryLevel | None] | None = None,
        warn_ratio: float = 0.85,
        link_bytes_per_second: float | None = None,
    ) -> None:
        self.device = device
        self.host = "cpu"
        self.warn_ratio = warn_ratio
        self.link_bytes_per_second = link_bytes_per_second
        self.steps_done = 0
        self.kept: dict[str, Any] = {}
        self._run_id = run_id
        self._emit = emit
        self._clock = clock
        self._wishes = wishes or Wishes()
        self._refuse = refuse
        self._memory = memory
        self._traffic = Traffic(emit, clock, run_id)
        self._stages = Stages(emit, clock, run_id, device, self._copied)
        self._metrics: dict[str, float] = {}
        self._untold: tuple[int, int, float] | None = None
        self._step_told_s = -PROGRESS_PERIOD_S
        self._step_ended_s = clock()

    def stage(self, name: str, **facts: Any) -> Stage:
        """Time a block as a stage called ``name``: CUDA events on a GPU, the monotonic clock on the CPU.

        Args:
            facts: fields of `StageFinished`; `Stage.tell` adds more.
        """
        return self._stages.open(name, facts)

    def stage_seconds(self, name: str) -> float:
        """How long the newest execution of stage ``name`` took, waiting for the GPU; NaN when there was none."""
        return self._stages.newest_seconds(name)

    def follow(self, follower: Follower) -> None:
        """Tell ``follower`` at which step and stage the run is."""
        self._stages.follower = follower

    def metric(self, name: Literal["loss", "accuracy", "throughput"], value: float) -> None:
        """Set a metric of the step that the next `progress` tells."""
        self._metrics[name] = value

    def progress(self, step: int, steps: int) -> None:
        """Tell that ``step`` of ``steps`` is over. Steps without a metric are told at most 20 times a second."""
        now = self._clock()
        seconds = now - self._step_ended_s
        self._step_ended_s = now
        self.steps_done = step
        if self._stages.follower is not None:
            self._stages.follower.step = step + 1
        if self._metrics or now - self._step_told_s >= PROGRESS_PERIOD_S or step == steps:
            self._tell_step(step, steps, seconds, now)
        else:
            self._untold = (step, steps, seconds)

    def begin_steps(self) -> None:
        """Let the first step's time begin now, after everything that happens once."""
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
        """Tell a step with its metrics: loss in nats, accuracy as a ratio, throughput in items per second."""
        for name, value in (("loss", loss), ("accuracy", accuracy), ("throughput", throughput)):
            if value is not None:
                self._metrics[name] = value
        self.progress(step, steps)

    def epoch(self, epoch: int, *, loss: float, accuracy: float, seconds: float, device: str, observation: str) -> None:
        """Tell that an epoch is over."""
        self._emit(
            EpochFinished(
                time_s=self._clock(),
                run_id=self._run_id,
                epoch=epoch,
                device=device,
                loss=loss,
                accuracy=accuracy,
                seconds=seconds,
                observation=observation,
            )
        )

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
        """Tell a copy of ``bytes`` that took ``seconds``; copies of a kind are added up between two events."""
        self._traffic.add((from_device, to_device, memory, blocking), bytes, seconds)

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Tell a fact in words, with its figures in ``details``."""
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def keep(self, **facts: Any) -> None:
        """Facts for the result that shall be there however the run ends."""
        self.kept.update(facts)

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """Announce an allocation of ``size`` bytes of ``memory``: "cpu" or the run's device, which it is unless named.

        Raises:
            GuardRefused: when it would cross the guard's level; the run then ends as out of memory.
            Cancelled: when the run was asked to stop.
        """
        self.check_cancelled()
        if self._refuse is None:
            return
        sentence = self._refuse(size, memory or str(self.device))
        if sentence is not None:
            raise GuardRefused(sentence, size)

    def memory(self) -> MemoryLevel | None:
        """How full the run's device is; ``None`` without a reading."""
        return self._memory() if self._memory is not None else None

    def check_cancelled(self) -> None:
        """To be called between operations.

        Raises:
            Cancelled: when the run was asked to stop.
        """
        self.check_stopped()
        if self._wishes.free_cache.is_set():
            self.free_cache()

    def check_stopped(self) -> None:
        """`check_cancelled` and nothing else: for the inside of torch's calls, on whichever thread they run it.

        Raises:
            Cancelled: when the run was asked to stop.
        """
        if self._wishes.stop.is_set():
            raise Cancelled(self._wishes.because)

    def wait(self, seconds: float) -> None:
        """Let ``seconds`` pass, or less when the run is asked to stop.

        Raises:
            Cancelled: when it is.
        """
        self._wishes.stop.wait(max(0.0, seconds))
        self.check_cancelled()

    def free_cache(self) -> None:
        """Give idle memory back, torch's cached segments and the host's freed heap."""
        self._wishes.free_cache.clear()
        if self.device.type != "cpu":
            import torch

            getattr(torch, self.device.type).empty_cache()
        give_back()

    def use_threads(self, threads: int) -> None:
        """Let torch use ``threads`` CPU threads for the rest of the run."""
        import torch

        torch.set_num_threads(threads)

    def flush(self) -> None:
        """Tell everything that has been held back."""
        self._stages.flush()
        self._traffic.flush()
        if self._untold is not None:
            self._tell_step(*self._untold, self._clock())

    def drop_stages(self) -> None:
        """Forget stages that a broken device will not report any more."""
        self._stages.drop()

    def _copied(self, stage: Stage, seconds: float) -> None:
        facts = stage.facts
        source, target = facts.get("from_device"), facts.get("to_device")
        if facts.get("bytes") and source and target and source != target:
            self._traffic.add((source, target, stage.memory, stage.memory == "pageable"), facts["bytes"], seconds)

    def _tell_step(self, step: int, steps: int, seconds: float, now_s: float) -> None:
        self._stages.settle()
        self._emit(
            StepFinished(time_s=now_s, run_id=self._run_id, step=step, steps=steps, seconds=seconds, **self._metrics)
        )
        self._metrics.clear()
        self._step_told_s = now_s
        self._untold = None

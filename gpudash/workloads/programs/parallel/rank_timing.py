"""How long a rank computes in a step, and how long it is blocked in collectives: communicating, or waiting for others.

DistributedDataParallel hands a bucket of gradients over when its last gradient is there, and computes on meanwhile.
From the moment the last bucket is handed over until the backward pass returns nothing is left to compute: that is the
time blocked, and the rest of the step is computing. FSDP2 waits inside the forward and backward pass, in torch's own
waiting for each collective, which is timed on the CPU. Time in which a rank could have computed on the CPU, but others
had the cores, is neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gpudash.workloads.programs.comparison.process import waited_seconds
from gpudash.workloads.programs.parallel.rank_link import COLLECTIVE, COMPUTING, Link


class CollectiveTimes:
    """Reads how long the newest step was blocked.

    Args:
        link: told when the rank begins and ends to wait.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def begin(self) -> None:
        """A step begins."""

    def backward_ended(self) -> None:
        """The backward pass that reduces the gradients has returned."""

    def take(self) -> float | None:
        """Seconds blocked of the newest step, or where it is `late` of the one before; ``None`` when not known."""
        return None

    def starved_s(self) -> float:
        """Seconds of this step, outside of collectives, in which the rank waited for a core; 0 where nobody knows."""
        return 0.0

    @property
    def late(self) -> bool:
        """Whether `take` tells of the step before."""
        return False


class BucketTimes(CollectiveTimes):
    """DistributedDataParallel on the CPU: by the clock."""

    def __init__(self, link: Link, model: DistributedDataParallel) -> None:
        super().__init__(link)
        self._handed_s: float | None = None
        self._blocked_s: float | None = None
        self._began_starved_s = self._handed_starved_s = self._left_starved_s = 0.0
        model.register_comm_hook(None, lambda _state, bucket: self._reduce(bucket))

    def begin(self) -> None:
        self._handed_s = self._blocked_s = None
        self._began_starved_s = self._handed_starved_s = self._left_starved_s = waited_seconds()

    def backward_ended(self) -> None:
        if self._handed_s is not None:
            self._blocked_s = time.perf_counter() - self._handed_s
            self._left_starved_s = waited_seconds()
        self._link.phase = COMPUTING

    def take(self) -> float | None:
        return self._blocked_s

    def starved_s(self) -> float:
        return waited_seconds() - self._left_starved_s + self._handed_starved_s - self._began_starved_s

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._link.phase = COLLECTIVE
        self._handed_starved_s = waited_seconds()  # before the clock: what passes between belongs to computing
        self._handed_s = time.perf_counter()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # it takes None for the default group


class CudaBucketTimes(CollectiveTimes):
    """DistributedDataParallel on a GPU: by CUDA events, read a step later, when the GPU has passed them anyway."""

    def __init__(self, link: Link, model: DistributedDataParallel) -> None:
        super().__init__(link)
        self._handed: Any = None
        self._pending: tuple[Any, Any] | None = None
        self._before: tuple[Any, Any] | None = None
        model.register_comm_hook(None, lambda _state, bucket: self._reduce(bucket))

    @property
    def late(self) -> bool:
        return True

    def begin(self) -> None:
        self._before, self._pending, self._handed = self._pending, None, None

    def backward_ended(self) -> None:
        if self._handed is not None:
            ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            ended.record()
            self._pending = self._handed, ended
        self._link.phase = COMPUTING

    def take(self) -> float | None:
        if self._before is None:
            return None
        handed, ended = self._before
        ended.synchronize()
        seconds: float = handed.elapsed_time(ended) / 1e3
        return seconds

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._link.phase = COLLECTIVE
        self._handed = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._handed.record()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]


class WaitTimes(CollectiveTimes):
    """FSDP2 on the CPU: the time inside torch's own waiting for collectives."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._blocked_s = self._began_starved_s = self._starved_waiting_s = 0.0
        work: Any = distributed.Work
        work.wait = self._timed(work.wait)

    def begin(self) -> None:
        self._blocked_s = self._starved_waiting_s = 0.0
        self._began_starved_s = waited_seconds()

    def take(self) -> float | None:
        return self._blocked_s

    def starved_s(self) -> float:
        return waited_seconds() - self._began_starved_s - self._starved_waiting_s

    def _timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            before, self._link.phase = self._link.phase, COLLECTIVE
            starved = waited_seconds()
            began = time.perf_counter()
            try:
                return wait(*arguments, **more)
            finally:
                self._blocked_s += time.perf_counter() - began
                self._starved_waiting_s += waited_seconds() - starved
                self._link.phase = before

        return timed


def times_of(model: nn.Module, device: torch.device, link: Link) -> CollectiveTimes:
    """What times the collectives of ``model``.

    With FSDP2 on a GPU nothing does: there its waits are other streams' than those it computes on.
    """
    if isinstance(model, DistributedDataParallel):
        return BucketTimes(link, model) if device.type == "cpu" else CudaBucketTimes(link, model)
    return WaitTimes(link) if device.type == "cpu" else CollectiveTimes(link)

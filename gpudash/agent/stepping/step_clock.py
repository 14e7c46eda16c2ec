"""Divides the program's steps into parts: waiting for input, forward, backward, optimizer, and the rest.

The clock is read where a part begins and ends, so that the time between two steps belongs to exactly one part each. It
is the host's time: work left on the GPU when a call returns counts where the program waits for it. The clock itself
never waits.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from operator import itemgetter

from ..guest import guarded, restoring, undo_nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PERIOD_S = 1.0
"""Shortest interval between two reports."""

PARTS = ("input", "first_batch", "forward", "backward", "optimizer", "other")
"""`first_batch`: waiting for the first batch of a pass over a loader whose workers start for it."""

INPUT, FIRST_BATCH, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PARTS))

SETTINGS = ("_num_workers", "_pin_memory", "_persistent_workers", "_prefetch_factor")
"""Settings of a `DataLoader`, by the names in its iterators."""

MOST_LOADERS = 16
"""Most loaders with different settings that are distinguished."""

BACKWARD_CALL = "_engine_run_backward"
"""Function of torch.autograd called by `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad`."""


class StepClock:
    """Adds up the parts of steps on the thread whose optimizer makes them, from the end of the first step on.

    Forward is the time before a backward pass, since the batch arrived or the previous step ended. Layers are not
    hooked: that would cost more than it shows. Time that ends with a batch or the optimizer belongs to no named part.
    """

    def __init__(self) -> None:
        self._trainer: int | None = None
        self._since_s = 0.0
        self._sums = [0.0] * len(PARTS)
        self._steps = 0
        self._passes = 0
        self._busy = False
        self._waits: dict[tuple[Any, ...], float] = {}
        # Replaced as a whole at the end of a step: the sampler's thread reads it.
        self._newest: tuple[Any, ...] | None = None
        self._reported: tuple[Any, ...] | None = None
        self._reported_s = 0.0

    def follow_input(self, module: Any, loaded: Callable[[float], None]) -> Callable[[], None]:
        """Time the batches of `DataLoader`; ``module`` defines it.

        Args:
            loaded: callback with the seconds of each batch, on the thread that requested it.

        Returns:
            A function that undoes it.
        """
        owner = getattr(module, "_BaseDataLoaderIter", None)
        if owner is None or "__next__" not in vars(owner):
            return undo_nothing
        next_batch = owner.__next__
        batch_came = guarded(self._batch_came)

        def following_batch(iterator: Any) -> Any:
            mine = self._begins(OTHER)
            began_s = time.perf_counter()
            try:
                return next_batch(iterator)
            finally:
                loaded(time.perf_counter() - began_s)
                if mine:
                    batch_came(iterator)

        return restoring(owner, {"__next__": following_batch})

    def follow_backward(self, autograd: Any) -> Callable[[], None]:
        """Time the backward passes; ``autograd`` is ``torch.autograd``.

        Returns:
            A function that undoes it.
        """
        run = getattr(autograd, BACKWARD_CALL, None)
        if run is None:
            return undo_nothing

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            mine = self._begins(FORWARD)
            try:
                return run(*args, **kwargs)
            finally:
                if mine:
                    self._ends(BACKWARD)

        return restoring(autograd, {BACKWARD_CALL: run_backward})

    def optimizer_begins(self) -> None:
        """An optimizer is about to make a step."""
        if not self._busy and self._trainer == _thread.get_ident():
            self._lapse(OTHER)

    def optimizer_ended(self) -> None:
        """An optimizer has made a step."""
        # A step inside a backward pass, as by a weight's hook, belongs to that.
        if not self._busy and self._trainer == _thread.get_ident():
            self._lapse(OPTIMIZER)

    def step_ended(self) -> None:
        """The counted optimizer has made a step."""
        trainer = _thread.get_ident()
        if self._trainer != trainer:
            # The first one, or another thread's: the time before belongs to no step.
            self._trainer = trainer
            self._since_s = time.perf_counter()
            return
        self._steps += 1
        self._newest = (self._steps, self._passes, *self._sums)

    def take(self, *, last: bool = False) -> dict[str, Any] | None:
        """The totals of the steps so far, in seconds; ``None`` if it is too early or there are none.

        Args:
            last: whether this is the last call.
        """
        newest = self._newest
        now_s = time.monotonic()
        if newest is None or newest is self._reported or (not last and now_s - self._reported_s < PERIOD_S):
            return None
        self._reported = newest
        self._reported_s = now_s
        steps, passes, *sums = newest
        found: dict[str, Any] = {"steps": steps, "passes": passes}
        found.update((name, round(seconds, 6)) for name, seconds in zip(PARTS, sums))
        waits = list(self._waits.items())
        if waits:
            settings, _seconds = max(waits, key=itemgetter(1))
            found["loader"] = {name[1:]: setting for name, setting in zip(SETTINGS, settings)}
            found["cores"] = _cores()
        return found

    def forked(self) -> None:
        """In a forked child: reset, as it has made no step."""
        self._trainer = self._newest = None
        self._sums = [0.0] * len(PARTS)
        self._steps = self._passes = 0
        self._busy = False
        self._waits = {}

    def _begins(self, before: int) -> bool:
        """A part begins on this thread; false if it is outside of steps, or inside another part.

        Args:
            before: part to which the time until now belongs.
        """
        if self._busy or self._trainer != _thread.get_ident():
            return False
        self._busy = True
        self._lapse(before)
        return True

    def _ends(self, part: int) -> None:
        self._lapse(part)
        self._busy = False

    def _lapse(self, part: int) -> None:
        """Assign the time since the last lapse to ``part``."""
        now_s = time.perf_counter()
        self._sums[part] += now_s - self._since_s
        self._since_s = now_s

    def _batch_came(self, iterator: Any) -> None:
        """A request for a batch has ended."""
        known = vars(iterator).get
        settings = tuple(map(known, SETTINGS))
        part = INPUT
        if settings[0] and known("_num_yielded") == 1:
            part = FIRST_BATCH
        # An evaluation's batches are not input of training steps.
        if not sys.modules["torch"].is_grad_enabled():
            part = OTHER
        before_s = self._since_s
        self._ends(part)
        if part == OTHER:
            return
        if part == FIRST_BATCH:
            self._passes += 1
        if settings in self._waits or len(self._waits) < MOST_LOADERS:
            self._waits[settings] = self._waits.get(settings, 0.0) + self._since_s - before_s


def leave_out_of_compiling(rules: Any) -> Callable[[], None]:
    """Make torch's compiler skip the agent's code in functions that it compiles: it does not support the clock, and
    would print a warning.

    Args:
        rules: ``torch._dynamo.trace_rules``, or ``torch._dynamo.skipfiles``, its name in torch 2.2.

    Returns:
        A function that undoes it.
    """
    folders = getattr(rules, "SKIP_DIRS", None)
    compiled = getattr(rules, "_recompile_re", None)
    if not isinstance(folders, list) or compiled is None:
        return undo_nothing
    # The folder of the whole agent.
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders.append(own)
    compiled()

    def undo() -> None:
        if own in folders:
            folders.remove(own)
            compiled()

    return undo


def _cores() -> int:
    """Number of cores that the program may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return os.cpu_count() or 1
    return len(affinity(0))

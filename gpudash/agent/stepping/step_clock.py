"""Into which parts a step of the program falls: waiting for input, forward, backward, optimizer, and what is between.

The clock is read where a part begins and where it ends, so that all the time between two steps is of exactly one part.
It is the host's: what a GPU still has to do when a call returns counts where the program waits for it. Nothing waits
for that.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from ..guest import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PERIOD_S = 1.0
"""Between two reports, at the least."""

PARTS = ("input", "first_batch", "forward", "backward", "optimizer", "other")
"""`first_batch`: waiting for the first batch of a pass over a loader with workers, which they are started for."""

INPUT, FIRST_BATCH, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PARTS))

SETTINGS = ("_num_workers", "_pin_memory", "_persistent_workers", "_prefetch_factor")
"""Of a `DataLoader`, as its iterators have them."""

MOST_LOADERS = 16
"""Loaders of different settings that are told apart."""

BACKWARD_CALL = "_engine_run_backward"
"""What `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` call in torch.autograd."""


class StepClock:
    """Adds up the parts of the steps in the thread whose optimizer makes them, from the end of the first one on.

    Forward is what lies before a backward pass: since the batch came, or the step before ended. No layer is hooked,
    which would cost more than it tells. What ends with a batch or with the optimizer is none of the named parts.
    """

    def __init__(self) -> None:
        self._trainer: int | None = None
        self._since_s = 0.0
        self._sums = [0.0] * len(PARTS)
        self._steps = 0
        self._passes = 0
        self._busy = False
        self._waits: dict[tuple[Any, ...], float] = {}
        # replaced as a whole at the end of a step: the sampler's thread reads it
        self._newest: tuple[Any, ...] | None = None
        self._reported: tuple[Any, ...] | None = None
        self._reported_s = 0.0

    def follow_input(self, module: Any, loaded: Callable[[float], None]) -> Callable[[], None]:
        """Time what a `DataLoader` takes for a batch; ``module`` is the one that defines it.

        Args:
            loaded: called with the seconds of each, in whichever thread asked for it.

        Returns:
            what undoes it.
        """
        owner = getattr(module, "_BaseDataLoaderIter", None)
        if owner is None or "__next__" not in vars(owner):
            return _nothing
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

        return _replaced(owner, "__next__", following_batch)

    def follow_backward(self, autograd: Any) -> Callable[[], None]:
        """Time the backward passes; ``autograd`` is ``torch.autograd``.

        Returns:
            what undoes it.
        """
        run = getattr(autograd, BACKWARD_CALL, None)
        if run is None:
            return _nothing

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            mine = self._begins(FORWARD)
            try:
                return run(*args, **kwargs)
            finally:
                if mine:
                    self._ends(BACKWARD)

        return _replaced(autograd, BACKWARD_CALL, run_backward)

    def optimizer_begins(self) -> None:
        """Any optimizer is about to make a step."""
        if not self._busy and self._trainer == _thread.get_ident():
            self._lapse(OTHER)

    def optimizer_ended(self) -> None:
        """Any optimizer has made a step."""
        # a step that is made within a backward pass, as by a hook of a weight, is of that
        if not self._busy and self._trainer == _thread.get_ident():
            self._lapse(OPTIMIZER)

    def step_ended(self) -> None:
        """The optimizer that is counted has made a step."""
        trainer = _thread.get_ident()
        if self._trainer != trainer:
            # the first, or that of another thread: what came before is of no step
            self._trainer = trainer
            self._since_s = time.perf_counter()
            return
        self._steps += 1
        self._newest = (self._steps, self._passes, *self._sums)

    def take(self, *, last: bool = False) -> dict[str, Any] | None:
        """What the steps so far add up to, in seconds; ``None`` where it is too soon or nothing has come.

        Args:
            last: whether nobody will ask again.
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
            settings, _seconds = max(waits, key=_seconds_of)
            found["loader"] = {name[1:]: setting for name, setting in zip(SETTINGS, settings)}
            found["cores"] = _cores()
        return found

    def forked(self) -> None:
        """In a child: it has made no step."""
        self._trainer = self._newest = None
        self._sums = [0.0] * len(PARTS)
        self._steps = self._passes = 0
        self._busy = False
        self._waits = {}

    def _begins(self, before: int) -> bool:
        """A part begins in this thread; false where it is of no step, or within another part.

        Args:
            before: of which part the time is that has passed until now.
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
        """The time since the last lapse was of ``part``."""
        now_s = time.perf_counter()
        self._sums[part] += now_s - self._since_s
        self._since_s = now_s

    def _batch_came(self, iterator: Any) -> None:
        """A call for a batch ends."""
        known = vars(iterator).get
        settings = tuple(map(known, SETTINGS))
        part = INPUT
        if settings[0] and known("_num_yielded") == 1:
            part = FIRST_BATCH
        # batches of an evaluation are no input of a training's steps
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
    """Have torch's compiler pass by what the agent does within a function that it compiles: it knows no clock, and
    would warn the program of that.

    Args:
        rules: ``torch._dynamo.trace_rules``, or ``torch._dynamo.skipfiles`` as it was called in torch 2.2.

    Returns:
        what undoes it.
    """
    folders = getattr(rules, "SKIP_DIRS", None)
    compiled = getattr(rules, "_recompile_re", None)
    if not isinstance(folders, list) or compiled is None:
        return _nothing
    # the folder of the whole agent
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders.append(own)
    compiled()

    def undo() -> None:
        if own in folders:
            folders.remove(own)
            compiled()

    return undo


def _replaced(owner: Any, name: str, made: Any) -> Callable[[], None]:
    before = getattr(owner, name)
    setattr(owner, name, made)

    def undo() -> None:
        if vars(owner).get(name) is made:
            setattr(owner, name, before)

    return undo


def _seconds_of(item: tuple[Any, float]) -> float:
    return item[1]


def _cores() -> int:
    """Cores that the program may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is None:
        return os.cpu_count() or 1
    return len(affinity(0))


def _nothing() -> None:
    """Undo what was not done."""

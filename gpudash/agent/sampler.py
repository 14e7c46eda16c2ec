"""The agent's one thread: it looks in when it is time, and is not there while the program forks or ends."""

from __future__ import annotations

import _thread
import os
import time

from .guest import leave_signals_to_the_program, note_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 0.005
"""Part of a core that looking in may take."""

IDLE_PERIOD_S = 0.5
"""Between two looks where there is nothing to see, at the least."""

PATIENCE_S = 1.0
"""Longest wait for the thread to end."""

GONE_S = 1.0
"""Longest wait for the system to be rid of it."""


class Rest:
    """How long to rest after some work, so that it takes no more than a part of a core.

    Of the last two times the cheaper counts. A search for garbage in all of a large program, or an import, that fell
    into one says nothing of the next, and would be followed by seconds of silence.

    Args:
        share: part of a core.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._last_s = 0.0

    def after(self, cost_s: float) -> float:
        """Seconds to rest after work of ``cost_s`` seconds of processor time."""
        cheaper_s = min(cost_s, self._last_s)
        self._last_s = cost_s
        return cheaper_s / self._share


class Sampler:
    """Calls ``poll`` every ``period_s``, more seldom when that takes long.

    The thread is none of `threading`'s, so that the program counts as many as it has.

    Args:
        poll: tells whether there was something to see.
        period_s: seconds.
        is_requested: whether something is wanted now, so that the next look comes sooner.

    Attributes:
        is_requested: likewise.
        cpu_s: seconds of processor time that the thread took.
        running: whether it has begun, and was not told to end.
    """

    def __init__(
        self, poll: Callable[[], bool], period_s: float, is_requested: Callable[[], bool] = lambda: False
    ) -> None:
        self.is_requested = is_requested
        self.cpu_s = 0.0
        self.running = False
        self._poll = poll
        self._period_s = period_s
        self._round: _Round | None = None
        self._due_s: float | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self.running:
            return
        made = _Round()
        try:
            _thread.start_new_thread(self._run, (made,))
        except RuntimeError:
            # none can be started any more: the interpreter is ending
            return
        self._round = made
        self.running = True

    def stop(self, patience_s: float = PATIENCE_S) -> None:
        """End the thread and wait for that; not from within it."""
        self.running = False
        round_ = self._round
        self._round = None
        if round_ is not None:
            round_.end(patience_s)

    def finish(self) -> None:
        """End the thread from within, after this look; nothing where it is not there."""
        round_ = self._round
        if self.running and round_ is not None:
            self.running = False
            round_.release()

    def forget(self) -> None:
        """In a forked child, where the thread is not: be as new."""
        self.cpu_s = 0.0
        self.running = False
        self._round = None
        self._due_s = None

    def _run(self, round_: _Round) -> None:
        try:
            leave_signals_to_the_program()
            round_.native_id = _thread.get_native_id()
            wait_s = self._period_s
            rest = Rest(SHARE)
            if self._due_s is not None:
                # a program that forks again and again would put the next look off each time
                wait_s = max(0.0, self._due_s - time.monotonic())
            else:
                self._due_s = time.monotonic() + wait_s
            # the lock is held from the start: to get it means that somebody has ended this round
            while not round_.wake.acquire(True, min(wait_s, IDLE_PERIOD_S)):
                wait_s -= IDLE_PERIOD_S
                if wait_s > 0 and not self.is_requested():
                    continue
                before = time.thread_time()
                seen = self._polled()
                cost = time.thread_time() - before
                self.cpu_s += cost
                wait_s = max(self._period_s, rest.after(cost))
                if not seen:
                    wait_s = max(wait_s, IDLE_PERIOD_S)
                self._due_s = time.monotonic() + wait_s
        finally:
            round_.ended.release()

    def _polled(self) -> bool:
        try:
            return self._poll()
        except Exception as error:
            note_fault(error)  # what goes wrong once may go well the next time
            return False


class _Round:
    """One life of the thread, from start to end."""

    def __init__(self) -> None:
        self.wake = _thread.allocate_lock()
        self.ended = _thread.allocate_lock()
        self.native_id = 0
        self.wake.acquire()
        self.ended.acquire()

    def release(self) -> None:
        try:
            self.wake.release()
        except RuntimeError:
            # another thread did so first
            return

    def end(self, patience_s: float) -> None:
        self.release()
        if not self.ended.acquire(True, patience_s):
            return
        # Python lets go of a thread a little before the system does, which counts them when the program forks
        deadline = time.monotonic() + GONE_S
        while os.path.exists(f"/proc/self/task/{self.native_id}") and time.monotonic() < deadline:
            time.sleep(0.0001)

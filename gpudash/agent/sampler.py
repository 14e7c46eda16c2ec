"""The agent's single thread: it polls when it is time, and is absent while the program forks or ends."""

from __future__ import annotations

import _thread
import os
import time

from .guest import leave_signals_to_the_program, note_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 0.005
"""Part of a core that polling may use."""

IDLE_PERIOD_S = 0.5
"""Shortest interval between two polls when there is nothing to see."""

PATIENCE_S = 1.0
"""Longest wait for the thread to end."""

GONE_S = 1.0
"""Longest wait for the system to remove it."""


class Rest:
    """How long to pause after some work, so that it uses no more than a part of a core.

    The cheaper of the last two costs counts: a garbage collection of a large program, or an import, that happened
    during one says nothing about the next, and would cause seconds of silence.

    Args:
        share: part of a core.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._last_s = 0.0

    def after(self, cost_s: float) -> float:
        """Seconds to pause after work of ``cost_s`` seconds of processor time."""
        cheaper_s = min(cost_s, self._last_s)
        self._last_s = cost_s
        return cheaper_s / self._share


class Sampler:
    """Calls ``poll`` every ``period_s``, less often if that is expensive.

    The thread is not one of `threading`'s, so that the program's count of threads is unchanged.

    Args:
        poll: returns whether there was something to see.
        period_s: interval in seconds.
        is_requested: whether something is wanted now, so that the next poll comes sooner.

    Attributes:
        is_requested: likewise.
        cpu_s: processor time of the thread in seconds.
        running: whether it has been started, and not been asked to end.
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
        """Start, if it is not running."""
        if self.running:
            return
        made = _Round()
        try:
            _thread.start_new_thread(self._run, (made,))
        except RuntimeError:
            # No thread can be started any more: the interpreter is shutting down.
            return
        self._round = made
        self.running = True

    def stop(self, patience_s: float = PATIENCE_S) -> None:
        """End the thread and wait for it; not on the thread itself."""
        self.running = False
        round_ = self._round
        self._round = None
        if round_ is not None:
            round_.end(patience_s)

    def finish(self) -> None:
        """End the thread from within, after this poll; does nothing if it is not running."""
        round_ = self._round
        if self.running and round_ is not None:
            self.running = False
            round_.release()

    def forget(self) -> None:
        """In a forked child, which lacks the thread: reset."""
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
                # A program that forks repeatedly would otherwise delay the next poll each time.
                wait_s = max(0.0, self._due_s - time.monotonic())
            else:
                self._due_s = time.monotonic() + wait_s
            # The lock is held from the start: acquiring it means that this round was ended.
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
            note_fault(error)  # the next poll may succeed
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
            # Another thread has done so already.
            return

    def end(self, patience_s: float) -> None:
        self.release()
        if not self.ended.acquire(True, patience_s):
            return
        # Python reports the end of a thread slightly before the system does, which counts them when the program forks.
        deadline = time.monotonic() + GONE_S
        while os.path.exists(f"/proc/self/task/{self.native_id}") and time.monotonic() < deadline:
            time.sleep(0.0001)

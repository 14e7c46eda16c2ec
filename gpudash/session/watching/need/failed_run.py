"""What is known of a run that ran out of memory, how long it may be run again, and why that finds nothing."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Need, Remedy

LEAST_S = 20.0
"""A rerun may take so long however soon the run had failed: most of it is the import of torch."""

MOST_TIMES = 2.0
"""And this many times as long as the failed run."""

REQUESTED_S = 600.0
"""Longest that it may take where it was asked for, if it did not come to its end before."""

STEADY_STEPS = 3
"""Steps after the one that failed with which the peak of training is taken to be known."""


class NeedUnknownError(Exception):
    """What the whole run needs was not found; its text is a sentence."""


class RemedyFailsError(NeedUnknownError):
    """With the remedy that was tried the program runs out of memory, or fails in another way.

    Args:
        remedy: that was tried.
        need: what the run with it needs, where that is known.
    """

    def __init__(self, remedy: Remedy, need: Need | None = None) -> None:
        super().__init__(f"{remedy.change} was tried, and does not do.")
        self.need = need


@dataclass(frozen=True, slots=True)
class FailedRun:
    """What is known of a run that ran out of memory.

    Attributes:
        seconds: that it took.
        step: that was going on.
        torch: its torch's version.
    """

    seconds: float
    step: int
    torch: str


def unknown(why: str) -> str:
    """That the need is not known, in a sentence."""
    return f"What the whole run needs is not known: {why.rstrip('.')}."


LEFT = unknown("finding out was left")


class ProgramRerun(ABC):
    """The program once more. `find` belongs to one thread; any may call `leave` and read `seconds`.

    Args:
        request: of the run that failed.
        environment: its variables.
        failed: what is known of it.
        requested: whether the user has asked for the rerun, so that it may take longer, and write where that cannot be
            held back.
        remedy: which is tried, by its diff or its variable, on a card as it was; ``None`` for the program as it is.

    Attributes:
        is_requested: whether the user has asked for it.
    """

    def __init__(
        self,
        request: WatchRequest,
        environment: Mapping[str, str],
        failed: FailedRun,
        *,
        requested: bool,
        remedy: Remedy | None = None,
    ) -> None:
        self.is_requested = requested
        self._request = request
        self._environment = environment
        self._failed = failed
        self._remedy = remedy
        self._left = threading.Event()
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began_s

    @property
    @abstractmethod
    def limit_s(self) -> float:
        """How long it may take, in seconds of which it did not wait for a processor."""

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """For how many of its seconds others had the processors."""

    def leave(self) -> None:
        """End it; nothing is found then."""
        self._left.set()

    @abstractmethod
    def find(self) -> Need:
        """Run the program again, and work out what it needs.

        Raises:
            RemedyFailsError: where it runs out of memory, or fails, with the remedy.
            NeedUnknownError: why nothing was found.
        """

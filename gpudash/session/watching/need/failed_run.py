"""Facts about a run that ran out of memory, the time limit for its rerun, and why a rerun finds nothing."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudash.memory.explaining.whole_need import CardRequests, variables_of
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Need, Remedy

LEAST_S = 20.0
"""Least time limit of a rerun, however soon the run failed: most of it is for importing torch."""

MOST_TIMES = 2.0
"""Time limit of a rerun as a multiple of the failed run's time."""

REQUESTED_S = 600.0
"""Time limit of a rerun that the user asked for."""

STEADY_STEPS = 3
"""Steps after the failed one with which the peak of training counts as known."""


class NeedUnknownError(Exception):
    """The need of the whole run was not found; the text is a sentence."""


class RemedyFailsError(NeedUnknownError):
    """With the tried remedy, the program runs out of memory, or fails in another way.

    Args:
        remedy: the remedy.
        need: need of the run with it, if known.
    """

    def __init__(self, remedy: Remedy, need: Need | None = None) -> None:
        super().__init__(f"{remedy.change} was tried, and does not do.")
        self.need = need


@dataclass(frozen=True, slots=True)
class FailedRun:
    """Facts about a run that ran out of memory.

    Attributes:
        seconds: its duration.
        step: step in progress.
        torch: version of its torch.
    """

    seconds: float
    step: int
    torch: str


def unknown(why: str) -> str:
    """The sentence that the need is unknown."""
    return f"What the whole run needs is not known: {why.rstrip('.')}."


LEFT = unknown("the search was stopped")

WRITES_AGAIN = unknown(
    "run again to find out it would write its files again, as this system lets nobody hold them back (user namespaces "
    "are not allowed); --find-need runs it all the same"
)


def check_own_cards(cards: Sequence[CardRequests]) -> None:
    """Raises: NeedUnknownError: if processes share a card: their requests have no common order."""
    if len({card.index for card in cards}) < len(cards):
        raise NeedUnknownError(unknown("several of its processes share a card"))


class ProgramRerun(ABC):
    """A rerun of the program. `find` belongs to one thread; any may call `leave` and read `seconds`.

    Args:
        request: request of the failed run.
        environment: its environment variables.
        failed: facts about it.
        requested: whether the user asked for the rerun: it may then take longer, and write files if that cannot be
            prevented.
        remedy: remedy to try, by its diff or variable, on the original card; ``None`` for the unchanged program.

    Attributes:
        is_requested: whether the user asked for it.
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
        """Time since its start."""
        return time.monotonic() - self._began_s

    @property
    @abstractmethod
    def limit_s(self) -> float:
        """Time limit in seconds, not counting time spent waiting for a processor."""

    @property
    @abstractmethod
    def waited_s(self) -> float:
        """Seconds for which it has waited for a processor."""

    def leave(self) -> None:
        """End it; it then finds nothing."""
        self._left.set()

    def _changed(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and the environment, with the remedy."""
        if self._remedy is None:
            return self._request.command, self._environment
        command = self._remedy.command or self._request.command
        return command, {**self._environment, **variables_of(self._remedy)}

    @abstractmethod
    def find(self) -> Need:
        """Run the program again, and determine its need.

        Raises:
            RemedyFailsError: if it runs out of memory, or fails, with the remedy.
            NeedUnknownError: why it found nothing.
        """

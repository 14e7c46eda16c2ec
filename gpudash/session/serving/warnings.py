"""Which warnings stand now, followed from a session's events."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from gpudash.telemetry.records import RunStarted, Warning
from gpudash.telemetry.store import Store

RAISED = ("forecast", "warning", "critical")
"""Levels that stand until "passed" takes them back; a note is told once and stands for nothing."""


class StandingWarnings:
    """Belongs to one thread, the one that serves.

    Attributes:
        raised: how many of each level there were.
    """

    def __init__(self) -> None:
        self.raised: Counter[str] = Counter(dict.fromkeys(RAISED, 0))
        self._standing: dict[tuple[str, str], Warning] = {}
        self._seen = 0

    def follow(self, store: Store) -> None:
        """Take in the events since last time; the caller holds the store's lock."""
        fresh = list(islice(reversed(store.events), min(store.event_count - self._seen, len(store.events))))
        self._seen = store.event_count
        for event in reversed(fresh):
            if isinstance(event, Warning):
                self._take(event)
            elif isinstance(event, RunStarted):
                self._drop_of_the_run_before()

    def standing(self) -> list[tuple[str, str]]:
        """(level, device) of each, in order."""
        return sorted(self._standing)

    def _take(self, warning: Warning) -> None:
        if warning.level == "passed":
            for key in [key for key in self._standing if key[1] == warning.device]:
                del self._standing[key]
        elif warning.level in RAISED:
            self.raised[warning.level] += 1
            self._standing[warning.level, warning.device] = warning

    def _drop_of_the_run_before(self) -> None:
        """Nobody takes back what was told of a run and not of how full a memory is, such as that the guard ended it."""
        for key, warning in list(self._standing.items()):
            if warning.run_id is not None and warning.ratio is None:
                del self._standing[key]

"""Stops a run before its memory use crosses a level: by refusing announced allocations, and by watching readings."""

from __future__ import annotations

import threading

from gpudash.memory.watching.levels import HOST, used_of
from gpudash.telemetry.records import Sample
from gpudash.units import format_bytes, format_pair

REMEDY = "Ask for less memory, close other programs, or raise --guard."


class Guard:
    """A level of one memory that a run may not reach. Any thread may call any method.

    What was granted counts as used until the next reading, which then shows it.

    Args:
        device: what is read and may be guarded: a GPU's UUID, or "host".
    """

    def __init__(self, device: str = HOST) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._level: int | None = None
        self._words = ""
        self._used: int | None = None
        self._granted = 0
        self._crossed = False

    @property
    def device(self) -> str:
        """What is guarded: a GPU's UUID, or "host"."""
        return self._device

    @property
    def level_bytes(self) -> int | None:
        """The level, ``None`` while the guard is off."""
        return self._level

    def arm(self, device: str, level_bytes: int, words: str) -> None:
        """Guard a memory from now on.

        Args:
            device: a GPU's UUID, or "host".
            level_bytes: use at which the run is stopped.
            words: what the level is, for sentences: "the guard, 1 GiB above the use at the start".
        """
        with self._lock:
            if device != self._device:
                self._used = None
            self._device, self._level, self._words = device, level_bytes, words
            self._granted, self._crossed = 0, False

    def disarm(self) -> None:
        """Guard nothing any more."""
        with self._lock:
            self._level = None

    def observe(self, sample: Sample) -> str | None:
        """Take in a reading; a sentence when it is the first at or above the level, else ``None``."""
        found = used_of(sample)
        if found is None or found[0] != self._device:
            return None
        with self._lock:
            self._used, self._granted = found[1], 0
            if self._level is None or self._crossed or self._used < self._level:
                return None
            self._crossed = True
            return f"Stopped by {self._words}: {format_pair(self._used, self._level)} are in use. {REMEDY}"

    def refuse(self, size: int, used: int | None = None) -> str | None:
        """Ask for ``size`` bytes: ``None`` grants them, a sentence says why the run has to stop instead.

        Without a reading nothing can be refused; polling then catches what crosses.

        Args:
            used: what whoever asks knows to be in use now, where readings of it come late.
        """
        with self._lock:
            if self._level is None or self._used is None:
                return None
            known = max(self._used + self._granted, used or 0)
            if known + size >= self._level:
                in_use = format_pair(known, self._level)
                more = format_bytes(size)
                return f"Stopped by {self._words}: {in_use} are in use, and the run asks for {more} more. {REMEDY}"
            self._granted += size
            return None

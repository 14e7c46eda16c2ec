"""The guards of a run: the one that was asked for, and the host's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpudash.memory.watching.guard import Guard
from gpudash.memory.watching.levels import HOST, memory_of
from gpudash.telemetry.records import Sample
from gpudash.units import format_bytes

Tell = Callable[[str, str], None]


class RunGuards:
    """One guard for each memory that is read, armed for the time of a run.

    Guards follow the readings also between runs, so that one knows the use from the moment it is armed. Readings come
    from the session's thread, refusals from the worker's, arming from whoever starts a run.

    Args:
        tell: given a memory ("host" or a GPU's UUID) and the sentence of a guard that refuses an allocation of it.

    Attributes:
        armed: memory → its guard, while a run is on; replaced whole, never changed.
    """

    def __init__(self, tell: Tell) -> None:
        self.armed: Mapping[str, Guard] = {}
        self._tell = tell
        self._known: dict[str, Guard] = {HOST: Guard()}

    def arm(self, levels: Mapping[str, tuple[int, str]]) -> None:
        """Guard memories from now on.

        Args:
            levels: memory → the use in bytes at which the run is stopped, and words for what that level is.
        """
        armed = {}
        for memory, (level, words) in levels.items():
            armed[memory] = self._guard(memory)
            armed[memory].arm(memory, level, words)
        self.armed = armed

    def disarm(self) -> None:
        """Guard nothing any more."""
        self.armed = {}
        for guard in tuple(self._known.values()):
            guard.disarm()

    def observe(self, sample: Sample) -> tuple[str, str] | None:
        """Take in a reading; memory and sentence when it is the first at or above a level."""
        memory = memory_of(sample)
        if memory is None:
            return None
        sentence = self._guard(memory).observe(sample)
        return None if sentence is None else (memory, sentence)

    def refusal(self, memory: str) -> Callable[..., str | None]:
        """What a run on ``memory`` asks before it takes bytes of "cpu" or of its device: a sentence refuses.

        A run in a process of its own may add what it knows to be in use.
        """

        def refuse(size: int, device: str, used: int | None = None) -> str | None:
            asked = HOST if device == "cpu" else memory
            sentence = self._guard(asked).refuse(size, used)
            if sentence is not None:
                self._tell(asked, sentence)
            return sentence

        return refuse

    def _guard(self, memory: str) -> Guard:
        return self._known.setdefault(memory, Guard(memory))


def levels(
    memory: str,
    guard_bytes: int | None,
    used: int | None,
    host_total: int | None,
    critical_ratio: float | None,
) -> dict[str, tuple[int, str]]:
    """The levels of a run's guards, as `RunGuards.arm` takes them.

    Args:
        memory: the run's, "host" or a GPU's UUID.
        guard_bytes: how far above ``used`` the run may go; ``None`` sets no such guard.
        used: use of ``memory`` now.
        host_total: capacity of the host.
        critical_ratio: where the host is guarded otherwise; ``None`` leaves it unguarded.

    Raises:
        ValueError: when a guard is asked for where there is no reading to put it above.
    """
    found: dict[str, tuple[int, str]] = {}
    if guard_bytes is not None:
        if used is None:
            raise ValueError("The guard needs a reading of this device's memory, and there is none; leave it out.")
        words = f"the guard, {format_bytes(guard_bytes)} above the use at the start of the run"
        found[memory] = used + guard_bytes, words
    if critical_ratio is not None and host_total is not None and HOST not in found:
        found[HOST] = int(host_total * critical_ratio), "the guard's level"
    return found

"""Which rank of a data-parallel run failed first, where all of them fail: one ends, and the others miss it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gpudash.session.program import exit_words

_FAILURE = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
"""An entry of torchrun's report (torch.distributed.elastic.multiprocessing.errors.ChildFailedError)."""

_MISSING = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|[Tt]imed out|[Tt]imeout|Socket (closed|Timeout)|"
    r"remote process exited|ncclRemoteError|ncclSystemError|recvValue failed|store->get|gloo/transport|"
    r"Application timeout|connectFullMesh|no longer (alive|reachable)"
)
"""What Gloo, NCCL and the store say in a rank that waits for one that is gone or hangs."""

_WAITED = re.compile(r"[Tt]imed out|[Tt]imeout")

_ENDED_BY_LAUNCHER = -15
"""torchrun ends the other ranks by SIGTERM when one has failed."""


class _Error(Protocol):
    """What is asked of an exception that nobody caught."""

    @property
    def error(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def who(self) -> str: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def time_s(self) -> float: ...


E = TypeVar("E", bound=_Error)


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A rank that the launcher saw fail, in its own words: exit code, negative for a signal."""

    rank: int
    code: int
    pid: int

    def is_of(self, error: _Error) -> bool:
        """Whether it is the end of the process that raised ``error``."""
        return f"(pid {self.pid})" in error.who

    @property
    def text(self) -> str:
        """In a sentence: "Rank 1 (pid 4711) was killed by SIGKILL.\""""
        return f"Rank {self.rank} (pid {self.pid}) {exit_words(self.code)}."


def reported(message: str) -> list[RankFailure]:
    """The ranks that torchrun's report names, the root cause last."""
    return [RankFailure(int(m["rank"]), int(m["code"]), int(m["pid"])) for m in _FAILURE.finditer(message)]


def of_last_start(failures: Sequence[RankFailure], errors: Sequence[E]) -> list[E]:
    """The exceptions of those processes that the launcher saw fail last; all where it saw none of them."""
    last = [error for error in errors if any(failure.is_of(error) for failure in failures)]
    return last or list(errors)


def own_errors(errors: Sequence[E]) -> list[E]:
    """Exceptions that are no rank's complaint about a missing one, in order of time."""
    return sorted((one for one in errors if not _MISSING.search(one.message)), key=lambda one: one.time_s)


def died(failures: Sequence[RankFailure], errors: Sequence[_Error]) -> RankFailure | None:
    """The rank that ended without an exception of its own: by a signal, or with an exit code it chose.

    Args:
        failures: of the launcher's report.
        errors: exceptions of the ranks.
    """
    ended = [one for one in failures if one.code not in (0, _ENDED_BY_LAUNCHER)]
    silent = [failure for failure in ended if not any(failure.is_of(error) for error in errors)]
    return silent[-1] if silent else None


def awaited(processes: Mapping[int, int], errors: Sequence[_Error]) -> tuple[int, ...]:
    """Ranks that hang: those that raised nothing while all others waited for them until their patience ended."""
    waiting = {one.rank for one in errors if _WAITED.search(one.message)}
    silent = tuple(rank for rank in sorted(processes) if rank not in {one.rank for one in errors})
    return silent if waiting and silent and len(waiting) + len(silent) >= len(processes) else ()


def hang_words(ranks: Sequence[int], processes: Mapping[int, int], steps: int) -> str:
    """That these ranks hang, in a sentence."""
    names = " and ".join(f"rank {rank} (pid {processes[rank]})" for rank in ranks)
    after = f" after step {steps}" if steps else ""
    hangs = "hangs" if len(ranks) == 1 else "hang"
    return f"{names[:1].upper()}{names[1:]} {hangs}{after}: the others waited in vain until their collective timed out."

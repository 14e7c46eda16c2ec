"""Why ranks ended, and how that is told: the one that failed first of its own accord, in one sentence. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpudash.devices.names import kind_of
from gpudash.telemetry.records import Event, OutOfMemory, RunFailed
from gpudash.units import format_bytes
from gpudash.workloads.programs.parallel.standing import HeldUp, Standing
from gpudash.workloads.running.hosted.endings import CRASHED_REMEDY, KILLED_REMEDY, signal_words
from gpudash.workloads.running.run_errors import GPU_REMEDY, HOST_REMEDY, OTHER_REMEDY, Progress

HANG_REMEDY = "Look at the place named; a longer --rank-timeout waits longer, and --max-restarts 1 restarts all ranks."
LOST_REMEDY = "Start the run again; the details hold what torchrun and the ranks have printed."
EXITED_REMEDY = "Find out what calls exit in that rank; the details hold what it has printed."

Full = Literal["cuda", "sim", "host"]
"""Which memory ran out."""

NOTABLE = 1.1
"""A rank's memory is called more than the others' from this many times on."""


@dataclass
class Ended:
    """How the ranks of one start have ended, as far as anybody has told.

    Attributes:
        failed: what ranks have told of their failures, in the order of telling: (rank, facts).
        fell: rank → exit code, as `subprocess` has it, of processes that torchrun has seen fail.
        gone: ranks whose connection ended without a word, in that order.
        late: who held the others up when the first of them gave up.
    """

    failed: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    fell: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    late: HeldUp | None = None

    @property
    def any(self) -> bool:
        """Whether anything has been told."""
        return bool(self.failed or self.fell or self.gone or self.late)


@dataclass(frozen=True)
class Cause:
    """Why a run ended.

    Attributes:
        rank: whose fault it was; ``None`` where nobody knows.
        error: one word for programs.
        full: which memory ran out, if one did.
    """

    rank: int | None
    error: str
    message: str
    remedy: str
    details: str = ""
    full: Full | None = None
    requested_bytes: int | None = None


def cause_of(ended: Ended, standings: Sequence[Standing], *, memory_was_full: bool, printed: str) -> Cause:
    """The first failure that no other explains.

    Args:
        memory_was_full: whether the kernel killed something because of that meanwhile.
        printed: the end of what torchrun and the ranks have printed.
    """
    own = next(((rank, facts) for rank, facts in ended.failed if facts.get("because_of") is None), None)
    if own is not None:
        return _raised(standings[own[0]], own[1], standings)
    told = {rank for rank, _ in ended.failed}
    fallen = {rank: code for rank, code in ended.fell.items() if rank not in told and code != -signal.SIGTERM}
    if fallen and ended.late is None:
        rank = next((gone for gone in ended.gone if gone in fallen), next(iter(fallen)))
        return _fell(standings[rank], fallen[rank], memory_was_full=memory_was_full, printed=printed)
    if ended.late is not None:
        details = "\n".join(str(facts.get("details", "")) for _, facts in ended.failed[:1])
        return Cause(ended.late.rank, "hang", ended.late.text, HANG_REMEDY, details)
    gone = next((rank for rank in ended.gone if rank not in told), None)
    if gone is not None:
        message = f"{standings[gone].words} ended {_after(standings[gone])} without saying why."
        return Cause(gone, "gone", message, LOST_REMEDY, printed)
    if ended.failed:
        rank, facts = ended.failed[0]
        message = f"{standings[rank].words} lost the other ranks {_after(standings[rank])}: {facts['message']}"
        return Cause(rank, "lost", _sentence(message), LOST_REMEDY, str(facts.get("details", "")))
    return Cause(None, "torchrun", "torchrun ended before the ranks had trained to the end.", LOST_REMEDY, printed)


def ending_of_cause(cause: Cause, progress: Progress) -> Event:
    """The event that tells ``cause``."""
    if cause.full is not None:
        return OutOfMemory(
            error=cause.full,
            message=cause.message,
            remedy=cause.remedy,
            requested_bytes=cause.requested_bytes,
            details=cause.details,
            **progress.fields(),
        )
    return RunFailed(
        error=cause.error, message=cause.message, remedy=cause.remedy, details=cause.details, **progress.fields()
    )


def why_that_one(rank: int, facts: Mapping[str, Any], standings: Sequence[Standing]) -> str:
    """Why memory ran out on this rank and not on another, in a sentence: by limit, capacity, others' use, own use."""
    others = [one.memory for one in standings if one.rank != rank and one.memory]
    limit, limits = facts.get("limit_bytes"), [memory["limit_bytes"] for memory in others if "limit_bytes" in memory]
    if limit is not None and any(other is None or other > limit for other in limits):
        return f"Its process is limited to {format_bytes(limit)} of address space, the others' are not."
    total, totals = facts.get("total_bytes"), _known(others, "total_bytes")
    if total is not None and totals and total < min(totals):
        return (
            f"Its device is the smallest: {format_bytes(total)}, the others' have {format_bytes(min(totals))} or more."
        )
    if kind_of(standings[rank].device) != "cpu":
        beside, besides = _beside(facts), [found for found in map(_beside, others) if found is not None]
        if beside is not None and besides and beside > NOTABLE * max(besides):
            most = format_bytes(max(besides))
            return f"Other processes hold {format_bytes(beside)} of its device, and at most {most} of the others'."
    name = "used_bytes" if kind_of(standings[rank].device) == "cpu" else "allocated_bytes"
    own, held = standings[rank].memory.get(f"peak_{name}", facts.get(name)), _known(others, f"peak_{name}")
    if own is not None and held and own > NOTABLE * max(held):
        return f"It held {format_bytes(own)} itself, and no other rank more than {format_bytes(max(held))}."
    if len(standings) > 1 and limit is not None:
        return (
            f"Every rank is limited to {format_bytes(limit)} of address space and holds as much; this one came first."
        )
    return "All ranks hold as much, and this one was the first to find no room."


def _raised(standing: Standing, facts: Mapping[str, Any], standings: Sequence[Standing]) -> Cause:
    full, details = facts.get("full"), str(facts.get("details", ""))
    if full is not None:
        where = "this computer's memory" if full == "host" else f"the memory of {standing.device}"
        asked = facts.get("requested_bytes")
        request = "" if asked is None else f"; the last request was {format_bytes(asked)}"
        message = f"{standing.words} ran out of {where} {_during(standing)}{request}."
        message = f"{message} {why_that_one(standing.rank, facts, standings)}"
        remedy = HOST_REMEDY if full == "host" else GPU_REMEDY
        return Cause(standing.rank, full, message, remedy, details, full, asked)
    if facts.get("remedy"):
        message = f"{standing.words}: {facts['message']}"
        return Cause(standing.rank, str(facts["error"]), _sentence(message), str(facts["remedy"]), details)
    at = f" at {facts['where']}" if facts.get("where") else ""
    told = f"{facts['error']}: {facts['message']}" if facts.get("message") else str(facts["error"])
    message = f"{standing.words} failed {_during(standing)}{at} by {told}"
    return Cause(standing.rank, str(facts["error"]), _sentence(message), OTHER_REMEDY, details)


def _fell(standing: Standing, code: int, *, memory_was_full: bool, printed: str) -> Cause:
    rank, at = standing.rank, _after(standing)
    if code == -signal.SIGKILL and memory_was_full:
        message = f"This computer's memory ran out: the system killed rank {rank} (pid {standing.pid}) {at}."
        return Cause(rank, "host", message, HOST_REMEDY, printed, "host")
    if code in (-signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP):
        name = signal.Signals(-code).name
        message = f"{standing.words} was killed from outside {at} ({name})."
        return Cause(rank, "killed", message, KILLED_REMEDY, printed)
    if code < 0:
        message = f"{standing.words} crashed {at} ({signal_words(-code)})."
        return Cause(rank, "crashed", message, CRASHED_REMEDY, printed)
    message = f"{standing.words} ended itself {at} with exit code {code}."
    return Cause(rank, "exited", message, EXITED_REMEDY, printed)


def _during(standing: Standing) -> str:
    return f"in step {standing.step}" if standing.step else "before its first step"


def _after(standing: Standing) -> str:
    return f"after step {standing.steps}" if standing.steps else "before its first step was over"


def _sentence(text: str) -> str:
    return f"{text.strip().rstrip('.')}."


def _known(memories: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    return [memory[name] for memory in memories if memory.get(name) is not None]


def _beside(memory: Mapping[str, Any]) -> int | None:
    """What of a GPU is in use beside the rank's own allocator."""
    total, free, reserved = memory.get("total_bytes"), memory.get("free_bytes"), memory.get("reserved_bytes")
    return None if total is None or free is None or reserved is None else max(0, int(total - free - reserved))

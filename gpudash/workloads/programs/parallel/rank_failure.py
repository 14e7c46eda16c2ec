"""What a rank that fails tells of it: the exception, where, and how its memory stood."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from contextlib import suppress
from typing import Any

from gpudash.workloads.programs.comparison.process import resident_bytes
from gpudash.workloads.programs.parallel.rank_link import Link
from gpudash.workloads.running.run_errors import WorkloadError, shortage_of

LOST_PARTNER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "connection was closed",
    "NCCL communicator was aborted",
    "remote process exited",
    "Remote process",
)
"""In a backend's error: another rank has gone, which is where to look (Gloo's transport, ProcessGroupNCCL.cpp)."""

TIMED_OUT = ("Timed out", "timed out", "timeout", "Timeout")
"""In a backend's error: another rank has not come to a collective in time."""


def facts_of(error: BaseException, link: Link, device: str) -> dict[str, Any]:
    """``error`` as a message, with the memory of this rank and its device at that moment."""
    text, short = str(error), shortage_of(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return {
        "error": error.kind if isinstance(error, WorkloadError) else type(error).__name__,
        "message": first,
        "remedy": error.remedy if isinstance(error, WorkloadError) else "",
        "where": _frame_of(error),
        "details": "".join(traceback.format_exception(error)),
        "because_of": _partner(error, text),
        "step": link.step,
        "full": None if short is None else short.memory,
        "requested_bytes": None if short is None else short.requested,
        **memory_facts(device),
    }


def memory_facts(device: str) -> dict[str, int | None]:
    """This process's memory, the limit it is under, and what the device holds, in bytes; ``None``: not known."""
    facts: dict[str, int | None] = dict.fromkeys(("allocated_bytes", "reserved_bytes", "free_bytes", "total_bytes"))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    facts.update(used_bytes=resident_bytes(), limit_bytes=None if limit == resource.RLIM_INFINITY else limit)
    if device == "cpu":
        facts["total_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return facts
    torch = sys.modules.get("torch")
    with suppress(Exception):  # a broken device answers nothing more
        if torch is not None:
            free, total = torch.cuda.mem_get_info(device)
            facts.update(free_bytes=free, total_bytes=total)
            facts.update(
                allocated_bytes=torch.cuda.memory_allocated(device), reserved_bytes=torch.cuda.memory_reserved(device)
            )
    return facts


def _partner(error: BaseException, text: str) -> str | None:
    """Whether another rank is to blame: "gone" or "late"; ``None`` when it is this one's own failure."""
    if type(error).__name__ not in ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError"):
        return None
    if any(words in text for words in LOST_PARTNER):
        return "gone"
    lower = text.lower()
    backend = type(error).__name__.startswith("Dist") or any(word in lower for word in ("gloo", "nccl", "collective"))
    return "late" if backend and any(words in text for words in TIMED_OUT) else "gone" if backend else None


def _frame_of(error: BaseException) -> str:
    """Where it was raised: file, line and function of the innermost frame outside torch."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename] or frames
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}" if own else ""  # noqa: PTH119

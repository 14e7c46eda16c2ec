"""How a watched program ended, from its exit code, its last output and its agents' reports.

For a data-parallel run, it finds the rank that failed first: the others then miss it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gpudash
from gpudash.devices.names import kind_of
from gpudash.memory.frames import Frame, is_library, site_of
from gpudash.session.watching.program import exit_text
from gpudash.simulator.as_cuda.notices import misses_cuda
from gpudash.telemetry.explanation import short
from gpudash.telemetry.records import RunEnd, RunStatus
from gpudash.units import format_bytes, format_like

JUST_NOW_S = 5.0
"""An out-of-memory this long before a failure is its cause, unless steps were completed in between."""

_PASSED_ON = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions raised because another process failed (torch.distributed.elastic, subprocess, torch.multiprocessing)."""

LONGEST_MESSAGE = 300
"""How many characters of an exception's message a sentence quotes."""

REPORTED = "The report says what filled the memory and what would have fitted."

UNREPORTED = "Ask for less at a time, such as a smaller batch; of what filled the memory there is no report."

_REPORTED_PLACE = re.compile(r" \([^()]+, line \d+\)$")
"""The end of a syntax error's message with the position, which is shown anyway."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_ERROR = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))(?:: (?P<message>.*))?$")
_ASSERTS_CUDA = re.compile(r"^\s+assert\b.*\bcuda\.(?:is_available|device_count)\(", re.MULTILINE)
"""A traceback's line that asserts that CUDA is available; such exceptions mostly have no message."""

NEEDS_A_GPU = (
    "The GPU is simulated: Triton, kernels of one's own and NCCL's own calls need a real one; do without them here. "
    "What goes through torch.distributed is done by gloo."
)

_NEEDS_A_GPU = re.compile(r"\bNCCL\b|\bCUDA_HOME\b|\b[Tt]riton\b|\bnvcc\b|\blibcud")
"""Words in torch's messages about features that need a real GPU."""

_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory")

_OUT_OF_HOST_MEMORY = re.compile(r"^MemoryError\b|DefaultCPUAllocator: ")

OUT_OF_HOST_MEMORY = "out_of_host_memory"
"""The agent's name for an exception about host memory."""

_TRIED = re.compile(r"tried to allocate (\d+) bytes")
"""The size in torch's message (c10/core/impl/alloc_cpu.cpp)."""

_DRIVER_REFUSED = "CUDA error: out of memory"
"""CUDA's message if it failed outside of torch's allocator."""

_PINS = re.compile(r"pin_memory")

LESS_HOST_MEMORY = (
    "Ask for less of it at once: a smaller dtype, the data in parts (numpy.memmap, torch.load(…, mmap=True)), fewer "
    "DataLoader workers; or give the process more (ulimit -v, the memory limit of its container or job)."
)

LESS_PINNED = (
    "Leave pin_memory=True out, or pin smaller parts: pinned memory is host memory that the system cannot move, and "
    "there is less of it."
)

NO_CONTEXT = (
    "gpudash monitor shows which processes hold memory of the GPU: end one of them, or choose another GPU with "
    "CUDA_VISIBLE_DEVICES."
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception.

    Attributes:
        who: the process in words; "" for the command's own process.
        error: "out_of_memory", or the exception's class.
        frames: outermost first, each with ``file``, ``line`` and ``name``.
        time_s: session time.
        rank: rank of the process, in a distributed run.
    """

    error: str
    message: str
    file: str | None = None
    line: int | None = None
    name: str = ""
    details: str = ""
    who: str = ""
    time_s: float = 0.0
    rank: int | None = None

    @property
    def place(self) -> str:
        """Where it was raised: "train.py:12"; "" if unknown."""
        if self.file:
            return f"{short(self.file)}:{self.line}"
        return ""

    def at_own_line(self) -> Raised:
        """A copy whose position is the innermost line of the program's own code, if its traceback has one."""
        frames = [Frame(frame["file"], frame["line"], frame["name"]) for frame in frames_of(self.details.splitlines())]
        own = site_of(frames[::-1])
        if own is None or is_library(own):
            return self
        return replace(self, file=own.file, line=own.line, name=own.name)

    @property
    def frames(self) -> list[dict[str, Any]]:
        """The frames of its traceback, outermost first, without those that simulate the GPU."""
        found = [frame for frame in frames_of(self.details.splitlines()) if not _is_ours(frame["file"])]
        if not found and self.file:
            found = [{"file": self.file, "line": self.line, "name": self.name}]
        return found


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The facts about a program that has ended.

    Attributes:
        name: name of the program.
        code: exit code, negative for a signal.
        stopped: whether it was asked to end.
        raised: uncaught exceptions in the order of their reports; those of other processes have `who`.
        out_of_memory: newest report of a failed allocation, with ``who`` and ``time_s``; ``None`` for none.
        stepped_s: session time of the newest step.
        errors: last lines of its standard error.
        oom_kills: number of processes that the kernel killed meanwhile because memory was full.
        refusal: why gpudash ended it, in a sentence.
        ranks: PIDs of its ranks, by rank.
        places: stacks of ranks without a step for a while: frames, outermost first, by rank.
        why_full: returns why memory ran out on this rank, not on another, in a sentence, or "".
        held_by_others: returns which other processes use a GPU's memory, in a sentence, or "".
        held: returns what a rank had on its device, in a sentence, or "".
        python_with_torch: returns an interpreter with PyTorch, if the program's own has none.
        as_cuda: whether a simulated GPU stood in for CUDA.
        without_cuda: what to do if the program needs CUDA, in a sentence, or "".
    """

    name: str
    code: int
    time_s: float
    run_id: int
    seconds: float
    steps: int
    device: str
    stopped: bool = False
    raised: Sequence[Raised] = ()
    out_of_memory: Mapping[str, Any] | None = None
    stepped_s: float = 0.0
    errors: Sequence[str] = ()
    oom_kills: int = 0
    refusal: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[int, int] = field(default_factory=dict)
    places: Mapping[int, list[dict[str, Any]]] = field(default_factory=dict)
    why_full: Callable[[int | None], str] = lambda _rank: ""
    held_by_others: Callable[[], str] = lambda: ""
    held: Callable[[int], str] = lambda _rank: ""
    python_with_torch: Callable[[], Path | None] = lambda: None
    without_cuda: str = ""
    as_cuda: bool = False


def ending_of(ran: EndedRun) -> RunEnd:
    """The event that ends the run; the caller adds an explanation."""
    # The order matters: gpudash's own actions, exceptions that explain the end, ranks, signs without an exception.
    if ran.refusal:
        return _failed(ran, "simulation", ran.refusal, "Run it without --simulate, or with a torch that can.")
    if ran.stopped:
        return _ended(ran, "cancelled")
    if ran.code == 0:
        return _ended(ran, "finished")
    raised = cause_of(ran)
    if raised is not None and raised.error == OUT_OF_HOST_MEMORY:
        return _out_of_host_memory(ran, raised)
    if raised is not None and raised.error == "out_of_memory":
        return _out_of_memory(ran, raised)
    # Before other exceptions: ranks that miss a dead one raise too, but theirs are not the cause.
    if (ending := _rank_ended(ran)) is not None:
        return ending
    if raised is not None:
        return _raised(ran, raised)
    # A program that catches the exception may still fail for lack of memory.
    refused = ran.out_of_memory
    if refused is not None and ran.time_s - refused["time_s"] <= JUST_NOW_S and ran.stepped_s <= refused["time_s"]:
        return _out_of_memory(ran, None)
    # SIGKILL alone proves nothing, since anyone may send it; the kernel's own count must have grown.
    if ran.code == -9 and ran.oom_kills:
        return _killed_by_the_kernel(ran)
    return _failed(ran, _kind(ran.code), f"{ran.name} {exit_text(ran.code)}.", _remedy(ran))


def cause_of(ran: EndedRun) -> Raised | None:
    """The exception that ended the program: its own, unless that only reports another process's failure."""
    own = next((raised for raised in reversed(ran.raised) if not raised.who), None)
    others = [raised for raised in ran.raised if raised.who]
    if own is not None and not (own.error in _PASSED_ON and others):
        return own
    if own is not None:
        others = of_last_start(reported(own.message), others)
    # A failed allocation is the cause even if a rank complained about the missing one first.
    full = next((raised for raised in others if raised.error == "out_of_memory"), None)
    return (
        full
        or next(iter(own_errors(others)), None)
        or next(iter(others), None)
        # A signal leaves no traceback: one in the output is of an exception that was handled.
        or (None if ran.code < 0 else _printed(ran.errors))
    )


def _rank_ended(ran: EndedRun) -> RunEnd | None:
    """The end of a run in which one rank died or hangs, and no rank reported an exception of its own."""
    launcher = next((raised for raised in reversed(ran.raised) if not raised.who), None)
    if launcher is None or launcher.error not in _PASSED_ON:
        return None
    failures = reported(launcher.message)
    others = of_last_start(failures, [raised for raised in ran.raised if raised.who])
    if own_errors(others):
        return None
    dead = died(failures, others)
    if dead is not None:
        if dead.code == -9 and ran.oom_kills:
            return _killed_by_the_kernel(ran, f"Rank {dead.rank} (pid {dead.pid})", ran.why_full(dead.rank))
        remedy = "What it printed may say why; torchrun --tee 3 puts the rank before every line."
        return _failed(ran, _kind(dead.code), f"{dead.text} {ran.held(dead.rank)}".rstrip(), remedy)
    if hanging := awaited(ran.ranks, others):
        return _hung(ran, hanging, others[0])
    return None


def _hung(ran: EndedRun, hanging: Sequence[int], waiting: Raised) -> RunEnd:
    """The end of a run in which these ranks hang, with the first one's lines if its agent reported them."""
    frames = ran.places.get(hanging[0], [])
    text = hang_text(hanging, ran.ranks, ran.steps)
    remedy = "What it printed last, or py-spy dump on it while it hangs, shows where."
    stood = ""
    if frames:
        at = own_place(frames)
        remedy = f"Rank {hanging[0]} stood at {at}; look what that line waits for."
        lines = "".join(f'  File "{one["file"]}", line {one["line"]}, in {one["name"]}\n' for one in frames)
        stood = f"Rank {hanging[0]} stood at:\n{lines}\n"
    failed = _failed(ran, "hang", text, remedy, waiting)
    details = f"{stood}{waiting.who[:1].upper()}{waiting.who[1:]} waited at:\n{waiting.details}"
    return replace(failed, details=details, result={**failed.result, "frames": frames})


def own_place(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of the program's own code, "train.py:12"; of any code if there is none."""
    stack = [Frame(frame["file"], frame["line"], frame["name"]) for frame in frames]
    own = site_of(stack[::-1])
    if own is None or is_library(own):
        found = stack[-1]
    else:
        found = own
    return f"{short(found.file)}:{found.line}"


def frames_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The frames of the last traceback in some lines of text, outermost first."""
    begun = max((place for place, line in enumerate(lines) if line.startswith("Traceback (most")), default=0)
    found = (match for line in lines[begun:] if (match := _FRAME.match(line)) is not None)
    return [{"file": m["file"], "line": int(m["line"]), "name": m["name"] or ""} for m in found]


def _printed(lines: Sequence[str]) -> Raised | None:
    """The exception whose traceback ends a program's output, if no agent reported it."""
    # A few lines may follow it, such as warnings at exit; a traceback further up was handled.
    for line in reversed(lines[-5:]):
        match = _ERROR.match(line)
        frames = frames_of(lines)
        if match is None or not frames:
            continue
        last, error = frames[-1], match["error"].rpartition(".")[2]
        kind = error
        if _OUT_OF_MEMORY.search(line):
            kind = "out_of_memory"
        if _OUT_OF_HOST_MEMORY.search(line):
            kind = OUT_OF_HOST_MEMORY
        details = "\n".join(lines)
        raised = Raised(kind, match["message"] or error, last["file"], last["line"], last["name"], details)
        return raised.at_own_line()
    return None


def _is_ours(file: str) -> bool:
    return Path(gpudash.__file__).parent in Path(file).parents


def _ended(ran: EndedRun, status: RunStatus) -> RunEnd:
    return RunEnd(
        time_s=ran.time_s, run_id=ran.run_id, status=status, seconds=ran.seconds, steps=ran.steps, result=ran.result
    )


def _failed(
    ran: EndedRun,
    error: str,
    message: str,
    remedy: str,
    raised: Raised | None = None,
    *,
    status: RunStatus = "failed",
) -> RunEnd:
    ended = replace(_ended(ran, status), error=error, message=message, remedy=remedy)
    if raised is None:
        return replace(ended, result={**ran.result, "frames": []})
    return replace(ended, details=raised.details, result={**ran.result, "frames": raised.frames})


def _raised(ran: EndedRun, raised: Raised) -> RunEnd:
    # Some messages begin with an empty line or a line of dashes.
    first = next((line.strip() for line in raised.message.splitlines() if any(map(str.isalnum, line))), "")
    if raised.place:
        first = _REPORTED_PLACE.sub("", first)
    if not (len(first) <= LONGEST_MESSAGE):
        first = f"{first[:LONGEST_MESSAGE]}…"
    text = raised.error
    if first and first != raised.error:
        text = f"{raised.error}: {first}"
    text = text.rstrip(".")
    if raised.who:
        text = f"{raised.who[:1].upper()}{raised.who[1:]}: {text}"
    if raised.place:
        text = f"{text} ({raised.place})"
    failed = _failed(ran, raised.error, f"{text}.", _remedy_of(ran, raised), raised)
    if ran.without_cuda and _lacks_cuda(raised):
        return replace(failed, remedy=ran.without_cuda, result={**failed.result, "misses_cuda": True})
    if raised.error != "ModuleNotFoundError" or first != "No module named 'torch'":
        return failed
    python = ran.python_with_torch()
    if python is None:
        return failed
    return replace(failed, remedy=f"{python} has PyTorch.", result={**failed.result, "python_with_torch": str(python)})


_REMEDIES = {
    "ModuleNotFoundError": "Install it for the Python that runs the script, or name the Python that has it.",
    "SyntaxError": "Correct that line; if the file is not Python, run it with what it is written for.",
    "UnicodeDecodeError": "Check that the file is Python, and its encoding.",
}


def _remedy_of(ran: EndedRun, raised: Raised) -> str:
    if ran.as_cuda and _NEEDS_A_GPU.search(raised.message):
        return NEEDS_A_GPU
    return _REMEDIES.get(raised.error, "Its traceback is in what it printed.")


def _lacks_cuda(raised: Raised) -> bool:
    asserts_it = raised.error == "AssertionError" and _ASSERTS_CUDA.search(raised.details) is not None
    return asserts_it or misses_cuda(raised.message)


def _out_of_memory(ran: EndedRun, raised: Raised | None) -> RunEnd:
    refused = ran.out_of_memory or {}
    device = str(refused.get("device") or ran.device)
    kind = kind_of(device)
    requested, free = refused.get("requested_bytes"), refused.get("free_bytes")
    who = next((f"{who[:1].upper()}{who[1:]}" for who in (refused.get("who"), raised and raised.who) if who), ran.name)
    if not refused and raised is not None and _DRIVER_REFUSED in raised.message:
        return _driver_refused(ran, raised, who)
    text = f"{who} ran out of memory on {device}"
    if isinstance(requested, int) and isinstance(free, int):
        text += f": a segment of {format_like(requested, free)} was asked for"
        text += f" and {format_like(free, requested)} were free"
    if raised is not None and raised.place:
        text += f" ({raised.place})"
    why = ran.why_full(refused.get("rank", raised and raised.rank))
    error = "cuda"
    if kind == "sim":
        error = "sim"
    ended = _failed(ran, error, f"{text}. {why}".rstrip(), UNREPORTED, raised, status="out_of_memory")
    return replace(ended, requested_bytes=requested if isinstance(requested, int) else None)


def _driver_refused(ran: EndedRun, raised: Raised, who: str) -> RunEnd:
    """The end of a program that got no memory from CUDA itself: for its context, or pinned memory."""
    place = ""
    if raised.place:
        place = f" ({raised.place})"
    if _PINS.search(raised.details):
        return _of_host(ran, raised, f"{who} could not pin as much host memory{place}.", LESS_PINNED)
    # For a program that came no further.
    if kind_of(ran.device) == "cpu":
        gpu = "its GPU"
    else:
        gpu = ran.device
    text = f"{who} ran out of memory on {gpu}: CUDA had no room for its context or for code{place}."
    text = f"{text} {ran.held_by_others()}".rstrip()
    return replace(_of_host(ran, raised, text, NO_CONTEXT), error="cuda")


def _out_of_host_memory(ran: EndedRun, raised: Raised) -> RunEnd:
    if raised.who:
        who = f"{raised.who[:1].upper()}{raised.who[1:]}"
    else:
        who = ran.name
    requested = _TRIED.search(raised.message)
    if requested is None:
        amount = ""
    else:
        amount = f": {format_bytes(int(requested[1]))} were asked for at once"
    place = ""
    if raised.place:
        place = f" ({raised.place})"
    text = f"{who} ran out of host memory{amount}{place}."
    ended = _of_host(ran, raised, text, LESS_HOST_MEMORY)
    if requested is None:
        return ended
    return replace(ended, requested_bytes=int(requested[1]))


def _of_host(ran: EndedRun, raised: Raised, text: str, remedy: str) -> RunEnd:
    return _failed(ran, "host", text, remedy, raised, status="out_of_memory")


def _killed_by_the_kernel(ran: EndedRun, who: str = "", why: str = "") -> RunEnd:
    text = f"{who or ran.name} was killed by the system because this computer's memory, or this container's, was full."
    return replace(
        _ended(ran, "out_of_memory"),
        error="host",
        message=f"{text} {why}".rstrip(),
        remedy="Let it use less host memory: fewer DataLoader workers, smaller batches, less kept in lists.",
    )


def _kind(code: int) -> str:
    if code >= 0:
        return "exit"
    return "signal"


def _remedy(ran: EndedRun) -> str:
    last = next((line.strip() for line in reversed(ran.errors) if line.strip()), "")
    if last:
        return f"The last it printed was: {last[:200]}"
    return "It printed nothing that says why."


_FAILURE = re.compile(
    r"rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
"""An entry of torchrun's report (torch.distributed.elastic.multiprocessing.errors.ChildFailedError)."""

_MISSING = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|[Tt]imed out|[Tt]imeout|Socket (closed|Timeout)|"
    r"remote process exited|ncclRemoteError|ncclSystemError|recvValue failed|store->get|gloo/transport|"
    r"Application timeout|connectFullMesh|no longer (alive|reachable)"
)
"""Messages of Gloo, NCCL and the store in a rank that waits for one that has ended or hangs."""

_WAITED = re.compile(r"[Tt]imed out|[Tt]imeout")

_ENDED_BY_LAUNCHER = -15
"""torchrun ends the other ranks by SIGTERM if one has failed."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A failed rank, as the launcher reports it: exit code, negative for a signal."""

    rank: int
    code: int
    pid: int

    def is_of(self, error: Raised) -> bool:
        """Whether it is the process that raised ``error``."""
        return f"(pid {self.pid})" in error.who

    @property
    def text(self) -> str:
        """In a sentence: "Rank 1 (pid 4711) was killed by SIGKILL.\""""
        return f"Rank {self.rank} (pid {self.pid}) {exit_text(self.code)}."


def reported(message: str) -> list[RankFailure]:
    """The ranks named in torchrun's report, the root cause last."""
    return [RankFailure(int(m["rank"]), int(m["code"]), int(m["pid"])) for m in _FAILURE.finditer(message)]


def of_last_start(failures: Sequence[RankFailure], errors: Sequence[Raised]) -> list[Raised]:
    """The exceptions of the processes that the launcher saw fail last; all of them if it saw none."""
    last = [error for error in errors if any(failure.is_of(error) for failure in failures)]
    return last or list(errors)


def own_errors(errors: Sequence[Raised]) -> list[Raised]:
    """Exceptions other than complaints about a missing rank, in order of time."""
    return sorted((one for one in errors if not _MISSING.search(one.message)), key=lambda one: one.time_s)


def died(failures: Sequence[RankFailure], errors: Sequence[Raised]) -> RankFailure | None:
    """The rank that ended without an exception: by a signal, or with an exit code of its own.

    Args:
        failures: ranks in the launcher's report.
        errors: exceptions of the ranks.
    """
    ended = [one for one in failures if one.code not in (0, _ENDED_BY_LAUNCHER)]
    silent = [failure for failure in ended if not any(map(failure.is_of, errors))]
    if silent:
        return silent[-1]
    return None


def awaited(processes: Mapping[int, int], errors: Sequence[Raised]) -> tuple[int, ...]:
    """Ranks that hang: they raised nothing while all others waited for them until their timeouts."""
    waiting = {one.rank for one in errors if _WAITED.search(one.message)}
    silent = tuple(rank for rank in sorted(processes) if rank not in {one.rank for one in errors})
    if waiting and silent and len(waiting) + len(silent) >= len(processes):
        return silent
    return ()


def hang_text(ranks: Sequence[int], processes: Mapping[int, int], steps: int) -> str:
    """The sentence that these ranks hang."""
    names = " and ".join(f"rank {rank} (pid {processes[rank]})" for rank in ranks)
    after = ""
    if steps:
        after = f" after step {steps}"
    hangs = "hang"
    if len(ranks) == 1:
        hangs = "hangs"
    return f"{names[:1].upper()}{names[1:]} {hangs}{after}: the others waited in vain until their collective timed out."

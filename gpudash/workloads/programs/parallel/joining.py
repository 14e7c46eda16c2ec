"""Joins the ranks' messages into the records of one run: steps, epochs, readings, notes, and the result.

It also determines where each rank is, which of them the others wait for, and why ranks ended: the first one that
failed by itself, in one sentence.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpudash.agent.wire import Message
from gpudash.devices.names import SPEED_REMARK, Device, kind_of, shown_name
from gpudash.specs import TrainingSpec
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.telemetry.ranks import RankFindings, RankMemory, Ranks, RankStep, findings
from gpudash.telemetry.records import (
    EpochFinished,
    Event,
    Note,
    Record,
    RunEnd,
    StepFinished,
    Topic,
    event_from_json,
)
from gpudash.units import format_bytes, format_duration
from gpudash.workloads.programs.epochs import Epochs
from gpudash.workloads.programs.parallel.job import BACKENDS
from gpudash.workloads.running.run_errors import (
    CRASHED_REMEDY,
    GPU_REMEDY,
    HOST_REMEDY,
    KILLED_REMEDY,
    OTHER_REMEDY,
    Progress,
    signal_text,
)

_NAMES = {"gloo": "Gloo", "nccl": "NCCL"}


class Joining:
    """Not thread-safe: use it in one thread.

    Args:
        spec: of the run.
        devices: what is known about them, by rank; empty if nothing is.
        run_id: the run's number.
        emit: called with every record.
        clock: session time in seconds.

    Attributes:
        standings: the state of each rank, by its number.
        steps: the latest joined step.
        restarts: how often torchrun has restarted all ranks.
        done: rank → what it reported at its end.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        devices: tuple[Device, ...],
        run_id: int,
        emit: Callable[[Record], None],
        clock: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._devices = devices
        self._run_id = run_id
        self._emit = emit
        self._clock = clock
        self._ranks = Ranks(spec.world_size)
        self._items: int | None = None
        self._facts: dict[str, Any] = {}
        self._run = ""
        self._findings = RankFindings(clock())
        self._began_s = self._step_ended_s = 0.0
        self.restarts = 0
        self.begin_again(0)

    def begin_again(self, restart: int) -> None:
        """Reset for a start of all ranks; ``restart`` counts from 0."""
        names = self._spec.device_names
        self.standings = [Standing(rank, name, memory=self._capacity(rank)) for rank, name in enumerate(names)]
        self.done: dict[int, Mapping[str, Any]] = {}
        self.steps = 0
        self.restarts = restart
        self._epochs = Epochs(self)
        self._epoch = 0
        self._rows: list[dict[str, Any]] = []
        # Before messages of the ranks arrive again: what is joined belongs to this start only.
        if restart:
            self._ranks.begin_again()

    def take(self, rank: int, message: Message) -> None:
        """Handle a rank's message."""
        kind = message["type"]
        standing = self.standings[rank]
        if kind == "hello":
            standing.pid = message["pid"]
            standing.host = str(message.get("host", ""))
            standing.stands(0, "starting", "", self._clock())
            self._run = str(message.get("run", ""))
            if all(one.pid is not None for one in self.standings):
                self._introduce()
        elif kind == "beat":
            self._beat(standing, message)
        elif kind == "ready":
            standing.ready = True
            self._items = message["items"]
            self._facts.update(message["facts"])
            standing.memory.update(message["memory"])
            # every rank sends this; the last message counts, since no step is joined before it
            self._began_s = self._step_ended_s = self._clock()
        elif kind == "step":
            self._step(rank, message)
        elif kind == "event":
            self._event(message["event"])
        elif kind == "done":
            self.done[rank] = message

    def resident_bytes(self) -> dict[int, int]:
        """Resident bytes of the ranks by process ID; thread-safe."""
        return {one.pid: one.memory.get("used_bytes") or 0 for one in self.standings if one.pid is not None}

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Report a fact as text, with its figures."""
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def epoch(self, epoch: int, **facts: Any) -> EpochFinished:
        """Report the end of an epoch."""
        ended = EpochFinished(time_s=self._clock(), run_id=self._run_id, epoch=epoch, **facts)
        self._emit(ended)
        return ended

    def note_findings(self, *, at_end: bool = False) -> None:
        """Report a straggler, or a rank that holds more than the others, unless it was reported before."""
        if at_end:
            seen = self._findings.at_end(self._ranks)
        else:
            seen = self._findings.new(self._ranks, self._clock())
        for finding in seen:
            self.note(finding.topic, finding.text, **finding.details)

    def result(self) -> dict[str, Any]:
        """What is known about the run so far, as its result."""
        rows = self._ranks.summary()
        seconds = self._step_ended_s - self._began_s
        result: dict[str, Any] = {**self._facts, "epochs": self._rows}
        if self.steps and seconds > 0:
            result["steps_per_second"] = self.steps / seconds
            result["items_per_second"] = self.steps * (self._items or 0) / seconds
        result |= {
            "ranks": [{**row, **self._identity(self.standings[row["rank"]])} for row in rows],
            **findings(self._ranks),
            **self._agreement(),
            **self._kind(),
            "restarts": self.restarts,
        }
        if kind_of(self._spec.device_names[0]) == "sim":
            result["remark"] = SPEED_REMARK.format(device=f"each of {self._spec.devices.replace(',', ', ')}")
        peaks = {name: [row[name] for row in rows if row[name] is not None] for name in _PEAKS}
        result["memory"] = {name: max(found, default=None) for name, found in peaks.items()}
        return result

    def _agreement(self) -> dict[str, Any]:
        digests = [result.get("digest") for result in self.done.values()]
        if len(digests) < self._spec.world_size or None in digests:
            # A rank that ended early has no digest: then it is unknown, not false, whether all are equal.
            return {"parameters_equal": None, "parameters_sha256": None, "largest_difference": None}
        equal = len(set(digests)) == 1
        largest = max(result.get("difference", 0.0) for result in self.done.values())
        sha256 = None
        if equal:
            sha256 = digests[0]
        return {"parameters_equal": equal, "parameters_sha256": sha256, "largest_difference": largest}

    def _kind(self) -> dict[str, Any]:
        names = self._spec.device_names
        backend = BACKENDS[names[0].partition(":")[0]]
        return {"world_size": len(names), "strategy": self._spec.parallel, "backend": backend}

    def _identity(self, standing: Standing) -> dict[str, Any]:
        capacity = None
        if standing.rank < len(self._devices):
            capacity = self._devices[standing.rank].total_bytes
        return {
            "device": standing.device,
            "host": standing.host,
            "pid": standing.pid,
            "capacity_bytes": capacity,
        }

    def _capacity(self, rank: int) -> dict[str, Any]:
        """The size of a rank's GPU, which is known before the rank reports it."""
        known = None
        if rank < len(self._devices):
            known = self._devices[rank]
        if known is None or known.kind == "cpu" or known.total_bytes is None:
            return {}
        return {"total_bytes": known.total_bytes}

    def _introduce(self) -> None:
        kind = self._kind()
        ranks = [{"rank": one.rank, "local_rank": one.rank, **self._identity(one)} for one in self.standings]
        count = kind["world_size"]
        name = {"ddp": "DistributedDataParallel", "fsdp": "FSDP2"}[kind["strategy"]]
        text = f"{count} ranks on {self._spec.devices.replace(',', ', ')}: {name} over {_NAMES[kind['backend']]}"
        batch = self._spec.rank_batch
        text = f"{text}, batch {batch} on each, {batch * count} together{self._unequal()}."
        self.note(Topic.RANKS, text, **kind, run=self._run, ranks=ranks)

    def _unequal(self) -> str:
        """The text for devices with different capacities: the smallest decides."""
        known = [(device.total_bytes, device.name) for device in self._devices if device.total_bytes is not None]
        if not known or min(known)[0] == max(known)[0]:
            return ""
        total, name = min(known)
        return f"; {name} is the smallest with {format_bytes(total)} and decides what fits"

    def _beat(self, standing: Standing, message: Message) -> None:
        standing.stands(message["step"], message["phase"], message["where"], self._clock())
        figures = {name: message[name] for name in ("used_bytes", "allocated_bytes", "reserved_bytes")}
        for name, value in figures.items():
            # A figure that a rank does not report keeps its previous value.
            if value is not None:
                standing.memory[name] = value
                standing.memory[f"peak_{name}"] = max(value, standing.memory.get(f"peak_{name}", value))
        for sample in self._ranks.take_memory(RankMemory(standing.rank, message["time_s"], **figures)):
            self._emit(sample)

    def _step(self, rank: int, message: Message) -> None:
        self.standings[rank].steps = message["step"]
        figures = {name: message[name] for name in ("step", "time_s", "step_s", "compute_s", "blocked_s", "accuracy")}
        joined = self._ranks.take_step(RankStep(rank, loss=float(message["loss"]), **figures))
        # The step is not complete: other ranks have not reported theirs.
        if joined is None:
            return
        self.steps = joined.step
        self._step_ended_s = joined.time_s
        for sample in joined.samples:
            self._emit(sample)
        loss = math.nan
        if joined.loss is not None:
            loss = joined.loss
        throughput = None
        if self._items and joined.seconds > 0:
            throughput = self._items / joined.seconds
        self._emit(
            StepFinished(
                time_s=joined.time_s,
                run_id=self._run_id,
                step=joined.step,
                steps=self._spec.steps,
                seconds=joined.seconds,
                loss=loss,
                accuracy=joined.accuracy,
                throughput=throughput,
            )
        )
        self._count(joined.step, loss, joined.accuracy or 0.0)
        self.note_findings()

    def _count(self, step: int, loss: float, accuracy: float) -> None:
        """Add a step to its epoch."""
        # Steps count over all epochs, from 1.
        epoch = (step - 1) // self._spec.batches_per_epoch + 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._epochs.begin(epoch, ", ".join(self._spec.device_names))
        self._epochs.add(loss, accuracy)
        if step == self._spec.steps or step % self._spec.batches_per_epoch == 0:
            self._rows = self._epochs.end()

    def _event(self, text: str) -> None:
        event = event_from_json(text)
        if self.restarts and isinstance(event, Note):
            return  # it was reported at the first start
        self._emit(replace(event, run_id=self._run_id))


_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


SILENT_S = 3.0
"""Silence in seconds after which a rank's process counts as stopped: it reports ten times a second."""

COLLECTIVE = "collective"


@dataclass
class Standing:
    """One rank.

    Attributes:
        step: the latest it has started, as far as it has reported.
        steps: the latest it has ended.
        phase: its current phase: "starting", "computing", "collective", "leaving".
        since_s: session time at which it first reported that.
        heard_s: session time of its latest message; ``None`` before the first.
        where: the place in the code where its main thread is.
        ready: whether it has reached its first step.
        memory: its latest figures in bytes.
    """

    rank: int
    device: str
    pid: int | None = None
    host: str = ""
    step: int = 0
    steps: int = 0
    phase: str = "starting"
    since_s: float = 0.0
    heard_s: float | None = None
    where: str = ""
    ready: bool = False
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name in a sentence: "Rank 1 (cuda:1, pid 4711)"."""
        if self.pid is None:
            process = ""
        else:
            process = f", pid {self.pid}"
        return f"Rank {self.rank} ({shown_name(self.device)}{process})"

    def stands(self, step: int, phase: str, where: str, now_s: float) -> None:
        """Handle the latest message about its state."""
        if (step, phase) != (self.step, self.phase):
            self.step = step
            self.phase = phase
            self.since_s = now_s
        self.heard_s = now_s
        self.where = where


@dataclass(frozen=True)
class HeldUp:
    """The rank that the others wait for, and a sentence on the known reason."""

    rank: int
    text: str


def held_up(standings: Sequence[Standing], now_s: float) -> HeldUp | None:
    """The rank that has not reached the point where the others wait; ``None`` if all are alike.

    In this order: one that sends no messages, one that is a step behind, one that still computes.
    """
    silent = [one for one in standings if one.heard_s is None or now_s - one.heard_s > SILENT_S]
    # All silent at once: the machine has stopped, not a single rank.
    if silent and len(silent) < len(standings):
        # the one silent for longest; one that has never sent a message comes before all
        one = min(silent, key=lambda standing: (standing.heard_s is not None, standing.heard_s or 0.0))
        return HeldUp(one.rank, _silent_text(one, now_s))
    arrived = max((one.step for one in standings if one.phase == COLLECTIVE), default=None)
    # late are ranks at an earlier step, and in the same step those that are not in a collective
    late = [one for one in standings if arrived is not None and (one.step, one.phase == COLLECTIVE) < (arrived, True)]
    if not late:
        return None
    # The furthest behind, and of those the one that has been there for longest.
    one = min(late, key=lambda standing: (standing.step, standing.since_s))
    place = ""
    if one.where:
        place = f", at {one.where}"
    waited = format_duration(max(0.0, now_s - one.since_s))
    others = "the other rank"
    if len(standings) > 2:
        others = "the other ranks"
    text = f"{one.label} keeps {others} waiting at step {arrived}: for {waited} it has been {_doing(one)}{place}."
    return HeldUp(one.rank, text)


def waited_s(standings: Sequence[Standing], now_s: float) -> float:
    """How long ranks have been waiting for another: the longest time that any has been in one collective."""
    return max((now_s - one.since_s for one in standings if one.phase == COLLECTIVE), default=0.0)


def overdue(standings: Sequence[Standing], now_s: float, patience_s: float, grace_s: float) -> bool:
    """Whether a rank has been waited for longer than the backend's own timeout, or all have been silent for as long.

    Args:
        patience_s: the timeout that the ranks were given.
        grace_s: how long the backend's error may take to arrive.
    """
    # before its first step a rank may still be importing torch, which may take any time
    if not all(one.ready for one in standings):
        patience_s = max(patience_s, TORCH_IMPORT_S)
    limit = grace_s + patience_s
    silent = [one.heard_s is not None and now_s - one.heard_s > limit for one in standings]
    return all(silent) or waited_s(standings, now_s) > limit


def _silent_text(one: Standing, now_s: float) -> str:
    if one.heard_s is None:
        return f"{one.label} has not begun, and the others wait for it."
    silence = format_duration(now_s - one.heard_s)
    seen = _doing(one)
    if one.where:
        seen += f", at {one.where}"
    if one.steps >= max(1, one.step):  # its reported state is older than its latest step
        seen = f"after step {one.steps}"
    return (
        f"{one.label} stands still, and the others wait for it: its process has said nothing for {silence}; it was "
        f"last heard of {seen}."
    )


def _doing(one: Standing) -> str:
    step = f"step {max(one.step, one.steps, 1)}"
    if one.phase == "starting":
        return f"starting, before {step}"
    if one.phase == "leaving":
        return f"leaving, after {step}"
    if one.phase != COLLECTIVE:
        return f"computing {step}"
    if one.step:
        return f"waiting for the others in {step}"
    return "connecting to the others"


HANG_REMEDY = "Look at the place named; a longer --rank-timeout waits longer, and --max-restarts 1 restarts all ranks."
LOST_REMEDY = "Start the run again; the details hold what torchrun and the ranks have printed."
EXITED_REMEDY = "Find out what calls exit in that rank; the details hold what it has printed."

Full = Literal["cuda", "sim", "host"]
"""Which memory ran out."""

NOTABLE = 1.1
"""Factor from which a rank's memory counts as more than the others'."""


@dataclass
class Ended:
    """How the ranks of one start have ended, as far as is known.

    Attributes:
        failed: failures that ranks have reported, in order: (rank, facts).
        failed_ranks: rank → exit code, as in `subprocess`, of processes that torchrun saw fail.
        gone: ranks whose connection closed without a message, in that order.
        late: the rank that held up the others when the first of them gave up.
    """

    failed: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    failed_ranks: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    late: HeldUp | None = None

    @property
    def any(self) -> bool:
        """Whether anything is known."""
        return bool(self.failed or self.failed_ranks or self.gone or self.late)


@dataclass(frozen=True)
class Cause:
    """Why a run ended.

    Attributes:
        rank: the rank that caused it; ``None`` if unknown.
        error: one word for programs.
        full: which memory ran out, if any.
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
        memory_was_full: whether the kernel killed something for lack of memory meanwhile.
        printed: the end of the output of torchrun and the ranks.
    """
    # first, ranks that failed by themselves: if one rank ends, backend errors of all the others follow
    own = next(((rank, facts) for rank, facts in ended.failed if facts.get("because_of") is None), None)
    if own is not None:
        return _raised(standings[own[0]], own[1], standings)
    reported = {rank for rank, _ in ended.failed}
    # SIGTERM comes from torchrun itself, which uses it to end the remaining ranks
    codes = ended.failed_ranks.items()
    fallen = {rank: code for rank, code in codes if rank not in reported and code != -signal.SIGTERM}
    if fallen and ended.late is None:
        # torchrun notices exits only when it polls: connections closed in the order in which processes ended
        rank = next((gone for gone in ended.gone if gone in fallen), next(iter(fallen)))
        return _failed(standings[rank], fallen[rank], memory_was_full=memory_was_full, printed=printed)
    if ended.late is not None:
        details = "\n".join(str(facts.get("details", "")) for _, facts in ended.failed[:1])
        return Cause(ended.late.rank, "hang", ended.late.text, HANG_REMEDY, details)
    # Ended without a message and without an exit code: the weakest sign that identifies a rank.
    gone = next((rank for rank in ended.gone if rank not in reported), None)
    if gone is not None:
        message = f"{standings[gone].label} ended {_after(standings[gone])} without saying why."
        return Cause(gone, "gone", message, LOST_REMEDY, printed)
    if ended.failed:
        rank, facts = ended.failed[0]
        message = f"{standings[rank].label} lost the other ranks {_after(standings[rank])}: {facts['message']}"
        return Cause(rank, "lost", _sentence(message), LOST_REMEDY, str(facts.get("details", "")))
    return Cause(None, "torchrun", "torchrun ended before the ranks had trained to the end.", LOST_REMEDY, printed)


def ending_of_cause(cause: Cause, progress: Progress) -> Event:
    """The event that reports ``cause``."""
    return RunEnd(
        status="failed" if cause.full is None else "out_of_memory",
        error=cause.full or cause.error,
        message=cause.message,
        remedy=cause.remedy,
        requested_bytes=cause.requested_bytes,
        details=cause.details,
        **progress.fields(),
    )


def why_that_one(rank: int, facts: Mapping[str, Any], standings: Sequence[Standing]) -> str:
    """Why memory ran out on this rank and not on another, in a sentence: its limit, capacity, others' use, own use."""
    others = [one.memory for one in standings if one.rank != rank and one.memory]
    limit = facts.get("limit_bytes")
    limits = [memory["limit_bytes"] for memory in others if "limit_bytes" in memory]
    # In this order: first the differences that the rank itself does not cause.
    if limit is not None and any(other is None or other > limit for other in limits):
        return f"Its process is limited to {format_bytes(limit)} of address space, the others' are not."
    total = facts.get("total_bytes")
    totals = _known(others, "total_bytes")
    if total is not None and totals and total < min(totals):
        return (
            f"Its device is the smallest: {format_bytes(total)}, the others' have {format_bytes(min(totals))} or more."
        )
    # On the CPU all ranks share the memory that others use.
    if kind_of(standings[rank].device) != "cpu":
        held_bytes = _held_by_others(facts)
        held_elsewhere = [found for found in map(_held_by_others, others) if found is not None]
        if held_bytes is not None and held_elsewhere and held_bytes > NOTABLE * max(held_elsewhere):
            most = format_bytes(max(held_elsewhere))
            return f"Other processes hold {format_bytes(held_bytes)} of its device, and at most {most} of the others'."
    name = "allocated_bytes"
    if kind_of(standings[rank].device) == "cpu":
        name = "used_bytes"
    own = standings[rank].memory.get(f"peak_{name}", facts.get(name))
    held = _known(others, f"peak_{name}")
    if own is not None and held and own > NOTABLE * max(held):
        return f"It held {format_bytes(own)} itself, and no other rank more than {format_bytes(max(held))}."
    # With equal limits and equal needs, chance decides which one is first.
    if len(standings) > 1 and limit is not None:
        return (
            f"Every rank is limited to {format_bytes(limit)} of address space and holds as much; this one came first."
        )
    return "All ranks hold as much, and this one was the first to find no room."


def _raised(standing: Standing, facts: Mapping[str, Any], standings: Sequence[Standing]) -> Cause:
    full = facts.get("full")
    details = str(facts.get("details", ""))
    if full is not None:
        where = f"the memory of {standing.device}"
        remedy = GPU_REMEDY
        if full == "host":
            where = "this computer's memory"
            remedy = HOST_REMEDY
        requested = facts.get("requested_bytes")
        request = ""
        if requested is not None:
            request = f"; the last request was {format_bytes(requested)}"
        message = f"{standing.label} ran out of {where} {_during(standing)}{request}."
        message = f"{message} {why_that_one(standing.rank, facts, standings)}"
        return Cause(standing.rank, full, message, remedy, details, full, requested)
    if facts.get("remedy"):
        message = f"{standing.label}: {facts['message']}"
        return Cause(standing.rank, str(facts["error"]), _sentence(message), str(facts["remedy"]), details)
    at = ""
    if facts.get("where"):
        at = f" at {facts['where']}"
    error = str(facts["error"])
    if facts.get("message"):
        error += f": {facts['message']}"
    message = f"{standing.label} failed {_during(standing)}{at} by {error}"
    return Cause(standing.rank, str(facts["error"]), _sentence(message), OTHER_REMEDY, details)


def _failed(standing: Standing, code: int, *, memory_was_full: bool, printed: str) -> Cause:
    rank = standing.rank
    at = _after(standing)
    if code == -signal.SIGKILL and memory_was_full:
        message = f"This computer's memory ran out: the system killed rank {rank} (pid {standing.pid}) {at}."
        return Cause(rank, "host", message, HOST_REMEDY, printed, "host")
    if code in (-signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP):
        name = signal.Signals(-code).name
        message = f"{standing.label} was killed from outside {at} ({name})."
        return Cause(rank, "killed", message, KILLED_REMEDY, printed)
    if code < 0:
        message = f"{standing.label} crashed {at} ({signal_text(-code)})."
        return Cause(rank, "crashed", message, CRASHED_REMEDY, printed)
    message = f"{standing.label} ended itself {at} with exit code {code}."
    return Cause(rank, "exited", message, EXITED_REMEDY, printed)


def _during(standing: Standing) -> str:
    if standing.step:
        return f"in step {standing.step}"
    return "before its first step"


def _after(standing: Standing) -> str:
    if standing.steps:
        return f"after step {standing.steps}"
    return "before its first step was over"


def _sentence(text: str) -> str:
    return f"{text.strip().rstrip('.')}."


def _known(memories: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    return [memory[name] for memory in memories if memory.get(name) is not None]


def _held_by_others(memory: Mapping[str, Any]) -> int | None:
    """How much of a GPU is in use outside the rank's own allocator."""
    total = memory.get("total_bytes")
    free = memory.get("free_bytes")
    reserved = memory.get("reserved_bytes")
    if total is None or free is None or reserved is None:
        return None
    return max(0, int(total - free - reserved))

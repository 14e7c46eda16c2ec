"""What the ranks tell, as the records of one run: joined steps, epochs, readings, notes, and the result.

Below, where each rank stands as far as it has told, which of them the others wait for, and why ranks ended: the one
that failed first of its own accord, in one sentence.
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
    """Belongs to one thread.

    Args:
        spec: of the run.
        devices: what is known of them, by rank; empty where nothing is.
        run_id: the run's number.
        emit: takes every record.
        clock: session time in seconds.

    Attributes:
        standings: where each rank stands, by its number.
        steps: newest joined step.
        restarts: how often torchrun has started all ranks anew.
        done: rank → what it told at its end.
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
        """All ranks are being started; ``restart`` counts from 0."""
        names = self._spec.device_names
        self.standings = [Standing(rank, name, memory=self._capacity(rank)) for rank, name in enumerate(names)]
        self.done: dict[int, Mapping[str, Any]] = {}
        self.steps = 0
        self.restarts = restart
        self._epochs = Epochs(self)
        self._epoch = 0
        self._rows: list[dict[str, Any]] = []
        # Before the ranks are heard again: what is joined belongs to this start alone.
        if restart:
            self._ranks.begin_again()

    def take(self, rank: int, message: Message) -> None:
        """Take in what a rank tells."""
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
            # every rank says so; the last one's word counts, since no step is joined before
            self._began_s = self._step_ended_s = self._clock()
        elif kind == "step":
            self._step(rank, message)
        elif kind == "event":
            self._event(message["event"])
        elif kind == "done":
            self.done[rank] = message

    def resident_bytes(self) -> dict[int, int]:
        """Resident bytes of the ranks by their processes' numbers; any thread may ask."""
        return {one.pid: one.memory.get("used_bytes") or 0 for one in self.standings if one.pid is not None}

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Tell a fact in words, with its figures."""
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def epoch(self, epoch: int, **facts: Any) -> EpochFinished:
        """Tell that an epoch is over."""
        ended = EpochFinished(time_s=self._clock(), run_id=self._run_id, epoch=epoch, **facts)
        self._emit(ended)
        return ended

    def note_findings(self, *, at_end: bool = False) -> None:
        """Name a straggler or the rank that holds more than the others, when there is one that was not named yet."""
        if at_end:
            seen = self._findings.at_end(self._ranks)
        else:
            seen = self._findings.new(self._ranks, self._clock())
        for finding in seen:
            self.note(finding.topic, finding.text, **finding.details)

    def result(self) -> dict[str, Any]:
        """What is known of the run until now, as its result."""
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
            # A rank that left early has no digest: whether all are equal is then not known, and not false.
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
        """The size of a rank's GPU, which is known before the rank tells of it."""
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
        """The words for devices that do not hold as much: the smallest decides."""
        known = [(device.total_bytes, device.name) for device in self._devices if device.total_bytes is not None]
        if not known or min(known)[0] == max(known)[0]:
            return ""
        total, name = min(known)
        return f"; {name} is the smallest with {format_bytes(total)} and decides what fits"

    def _beat(self, standing: Standing, message: Message) -> None:
        standing.stands(message["step"], message["phase"], message["where"], self._clock())
        figures = {name: message[name] for name in ("used_bytes", "allocated_bytes", "reserved_bytes")}
        for name, value in figures.items():
            # A rank that tells nothing of a figure keeps the one before.
            if value is not None:
                standing.memory[name] = value
                standing.memory[f"peak_{name}"] = max(value, standing.memory.get(f"peak_{name}", value))
        for sample in self._ranks.take_memory(RankMemory(standing.rank, message["time_s"], **figures)):
            self._emit(sample)

    def _step(self, rank: int, message: Message) -> None:
        self.standings[rank].steps = message["step"]
        figures = {name: message[name] for name in ("step", "time_s", "step_s", "compute_s", "blocked_s", "accuracy")}
        joined = self._ranks.take_step(RankStep(rank, loss=float(message["loss"]), **figures))
        # The step is not complete: other ranks still owe theirs.
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
        """Put a step into its epoch."""
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
            return  # it was told at the first start
        self._emit(replace(event, run_id=self._run_id))


_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


SILENT_S = 3.0
"""Silence after which a rank's process is taken to stand still: it tells how it is ten times a second."""

COLLECTIVE = "collective"


@dataclass
class Standing:
    """One rank.

    Attributes:
        step: the newest it has begun, as far as it has told.
        steps: the newest it has ended.
        phase: what it is at: "starting", "computing", "collective", "leaving".
        since_s: session time at which it told that first.
        heard_s: session time of its newest word; ``None`` before the first.
        where: the place in the code where its main thread stands.
        ready: whether it has come as far as its first step.
        memory: its newest figures in bytes.
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
        """What it is called in a sentence: "Rank 1 (cuda:1, pid 4711)"."""
        if self.pid is None:
            process = ""
        else:
            process = f", pid {self.pid}"
        return f"Rank {self.rank} ({shown_name(self.device)}{process})"

    def stands(self, step: int, phase: str, where: str, now_s: float) -> None:
        """Take in the newest message about itself."""
        if (step, phase) != (self.step, self.phase):
            self.step = step
            self.phase = phase
            self.since_s = now_s
        self.heard_s = now_s
        self.where = where


@dataclass(frozen=True)
class HeldUp:
    """The rank that the others wait for, and what is known of why, in a sentence."""

    rank: int
    text: str


def held_up(standings: Sequence[Standing], now_s: float) -> HeldUp | None:
    """The rank that has not come to where the others wait; ``None`` where none of them differs.

    In this order: one that says nothing any more, one that is a step behind, one that still computes.
    """
    silent = [one for one in standings if one.heard_s is None or now_s - one.heard_s > SILENT_S]
    # All silent at once: the machine stands still, and not one rank.
    if silent and len(silent) < len(standings):
        # the one that has been silent for longest; one that has never been heard comes before all
        one = min(silent, key=lambda standing: (standing.heard_s is not None, standing.heard_s or 0.0))
        return HeldUp(one.rank, _silent_text(one, now_s))
    arrived = max((one.step for one in standings if one.phase == COLLECTIVE), default=None)
    # behind a collective are those of an earlier step, and of the same step those that are not in one
    late = [one for one in standings if arrived is not None and (one.step, one.phase == COLLECTIVE) < (arrived, True)]
    if not late:
        return None
    # Furthest behind, and of those the one that has been there for longest.
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
    """How long a rank has been waiting for another by now: the longest that any has been in one collective."""
    return max((now_s - one.since_s for one in standings if one.phase == COLLECTIVE), default=0.0)


def overdue(standings: Sequence[Standing], now_s: float, patience_s: float, grace_s: float) -> bool:
    """Whether a rank has been waited for longer than the backend's own limit, or all have fallen silent for so long.

    Args:
        patience_s: the limit that the ranks were given.
        grace_s: what the backend's error may take to come.
    """
    # before its first step a rank may still be importing torch, which takes as long as it takes
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
    if one.steps >= max(1, one.step):  # what it has told of where it stands is older than its newest step
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
"""A rank's memory is called more than the others' from this many times on."""


@dataclass
class Ended:
    """How the ranks of one start have ended, as far as anybody has told.

    Attributes:
        failed: failures that ranks have reported, in the order of their reports: (rank, facts).
        failed_ranks: rank → exit code, as `subprocess` has it, of processes that torchrun has seen fail.
        gone: ranks whose connection ended without a word, in that order.
        late: who held the others up when the first of them gave up.
    """

    failed: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    failed_ranks: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    late: HeldUp | None = None

    @property
    def any(self) -> bool:
        """Whether anything has been told."""
        return bool(self.failed or self.failed_ranks or self.gone or self.late)


@dataclass(frozen=True)
class Cause:
    """Why a run ended.

    Attributes:
        rank: whose fault it was; ``None`` where unknown.
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
    # first what failed of its own accord: when one rank goes, the backend's errors of all the others follow
    own = next(((rank, facts) for rank, facts in ended.failed if facts.get("because_of") is None), None)
    if own is not None:
        return _raised(standings[own[0]], own[1], standings)
    reported = {rank for rank, _ in ended.failed}
    # SIGTERM is torchrun's own, with which it ends the ranks that are left
    codes = ended.failed_ranks.items()
    fallen = {rank: code for rank, code in codes if rank not in reported and code != -signal.SIGTERM}
    if fallen and ended.late is None:
        # torchrun sees ends only when it looks: the order in which connections ended is that in which
        # processes did
        rank = next((gone for gone in ended.gone if gone in fallen), next(iter(fallen)))
        return _failed(standings[rank], fallen[rank], memory_was_full=memory_was_full, printed=printed)
    if ended.late is not None:
        details = "\n".join(str(facts.get("details", "")) for _, facts in ended.failed[:1])
        return Cause(ended.late.rank, "hang", ended.late.text, HANG_REMEDY, details)
    # Ended without a word and without an exit code: the weakest sign of all that name a rank.
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
    """The event that tells ``cause``."""
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
    """Why memory ran out on this rank and not on another, in a sentence: by limit, capacity, others' use, own use."""
    others = [one.memory for one in standings if one.rank != rank and one.memory]
    limit = facts.get("limit_bytes")
    limits = [memory["limit_bytes"] for memory in others if "limit_bytes" in memory]
    # In this order: what makes a rank different from the others without its own doing comes first.
    if limit is not None and any(other is None or other > limit for other in limits):
        return f"Its process is limited to {format_bytes(limit)} of address space, the others' are not."
    total = facts.get("total_bytes")
    totals = _known(others, "total_bytes")
    if total is not None and totals and total < min(totals):
        return (
            f"Its device is the smallest: {format_bytes(total)}, the others' have {format_bytes(min(totals))} or more."
        )
    # On the CPU all ranks share the memory that others hold.
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
    # With equal limits and equal needs it is chance which one is first.
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
    """What of a GPU is in use beside the rank's own allocator."""
    total = memory.get("total_bytes")
    free = memory.get("free_bytes")
    reserved = memory.get("reserved_bytes")
    if total is None or free is None or reserved is None:
        return None
    return max(0, int(total - free - reserved))

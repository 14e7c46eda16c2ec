"""The records that cross threads: readings (`Sample`) and happenings (`Event`), all frozen.

Times are monotonic seconds since the session began. Bytes are ints; everything else is in SI units
or a ratio from 0 to 1.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpudash.telemetry.explanation import Explanation, Findings, explanation_from_json, findings_from_json

Value = int | float | str | None


class Topic(enum.StrEnum):
    """What a `Note` is about. A workload of another package may have topics of its own, which are shown as they are."""

    CACHE = "cache"
    CLASSES = "classes"
    COMPARISON = "comparison"
    CORPUS = "corpus"
    DEMO = "demo"
    """That a run is the demo's: lists of what the user ran leave it out."""
    DEVICE = "device"
    """On which device a watched program turns out to run; `details` hold its ``device``."""
    DIRECT = "direct"
    EXPLANATION = "explanation"
    """What holds a device's memory while a run is on: a `MemoryExplained`."""
    FROM_OUTPUT = "from the output"
    """That a program's loss is read from what it prints; ``reads`` is false where that has ended."""
    GPUS = "gpus"
    """Which GPUs there are, and torch's names of them (``gpus``, ``torch_names``)."""
    HOST = "host"
    IMBALANCE = "imbalance"
    INPUT = "input"
    """How the `DataLoader` of a watched program is set.

    `details` hold a `gpudash.telemetry.results.step_parts.Loader`.
    """
    NAN = "nan"
    NEED = "need"
    """That a program is run again to find out what it needs."""
    OPERATORS = "operators"
    """What the profiler found; `details` hold its rows, or nothing where it found none."""
    OUT_OF_MEMORY = "out of memory"
    PITFALL = "pitfall"
    PLACEMENT = "placement"
    PREDICTED = "predicted"
    """What a run was predicted to hold; `details` hold the ``ghost``, as of `gpudash.drawing.ghost.Ghost.to_json`."""
    PREDICTIONS = "predictions"
    """What a model at inference predicts; `details` hold the ``step`` and the ``predictions`` of a result."""
    PRESSURE = "pressure"
    PROCESSES = "processes"
    PROGRAM = "program"
    RANKS = "ranks"
    """Where the ranks of a run are (``world_size``, ``ranks``)."""
    RECORDINGS = "recordings"
    REMEDIES = "remedies"
    """What would have let a run fit: a `RemediesFound`. Early recordings have it under `EXPLANATION`."""
    REPORT = "report"
    """Where the report of an out-of-memory lies (``folder``)."""
    RESTART = "restart"
    SERVING = "serving"
    SESSION = "session"
    """What a stream of records begins with: the facts of the session."""
    SETTINGS = "settings"
    SIMULATED = "simulated"
    SNAPSHOT = "snapshot"
    """A memory snapshot of a watched program (``path``)."""
    STRAGGLER = "straggler"
    TORCH = "torch"
    WORKER = "worker"


class State(enum.StrEnum):
    """Why a metric that was asked for has no number. A metric with a number is ``OK``."""

    OK = "ok"
    NOT_SUPPORTED = "not supported"
    NO_PERMISSION = "no permission"
    LOST = "lost"
    ASLEEP = "asleep"
    STALE = "stale"


Table = Literal["host", "gpu", "process", "allocator", "rank"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one source in one tick.

    Attributes:
        time_s: session time of the reading.
        table: which reading table it belongs to.
        device: the GPU's UUID (gpu), the torch device name (allocator), the UUID or ``None`` for a
            process on the host, ``None`` (host).
        values: metric name → number or text. A metric not due in this tick is absent; one that was
            asked for and not had is present as ``None`` and named in `states`.
        states: metric name → why there is no number; holds no ``OK``.
    """

    time_s: float
    table: Table
    device: str | None
    values: Mapping[str, Value]
    states: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    time_s: float
    run_id: int | None = None

    @property
    def kind(self) -> str:
        """What it is called in JSON and in recordings."""
        return type(self).__name__

    def to_json(self) -> str:
        """The record as one JSON object with its ``kind``; non-finite numbers as strings."""
        return _as_json(self, _fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    workload: str
    device: str
    spec: Mapping[str, Any]
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(Event):
    """One named stage of a run, timed. Fields that have no meaning for a stage are ``None``.

    A stage that recurs quickly is reported a few times a second: `count` executions whose `seconds`,
    `bytes` and `flops` are sums.
    """

    name: str
    seconds: float
    count: int = 1
    bytes: int | None = None
    from_device: str | None = None
    to_device: str | None = None
    shape: Sequence[int] | None = None
    dtype: str | None = None
    device: str | None = None
    is_cuda: bool | None = None
    copied: bool | None = None
    same_object: bool | None = None
    is_leaf: bool | None = None
    flops: float | None = None
    first_values: Sequence[float] | None = None
    remark: str | None = None

    @property
    def bytes_per_second(self) -> float | None:
        """Rate of a stage that moved bytes; ``None`` where nothing was copied or timed."""
        if self.bytes is None or self.copied is False or self.seconds <= 0:
            return None
        return self.bytes / self.seconds


STEP_METRICS = ("loss", "accuracy", "throughput", "val_loss")
"""Metrics of a step, as `StepFinished` names them."""

OF_LOSS = "loss/"
"""What the name of a metric begins with that is one of several losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A step of work. `loss` and `val_loss`, that of a validation after it, are in nats, `accuracy` is a ratio,
    `throughput` items per second. `losses` are those of a program that has several, by the names that it gives them.

    Of a program that is watched an item is a step, and several records may tell of one: its loss may be known later.
    `seconds` is ``None`` where its beginning is unknown, as of the first step of a program that is watched.
    """

    step: int
    steps: int
    seconds: float | None
    loss: float | None = None
    accuracy: float | None = None
    throughput: float | None = None
    val_loss: float | None = None
    losses: Mapping[str, float] | None = None

    def metrics(self) -> Iterator[tuple[str, float]]:
        """Names and values of what it tells; of one of several losses the name is `OF_LOSS` and that of the loss."""
        for name in STEP_METRICS:
            value = getattr(self, name)
            if value is not None:
                yield name, value
        for name, value in (self.losses or {}).items():
            if isinstance(value, int | float):
                yield f"{OF_LOSS}{name}", value


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(Event):
    epoch: int
    device: str
    loss: float
    accuracy: float
    seconds: float
    observation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Event):
    """A timed copy of `bytes` between two memories; `seconds` covers the copy alone."""

    from_device: str
    to_device: str
    memory: Literal["pageable", "pinned"]
    blocking: bool
    bytes: int
    seconds: float

    @property
    def direction(self) -> Literal["h2d", "d2h", "h2h", "d2d"]:
        """Host-to-device and so on, in the field's own abbreviations."""
        ends = "h" if self.from_device == "cpu" else "d", "h" if self.to_device == "cpu" else "d"
        return f"{ends[0]}2{ends[1]}"  # type: ignore[return-value]  # four literals, all covered


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """A fact worth telling during a run: a pitfall's outcome, the placement audit, an observation.

    `topic` is a `Topic`, or a word of another package's workload. `details` holds named facts for a table or JSON (a
    pitfall: ``message`` is torch's own words, ``explanation`` and ``remedy`` are ours).
    """

    topic: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "Note"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExplained(Note):
    """A note that tells what a device's memory holds while a run is on; in JSON `explanation` is its `details`."""

    topic: str = Topic.EXPLANATION
    explanation: Explanation

    def to_json(self) -> str:
        return _as_note(self, self.explanation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediesFound(Note):
    """A note that tells what would have let a run fit; in JSON `found` is its `details`."""

    topic: str = Topic.REMEDIES
    found: Findings

    def to_json(self) -> str:
        return _as_note(self, self.found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Event):
    """Lines that a watched program has printed, in pieces of at most a few hundred; `stream`: "stdout" or "stderr".

    `lost` counts the lines left out since the piece before, where a program prints faster than anybody can read.
    """

    stream: Literal["stdout", "stderr"]
    lines: Sequence[str]
    lost: int = 0


RunStatus = Literal["finished", "cancelled", "failed", "out_of_memory"]
"""How a run ended, in the words of the JSON output and of recordings."""

_BAD_ENDS: dict[str, RunStatus] = {"RunFailed": "failed", "OutOfMemory": "out_of_memory"}
"""Status of an end of each of these kinds in JSON, which does not tell it."""

_NOT_OF = {
    "RunFinished": ("error", "message", "remedy", "details", "requested_bytes", "explanation"),
    "RunFailed": ("status", "requested_bytes", "explanation"),
    "OutOfMemory": ("status",),
}
"""What JSON does not tell of an end of each kind, since it says nothing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd(Event):
    """A run has ended. JSON and recordings have three kinds of it, by its status.

    Attributes:
        status: "cancelled" where the user stopped it, "failed" by an exception.
        error: kind of the exception; where memory ran out "cuda", "sim" or "host", and "guard" where the guard
            stopped it. "" with the sentences below where nothing went wrong.
        details: the traceback, for the folded part of a report.
        result: the workload's own.
        explanation: what filled the memory, where that is known.
    """

    status: RunStatus
    error: str = ""
    message: str = ""
    remedy: str = ""
    seconds: float
    steps: int
    requested_bytes: int | None = None
    details: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    explanation: Explanation | None = None

    @property
    def kind(self) -> str:
        return next((kind for kind, status in _BAD_ENDS.items() if status == self.status), "RunFinished")

    @property
    def ended_badly(self) -> bool:
        return self.status in _BAD_ENDS.values()

    def to_json(self) -> str:
        return _as_json(self, {name: value for name, value in _fields(self).items() if name not in _NOT_OF[self.kind]})


Level = Literal["note", "forecast", "warning", "critical", "passed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning(Event):
    """Memory crossed a threshold, is forecast to, or came back ("passed").

    Attributes:
        level: how grave; "passed" takes back an earlier warning of the same device.
        device: the reading's device: GPU UUID, or "host".
        text: the whole notice in words.
        ratio: how full, 0 to 1, when it was raised; ``None`` for other notices.
        actions: what to offer: "stop", "free_cache", "save_recording".
        cause: what grows, in words for a forecast's sentence; ``None`` for notices that know of no cause.
    """

    level: Level
    device: str
    text: str
    ratio: float | None = None
    actions: Sequence[str] = ()
    cause: str | None = None


REMOVED = "removed"
"""Category of a marker that takes back the user's mark of the same time and label: nothing that was recorded is
unwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Event):
    """A named moment. `category`: "user", "run", "phase", "warning"; or `REMOVED`."""

    label: str
    category: str = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailed(Event):
    """A source, or one device of it, stopped answering. `source`: "nvml", "host", a GPU's UUID, a lane."""

    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecovered(Event):
    source: str
    text: str


Record = Sample | Event

EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        RunStarted,
        StageFinished,
        StepFinished,
        EpochFinished,
        Transfer,
        Note,
        Output,
        Warning,
        Marker,
        SourceFailed,
        SourceRecovered,
    )
} | dict.fromkeys(_NOT_OF, RunEnd)
"""Class of each kind of event in JSON."""


LARGEST = 2**63 - 1
"""The largest whole number that a recording can hold."""

_Check = Callable[[object], bool]


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -LARGEST <= value <= LARGEST


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


_CHECKS: dict[Any, _Check] = {
    int: _is_whole,
    float: _is_number,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    type(None): lambda value: value is None,
    Mapping: lambda value: isinstance(value, dict),
    Explanation: lambda value: isinstance(value, dict),
}


def _check(hint: Any) -> _Check:
    """Whether what JSON brought can be of the type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is Sequence:
        each = _check(arguments[0])
        return lambda value: isinstance(value, list) and all(map(each, value))
    if origin in (Union, UnionType):
        checks = [_check(argument) for argument in arguments]
        return lambda value: any(check(value) for check in checks)
    return _CHECKS[origin or hint]


def _fields_of(kind: type[Event]) -> dict[str, tuple[_Check, bool]]:
    hints = get_type_hints(kind)
    return {f.name: (_check(hints[f.name]), "float" in str(f.type)) for f in dataclasses.fields(kind)}


_FIELDS = {kind: _fields_of(kind) for kind in EVENTS.values()}
"""Fields of each kind of event: what each may be, and whether that is numbers, of which JSON has some as text."""


def event_from_json(text: str) -> Event:
    """The event that `Event.to_json` wrote; unknown keys are ignored.

    Raises:
        ValueError: when the text is no JSON object, the kind is unknown, or a field is missing or of another type.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("not an event: nested too deep") from None
    named, kind = "", None
    if isinstance(data, dict):
        named = str(data.get("kind"))
        kind = EVENTS.get(named)
    if kind is None:
        raise ValueError(f"not an event: {text[:80]!r}")
    if named in _BAD_ENDS:
        data["status"] = _BAD_ENDS[named]
    fields = {}
    for name, (check, has_floats) in _FIELDS[kind].items():
        if name in data:
            value = data[name]
            fields[name] = value = _revive(value) if has_floats else value
            if not check(value):
                raise ValueError(f"impossible {named} event: {name} is {type(value).__name__}")
    if fields.get("explanation") is not None:
        fields["explanation"] = _explanation(fields["explanation"])
    try:
        event = kind(**fields)
    except TypeError as error:
        raise ValueError(f"incomplete {named} event: {error}") from None
    if isinstance(event, Note):
        return _typed(event)
    return event


def _explanation(data: Mapping[str, Any]) -> Explanation | None:
    """``None`` where it is damaged, or not of this version: that memory ran out is true all the same."""
    try:
        return explanation_from_json(data)
    except ValueError:
        return None


def _typed(note: Note) -> Note:
    """``note`` with the record that its details are; as it is where they are none.

    Which of the two they are is told by what they hold, for one topic was once that of both.
    """
    time_s, run_id, text, details = note.time_s, note.run_id, note.text, note.details
    with suppress(ValueError):
        if note.topic == Topic.EXPLANATION and "parts" in details:
            explanation = explanation_from_json(details)
            return MemoryExplained(time_s=time_s, run_id=run_id, text=text, explanation=explanation)
        if note.topic in (Topic.EXPLANATION, Topic.REMEDIES) and "remedies" in details:
            return RemediesFound(time_s=time_s, run_id=run_id, text=text, found=findings_from_json(details))
    return note


def _as_note(note: Note, details: Explanation | Findings) -> str:
    fields = {name: getattr(note, name) for name in ("time_s", "run_id", "topic", "text")}
    return _as_json(note, {**fields, "details": details})


def _as_json(event: Event, fields: Mapping[str, Any]) -> str:
    return json.dumps(plain({"kind": event.kind, **fields}), allow_nan=False)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: mappings (records too), lists, numbers; NaN and infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "nan"
        if value > 0:
            return "inf"
        return "-inf"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _fields(event: Event) -> dict[str, Any]:
    return {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}


def _revive(value: Any) -> Any:
    if isinstance(value, list):
        return [_revive(item) for item in value]
    if isinstance(value, dict):
        return {name: _revive(item) for name, item in value.items()}
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return value

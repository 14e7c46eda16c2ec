"""The records that cross threads: readings (`Sample`) and events (`Event`), all frozen.

Times are monotonic seconds since the session began. Bytes are ints; everything else is in SI units or a ratio from 0
to 1.
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


def number_in(value: object) -> float | None:
    """The number in a reading or in a field of JSON, as it is; ``None`` for anything else, booleans included."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


def size_in(value: object) -> int | None:
    """The same as a whole number, such as bytes."""
    number = number_in(value)
    if number is None:
        return None
    return int(number)


class Topic(enum.StrEnum):
    """The subject of a `Note`. Workloads of other packages may use other topics, which are displayed unchanged."""

    CACHE = "cache"
    CLASSES = "classes"
    COMPARISON = "comparison"
    CORPUS = "corpus"
    DEMO = "demo"
    """The run belongs to the demo: lists of the user's runs omit it."""
    DEVICE = "device"
    """The device that a watched program actually uses; `details` contain its ``device``."""
    DIRECT = "direct"
    EXPLANATION = "explanation"
    """Content of a device's memory during a run: a `MemoryExplained`."""
    FROM_OUTPUT = "from the output"
    """A program's loss is parsed from its output; ``reads`` is false once that has ended."""
    GPUS = "gpus"
    """The GPUs, and torch's names for them (``gpus``, ``torch_names``)."""
    HOST = "host"
    IMBALANCE = "imbalance"
    INPUT = "input"
    """Settings of a watched program's `DataLoader`.

    `details` contain a `gpudash.telemetry.results.step_parts.Loader`.
    """
    NAN = "nan"
    NEED = "need"
    """A program is run again to find out what it needs."""
    OPERATORS = "operators"
    """Results of the profiler; `details` contain its rows, or nothing if it found none."""
    OUT_OF_MEMORY = "out of memory"
    PITFALL = "pitfall"
    PLACEMENT = "placement"
    PREDICTED = "predicted"
    """Predicted memory of a run; `details` contain the ``ghost``, by `gpudash.drawing.ghost.Ghost.to_json`."""
    PREDICTIONS = "predictions"
    """Output of a model at inference; `details` contain the ``step`` and the ``predictions`` of a result."""
    PRESSURE = "pressure"
    PROCESSES = "processes"
    PROGRAM = "program"
    RANKS = "ranks"
    """Machines and devices of a run's ranks (``world_size``, ``ranks``)."""
    RECORDINGS = "recordings"
    REMEDIES = "remedies"
    """Changes with which a run would have fitted: a `RemediesFound`. Early recordings have it under `EXPLANATION`."""
    REPORT = "report"
    """Path of the report of an out-of-memory error (``folder``)."""
    RESTART = "restart"
    SERVING = "serving"
    SESSION = "session"
    """The first record of a stream: the facts of the session."""
    SETTINGS = "settings"
    SIMULATED = "simulated"
    SNAPSHOT = "snapshot"
    """A memory snapshot of a watched program (``path``)."""
    STRAGGLER = "straggler"
    TORCH = "torch"
    WORKER = "worker"


class State(enum.StrEnum):
    """Why a requested metric has no number; ``OK`` if it has one."""

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
        table: reading table it belongs to.
        device: the GPU's UUID (gpu), torch's device name (allocator), the UUID or ``None`` for a process on the host,
            ``None`` (host).
        values: metric name → number or text. Metrics not due in this tick are absent; one that was requested but not
            available is ``None`` and has an entry in `states`.
        states: metric name → why there is no number; never contains ``OK``.
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
        """Its name in JSON and in recordings."""
        return type(self).__name__

    def to_json(self) -> str:
        """The event as a JSON object with its ``kind``; non-finite numbers become strings."""
        return _as_json(self, _fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    workload: str
    device: str
    spec: Mapping[str, Any]
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(Event):
    """A timed execution of a named stage. Fields that do not apply to a stage are ``None``.

    A stage that recurs quickly is reported a few times a second: `count` executions, with `seconds`, `bytes` and
    `flops` as sums.
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
        """Rate of a stage that copied bytes; ``None`` if nothing was copied or timed."""
        if self.bytes is None or self.copied is False or self.seconds <= 0:
            return None
        return self.bytes / self.seconds


STEP_METRICS = ("loss", "accuracy", "throughput", "val_loss")
"""Names of a step's metrics in `StepFinished`."""

OF_LOSS = "loss/"
"""Prefix of the metric name of each of several losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A step. `loss` and `val_loss` (of a validation after it) are in nats, `accuracy` is a ratio, `throughput` is in
    items per second. `losses` are those of a program with several, by its own names.

    For a watched program an item is a step, and several records may belong to the same one: its loss may be known
    later. `seconds` is ``None`` if its start is unknown, as for a watched program's first step.
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
        """Names and values of its metrics; each of several losses is named `OF_LOSS` plus its own name."""
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
    """A timed copy of `bytes` between two memories; `seconds` covers only the copy."""

    from_device: str
    to_device: str
    memory: Literal["pageable", "pinned"]
    blocking: bool
    bytes: int
    seconds: float

    @property
    def direction(self) -> Literal["h2d", "d2h", "h2h", "d2d"]:
        """The direction in the usual abbreviations, such as host-to-device."""
        ends = "h" if self.from_device == "cpu" else "d", "h" if self.to_device == "cpu" else "d"
        return f"{ends[0]}2{ends[1]}"  # type: ignore[return-value]  # four literals, all covered


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """A remarkable fact during a run: a pitfall's outcome, the placement audit, an observation.

    `topic` is a `Topic`, or a string of another package's workload. `details` contains named facts for a table or JSON
    (for a pitfall, ``message`` is torch's own, ``explanation`` and ``remedy`` are ours).
    """

    topic: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "Note"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExplained(Note):
    """A note about the content of a device's memory during a run; in JSON `explanation` is its `details`."""

    topic: str = Topic.EXPLANATION
    explanation: Explanation

    def to_json(self) -> str:
        return _as_note(self, self.explanation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediesFound(Note):
    """A note about changes with which a run would have fitted; in JSON `found` is its `details`."""

    topic: str = Topic.REMEDIES
    found: Findings

    def to_json(self) -> str:
        return _as_note(self, self.found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Event):
    """Lines printed by a watched program, in batches of at most a few hundred; `stream`: "stdout" or "stderr".

    `lost` counts the lines dropped since the previous batch, if a program prints faster than anybody can read.
    """

    stream: Literal["stdout", "stderr"]
    lines: Sequence[str]
    lost: int = 0


RunStatus = Literal["finished", "cancelled", "failed", "out_of_memory"]
"""How a run ended, as in the JSON output and in recordings."""

_BAD_ENDS: dict[str, RunStatus] = {"RunFailed": "failed", "OutOfMemory": "out_of_memory"}
"""Status for each kind of failure in JSON, which does not contain it."""

_NOT_OF = {
    "RunFinished": ("error", "message", "remedy", "details", "requested_bytes", "explanation"),
    "RunFailed": ("status", "requested_bytes", "explanation"),
    "OutOfMemory": ("status",),
}
"""Values of fields that JSON omits for each kind of end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd(Event):
    """The end of a run. JSON and recordings have three kinds of it, by its status.

    Attributes:
        status: "cancelled" if the user stopped it, "failed" after an exception.
        error: type of the exception; if memory ran out, "cuda", "sim" or "host", or "guard" if the guard stopped it.
            "" (like the sentences below) if nothing went wrong.
        details: the traceback, for the collapsed part of a report.
        result: the workload's own result.
        explanation: what filled the memory, if known.
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
    """Memory has crossed a threshold, is forecast to, or has recovered ("passed").

    Attributes:
        level: severity; "passed" cancels an earlier warning for the same device.
        device: the reading's device: GPU UUID, or "host".
        text: the whole message in words.
        ratio: how full memory was, 0 to 1, when it was raised; ``None`` for other warnings.
        actions: actions to offer: "stop", "free_cache", "save_recording".
        cause: what grows, in words for a forecast's sentence; ``None`` if unknown.
    """

    level: Level
    device: str
    text: str
    ratio: float | None = None
    actions: Sequence[str] = ()
    cause: str | None = None


REMOVED = "removed"
"""Category of a marker that removes the user's mark of the same time and label: recorded data is never deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Event):
    """A named moment. `category`: "user", "run", "phase", "warning"; or `REMOVED`."""

    label: str
    category: str = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailed(Event):
    """A source, or one of its devices, has stopped responding. `source`: "nvml", "host", a GPU's UUID, a lane."""

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
"""Class for each kind of event in JSON."""


LARGEST = 2**63 - 1
"""The largest integer that fits in a recording."""

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
    """Builds a check whether a JSON value is valid for the type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is Sequence:
        each = _check(arguments[0])
        return lambda value: isinstance(value, list) and all(map(each, value))
    if origin in (Union, UnionType):
        checks = list(map(_check, arguments))
        return lambda value: any(check(value) for check in checks)
    return _CHECKS[origin or hint]


def _fields_of(kind: type[Event]) -> dict[str, tuple[_Check, bool]]:
    hints = get_type_hints(kind)
    return {f.name: (_check(hints[f.name]), "float" in str(f.type)) for f in dataclasses.fields(kind)}


_FIELDS = {kind: _fields_of(kind) for kind in EVENTS.values()}
"""Fields of each kind of event: the check of each, and whether it holds numbers, some of which JSON has as strings."""


def event_from_json(text: str) -> Event:
    """Read the output of `Event.to_json`; ignores unknown keys.

    Raises:
        ValueError: if the text is not a JSON object, the kind is unknown, or a field is missing or of another type.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("not an event: nested too deep") from None
    if not isinstance(data, dict) or str(data.get("kind")) not in EVENTS:
        raise ValueError(f"not an event: {text[:80]!r}")
    named = str(data["kind"])
    kind = EVENTS[named]
    if named in _BAD_ENDS:
        data["status"] = _BAD_ENDS[named]
    fields = {}
    for name, (check, has_floats) in _FIELDS[kind].items():
        if name in data:
            fields[name] = _revive(data[name]) if has_floats else data[name]
            if not check(fields[name]):
                raise ValueError(f"impossible {named} event: {name} is {type(fields[name]).__name__}")
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
    """``None`` if it is damaged or of another version: that memory ran out is true all the same."""
    try:
        return explanation_from_json(data)
    except ValueError:
        return None


def _typed(note: Note) -> Note:
    """``note`` converted to the record in its details, if there is one.

    The details' content decides which one, because both once had the same topic.
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
    """``value`` as JSON types: mappings (also for records), lists, numbers; NaN and infinities become strings."""
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
        return list(map(plain, value))
    return value


def _fields(event: Event) -> dict[str, Any]:
    return {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}


def _revive(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_revive, value))
    if isinstance(value, dict):
        return {name: _revive(item) for name, item in value.items()}
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return value

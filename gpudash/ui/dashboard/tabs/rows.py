"""What the tables below the plots say: a row of text for each stage, epoch, result, process and event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from gpudash.devices.names import badged_name, shown_name
from gpudash.session.recordings.run_names import given_name
from gpudash.telemetry.records import (
    REMOVED,
    EpochFinished,
    Event,
    Marker,
    Note,
    RunEnd,
    RunStarted,
    SourceFailed,
    SourceRecovered,
    Warning,
)
from gpudash.telemetry.results.outcome import (
    has_verdict,
    outcome_rows,
    predicted_step,
    run_figures,
    stage_remark,
    without_figures,
)
from gpudash.telemetry.runs import RunView, StageView
from gpudash.telemetry.store import Store
from gpudash.ui.widgets.tables import Column
from gpudash.units import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_percent,
    format_rate,
    format_scaled,
)

Range = tuple[float, float] | None
"""Session times between which rows are shown; ``None`` for all."""

STAGES = (
    Column("stage"),
    Column("device"),
    Column("shape"),
    Column("type"),
    Column("count", right=True),
    Column("bytes", right=True),
    Column("time", right=True, tip="Mean of one"),
    Column("rate", right=True),
    Column("share", right=True, tip="Of the time of all stages together"),
    Column("remark", wide=True, wraps=True),
)
RESULT = (Column("what"), Column("outcome", wide=True, wraps=True))
EPOCHS = (
    Column("epoch", right=True),
    Column("device"),
    Column("loss (nats)", right=True),
    Column("accuracy", right=True),
    Column("time", right=True),
    Column("observation", wide=True, wraps=True),
)
PROCESSES = (
    Column("device"),
    Column("PID", right=True),
    Column("name"),
    Column("user"),
    Column("memory", right=True),
    Column("CPU", right=True, tip="Share of one core"),
    Column("container", wide=True, tip="Container, pod or job, where the process's control group names one"),
)
DEVICES = (Column("device"), Column("reading"), Column("value", right=True), Column("state", wide=True))
EVENTS = (Column("time"), Column("clock"), Column("kind"), Column("what", wide=True))


def stage_rows(run: RunView | None, selection: Range = None) -> list[Sequence[str]]:
    """One row per stage of a run, within the selection if there is one."""
    if run is None:
        return []
    views = run.stages
    if selection is not None:
        views = {}
        for event in _inside(list(run.stage_events), selection):
            views.setdefault(event.name, StageView(event)).add(event)
    stages = list(views.values())
    whole = sum(stage.seconds for stage in stages)
    return [_stage_row(stage, whole, run.device) for stage in stages]


def _stage_row(stage: StageView, whole_s: float, device: str) -> Sequence[str]:
    newest, rate = stage.newest, stage.bytes_per_second
    ends = dict.fromkeys(filter(None, (newest.from_device, newest.to_device)))
    speed = ""
    if stage.flops_per_second:
        speed = format_scaled(stage.flops_per_second, "FLOP/s")
    elif rate is not None:
        speed = format_rate(rate)
    return (
        stage.name,
        " → ".join(map(badged_name, ends)) or badged_name(newest.device or device),
        " × ".join(map(str, newest.shape or ())),
        newest.dtype or "",
        format_count(stage.count),
        "" if stage.bytes is None else format_bytes(stage.bytes / stage.count),
        format_duration(stage.seconds / stage.count),
        speed,
        format_percent(stage.seconds / whole_s) if whole_s else "",
        stage_remark(stage.summary()),
    )


def result_rows(run: RunView | None) -> list[Sequence[str]]:
    """A run's results, first those that stand beside the plots, then what was run; empty until the run has ended."""
    if run is None or run.running:
        return []
    figures = run_figures(run)
    more = without_figures([*predicted_step(run), *outcome_rows(run.result)], figures)
    results = [*figures, *more]
    if has_verdict(run.result):
        results = [*more, *figures]
    return [*results, ("run", given_name(run.workload, run.device, run.spec))]


def epoch_rows(run: RunView | None, selection: Range = None) -> list[Sequence[str]]:
    """One row per epoch of a run, within the selection if there is one."""
    if run is None:
        return []
    return [
        (
            str(epoch.epoch),
            badged_name(epoch.device),
            f"{epoch.loss:.4f}",
            format_percent(epoch.accuracy),
            format_duration(epoch.seconds),
            epoch.observation,
        )
        for epoch in _inside(run.epochs, selection)
    ]


def process_rows(store: Store) -> list[Sequence[str]]:
    """The processes that hold memory, the largest first on each device."""
    rows: list[Sequence[str]] = []
    for device in store.process_devices():
        found = sorted(store.processes(device), key=lambda row: -float(row.get("memory_bytes") or 0))
        if device is None:
            name = "cpu"
        else:
            name = shown_name(store.torch_name(device) or device)
        rows += [_process_row(name, row) for row in found]
    return rows


def _process_row(device: str, row: Mapping[str, Any]) -> Sequence[str]:
    cpu = row.get("cpu_utilisation")
    return (
        device,
        str(row["pid"]),
        str(row.get("name") or "not visible here"),
        str(row.get("user") or ""),
        format_bytes(row.get("memory_bytes")),
        "" if cpu is None else format_percent(cpu),
        str(row.get("container") or ""),
    )


E = TypeVar("E", bound=Event)


def _inside(events: Iterable[E], selection: Range) -> list[E]:
    if selection is None:
        return list(events)
    return [event for event in events if selection[0] <= event.time_s <= selection[1]]


def event_row(event: Event, origin_s: float) -> Sequence[str] | None:
    """The text of an event; ``None`` for events that the plots and stages show."""
    described = _describe(event)
    if described is None:
        return None
    clock = datetime.fromtimestamp(origin_s + event.time_s).astimezone()
    return (format_moment(event.time_s), f"{clock:%H:%M:%S}", *described)


def _describe(event: Event) -> tuple[str, str] | None:
    match event:
        case RunStarted():
            return "run", f"{event.workload} started on {badged_name(event.device)}"
        case RunEnd(status="failed" | "out_of_memory"):
            return "run", f"{event.message} {event.remedy}".strip()
        case RunEnd():
            ending = "finished" if event.status == "finished" else "stopped"
            return "run", f"{ending} after {event.steps} steps, {format_duration(event.seconds)}"
        case Warning():
            return event.level, event.text
        case Marker():
            return "mark removed" if event.category == REMOVED else "mark", event.label
        case Note():
            return event.topic, event.text
        case EpochFinished():
            return "epoch", f"{event.epoch}: loss {event.loss:.4f}, accuracy {format_percent(event.accuracy)}"
        case SourceFailed() | SourceRecovered():
            return "source", event.text
    return None

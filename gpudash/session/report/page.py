"""The page: what ran, on what, how it went, what it looked like, its ranks, and why it ended where it did."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpudash import __version__
from gpudash.devices.names import SIMULATED, badged_devices, shown_name
from gpudash.drawing.page import (
    Block,
    BulletsBlock,
    FactsBlock,
    FoldedBlock,
    HeadingBlock,
    ParagraphBlock,
    Phrase,
    TableBlock,
    Text,
    page,
)
from gpudash.memory.explaining.explanation_text import remedy_sections
from gpudash.memory.snapshot.report_html import allocated, cause, filled
from gpudash.session.recordings.replay import Replay
from gpudash.session.recordings.run_names import given_name, process_text
from gpudash.session.report.drawing import figure, predicted, read
from gpudash.specs import workloads
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.export.writing import OnProgress, atomically
from gpudash.telemetry.plots import (
    CurveSpec,
    PlotSpec,
    devices_of_halves,
    loss,
    memory_by_device,
    memory_levels,
    rank_curves,
    rank_plots,
    throughput,
    transfers,
    utilisation,
)
from gpudash.telemetry.ranks.rows import FIGURES, parameters_text, places_of
from gpudash.telemetry.recording.facts import RunText, run_text, run_title, standing_marks
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import OF_LOSS, Note, Warning, number_in
from gpudash.telemetry.results.outcome import STAGE_COLUMNS, outcome_rows, predicted_step, stage_cells
from gpudash.telemetry.runs import ENDINGS, WATCH, RunView, item_of, whose_peak
from gpudash.telemetry.store import Store
from gpudash.units import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_pair,
    format_percent,
    format_throughput,
)

_TITLES = {
    "memory": "Memory",
    "throughput": "Throughput",
    "transfer": "Transfer bandwidth",
    "utilisation": "Utilisation",
    "device_memory": "Memory by device",
    "rank_memory": "Memory by rank",
    "rank_step": "Step time by rank",
}
"""Plot → what the page calls it; a loss also says its unit, where it is known."""

_LEFT_OUT = frozenset({("host", "process_cpu_utilisation"), ("rank", "reserved_bytes")})
"""Tables and metrics of the window's plots that a page does without."""

_RANK_COLOURS = ("sky", "orange", "green", "purple")
"""Colours of the page for the curves by rank, one after another; every other one is dashed."""


def _plots_of(replay: Replay, run: RunView | None, uuid: str | None) -> list[PlotSpec]:
    """The plots of which there is anything, with their titles on the page; called under the store's lock.

    Args:
        replay: of the recording.
        run: that is shown; ``None`` where the machine was only watched.
        uuid: of the GPU, ``None`` for the CPU.
    """
    store = replay.store
    if run is None:
        device = store.torch_name(uuid or "") or ""
    else:
        device = run.device
    simulated = ""
    if run is not None and run.simulated:
        simulated = f" ({SIMULATED})"
    found = []
    for plot in _described(store, device, uuid, run):
        known = tuple(
            curve for curve in plot.curves if curve.key[:2] not in _LEFT_OUT and store.series(*curve.key) is not None
        )
        if known:
            speeds = ""
            if plot.id in ("throughput", "transfer"):
                speeds = simulated
            found.append(replace(plot, title=f"{_TITLES.get(plot.id, plot.title)}{speeds}", curves=known))
    return found


def _described(store: Store, device: str, uuid: str | None, run: RunView | None) -> Iterator[PlotSpec]:
    own = process_text(run)
    yield memory_levels(device, uuid, own)
    if run is not None:
        title = "Loss (nats) and accuracy"
        if run.workload == WATCH:
            title = "Loss and accuracy"
        yield replace(loss(run), title=title, lines=())
        yield throughput(run)
    if halves := devices_of_halves(run):
        yield memory_by_device(halves)
    copies = transfers(store, None, None)
    if copies is not None:
        yield copies
    yield utilisation(uuid, None)
    places = places_of(run)
    if places:
        losses = rank_curves(places, "loss", "nats")
        plots = [plot for plot in rank_plots(store, places, None) if plot.id in _TITLES]
        for plot in (*plots, PlotSpec(id="rank_loss", title="Loss by rank", curves=losses, unit="nats")):
            curves = tuple(_by_rank(curve, number) for number, curve in enumerate(plot.curves))
            yield replace(plot, lines=(), curves=curves)


def _by_rank(curve: CurveSpec, number: int) -> CurveSpec:
    """A curve of one rank, or of the envelope of many, as a page tells it from the one before."""
    device = curve.key[2] or ""
    return replace(
        curve,
        name=curve.name if device.isdecimal() else f"{device} of the ranks",
        colour=_RANK_COLOURS[number % len(_RANK_COLOURS)],
        style="dash" if number % 2 else "solid",
    )


MOST_RUNS = 10
"""Most runs described in full, the newest ones: a page of hundreds would not be read."""

SHARP_S = 2.0
"""Longest wait for a run's samples; after it the exact extremes of wider columns are drawn."""

MARGIN_RATIO = 0.03
"""Share of a run's length that is shown on either side of it."""

STATUS = {**ENDINGS, "running": "not ended when this was written"}

LEFT_OUT = frozenset({"settings"})
"""Facts of a recording that say nothing of the machine."""

_CELLS = re.compile(r" {2,}")
"""What parts the cells of a line that was laid out for a terminal."""


def write_report(recording: Path, out: Path, force: bool = False, on_progress: OnProgress | None = None) -> list[str]:
    """Write the report on ``recording`` to ``out``, whole or not at all.

    Args:
        recording: the file.
        out: what to write.
        force: replace ``out`` where it is.
        on_progress: called with 0 between reading and writing; what it raises ends it, and nothing is left.

    Returns:
        What could not be read of the recording, a sentence each.

    Raises:
        RecordingError: when the recording cannot be read, or ``out`` exists without ``force``, is the recording
            itself, or cannot be written.
    """
    with atomically(out, recording, force) as part:
        with open_recording(recording) as opened:
            meta = opened.meta
        replay = Replay(recording)
        try:
            text = report(replay, meta)
            notices = replay.notices
            if on_progress is not None:
                on_progress(0)
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
        finally:
            replay.close()
    return notices


def report(replay: Replay, meta: Mapping[str, str]) -> str:
    """The page.

    Args:
        replay: the recording.
        meta: its named facts.
    """
    store = replay.store
    with store.lock:
        runs = list(store.runs)
        body: list[Block] = [HeadingBlock(_title(runs), level=1), ParagraphBlock(_about(replay, len(runs)), "soft")]
    body += [ParagraphBlock(f"{text}.", "bad") for text in replay.notices]
    if len(runs) > MOST_RUNS:
        body.append(ParagraphBlock(f"The newest {MOST_RUNS} of {len(runs)} runs are shown here."))
    if len(runs) > 1:
        with store.lock:
            body += _sensible(lambda: _contents(runs, meta))
    for number, run in list(enumerate(runs, 1))[-MOST_RUNS:]:
        _sharpen(replay, run)
        with store.lock:
            if len(runs) > 1:
                body.append(HeadingBlock(_name(run, meta, number, len(runs)), level=2, id=f"run-{number}"))
            body += _run(replay, run, run_text(meta, number))
    if not runs:
        _sharpen(replay, None)
        with store.lock:
            body += _watched(replay)
    with store.lock:
        body += _machine(replay, meta)
    body.append(
        ParagraphBlock(
            f"Recorded with gpudash {__version__}. 1 GiB is 1 073 741 824 bytes; rates are decimal. Times are of the "
            "session. Every pixel column of a plot shows its lowest and its highest reading; a gap is a reading that "
            "could not be taken.",
            "soft",
        )
    )
    return page(replay.recording_path.name, body, kind="report")


def _title(runs: Sequence[RunView]) -> Phrase:
    if not runs:
        return Phrase("Watched, no run")
    run = runs[-1]
    device = badged_devices(run.device, run.spec)
    more = ""
    if len(runs) > 1:
        more = f" and {len(runs) - 1} more"
    return Phrase(f"{run.workload} on {device}", badge=SIMULATED if run.simulated else "", rest=more)


def _about(replay: Replay, runs: int) -> str:
    began = datetime.fromtimestamp(replay.began_wall_s, tz=UTC)
    count = "no run"
    if runs:
        count = f"{runs} run{'s' if runs != 1 else ''}"
    duration = format_duration(replay.store.newest_s)
    return f"{replay.recording_path.name}: {began:%Y-%m-%d %H:%M:%S} UTC, {duration}, {count}."


def _name(run: RunView, meta: Mapping[str, str], number: int, runs: int, link: str = "") -> Phrase:
    title = run_title(meta, number, runs) or given_name(run.workload, run.device, run.spec)
    return Phrase(f"{number}. {title}", link=link, badge=SIMULATED if run.simulated else "")


def _peak(run: RunView) -> str:
    """What the run itself held at most, else what there was with it, and of what that is; "" where neither is known."""
    own, used = run.peak_allocated_bytes, run.peak_used_bytes
    if own is not None:
        return f"{format_bytes(own)} allocated"
    if used is None:
        return ""
    return f"{format_bytes(used)} {whose_peak(run.device)}"


def _contents(runs: Sequence[RunView], meta: Mapping[str, str]) -> list[Block]:
    """Every run in a line, with a link to those described in full; without columns that are empty in all."""
    head = (("run", False), ("ended", False), ("peak", True), ("duration", True), ("loss", True), ("tags", False))
    rows: list[list[Text]] = []
    for number, run in enumerate(runs, 1):
        link = ""
        if number > len(runs) - MOST_RUNS:
            link = f"run-{number}"
        loss = None
        if "loss" in run.metrics:
            loss = run.metrics["loss"].last
        rows.append(
            [
                _name(run, meta, number, len(runs), link),
                STATUS[run.status],
                _peak(run),
                "" if run.seconds is None else format_duration(run.seconds),
                "" if loss is None else _number(loss),
                run_text(meta, number).tags,
            ]
        )
    filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return [
        HeadingBlock("Contents", level=2),
        TableBlock([head[place] for place in filled], [[row[place] for place in filled] for row in rows]),
    ]


def _run(replay: Replay, run: RunView, annotation: RunText) -> list[Block]:
    parts: list[Block] = [
        ParagraphBlock(text) for text in (annotation.note, annotation.tags and f"Tags: {annotation.tags}") if text
    ]
    bad = ""
    if run.status in ("failed", "out_of_memory"):
        bad = " bad"
    if run.seconds is None:
        ended = ""
    else:
        ended = f" after {format_duration(run.seconds)}"
    steps = ""
    if run.steps and run.step == run.steps:
        steps = f", {format_count(run.steps)} steps"
    elif run.steps:
        steps = f", {format_count(run.step)} of {format_count(run.steps)} steps"
    parts.append(ParagraphBlock(f"{STATUS[run.status].capitalize()}{ended}{steps}.", f"status{bad}"))
    parts += _sensible(lambda: _error(run))
    parts += _sensible(lambda: [FactsBlock(list(_figures(replay, run)))])
    parts += _sensible(lambda: _plots(replay, run, _uuid(replay, run)))
    parts += _sensible(lambda: rank_table(run.result))
    if run.metrics:
        parts += _sensible(lambda: [HeadingBlock("Figures of the steps"), _metrics(run)])
    parts += _step_parts(run)
    if run.stages:
        rows = [stage_cells(stage.summary()) for stage in run.stages.values()]
        parts += [HeadingBlock("Stages"), TableBlock(STAGE_COLUMNS, rows)]
    parts += _warnings(run.warnings)
    parts += _notes(run.notes)
    return [*parts, *_sensible(lambda: [HeadingBlock("What was asked for"), FactsBlock(list(_spec(run)))])]


def _step_parts(run: RunView) -> list[Block]:
    found = run.step_parts
    if found is None:
        return []
    line = f"A step of {format_duration(found.seconds)}: {found.line()}."
    return [HeadingBlock("Where the time of a step went"), ParagraphBlock(line), ParagraphBlock(found.text())]


def _sensible(section: Callable[[], list[Block]]) -> list[Block]:
    """A part of the page, or a sentence where figures in the recording make no sense: it can hold anything."""
    try:
        return section()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return [ParagraphBlock("A part of the recording makes no sense and is left out here.", "bad")]


def _error(run: RunView) -> list[Block]:
    error = run.error
    if error is None:
        return []
    if error.explanation is not None:
        return _explanation(error.explanation)
    parts: list[Block] = [ParagraphBlock(f"{error.message} {error.remedy}".strip())]
    if error.details:
        parts.append(FoldedBlock("Traceback", [(error.details, False)]))
    return parts


def _explanation(found: Explanation) -> list[Block]:
    parts = cause(found)
    for title, rows in remedy_sections(found):
        parts += [HeadingBlock(title), BulletsBlock([" · ".join(_CELLS.split(row)) for row in rows])]
    return [*parts, *filled(found), *allocated(found)]


def _figures(replay: Replay, run: RunView) -> Iterator[tuple[str, str]]:
    device = next((device for device in replay.devices() if device.name == run.device), None)
    if device is not None:
        yield "device", device.product
    memory = run.memory
    for text, size in (
        ("peak allocated", memory.allocated_bytes),
        ("peak reserved", memory.reserved_bytes),
        (f"peak {whose_peak(run.device)}", memory.used_bytes),
    ):
        if size is not None:
            yield text, format_pair(size, memory.capacity_bytes) if memory.capacity_bytes else format_bytes(size)
    for row in (*predicted_step(run), *outcome_rows(run.result)):
        yield str(row[0]), str(row[1])


def _watched(replay: Replay) -> list[Block]:
    """What there is of a machine on which nothing ran."""
    warnings = [event for event in replay.store.events if isinstance(event, Warning)]
    parts: list[Block] = []
    for gpu in replay.gpus:
        name = shown_name(replay.store.torch_name(gpu.uuid) or f"GPU {gpu.number}")
        parts.append(HeadingBlock(f"{name}, {gpu.product}", level=2))
        parts += _sensible(partial(_plots, replay, None, gpu.uuid))
    if parts:
        parts.append(HeadingBlock("cpu", level=2))
    return [*parts, *_sensible(lambda: _plots(replay, None, None)), *_warnings(warnings)]


def _sharpen(replay: Replay, run: RunView | None) -> None:
    """Have the part that is drawn read sample by sample, where the recording is so long that it was not."""
    with replay.store.lock:
        start, end = _span(replay, run)
        if run is None:
            uuids = [None, *(gpu.uuid for gpu in replay.gpus)]
        else:
            uuids = [_uuid(replay, run)]
        for uuid in uuids if start < end else ():
            for plot in _plots_of(replay, run, uuid):
                read(replay.store, plot, (start, end))
    replay.settle(SHARP_S)


def _span(replay: Replay, run: RunView | None) -> tuple[float, float]:
    """Session times that are drawn: the run with a margin, or everything."""
    newest = replay.store.newest_s
    if run is None:
        return 0.0, newest
    if run.ended_s is None:
        end = newest
    else:
        end = run.ended_s
    margin = (end - run.began_s) * MARGIN_RATIO
    return max(0.0, run.began_s - margin), end + margin


def _uuid(replay: Replay, run: RunView) -> str | None:
    return next((known.uuid for known in replay.devices() if known.name == run.device), None)


def _plots(replay: Replay, run: RunView | None, uuid: str | None) -> list[Block]:
    """The plots of a device over the run, or over everything; called under the store's lock."""
    store = replay.store
    start, end = _span(replay, run)
    drawn: list[Block] = []
    if start < end:
        marks = [mark for mark in standing_marks(store.markers) if start <= mark.time_s <= end]
        marks.sort(key=lambda mark: mark.time_s)
        own = None
        if run is not None:
            own = run.began_s, store.newest_s if run.ended_s is None else run.ended_s
        for plot in _plots_of(replay, run, uuid):
            curves = read(store, plot, (start, end), own)
            if run is not None and uuid is not None and plot.id == "memory":
                foreseen = predicted(store, run, (start, end))
                curves += [] if foreseen is None else [foreseen]
            found = figure(plot, curves, marks, (start, end), labelled=not drawn)
            drawn += [] if found is None else [found]
    return drawn or [ParagraphBlock("There are no readings to draw.")]


def _metrics(run: RunView) -> TableBlock:
    head = (("", False), *((title, True) for title in ("first", "last", "lowest", "highest", "median", "last 20")))
    rows: list[list[str]] = []
    writers: dict[str, Callable[[Any], str]] = {
        "accuracy": format_percent,
        "throughput": partial(format_throughput, item=item_of(run.workload)),
    }
    for name, metric in run.metrics.items():
        write = writers.get(name, _number)
        figures = metric.summary()
        keys = ("first", "last", "min", "max", "median", "last_20_median")
        rows.append([name.removeprefix(OF_LOSS), *(write(figures[key]) for key in keys)])
    return TableBlock(head, rows)


def _number(value: float | None) -> str:
    if value is None:
        return "not reported"
    return f"{value:.4g}"


_MOMENTS = (("at", True), ("", False), ("", False))
"""Columns of what happened at a time."""


def _warnings(warnings: Sequence[Warning]) -> list[Block]:
    rows = [[format_moment(warning.time_s), warning.level, warning.text] for warning in warnings]
    if rows:
        return [HeadingBlock("Warnings"), TableBlock(_MOMENTS, rows)]
    return []


def _notes(notes: Sequence[Note]) -> list[Block]:
    rows = [[format_moment(note.time_s), note.topic, note.text] for note in notes if note.text]
    if rows:
        return [HeadingBlock("Notes"), TableBlock(_MOMENTS, rows)]
    return []


def _machine(replay: Replay, meta: Mapping[str, str]) -> list[Block]:
    rows = [(device.name, f"{device.product}, {format_bytes(device.total_bytes)}") for device in replay.devices()]
    rows += [(name.replace("_", " "), text) for name, text in meta.items() if name not in LEFT_OUT]
    return [HeadingBlock("Machine and recording", level=2), FactsBlock(rows)]


def _spec(run: RunView) -> Iterator[tuple[str, str]]:
    """What was asked for, sizes as sizes; a field of a newer or foreign workload as JSON writes it."""
    kind = workloads().get(run.workload)
    if kind is None:
        fields = {}
    else:
        fields = kind.model_fields
    for name, value in run.spec.items():
        extra = None
        if name in fields:
            extra = fields[name].json_schema_extra
        if value is None:
            yield name, "not set"
        elif isinstance(extra, dict) and extra.get("unit") == "bytes" and isinstance(value, int):
            yield name, format_bytes(value)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_PEAKS = (
    ("peak allocated", "peak_allocated_bytes", format_bytes),
    ("peak of the process", "peak_used_bytes", format_bytes),
)
_RANK_FIGURES = (*FIGURES, *_PEAKS)
_HEAD = (("rank", True), ("host", False), ("device", False), *((title, True) for title, _key, _write in _RANK_FIGURES))


def rank_table(result: Mapping[str, Any] | None) -> list[Block]:
    """The ranks of a run's result, and whether their parameters are equal; nothing of a run without."""
    rows = (result or {}).get("ranks")
    if result is None or not isinstance(rows, list):
        return []
    parts: list[Block] = [
        HeadingBlock("Ranks"),
        TableBlock(_HEAD, [_cells(row) for row in rows if isinstance(row, dict)]),
    ]
    text = parameters_text(result)
    if text:
        return [*parts, ParagraphBlock(text)]
    return parts


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    def cell(key: str, write: Any) -> str:
        value = number_in(row.get(key))
        if value is None:
            return ""
        return str(write(value))

    return [
        cell("rank", str),
        str(row.get("host") or ""),
        shown_name(str(row.get("device") or "")),
        *(cell(key, write) for _title, key, write in _RANK_FIGURES),
    ]

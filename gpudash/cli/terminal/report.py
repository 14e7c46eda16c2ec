"""Printing a run's progress and result for a person, with its stages, epochs and ranks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from gpudash.cli.terminal.live_status import SEPARATOR, fitting, memory_in_use
from gpudash.cli.terminal.output import numbers, one_line, plain_table, print_table, stderr, stdout
from gpudash.devices.names import shown_devices, shown_name
from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.patches import PATCH_NAME
from gpudash.memory.watching.levels import HOST
from gpudash.memory.watching.watch import run_left
from gpudash.session import Session
from gpudash.specs import ComparisonSpec
from gpudash.telemetry.explanation import explanation_from_json
from gpudash.telemetry.ranks.rows import FIGURES, rank_sentences
from gpudash.telemetry.records import OF_LOSS, Note, Topic
from gpudash.telemetry.results.outcome import STAGE_COLUMNS, outcome_rows, stage_cells
from gpudash.telemetry.results.step_parts import shares_line
from gpudash.telemetry.runs import ENDINGS, RunView, item_of, whose_peak
from gpudash.units import (
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_like,
    format_pair,
    format_percent,
    format_throughput,
)


def show_progress(session: Session, on_progress: Callable[[], None]) -> None:
    """Show a progress line on stderr until the run has ended.

    Args:
        on_progress: called ten times per second.
    """
    console = stderr()
    figures = TextColumn("{task.fields[figures]}", markup=False)
    whole = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=BAR), figures)
    columns = whole if console.width >= WIDE else (figures,)
    shown = 0
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None, figures="")
        # Only read the figures under the lock; drawing them waits for the terminal.
        while not session.runs.wait(0.1):
            on_progress()
            with session.store.lock:
                run = session.store.run
                if run is None:
                    continue
                warnings = run.warnings[shown:]
                shown += len(warnings)
                room = console.width - (len(run.workload) + BAR + 2 if console.width >= WIDE else 0)
                text = SEPARATOR.join(fitting(progress_parts(session, run, brief=console.width < WIDE), room))
                progress.update(
                    task, description=run.workload, total=run.steps or None, completed=run.step, figures=text
                )
            for warning in warnings:
                progress.console.print(warning.text)


BAR = 24
"""Width of the bar of a progress line, in columns."""

WIDE = 100
"""Width of a terminal, in columns, that fits name, bar and figures on a line, and remarks in a table."""


def progress_parts(session: Session, run: RunView, *, brief: bool = False) -> list[str]:
    """The parts of a progress line, most important first: step, time left, loss, memory of the card, rate.

    The caller holds the store's lock.

    Args:
        session: session of the run.
        run: the current run.
        brief: whether to omit the word before the step's number.
    """
    step = ""
    if run.steps:
        step = f"{run.step}/{_about(run.workload)}{run.steps}"
    memories = {device.name: device.uuid for device in session.devices()}
    uuid = memories.get(run.device)
    loss, rate = run.metrics.get("loss"), run.metrics.get("throughput")
    # In order of importance: parts that do not fit are dropped from the end.
    parts = [
        step if brief or not step else f"{step_word(run.workload)} {step}",
        run_left(run, session.forecast(uuid or HOST)),
        "" if loss is None else f"loss {loss.last:.3f}",
        memory_in_use(session.store, run, uuid),
        "" if rate is None else format_throughput(rate.last, item_of(run.workload)),
    ]
    return list(filter(None, parts))


def print_run(summary: Mapping[str, Any], notes: Sequence[Note] = ()) -> None:
    """Print the result of a run: one sentence, its stages, figures and the recording."""
    console = stdout()
    where = shown_devices(summary["device"], summary["spec"], summary.get("product") or "")
    what = Text(one_line(summary["workload"]), "bold").append(one_line(f" on {where}: {_status(summary)}"), "not bold")
    console.print(what, soft_wrap=True)
    error = summary.get("error")
    explanation = (error or {}).get("explanation")
    if explanation is not None:
        _print_explanation(console, explanation)
    if summary["stages"]:
        _print_stages(summary["stages"], console)
    if (summary["result"] or {}).get("epochs"):
        print_table(_epochs(summary["result"]["epochs"]), console)
    print_ranks(console, summary["result"])
    for note in notes:
        if note.topic not in _REPORTED_ELSEWHERE:
            console.print(f"{note.topic}: {note.text}", soft_wrap=True)
        if note.topic == Topic.OPERATORS and note.details.get("operators"):
            print_table(_operators(note.details["operators"]), console, ("total memory", "shapes"))
    for line in _figures(summary):
        console.print(line, soft_wrap=True)
    if error and explanation is None:
        console.print(Text(f"{error['message']} {error['remedy']}".strip()), style="yellow", soft_wrap=True)
    if summary["recording"]:
        console.print(f"Recording: {summary['recording']}", soft_wrap=True)


def print_watched(summary: Mapping[str, Any]) -> None:
    """Print the result of a watched program on standard error; standard output belongs to the program."""
    console = stderr()
    code = summary["exit_code"]
    if code is None:
        ended = ""
    elif code < 0:
        ended = f", exit code {128 - code}"  # as a shell reports a signal, and as gpudash exits
    else:
        ended = f", exit code {code}"
    where = shown_name(summary["device"], summary.get("product") or "")
    console.print()
    what = Text("gpudash watch", "bold").append(one_line(f" on {where}: {_status(summary)}{ended}"), "not bold")
    console.print(what, soft_wrap=True)
    error = summary["error"] or {}
    if error:
        message = Text(f"{error['message']} {error['remedy']}".strip())  # torch's messages may have several lines
        console.print(message, style="yellow", soft_wrap=True)
    if error.get("explanation") is not None:
        _print_explanation(console, error["explanation"])
    for text in summary["notes"]:
        console.print(text, soft_wrap=True)
    print_ranks(console, summary["result"])
    for line in _figures(summary):
        console.print(line, soft_wrap=True)
    for name in ("report", "recording"):
        if summary[name]:
            console.print(f"{name.capitalize()}: {summary[name]}", soft_wrap=True)
    _print_changes(console, (error.get("explanation") or {}).get("remedies", ()), summary["report"])


def _print_changes(console: Console, remedies: Sequence[Mapping[str, Any]], report_folder: str | None) -> None:
    """Print how to run the program with the first change, and how to apply the patch of the report."""
    if remedies and remedies[0]["command"]:
        console.print(f"Command with the first change: {one_line(shlex.join(remedies[0]['command']))}", soft_wrap=True)
    if report_folder and any(remedy["patch"] for remedy in remedies):
        path = shlex.quote(f"{report_folder}/{PATCH_NAME}")
        console.print(f"Patch, to be applied in the program's folder: patch -p0 < {path}", soft_wrap=True)


def _print_explanation(console: Console, data: Mapping[str, Any]) -> None:
    """Print why memory ran out, the cause first."""
    cause, *lines = report(explanation_from_json(data))
    console.print(cause, style="bold yellow", soft_wrap=True)
    for line in lines:
        console.print(line, style=None if line.startswith(" ") else "yellow", soft_wrap=True)
    console.print()


def _status(summary: Mapping[str, Any]) -> str:
    text = ENDINGS[summary["status"]]
    if summary["error"] is not None and summary["error"]["kind"] == "guard":
        text = "stopped by the guard"
    steps = f"{step_word(summary['workload'])}{'' if summary['steps'] == 1 else 's'}"
    return f"{text} after {format_duration(summary['seconds'])}, {summary['steps']} {steps}"


def _print_stages(stages: list[Mapping[str, Any]], console: Console) -> None:
    """Print a row for each stage; in a narrow terminal, remarks follow below the table."""
    narrow = console.width < WIDE
    columns = [Column(title, justify="right" if number else "left") for title, number in STAGE_COLUMNS]
    columns[-1].overflow = "fold"
    # In a narrow terminal, a folded column of remarks would be one word wide.
    table = plain_table(*(columns[:-1] if narrow else columns))
    rows = list(map(stage_cells, stages))
    for cells in rows:
        table.add_row(*(cells[:-1] if narrow else cells))
    print_table(table, console)
    for name, *_figures, remark in rows if narrow else ():
        if remark:
            console.print(f"{name}: {remark}")


def _epochs(epochs: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table(*numbers("epoch"), "device", *numbers("loss", "accuracy", "time"), "observation")
    for epoch in epochs:
        loss = epoch["loss"]
        table.add_row(
            str(epoch["epoch"]),
            shown_devices(epoch["device"], {"devices": epoch["device"]}),
            loss if isinstance(loss, str) else f"{loss:.4f}",
            format_percent(epoch["accuracy"]),
            format_duration(epoch["seconds"]),
            epoch["observation"],
        )
    return table


MOST_OPERATORS = 12
"""Maximum number of operators of a profile that are listed; the recording has all."""


def _operators(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The operators of profiled steps, sorted by self time."""
    figures = numbers("calls", "own CPU", "total CPU", "own GPU", "total GPU", "own memory", "total memory")
    table = plain_table(Column("operator", overflow="fold"), *figures, Column("shapes", overflow="fold"))
    # By self time: by total time, the outermost operator would always come first, as it includes those it calls.
    own = sorted(rows, key=lambda row: -(row["device_self_seconds"] or row["cpu_self_seconds"]))
    for row in own[:MOST_OPERATORS]:
        seconds = (row[name] for name in ("cpu_self_seconds", "cpu_total_seconds"))
        on_gpu = (row[name] for name in ("device_self_seconds", "device_total_seconds"))
        sizes = (row["device_self_bytes"] or row["cpu_self_bytes"], row["device_total_bytes"] or row["cpu_total_bytes"])
        table.add_row(
            one_line(row["name"]),
            format_count(row["calls"]),
            *map(format_duration, seconds),
            *(format_duration(taken) if taken else "" for taken in on_gpu),
            *(format_change(size) if size else "" for size in sizes),
            one_line(str(row["shapes"])),
        )
    return table


def step_word(workload: str) -> str:
    """What a workload calls a step; a comparison does not know their number beforehand."""
    if workload == ComparisonSpec.name:
        return "repetition"
    return "step"


def _about(workload: str) -> str:
    if workload == ComparisonSpec.name:
        return "about "
    return ""


REPORTED_AT_ONCE = (Topic.OUT_OF_MEMORY, Topic.NEED, Topic.REPORT, Topic.SNAPSHOT, Topic.STRAGGLER, Topic.IMBALANCE)
"""Topics of a watched program's notes that are printed as they arrive; others are in the recording and in JSON."""

AMONG_FIGURES = (Topic.INPUT,)
"""Topics of a watched program's notes that are printed among its figures."""

_REPORTED_ELSEWHERE = (
    Topic.COMPARISON,
    Topic.CORPUS,
    Topic.CLASSES,
    Topic.PLACEMENT,
    Topic.PREDICTIONS,
    Topic.PITFALL,
    Topic.STRAGGLER,
    Topic.IMBALANCE,
)
"""Topics of notes whose facts are part of the result."""


def _figures(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    writers: dict[str, Callable[[Any], str]] = {
        "accuracy": format_percent,
        "throughput": partial(format_throughput, item=item_of(summary["workload"])),
    }
    for name, metric in summary["metrics"].items():
        if metric["last"] is not None:
            write = writers.get(name, _plain_number)
            title = _METRIC_TITLES.get(name, name.removeprefix(OF_LOSS))
            values = dict.fromkeys((write(metric["first"]), write(metric["last"])))
            lines.append(f"{title}: {' → '.join(values)}")
    parts = summary["step_parts"]
    if parts is not None:
        lines.append(f"a step, {format_duration(parts['step_seconds'])}: {shares_line(parts['shares'])}")
        lines.append(" ".join((parts["sentence"], *parts["help"])))
    lines += [f"{what}: {text}" for what, text in outcome_rows(summary["result"])]
    if (summary["result"] or {}).get("devices"):
        return lines  # each device has its own peaks; the run's are the first device's
    memory = summary["memory"]
    peak = memory["peak_allocated_bytes"]
    if peak is not None:
        reserved = memory["peak_reserved_bytes"]
        lines.append(f"peak allocated: {format_like(peak, reserved)}, reserved {format_like(reserved, peak)}")
    if memory["peak_used_bytes"] is not None:
        capacity = memory["capacity_bytes"]
        used = memory["peak_used_bytes"]
        if capacity is None:
            text = format_bytes(used)
        else:
            text = format_pair(used, capacity)
        lines.append(f"peak {whose_peak(summary['device'])}: {text}")
    return lines


_METRIC_TITLES = {"val_loss": "validation loss"}


def _plain_number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g}"


def print_ranks(console: Console, result: Mapping[str, Any] | None) -> None:
    """Print the ranks of a run's result; nothing for a run without ranks."""
    rows = (result or {}).get("ranks")
    if not result or not isinstance(rows, Sequence) or not rows:
        return
    print_table(_table(rows), console, cut=("host", "device"))
    for sentence in rank_sentences(result):
        console.print(sentence, soft_wrap=True)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    hosts = {row.get("host") for row in rows}
    # On a single machine, its name in every row is redundant.
    names = ("host", "device") if len(hosts) > 1 else ("device",)
    table = plain_table(
        *numbers("rank"),
        *(Column(name, overflow="ellipsis", no_wrap=True) for name in names),
        *numbers(*(title for title, _key, _write in FIGURES), "peak"),
    )
    for row in rows:
        where = []
        if len(hosts) > 1:
            where = [str(row.get("host") or "")]
        figures = (write(row.get(key)) for _title, key, write in FIGURES)
        table.add_row(str(row["rank"]), *where, shown_name(str(row.get("device") or "")), *figures, _peak(row))
    return table


def _peak(row: Mapping[str, Any]) -> str:
    """The peak of the device's allocator if there is one, else of the process."""
    allocated = row.get("peak_allocated_bytes")
    return format_bytes(row.get("peak_used_bytes") if allocated is None else allocated)

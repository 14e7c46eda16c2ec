"""A run's progress and outcome as a person reads them in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from gpudash.cli.output import stderr, stdout
from gpudash.session import Session
from gpudash.telemetry.outcome import outcome_rows
from gpudash.units import (
    format_bytes,
    format_clock,
    format_duration,
    format_percent,
    format_rate,
    format_throughput,
)


def show_progress(session: Session) -> None:
    """A progress line on stderr until the run has ended."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[words]}"),
    )
    shown = 0
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task("starting", total=None, words="")
        while not session.wait_run(0.1):
            with session.store.lock:
                run = session.store.run
                if run is None:
                    continue
                warnings = run.warnings[shown:]
                shown += len(warnings)
                left = run.seconds_left
                words = f"step {run.step} of {run.steps}" if run.steps else ""
                if left is not None:
                    words += f" · {format_clock(left)} left"
                loss = run.metrics.get("loss")
                if loss is not None:
                    words += f" · loss {loss.last:.3f}"
                progress.update(
                    task, description=run.workload, total=run.steps or None, completed=run.step, words=words
                )
            for warning in warnings:
                progress.console.print(warning.text)


def print_run(summary: Mapping[str, Any]) -> None:
    """The outcome of a run: one sentence, its stages, figures and where it was recorded."""
    console = stdout()
    console.print(f"[bold]{summary['workload']}[/] on {summary['device']}: {_status(summary)}")
    if summary["stages"]:
        console.print(_stages(summary["stages"]))
    for line in _figures(summary):
        console.print(line, soft_wrap=True)
    error = summary.get("error")
    if error:
        console.print(f"{error['message']} {error['remedy']}".strip(), style="yellow")
    if summary["recording"]:
        console.print(f"Recording: {summary['recording']}", soft_wrap=True)


def _status(summary: Mapping[str, Any]) -> str:
    words = {
        "finished": "finished",
        "cancelled": "stopped",
        "failed": "failed",
        "out_of_memory": "out of memory",
    }[summary["status"]]
    return f"{words} after {format_duration(summary['seconds'])}, {summary['steps']} steps"


def _stages(stages: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "device", "shape", "type"):
        table.add_column(title)
    for title in ("count", "bytes", "time", "rate"):
        table.add_column(title, justify="right")
    for stage in stages:
        ends = [end for end in (stage["from"], stage["to"]) if end]
        table.add_row(
            stage["name"],
            " → ".join(dict.fromkeys(ends)),
            " × ".join(map(str, stage["shape"] or ())),
            stage["dtype"] or "",
            str(stage["count"]),
            "" if stage["bytes"] is None else format_bytes(stage["bytes"]),
            format_duration(stage["seconds"]),
            "" if stage["bytes_per_second"] is None else format_rate(stage["bytes_per_second"]),
        )
    return table


def _figures(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, metric in summary["metrics"].items():
        if metric["last"] is not None:
            write = _WRITERS.get(name, _plain_number)
            lines.append(f"{name}: {write(metric['first'])} → {write(metric['last'])}")
    lines += [f"{what}: {words}" for what, words in outcome_rows(summary["result"])]
    memory = summary["memory"]
    peak = memory["peak_allocated_bytes"]
    if peak is not None:
        lines.append(f"peak allocated: {format_bytes(peak)}, reserved {format_bytes(memory['peak_reserved_bytes'])}")
    if memory["peak_used_bytes"] is not None:
        lines.append(
            f"peak memory: {format_bytes(memory['peak_used_bytes'])} of {format_bytes(memory['capacity_bytes'])}"
        )
    return lines


def _plain_number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


_WRITERS: Mapping[str, Callable[[Any], str]] = {"accuracy": format_percent, "throughput": format_throughput}

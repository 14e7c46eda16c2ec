"""What the overview of a fleet shows for a GPU: its name, figures, marks and tooltip. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from gpudash.devices.health import marks, xid
from gpudash.devices.names import SIMULATED
from gpudash.telemetry.metrics import SENSORS, Metric
from gpudash.units import NOT_REPORTED, format_bytes, format_energy, format_pair, format_percent, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.telemetry.records import Warning

Level = Literal["", "warning", "critical"]

SHAPES = {"critical": "◆", "warning": "▲", "stale": "◌"}
"""The mark of each state; shape and label tell states apart, not colour alone."""

ABBREVIATED = {"critical": "crit", "warning": "warn", "stale": "stale"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What the overview draws for one GPU.

    Attributes:
        key: key of the GPU in its fleet.
        name: machine and number.
        fullness: share of total memory that is not free, 0 to 1; ``None`` if either is unknown.
        percent: `fullness` as text.
        figure: used of total memory, as text.
        level: level of its worst warning.
        stale: whether its newest reading is old.
        simulated: whether the GPU is simulated: only the accounting of its memory exists.
        status: text beside the figure: shape and name of its worst state, else its utilisation.
        marked: whether `status` names a state.
        short: the state in a few letters, for small cells.
    """

    key: str
    name: str
    fullness: float | None
    percent: str
    figure: str
    level: Level
    stale: bool
    simulated: bool
    status: str
    marked: bool
    short: str


def gpu_name(gpu: FleetGpu) -> str:
    """Machine and number: "node-07 · GPU 3"; the start of the UUID if the exporter gives no number."""
    return f"{gpu.host} · {short_name(gpu)}"


def short_name(gpu: FleetGpu) -> str:
    """The number alone: "GPU 3"; for a MIG instance "GPU 3:7 1g.10gb"; "memory" for a machine without a GPU."""
    if gpu.is_host:
        return "memory"
    if gpu.index is not None:
        name = f"GPU {gpu.number}"
    else:
        name = gpu.uuid[:12] or "GPU"
    return f"{name} {gpu.profile}".rstrip()


def cell_of(gpu: FleetGpu, level: Level, now_s: float) -> Cell:
    """The cell of ``gpu``, whose worst warning has ``level``; ``now_s`` is in seconds since the epoch."""
    state = "stale"
    if level == "critical" or not gpu.stale:
        state = level
    if state == "stale":
        word = f"{state} {format_age(now_s - gpu.seen_s)}"
    else:
        word = state
    if gpu.utilisation is None:
        busy = ""
    else:
        busy = f"{format_percent(gpu.utilisation)} busy"
    return Cell(
        key=gpu.key,
        name=gpu_name(gpu),
        fullness=gpu.fullness,
        percent="?" if gpu.fullness is None else format_percent(gpu.fullness),
        figure=format_pair(gpu.taken_bytes, gpu.total_bytes) if gpu.total_bytes is not None else _used_alone(gpu),
        level=level,
        stale=gpu.stale,
        simulated=gpu.simulated,
        status=f"{SHAPES[state]} {word}" if state else busy,
        marked=bool(state),
        short=_short_status(gpu, state),
    )


def _short_status(gpu: FleetGpu, state: str | None) -> str:
    if state:
        return f"{SHAPES[state]} {ABBREVIATED[state]}"
    if gpu.simulated:
        return "SIM"
    return ""


def _used_alone(gpu: FleetGpu) -> str:
    if gpu.used_bytes is None:
        return f"memory {NOT_REPORTED}"
    return f"{format_bytes(gpu.used_bytes)}, total unknown"


def format_age(seconds: float) -> str:
    """The age of a reply as a single whole number, so that the text changes rarely: 95 s, 12 min, 3 h, 2 days."""
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds / unit))} {word}"
    return f"{int(seconds / 86_400)} days"


def levels(warnings: Iterable[Warning]) -> dict[str, Level]:
    """The worst warning level of each GPU that has a warning."""
    worst: dict[str, Level] = {}
    for warning in warnings:
        if worst.get(warning.device) != "critical":
            worst[warning.device] = "critical" if warning.level == "critical" else "warning"
    return worst


def details(gpu: FleetGpu, warnings: Iterable[Warning], now_s: float) -> str:
    """Every figure of ``gpu``, one per line: the tooltip, and what screen readers announce for the focused cell."""
    reserved = gpu.values.get("driver_reserved_bytes")
    lines = [
        gpu_name(gpu) + (f" ({SIMULATED})" if gpu.simulated else ""),
        gpu.product,
        f"Memory: {format_pair(gpu.taken_bytes, gpu.total_bytes)}"
        + ("" if gpu.fullness is None else f" ({format_percent(gpu.fullness)})")
        + (f", {format_bytes(reserved)} of it the driver's own" if reserved else ""),
        f"Utilisation: {format_percent(gpu.utilisation)}",
        *(f"{metric.title.capitalize()}: {_sensor(gpu, metric) or NOT_REPORTED}" for metric in SENSORS),
        *_health(gpu),
        *(f"Ignored, because it is impossible: {why}" for why in gpu.impossible),
        f"Run: {gpu.run}" if gpu.run else "",
        f"Held by {', '.join(gpu.holders)}" if gpu.holders else "",
        gpu.uuid,
        f"Reported by {gpu.reported_by}, {format_age(now_s - gpu.seen_s)} ago" + (": stale" if gpu.stale else ""),
    ]
    warned = [f"{SHAPES[warning.level]} {warning.text}" for warning in warnings if warning.device == gpu.key]
    return "\n".join(filter(None, [*lines, *warned]))


def one_line(gpu: FleetGpu) -> str:
    """The figures of ``gpu`` in one line, for the current GPU; unknown values are left out."""
    parts = [
        gpu_name(gpu) + (f" ({SIMULATED})" if gpu.simulated else ""),
        gpu.product,
        format_pair(gpu.taken_bytes, gpu.total_bytes),
        "" if gpu.utilisation is None else f"{format_percent(gpu.utilisation)} busy",
        *marks(gpu.values.get("last_xid"), gpu.values.get("clocks_event_reasons")),
        *(metric.distinguished(gpu.values[metric.name]) for metric in SENSORS if metric.name in gpu.values),
        "" if gpu.drawn_j is None else format_energy(gpu.drawn_j),
        gpu.run,
        ", ".join(gpu.holders),
        gpu.reported_by,
    ]
    return " · ".join(filter(None, parts))


def _health(gpu: FleetGpu) -> Iterable[str]:
    """A line for each health problem."""
    health = gpu.values
    for mark in marks(None, health.get("clocks_event_reasons")):
        yield mark.capitalize()
    if code := int(health.get("last_xid", 0)):
        yield f"Newest XID error: {code}, {xid(code).label}"
    received, sent = (health.get(f"nvlink_{way}_bytes_per_second") for way in ("rx", "tx"))
    if received is not None and sent is not None:
        yield f"NVLink: {format_rate(received)} in, {format_rate(sent)} out"
    if errors := int(health.get("nvlink_errors", 0)):
        yield f"NVLink errors: {errors}"
    if gpu.drawn_j is not None:
        yield f"Energy: {format_energy(gpu.drawn_j)} since this was opened"


def _sensor(gpu: FleetGpu, metric: Metric) -> str:
    value = gpu.values.get(metric.name)
    if value is None:
        return ""
    return metric.brief(value)


def summary(gpus: Sequence[FleetGpu]) -> str:
    """The size and fullness of the fleet: "64 machines · 512 GPUs · 23.1 of 40.0 TiB used (58 %)"."""
    hosts = len({gpu.host for gpu in gpus})
    gpus = [gpu for gpu in gpus if not gpu.is_host]
    count = f"{len(gpus) or 'no'} {'GPU' if len(gpus) < 2 else 'GPUs'}"
    size = f"{hosts} {'machine' if hosts == 1 else 'machines'} · {count}"
    pairs = [(gpu.taken_bytes, gpu.total_bytes) for gpu in gpus]
    known = [(used, total) for used, total in pairs if used is not None and total]
    if not known:
        return size
    used, total = map(sum, zip(*known, strict=True))
    text = f"{size} · {format_pair(used, total)} used ({format_percent(used / total)})"
    silent = len(gpus) - len(known)
    if not silent:
        return text
    return f"{text} · {silent} {'does' if silent == 1 else 'do'} not report"


def clock_text(wall_s: float) -> str:
    """A time in local time, with the date if it is not today: "14:05:09", "3 Nov 14:05"."""
    moment = datetime.fromtimestamp(wall_s)  # noqa: DTZ006  # the user's local time is meant
    if moment.date() == datetime.now().date():  # noqa: DTZ005
        return f"{moment:%H:%M:%S}"
    return f"{moment.day} {moment:%b %H:%M}"

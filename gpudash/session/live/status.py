"""What a live session says of itself: the status line's figures, and the summary of watching."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import Gpu
from gpudash.session.recordings.folder import size_on_disk
from gpudash.telemetry.records import SourceFailed, Warning
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.sources.monitor import Monitor
    from gpudash.telemetry.recording.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Status:
    """Figures of a live session, its own cost included.

    Attributes:
        recording: the file being written, ``None`` when nothing is recorded.
        recording_bytes: its size.
        rate_hz: memory readings a second.
        missed: readings that could not be taken in time since the start.
        own_cpu_ratio: share of one core that reading and recording use.
        driver: NVML driver version, or ``None``.
        torch: what torch this is, or that there is none, or ``None`` while it loads.
    """

    recording: Path | None
    recording_bytes: int
    rate_hz: float
    missed: int
    own_cpu_ratio: float
    driver: str | None
    torch: str | None


def status_of(
    monitor: Monitor,
    recorder: Recorder | None,
    recording: Path | None,
    *,
    rate_hz: float,
    own_cpu_s: float,
    session_s: float,
    torch: str | None,
) -> Status:
    """The figures now.

    Args:
        recording: the file, also when it can no longer be written.
        rate_hz: memory readings a second.
        own_cpu_s: CPU time of the session's own thread.
        session_s: seconds since the session began.
        torch: what torch this is, in words.
    """
    lanes = monitor.statistics()
    return Status(
        recording=recording if recorder is not None and recorder.failed is None else None,
        recording_bytes=size_on_disk(recording),
        rate_hz=rate_hz,
        missed=sum(lane.missed for lane in lanes),
        own_cpu_ratio=(sum(lane.cpu_s for lane in lanes) + own_cpu_s) / max(session_s, 1e-9),
        driver=monitor.driver_version,
        torch=torch,
    )


def summary(
    store: Store, status: Status, seconds: float, gpus: tuple[Gpu, ...], gpu_problem: str | None, recording: Path | None
) -> dict[str, Any]:
    """What ``gpudash monitor --json`` prints."""
    memories = (("cpu", "host", None), *((gpu.uuid, "gpu", gpu.uuid) for gpu in gpus))
    with store.lock:
        texts = [event.text for event in store.events if isinstance(event, Warning)]
        failures = [event.text for event in store.events if isinstance(event, SourceFailed)]
        found = {name: store.series(table, "used_bytes", device) for name, table, device in memories}
        taken = {name: 0 if series is None else len(series) for name, series in found.items()}
        readings = {name: 0 if series is None else _had(series) for name, series in found.items()}
    return {
        "status": "finished",
        "seconds": seconds,
        "rate_hz": status.rate_hz,
        "readings": readings,
        "gaps": {name: taken[name] - had for name, had in readings.items()},
        "missed": status.missed,
        "own_cpu_ratio": status.own_cpu_ratio,
        "gpu_problem": gpu_problem,
        "warnings": texts,
        "failures": failures,
        "error": None,
        "recording": str(recording) if recording is not None else None,
    }


def _had(series: Series) -> int:
    """Readings that were had; the others are gaps."""
    extent = series.extent()
    statistics = None if extent is None else series.statistics(*extent)
    return 0 if statistics is None else statistics.count

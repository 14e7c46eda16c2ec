"""What recordings are called."""

from __future__ import annotations

import glob
import re
from datetime import datetime
from pathlib import Path

SUFFIX = ".gpudash"

TRACE_SUFFIX = ".trace.json.gz"

_UNFIT = re.compile(r"[^\w.-]+")


def recording_name(folder: Path, workload: str, when: datetime | None = None) -> Path:
    """``folder/YYYY-MM-DD-HHMMSS-workload.gpudash``, numbered from 2 when that name is taken.

    Args:
        folder: need not exist.
        workload: name of the first run's workload, or "monitor"; what does not suit a file name becomes "-".
        when: local time of the beginning; now when not given.
    """
    moment = when or datetime.now().astimezone()
    stem = f"{moment:%Y-%m-%d-%H%M%S}-{_UNFIT.sub('-', workload).strip('-.') or 'session'}"
    path = folder / f"{stem}{SUFFIX}"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}{SUFFIX}"
        number += 1
    return path


def trace_name(stem: Path, step: int) -> Path:
    """``stem-step-N.trace.json.gz``, numbered from 2 when that name is taken: the trace of a profile from step N on.

    Args:
        stem: of the recording it belongs to: its path without suffix.
    """
    path, number = stem.with_name(f"{stem.name}-step-{step}{TRACE_SUFFIX}"), 2
    while path.exists():
        path = stem.with_name(f"{stem.name}-step-{step}-{number}{TRACE_SUFFIX}")
        number += 1
    return path


def traces_of(recording: Path) -> list[Path]:
    """The traces of profiles that lie beside ``recording`` and belong to it; they go where it goes."""
    return sorted(recording.parent.glob(f"{glob.escape(recording.stem)}-step-*{TRACE_SUFFIX}"))

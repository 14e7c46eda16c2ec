"""What recordings are called."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

SUFFIX = ".gpudash"

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

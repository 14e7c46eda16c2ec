"""A recording as a table for pandas, polars or any other reader of Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_recording(path: str | Path) -> Any:
    """Read the readings of a recording.

    Args:
        path: the file.

    Returns:
        a ``pyarrow.Table`` with the columns of an export to Parquet: one row per reading, followed by the events.
        ``table.to_pandas()`` and ``polars.from_arrow(table)`` accept it.

    Raises:
        RecordingError: one sentence, when the file cannot be read, or pyarrow is missing.
    """
    from gpudash.telemetry.export.writing import arrow_table
    from gpudash.telemetry.recording.reading import open_recording

    with open_recording(Path(path)) as recording:
        return arrow_table(recording)

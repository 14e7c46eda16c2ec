"""A recording as tables for pandas, polars or anything else that reads Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_recording(path: str | Path) -> Any:
    """The readings of a recording.

    Args:
        path: of the file.

    Returns:
        a ``pyarrow.Table`` with the columns of an export to Parquet: a row for each reading, the events behind them.
        ``table.to_pandas()`` and ``polars.from_arrow(table)`` take it.

    Raises:
        RecordingError: one sentence, when the file cannot be read, or pyarrow is missing.
    """
    from gpudash.telemetry.export.writing import arrow_table
    from gpudash.telemetry.recording.reading import open_recording

    with open_recording(Path(path)) as recording:
        return arrow_table(recording)

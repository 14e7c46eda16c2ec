"""Writing a recording to another file: refusals, and the whole file or none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar, get_args

from gpudash.telemetry.export import csv_table, json_document, parquet, trace
from gpudash.telemetry.reading import Recording
from gpudash.telemetry.recorder import RecordingError

DataFormat = Literal["csv", "json", "parquet", "trace"]
"""Formats that hold what was recorded; pictures and the report are drawn elsewhere."""

Heed = Callable[[int], None]
"""Told how many rows have been written, every few thousand and at the end; what it raises ends the writing, and nothing
is left."""

SUFFIXES: dict[DataFormat, str] = {"csv": ".csv", "json": ".json", "parquet": ".parquet", "trace": ".trace.json"}

HEED_ROWS = 2000

T = TypeVar("T")


def export(recording: Recording, to: DataFormat, out: Path, force: bool = False, heed: Heed | None = None) -> None:
    """Write ``recording`` to ``out``, whole or not at all.

    csv: one row a reading (`CSV_COLUMNS`): session time in seconds, table, device, metric with its unit, value (empty
    for a gap), "ok" or why there is none, and the PID in the rows of a process. Loss, accuracy and throughput are the
    table "run", measured rates the table "transfer".
    json: one object with ``meta``, ``runs``, ``events`` and ``readings`` (each with ``time_s, table, device, values,
    states``); NaN and infinities are strings.
    parquet: see `parquet.write`. trace: see `trace.write`.

    Raises:
        RecordingError: when ``out`` exists and ``force`` is not given, is the recording itself, or cannot be written;
            when a package that the format needs is missing.
    """
    if to not in get_args(DataFormat):
        raise ValueError(f"{to} is no format of data")
    counted = _Counted(heed)
    with atomically(out, recording.path, force) as part:
        if to == "parquet":
            parquet.write(recording, part, counted.rows)
        else:
            write = {"csv": csv_table.write, "json": json_document.write, "trace": trace.write}[to]
            with part.open("w", encoding="utf-8", newline="") as file:
                write(recording, file, counted.rows)
        counted.tell()


@contextmanager
def atomically(out: Path, source: Path | None = None, force: bool = False) -> Iterator[Path]:
    """A file beside ``out`` to write to, which takes its place when the block ends well and goes when it does not.

    Args:
        out: the file that is wanted.
        source: what is read meanwhile; never replaced.
        force: whether ``out`` may be there already.

    Raises:
        RecordingError: in one sentence, when ``out`` may not or cannot be written.
    """
    part = None
    try:
        _check(out, source, force)
        target = Path(os.path.realpath(out))  # a link stays one
        part = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.part")
        yield part
        part.replace(target)
    except OSError as error:
        raise RecordingError(f"{out} cannot be written ({error.strerror or error}); choose another place") from None
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()


def _check(out: Path, source: Path | None, force: bool) -> None:
    if out.is_dir():
        raise RecordingError(f"{out} is a folder; name a file")
    if out.exists() and not out.is_file():
        raise RecordingError(f"{out} is a device or a pipe, which a file would replace; name a file")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        raise RecordingError(f"{out} is the recording itself; choose another name")
    if out.exists() and not force:
        raise RecordingError(f"{out} exists already; choose another name or add --force")
    if not out.parent.is_dir():
        raise RecordingError(f"{out} cannot be written (the folder {out.parent} does not exist); choose another place")


class _Counted:
    """Passes rows on and tells now and then how many there were."""

    def __init__(self, heed: Heed | None) -> None:
        self._heed = heed
        self._count = 0

    def rows(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self._count += 1
            if self._count % HEED_ROWS == 0:
                self.tell()
            yield item

    def tell(self) -> None:
        if self._heed is not None:
            self._heed(self._count)

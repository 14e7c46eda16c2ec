"""The work of each measured step, traced once and kept in a compressed file."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

from gpudash.speed.work import StepWork
from tests.speed.tables import Row

FILE = Path(os.environ.get("GPUDASH_SPEED_TRACES", Path(__file__).parent / "traces.json.gz"))

Key = tuple[str, int, int, bool, bool]


def key(row: Row) -> Key:
    """Rows of one key have the same work."""
    return row.model, row.image, row.batch, row.table.channels_last, row.table.training


def write(works: dict[Key, StepWork]) -> None:
    """Into `FILE`."""
    document = [[*key, work.to_dict()] for key, work in works.items()]
    FILE.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9))


def read() -> dict[Key, StepWork]:
    """What `write` wrote."""
    if not FILE.exists():
        return {}
    document = json.loads(gzip.decompress(FILE.read_bytes()))
    return {(*key,): StepWork.from_dict(work) for *key, work in document}


def trace(rows: Iterable[Row], begin: dict[Key, StepWork]) -> tuple[dict[Key, StepWork], dict[Key, str]]:
    """The work of all rows, and why some could not be traced: with timm, which is not among our requirements.

    What is in ``begin`` is not traced again.
    """
    from tests.speed import tracing

    works = dict(begin)
    failures: dict[Key, str] = {}
    for row in sorted(rows, key=lambda row: (row.table.training, row.table.channels_last, row.model, row.image)):
        name = key(row)
        if name in works or name in failures:
            continue
        try:
            if row.table.training:
                works[name] = tracing.training(row.model, row.image, row.batch, row.table.channels_last)
            else:
                works[name] = tracing.inference(row.model, row.image, row.batch, row.table.channels_last)
        except Exception as error:  # what timm cannot build here is named at the end
            failures[name] = f"{type(error).__name__}: {str(error)[:120]}"
    return works, failures

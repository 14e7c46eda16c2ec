"""A recording as one JSON document."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from gpudash.telemetry.export.csv_table import Passing
from gpudash.telemetry.recording import schema
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.records import plain


def write(recording: Recording, file: TextIO, passing: Passing) -> None:
    """Write the document piece by piece: a long recording does not fit twice into memory."""
    file.write('{"meta": ')
    json.dump(dict(recording.meta), file)
    file.write(',\n"runs": ')
    json.dump([plain(dataclasses.asdict(run)) for run in recording.runs], file, allow_nan=False)
    file.write(',\n"events": ')
    write_list(passing(json.loads(event.to_json()) for event in recording.events()), file)
    file.write(',\n"readings": ')
    write_list(passing(_readings(recording)), file)
    file.write("}\n")


def write_list(items: Iterable[Any], file: TextIO) -> None:
    """Write a JSON list, an item a line."""
    file.write("[")
    for number, item in enumerate(items):
        file.write(",\n" if number else "\n")
        json.dump(item, file, allow_nan=False)
    file.write("]")


def _readings(recording: Recording) -> Iterator[dict[str, Any]]:
    for table in schema.TABLES:
        for sample in recording.samples(table):
            yield {
                "time_s": sample.time_s,
                "table": table,
                "device": sample.device,
                "values": plain(sample.values),
                "states": {name: state.value for name, state in sample.states.items()},
            }

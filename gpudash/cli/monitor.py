"""``gpudash monitor``: watch only."""

import json as json_module
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.output import Exit, RequestError, leave, print_json, print_notice
from gpudash.cli.run import interruptible
from gpudash.settings import load_settings


def monitor(
    *,
    seconds: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    rate: Annotated[float | None, Parameter(validator=Number(gte=1, lte=50))] = None,
    record: Path | None = None,
    no_record: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    json_lines: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Watch the machine without running anything.

    Parameters
    ----------
    seconds
        How long; left out: until Ctrl+C.
    rate
        Memory readings a second, 1 to 50.
    record
        Recording to write; left out: a new one in the recordings folder.
    no_record
        Record nothing.
    json
        Print a summary as one JSON document at the end.
    json_lines
        Print every reading as a line of JSON.
    """
    from gpudash.session import Session, recording_target
    from gpudash.telemetry.recorder import RecordingError
    from gpudash.telemetry.records import Event, Record, Sample, plain

    settings, notices = load_settings()
    if rate is not None:
        settings.rate_hz = rate
    target = recording_target(settings, "monitor", file=record, record=not no_record)
    session = Session(settings, recording=target, notices=notices)
    for text in notices:
        print_notice(text)

    def write(item: Record) -> None:
        if isinstance(item, Event):
            line: Mapping[str, Any] = json_module.loads(item.to_json())
        elif isinstance(item, Sample):
            line = {"time_s": item.time_s, "table": item.table, "device": item.device, **item.values}
            if item.states:
                line = {**line, "states": item.states}
        try:
            sys.stdout.write(json_module.dumps(plain(line), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            session.on_record = None  # the reader went away; watching for nobody ends
            stop.set()

    stop = threading.Event()
    if json_lines:
        session.on_record = write
    try:
        session.start(worker=False)
    except RecordingError as error:
        raise RequestError(str(error), "Use --record FILE, or --no-record.") from None
    with interruptible(stop.set):
        stop.wait(seconds)
    summary = session.summary()
    joined = session.close()
    if json:
        print_json(summary)
    if target is not None:
        print_notice(f"Recording: {target}")
    return leave(Exit.INTERRUPTED if stop.is_set() and seconds is not None else Exit.FINISHED, joined)

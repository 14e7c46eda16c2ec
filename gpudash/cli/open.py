"""``gpudash open``: a memory snapshot, a recording or the readings of another machine in the window."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpudash.cli.output import RequestError, leave

STREAM = Path("-")
"""Stands for standard input."""


def open_file(file: Annotated[Path, Parameter(allow_leading_hyphen=True)], /) -> int:
    """Open a memory snapshot, the folder of an out-of-memory report, or a recording in the window.

    With - it shows what another machine sends: ssh HOST gpudash monitor --json-lines | gpudash open -
    No data leaves this computer.

    Parameters
    ----------
    file
        A snapshot as torch.cuda.memory writes it, a folder that `gpudash watch` left behind, a recording, or - for
        the JSON lines of `gpudash monitor` on standard input.
    """
    from gpudash.cli.qt import has_display, require_qt
    from gpudash.session.files import find_file
    from gpudash.telemetry.reading import open_recording
    from gpudash.telemetry.recorder import RecordingError

    if file == STREAM:
        return _open_stream()
    try:
        found = find_file(file)
        if found.kind == "recording":
            open_recording(found.path).close()  # what is no recording is told here, before a window opens
    except (ValueError, RecordingError) as error:
        raise RequestError(str(error)) from None
    if not has_display():
        there = "snapshot" if found.kind == "snapshot" else "export"
        raise RequestError("There is no display to open a window on.", f"gpudash {there} --help tells what goes here.")
    require_qt()
    from gpudash.ui.app import run

    return leave(*run(opened=found.path))


def _open_stream() -> int:
    from gpudash.cli.qt import has_display, require_qt

    if sys.stdin is None or sys.stdin.isatty():
        raise RequestError("Nothing is piped into gpudash open -.", "Pipe in what gpudash monitor --json-lines prints.")
    if not has_display():
        raise RequestError("There is no display to open a window on.", "gpudash monitor --help tells what goes here.")
    require_qt()
    from gpudash.ui.app import run

    return leave(*run(begin=lambda window: window.opening.open_stream(sys.stdin)))

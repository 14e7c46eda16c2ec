"""``gpudash open``: a memory snapshot or a recording in the window."""

from pathlib import Path

from gpudash.cli.output import RequestError, leave


def open_file(file: Path, /) -> int:
    """Open a memory snapshot, the folder of an out-of-memory report, or a recording in the window.

    No data leaves this computer.

    Parameters
    ----------
    file
        A snapshot as torch.cuda.memory writes it, a folder that `gpudash watch` left behind, or a recording.
    """
    from gpudash.cli.qt import has_display, require_qt
    from gpudash.session.files import find_file
    from gpudash.telemetry.recorder import RecordingError

    try:
        found = find_file(file)
    except ValueError as error:
        raise RequestError(str(error)) from None
    if not has_display():
        there = "snapshot" if found.kind == "snapshot" else "export"
        raise RequestError("There is no display to open a window on.", f"gpudash {there} --help tells what goes here.")
    require_qt()
    from gpudash.ui.app import look_at, run

    if found.kind == "snapshot":
        return leave(*run(opened=found.path))
    try:
        return leave(*look_at(found.path))
    except RecordingError as error:
        raise RequestError(str(error)) from None

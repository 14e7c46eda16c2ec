"""``gpudash export``: a recording as CSV or JSON."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from gpudash.cli.output import Exit, RequestError, print_notice


def export(
    file: Path,
    /,
    *,
    to: Literal["csv", "json"],
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    force: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write a recording as one CSV table of readings, or as one JSON document with runs and events.

    Parameters
    ----------
    file
        The recording.
    to
        What to write.
    out
        Where to write it.
    force
        Replace a file that is there.
    """
    from gpudash.telemetry.export import export as write
    from gpudash.telemetry.reading import RecordingError, open_recording

    try:
        with open_recording(file) as recording:
            write(recording, to, out, force)
            for text in recording.notices:
                print_notice(text)  # damage shows only in reading
    except (RecordingError, FileExistsError) as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror}.", "Name another file with -o.") from None
    print_notice(f"Wrote {out}")
    return Exit.FINISHED

"""``gpudash export``: write a recording for other programs, as pictures, or as a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from gpudash.cli.terminal.output import Exit, RequestError, print_notice

SIZE = (1280, 900)
"""Default size of a picture, in pixels."""

PICTURES = ("png", "svg")
"""Formats of pictures, which are the endings of their files too."""

SMALLEST, LARGEST = 320, 8000

MOST_DIGITS = 9
"""Maximum digits of a number of pixels; Python rejects numbers with thousands of digits."""

Format = Literal["csv", "parquet", "json", "png", "svg", "trace", "perfetto", "html", "tensorboard", "wandb", "mlflow"]


def export(
    file: Path,
    /,
    *,
    to: Annotated[Format, Parameter(name=["--to", "--format"])],
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    force: Annotated[bool, Parameter(negative="")] = False,
    theme: Literal["light", "dark"] | None = None,
    size: str | None = None,
    profile: Path | None = None,
) -> int:
    """Write a recording in another format: data (csv, parquet, json), a trace of stages and steps for
    ui.perfetto.dev (trace, also called perfetto), the plots as a picture (png, svg), a report in one page that opens
    offline (html), or a folder for a tracker of experiments (tensorboard, wandb, mlflow).

    Parameters
    ----------
    file
        The recording; a bare name is also looked up where gpudash keeps its recordings.
    to
        The format.
    out
        The file to write; for a tracker, a folder that is new or empty.
    force
        Replace an existing file.
    theme
        Colours of a picture; default: light.
    size
        Width and height of a picture in pixels, such as 1280x900.
    profile
        For ui.perfetto.dev: a trace that torch.profiler exported during the recording, to show its memory beside.
    """
    from gpudash.system.settings import recording_path
    from gpudash.telemetry.recording.recorder import RecordingError

    if "#" in file.name:
        _refuse_one_run(file)
    file = recording_path(file)
    for flag, value in (("--size", size), ("--theme", theme)):
        if value is not None and to not in PICTURES:
            raise RequestError(f"{flag} is for pictures, and {to} is none.", "Leave it out, or choose --to png or svg.")
    ending = out.suffix.removeprefix(".")
    if to in PICTURES and ending in PICTURES and ending != to:
        raise RequestError(
            f"{out} ends as {ending} does, and --to says {to}.", f"Write --to {ending}, or another name."
        )
    if profile is not None and to not in ("trace", "perfetto"):
        raise RequestError(f"--profile is for a trace, and {to} is none.", "Leave it out, or choose --to perfetto.")
    pixels = SIZE
    if size is not None:
        pixels = _pixels(size)
    after = ""
    try:
        if to == "png" or to == "svg":
            _draw(file, out, pixels, theme or "light", force)
        elif to == "html":
            _report(file, out, force)
        else:
            after = _write(file, to, out, profile, force)
    except RecordingError as error:
        raise RequestError(str(error)) from None
    print_notice(f"Wrote {out}")
    if after:
        print_notice(after)
    return Exit.FINISHED


def _refuse_one_run(file: Path) -> None:
    """Refuse FILE#N, which other commands take.

    Raises:
        RequestError: if ``file`` names one run of a recording.
    """
    from gpudash.session.recordings.comparing.comparison_loader import split_run
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        whole, number = split_run(str(file))
    except RecordingError as error:
        raise RequestError(str(error)) from None
    if number is not None:
        raise RequestError(
            f"{file} names one run, and an export has the whole recording.", f"Write {whole} without #{number}."
        )


def _write(
    file: Path,
    to: Literal["csv", "parquet", "json", "trace", "perfetto", "tensorboard", "wandb", "mlflow"],
    out: Path,
    profile: Path | None,
    force: bool,
) -> str:
    """Write what is read row by row; return what to do with it, or ""."""
    from gpudash.session.trackers.merged_trace import export_merged
    from gpudash.telemetry.export.trackers import export_to_tracker
    from gpudash.telemetry.export.writing import export as write
    from gpudash.telemetry.recording.reading import open_recording

    after = ""
    with open_recording(file) as recording:
        if to == "tensorboard" or to == "wandb" or to == "mlflow":
            after = export_to_tracker(recording, to, out)
        elif profile is not None:
            export_merged(recording, profile, out, force)
        else:
            write(recording, "trace" if to == "perfetto" else to, out, force)
        for text in recording.notices:
            print_notice(text)  # damage shows only in reading
    return after


def _report(file: Path, out: Path, force: bool) -> None:
    from gpudash.session.report import write_report

    for text in write_report(file, out, force):
        print_notice(text)


def _draw(file: Path, out: Path, size: tuple[int, int], theme: Literal["light", "dark"], force: bool) -> None:
    from gpudash.cli.qt import require_qt

    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    require_qt()
    from gpudash.ui.picture import write_graphs

    for text in write_graphs(file, out, size, theme, force):
        print_notice(text)


def _pixels(text: str) -> tuple[int, int]:
    """Parse width and height.

    Raises:
        RequestError: if the text is not a size, or the picture would be too small or too large to draw.
    """
    width, cross, height = text.lower().partition("x")
    if not (cross and all(side.isdecimal() and len(side) <= MOST_DIGITS for side in (width, height))):
        raise RequestError(f"{text!r} is no size of a picture.", "Write width and height in pixels, such as 1280x900.")
    if not all(SMALLEST <= int(side) <= LARGEST for side in (width, height)):
        raise RequestError(f"{text!r} is outside {SMALLEST} to {LARGEST} pixels a side.", "Choose another size.")
    return int(width), int(height)

"""Bare ``gpudash``: the window or, without a display, the default workload and a picture of the dashboard."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpudash.cli.qt import has_display, open_window
from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.output import OF_STATUS, RequestError, leave, print_notice

PICTURE_SIZE = (1600, 1000)
"""Size of the picture made without a display, in logical pixels."""

WITHOUT_DISPLAY = (
    "There is no display: the default workload runs here once and leaves a picture of the dashboard. "
    "For a live table instead: gpudash monitor. Ctrl+C leaves."
)


def start(*, simulated: SimulateOptions | None = None) -> int:
    """Open the window; without a display, run the default workload and save a picture of the dashboard."""
    simulated = simulated or SimulateOptions()
    simulation = simulated.simulation()
    if has_display():
        return open_window(simulation)
    print_notice(WITHOUT_DISPLAY)
    return _run_and_draw(simulated)


def _run_and_draw(simulated: SimulateOptions) -> int:
    from gpudash.cli.run import RunOptions, perform
    from gpudash.cli.terminal.report import print_run
    from gpudash.specs import DEFAULT_WORKLOAD, build, workloads

    spec = build(workloads()[DEFAULT_WORKLOAD], {})
    summary, notes, joined = perform(spec, RunOptions(**vars(simulated)), leave_at_once=True)
    print_run(summary, notes)
    recording, picture = summary["recording"], None
    if recording is None:
        print_notice("No picture is drawn, since the settings say that nothing is recorded.")
    elif summary["status"] != "cancelled":
        picture = _draw(Path(recording))
    if picture is not None:
        sys.stdout.write(f"Picture: {picture}\n")
    return leave(OF_STATUS[summary["status"]], joined)


def _draw(recording: Path) -> Path | None:
    from gpudash.cli.qt import require_qt

    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    try:
        require_qt()
    except RequestError as error:
        print_notice(f"No picture could be drawn: {error.message} {error.remedy}")
        return None
    from gpudash.ui.picture import draw

    picture = recording.with_suffix(".png")
    draw(recording, picture, PICTURE_SIZE)
    return picture

"""Opening the window, with as little before its first paint as can be."""

from __future__ import annotations

import gc

from gpudash.cli.output import leave
from gpudash.cli.qt import require_qt
from gpudash.devices import Simulation


def open_window(simulation: Simulation | None = None) -> int:
    """Show the window until it is closed; returns the exit code.

    Raises:
        RequestError: when Qt cannot start here.
    """
    require_qt()
    # What is imported and built now stays; looking for garbage in it again and again takes a tenth of the time to the
    # first paint, after which the window has it looked for as usual.
    gc.disable()
    from gpudash.ui.app import run

    return leave(*run(simulation=simulation))

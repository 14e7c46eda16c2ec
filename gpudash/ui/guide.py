"""The texts behind the Help menu."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtGui import QAction, QKeySequence

GUIDE = """\
Pick a workload and a device at the left and press Start (F5). Everything it does to memory, bandwidth, utilisation, \
loss and accuracy is drawn on one time axis, while the machine is read beside it.

Drag over a plot to measure a range: the strip below shows start, end, change, lowest, mean and highest of every \
curve. The wheel zooms time, Shift+drag or the middle button moves through it, Space holds the view still. Nothing \
you do to the view touches the recording.

Words: allocated is what tensors hold; idle inside PyTorch is what torch keeps for reuse; the CUDA context is what the \
driver needs for this process; other processes hold the rest. 1 GiB is 1 073 741 824 bytes. A gap in a line is a \
reading that could not be taken.

A warning comes at 85 % and at 95 % of a memory. The guard stops a run before the operating system has to.\
"""

MOUSE = """\
drag\tselect a range
Shift+drag, middle drag\tmove through time
wheel\tzoom time
Ctrl+wheel\tzoom the value axis
double-click\tzoom to the selection
right click\tmenu of the plot"""


def keys_text(actions: Iterable[QAction]) -> str:
    """One line per command that has a key, then what the mouse does."""
    lines = [
        f"{', '.join(key.toString(QKeySequence.SequenceFormat.NativeText) for key in action.shortcuts())}"
        f"\t{action.text().rstrip('…')}"
        for action in actions
        if action.shortcuts()
    ]
    lines += ["Left, Right\tstep the cursor by one reading (Shift: ten)", *MOUSE.splitlines()]
    return "\n".join(lines)

"""The pages behind the Help menu, as rich text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from PySide6.QtGui import QAction, QKeySequence

GUIDE = """\
<h3>Run and watch</h3>
<p>Pick a workload and a device at the left and press Start (F5). Everything it does to memory, bandwidth, utilisation,
loss and accuracy is drawn on one time axis, while the machine is read beside it.</p>
<h3>Measure</h3>
<p>Drag over a plot to measure a range: the strip below shows start, end, change, lowest, mean and highest of every
curve, and the tables show that range alone. The wheel zooms time, Shift+drag or the middle button moves through it,
Space holds the view still. Nothing you do to the view touches the recording.</p>
<h3>Your own program</h3>
<p>Choose My script, name the file and press Start: it runs unchanged, and its memory and output are shown here. To have
its loss drawn too, add a line that does nothing anywhere else: <code>logging.getLogger("gpudash").info("step",
extra={"step": i, "loss": loss})</code>. When memory runs out, a folder keeps the snapshot, the last minute of every
curve and the explanation; Open report shows it.</p>
<h3>Snapshots</h3>
<p>File &gt; Open, or a file dropped on the window, opens a memory snapshot of PyTorch in a tab: what filled the memory,
who allocated it and what would have fitted. It is read here, in a process of its own; no data leaves this computer, and
nothing in the file is run.</p>
<h3>Words</h3>
<p><b>Allocated</b> is what tensors hold. <b>Idle inside PyTorch</b> is what torch keeps for reuse. The <b>CUDA
context</b> is what the driver needs for this process. <b>Other processes</b> hold the rest. 1 GiB is 1 073 741 824
bytes. A gap in a line is a reading that could not be taken.</p>
<h3>Warnings</h3>
<p>A warning comes at 85 % and at 95 % of a memory, unless the settings say otherwise. The guard stops a run before the
operating system has to.</p>
"""

MOUSE = (
    ("drag", "Select a range"),
    ("Shift+drag, middle drag", "Move through time"),
    ("wheel", "Zoom time"),
    ("Ctrl+wheel", "Zoom the value axis"),
    ("double-click", "Zoom to the selection"),
    ("right click", "Menu of the plot"),
)


def keys_page(actions: Iterable[QAction]) -> str:
    """Two tables: every command that has a key, with what it does, and what the mouse does in a plot."""
    keys = [
        (
            ", ".join(key.toString(QKeySequence.SequenceFormat.NativeText) for key in action.shortcuts()),
            action.toolTip(),
        )
        for action in actions
        if action.shortcuts()
    ]
    return f"<h3>Keys</h3>{_table(keys)}<h3>Mouse, in a plot</h3>{_table(MOUSE)}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = (f"<tr><td><b>{escape(key)}</b></td><td>{escape(words)}</td></tr>" for key, words in rows)
    return f'<table cellspacing="0" cellpadding="3">{"".join(lines)}</table>'

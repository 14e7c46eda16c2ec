"""The pages behind the Help menu, as rich text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from PySide6.QtGui import QKeySequence

from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.window.menus import Command

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
<h3>Recordings</h3>
<p>Every session is recorded while it runs. File &gt; Session Library lists them: open one as a tab, compare several,
lock what must stay. What is deleted lies in the trash for 30 days, and Ctrl+Z brings it back.</p>
<h3>Words</h3>
<p><b>Allocated</b> is what tensors hold. <b>Idle inside PyTorch</b> is what torch keeps for reuse. The <b>CUDA
context</b> is what the driver needs for this process. <b>Other processes</b> hold the rest. 1 GiB is 1 073 741 824
bytes. A gap in a line is a reading that could not be taken.</p>
<h3>Warnings</h3>
<p>A warning comes at 85 % and at 95 % of a memory, unless the settings say otherwise. The guard stops a run before the
operating system has to.</p>
"""

MOUSE = (
    ("drag", "Select a range; drag one of its edges to change it"),
    ("double-click", "Zoom to the selection"),
    ("wheel", "Zoom time at the pointer"),
    ("Ctrl+wheel", "Zoom the value axis"),
    ("Shift+drag, middle drag, Shift+wheel, two fingers sideways", "Move through time"),
    ("right click", "Menu of the plot"),
    ("click in the legend", "Hide the curve, or show it again"),
    ("Ctrl+click in the legend, “only”", "Show the curve alone; once more restores the others"),
    ("drop a file on the window", "Open a snapshot or a recording, or take a Python file for the script to run"),
)

SNAPSHOT = (
    ("1 to 4", "Go to a pane"),
    ("/", "Search"),
    ("P, O", "Go to the peak, to the out-of-memory"),
    ("T", "Own or total sizes"),
    ("I", "Icicle"),
    ("Esc", "Clear what is selected, step by step"),
)

LIBRARY = (
    ("Enter", "From the search box into the table; there, open the selected recordings"),
    ("Ctrl+click, Shift+click", "Select several"),
    ("Del", "Move the selected recordings to the trash"),
)

KEY_PX = 190
"""Logical pixels of the column of keys at the usual text size."""


def keys_page(commands: Iterable[Command]) -> str:
    """Every command that has a key, menu by menu, with what it does; then the mouse, and the keys of documents."""
    menus: dict[str, list[tuple[str, str]]] = {}
    for command in commands:
        keys = [key.toString(QKeySequence.SequenceFormat.NativeText) for key in command.key_sequences()]
        if keys:
            menus.setdefault(command.menu.partition("/")[0], []).append((", ".join(keys), command.tip))
    sections = [
        *menus.items(),
        ("Mouse, in a plot", MOUSE),
        ("In a memory snapshot", SNAPSHOT),
        ("In the session library", LIBRARY),
    ]
    return "".join(f"<h3>{escape(title)}</h3>{_table(rows)}" for title, rows in sections)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    width = scaled(KEY_PX)
    lines = (f'<tr><td width="{width}"><b>{escape(key)}</b></td><td>{escape(words)}</td></tr>' for key, words in rows)
    return f'<table cellspacing="0" cellpadding="3" width="100%">{"".join(lines)}</table>'

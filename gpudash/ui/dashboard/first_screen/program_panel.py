"""The Python programs running here, with the GPU memory they hold; a click watches one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal

from gpudash.session.watching.attaching.candidates import Candidate
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.first_screen.panels import StartPanel, heading
from gpudash.ui.dashboard.first_screen.rows import RowCell, RowContent, RowList
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_age, format_bytes

TITLE = "Watch what runs here"
SENTENCE = "Python programs, with their GPU memory."
SEARCHING = "Looking for programs…"
NONE = "No Python program of yours is running."
UNCHANGED = "Watching changes nothing in the program."
INSIDE = "Seen from inside: steps, stacks, allocator"
OUTSIDE = "Seen from outside: memory, processor, GPU, its end. Start it with GPUDASH_AGENT=1 to see inside"
ELSEWHERE = "By its PID…"


class ProgramsPanel(StartPanel):
    """The programs.

    Signals:
        chosen: PID of the program to watch.
        dialog_wanted: watch a program that is not listed.
    """

    chosen = Signal(int)
    dialog_wanted = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__(TITLE, SENTENCE)
        self.list = RowList("Programs", palette, tall=True)
        self.list.chosen.connect(lambda key: self.chosen.emit(int(key)))
        self.none = PlainLabel(SEARCHING, role="muted", wraps=True)
        self.more = PlainLabel(role="muted")
        self.elsewhere = worded_button(ELSEWHERE, "Watch a program that is not listed", self.dialog_wanted.emit)
        self.add(heading(PlainLabel("PROGRAM"), PlainLabel("runs for, on the GPU")))
        self.add(self.none)
        self.add_list(self.list, 1)
        self.add(PlainLabel(UNCHANGED, role="muted", wraps=True))
        self.add(in_row(self.elsewhere, (self.more, 1), margins=(0, 0, 0, 0), spacing=10))

    def show_programs(self, found: Sequence[Candidate] | None, problem: str = "") -> None:
        """Show the programs.

        Args:
            found: programs that can be watched; ``None`` until they have been listed.
            problem: why they cannot be listed, in a sentence.
        """
        self.list.show_rows(list(map(_row, found or ())))
        text = problem or (SEARCHING if found is None else NONE)
        self.none.setText(text)
        self.none.setVisible(not found)
        left_out = self.list.left_out
        self.more.setText(f"and {left_out} more" if left_out else "")

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.list.set_palette(palette)


def _row(candidate: Candidate) -> RowContent:
    name = candidate.name or candidate.command
    ran = format_age(candidate.seconds)
    gpu = "–"
    if candidate.gpu_bytes is not None:
        gpu = format_bytes(candidate.gpu_bytes)
    seen = "outside"
    tip = OUTSIDE
    if candidate.inside:
        seen = "inside"
        tip = INSIDE
    cells = (
        RowCell(name, bold=True, under=f"PID {candidate.pid} · {seen}"),
        RowCell(ran, "muted", right=True),
        RowCell(gpu, right=True),
        RowCell("Watch", button=True),
    )
    held = f"{gpu} of GPU memory" if candidate.gpu_bytes is not None else "no GPU memory"
    sentence = f"Watch {name}, PID {candidate.pid}, runs for {ran}, {held}, seen from {seen}"
    return RowContent(str(candidate.pid), cells, sentence, tip)

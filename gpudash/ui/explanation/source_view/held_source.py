"""The source files of a program, with the memory their lines hold at a given moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpudash.memory.explaining.annotated_source import AnnotatedSource, SourceRow, held_source, is_own_file
from gpudash.memory.growth_rate import HeldLine
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.source_view.source import SourcePanel

Held = Mapping[tuple[str, int], HeldLine]
"""The memory that lines hold, by file and line number."""

NO_LINES = "No line of your own files held memory then."
UNREADABLE = "{} cannot be read here: of its lines those that held memory are listed, without their text."


class HeldSource(SourcePanel):
    """Files that hold memory; the one that holds most is shown until the user picks another."""

    def __init__(self, palette: Palette, title: str = "SOURCE") -> None:
        super().__init__(palette, title)
        self.stack_button.hide()
        self.setProperty("role", "")
        self._files: list[str] = []
        self._chosen = ""
        self._held: Held = {}
        self._foot = ""
        self._first: Sequence[str] = ()
        self.file_chosen.connect(self._choose)

    def show_held(self, held: Held, foot: str, first: Sequence[str] = ()) -> None:
        """Show what the lines of the program's own files hold.

        Args:
            held: memory by file and line.
            foot: sentence below the source that says which moment this is.
            first: files to list before the others, whatever they hold.
        """
        self._held = held
        self._foot = foot
        self._first = first
        sizes: dict[str, int] = {}
        for (file, _line), one in held.items():
            if is_own_file(file):
                sizes[file] = sizes.get(file, 0) + one.bytes
        sizes |= {file: 0 for file in first if file not in sizes}
        files = sorted(sizes, key=lambda file: (file not in first, -sizes[file]))
        if set(files) != set(self._files):
            self._files = files
            self.show_files(files)
        front = self._chosen if self._chosen in sizes else next(iter(files), "")
        if not front:
            self.say_why_not(NO_LINES)
            return
        self.view.show()
        self.show_source(self.read_file(front, {line: one for (file, line), one in held.items() if file == front}))
        self.foot.setText(foot)

    def read_file(self, file: str, held: Mapping[int, HeldLine]) -> AnnotatedSource:
        """A file with what its lines hold; if it cannot be read, those lines without their text."""
        source = held_source(file, held)
        if source is not None:
            return source
        rows = [
            SourceRow(line, "", bytes=one.bytes, growth=one.growth, stride=one.stride)
            for line, one in sorted(held.items())
            if one.bytes
        ]
        most = max(range(len(rows)), key=lambda place: rows[place].bytes, default=0)
        return AnnotatedSource(file, tuple(rows), note=UNREADABLE.format(file), front=most)

    def say_why_not(self, sentence: str) -> None:
        """Show a sentence that explains why there is no source."""
        self.view.hide()
        self.note.setText(sentence)
        self.note.show()
        self.foot.setText("")

    def _choose(self, file: str) -> None:
        self._chosen = file
        self.show_held(self._held, self._foot, self._first)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.view.set_palette(palette)

"""The pane at the right of the library: details of the selected run or session, where a run is named, tagged and
annotated."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFocusEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QPlainTextEdit, QSizePolicy

from gpudash.session.recordings.run_names import differences_of, kind_of_run
from gpudash.telemetry.recording.facts import RunWord
from gpudash.ui.recordings.library_table import (
    UNKNOWN,
    LibraryRow,
    date_of,
    device_of,
    duration_of,
    ending_of,
    loss_of,
    name_of,
    peak_of,
    runs_of,
    session_text,
)
from gpudash.ui.widgets.labels import title_label, worded_label
from gpudash.ui.widgets.layouts import in_column, scrolled
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import format_bytes, format_duration

WIDTH_PX, NARROW_PX, NOTE_PX = 280, 230, 64

HEADINGS = {"run": "SELECTED RUN", "session": "SELECTED SESSION"}
SEVERAL = "SELECTED RUNS"

NOTHING = "Select a run to see its details. Enter opens its recording, Space ticks it, Del deletes its session."
NOTHING_IN_TRASH = "Select a run to see its details. Restore brings its session back."


class _NoteEdit(QPlainTextEdit):
    """A note; emits `edited` when it loses the focus."""

    edited = Signal()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.edited.emit()


class Details(QFrame):
    """Details of the selected run or session; a run can be named, tagged and annotated here.

    Signals:
        said: the row, the edited field (a `RunWord`), and its new text.
    """

    said = Signal(object, str, str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "panel")
        self.set_narrow(False)
        self.title, self.tags, self.note = QLineEdit(), QLineEdit(), _NoteEdit()
        self.note.setFixedHeight(NOTE_PX)
        self.note.setTabChangesFocus(True)
        self.tags.setPlaceholderText("baseline, wide")
        self._text = worded_label("")
        self._text.setTextFormat(Qt.TextFormat.RichText)
        self._text.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self._shown: Sequence[LibraryRow] = ()
        self._labels: list[tuple[PlainLabel, QLineEdit | QPlainTextEdit]] = []
        self.heading = title_label(HEADINGS["run"])
        column = in_column(self.heading, parent=self, margins=(14, 12, 14, 12), spacing=6)
        for text, field, tip in (
            ("Name", self.title, "The name shown here; the recording's file keeps its name"),
            ("Tags", self.tags, "Words to find the run by, separated by commas"),
            ("Note", self.note, "Anything worth remembering about the run"),
        ):
            label = PlainLabel(text, role="muted")
            label.setBuddy(field)
            field.setToolTip(plain_tip(tip))
            self._labels.append((label, field))
            column.addWidget(label)
            column.addWidget(field)
        # A low window cannot show all of it.
        column.addWidget(scrolled(self._text, "Details of the selected run"), 1)
        self.title.editingFinished.connect(lambda: self._edited("title"))
        self.tags.editingFinished.connect(lambda: self._edited("tags"))
        self.note.edited.connect(lambda: self._edited("note"))
        self.show_rows(())

    def set_narrow(self, narrow: bool) -> None:
        """Use less width, to leave more to the table."""
        self.setFixedWidth(NARROW_PX if narrow else WIDTH_PX)

    def show_rows(self, rows: Sequence[LibraryRow], *, in_trash: bool = False) -> None:
        """Show the selected runs; ``in_trash`` if their sessions are in the trash."""
        before, self._shown = self._shown, rows
        single, kind = None, "run"
        if len(rows) == 1:
            single, kind = rows[0], rows[0].kind
        for label, field in self._labels:
            wanted = single is not None and (single.run is not None or field is self.title)
            label.setVisible(wanted)
            field.setVisible(wanted)
            field.setAccessibleName(f"{label.text()} of the {kind}")
        self.heading.setText(SEVERAL if len(rows) > 1 else HEADINGS[kind])
        if single is None:
            nothing = NOTHING
            if in_trash:
                nothing = NOTHING_IN_TRASH
            self._text.setText(_counted(rows) if rows else nothing)
            return
        entry = single.entry
        changeable = entry.facts is not None and not (entry.trashed or entry.facts.damage)
        same = [row.key for row in before] == [single.key]
        fields: tuple[tuple[RunWord, QLineEdit | QPlainTextEdit], ...]
        fields = (("title", self.title), ("tags", self.tags), ("note", self.note))
        for what, field in fields:
            field.setReadOnly(not changeable)
            if same and field.hasFocus():
                continue  # keep what is being typed
            text = self._field_text(single, what)
            if isinstance(field, QLineEdit):
                field.setText(text)
                field.setCursorPosition(0)
            elif field.toPlainText() != text:
                field.setPlainText(text)
        rows_of_it = details_of(single)
        self._text.setText(
            "".join(
                f'<p style="margin: 0 0 6px 0">{escape(name)}<br><b>{_breakable(escape(value))}</b></p>'
                for name, value in rows_of_it
            )
        )

    @staticmethod
    def _field_text(row: LibraryRow, what: RunWord) -> str:
        if what == "title" or row.run is None:
            return name_of(row)
        return str(getattr(row.run.label, what))

    def _edited(self, what: RunWord) -> None:
        fields: dict[RunWord, QLineEdit | QPlainTextEdit]
        fields = {"title": self.title, "tags": self.tags, "note": self.note}
        field = fields[what]
        if len(self._shown) != 1 or field.isReadOnly():
            return
        text = (field.text() if isinstance(field, QLineEdit) else field.toPlainText()).strip()
        if text != self._field_text(self._shown[0], what):
            self.said.emit(self._shown[0], what, text)


def _counted(rows: Sequence[LibraryRow]) -> str:
    sessions = {row.entry.path: row.entry.bytes for row in rows}
    runs = sum(row.run is not None for row in rows)
    counted = ""
    if runs > 1:
        counted = f"{runs} runs of "
    return (
        f"{counted}{len(sessions)} session{'s' * (len(sessions) != 1)}, {format_bytes(sum(sessions.values()))} on disk"
    )


def _breakable(text: str) -> str:
    """A path that may break after each folder: Qt's labels need zero-width spaces for that."""
    return text.replace("/", "/\u200b")


def details_of(row: LibraryRow) -> list[tuple[str, str]]:
    """Everything known about one run or session, as (name, value)."""
    entry, run, facts = row.entry, row.run, row.entry.facts
    rows = [("Began", date_of(row))]
    if run is not None:
        rows += [
            ("Workload", kind_of_run(run)),
            ("Not the default", ", ".join(differences_of(run.workload, run.spec))),
            ("Device", device_of(row)),
            ("Ended", ending_of(row)),
            ("Peak memory", peak_of(row)),
            ("Duration", duration_of(row)),
            ("Loss", loss_of(row)),
            ("Session", session_text(entry)),
        ]
    else:
        length = None
        if facts is not None:
            length = facts.duration_s
        rows += [
            ("Runs", str(len(runs_of(entry)) or "none, only the machine was monitored")),
            ("State", ending_of(row)),
            ("Length", "" if length is None else format_duration(length)),
            ("Size on disk", format_bytes(entry.bytes)),
        ]
    rows.append(("File", str(entry.path)))
    if facts is not None and facts.locked:
        rows.append(("Locked", "It is never deleted, not even when there are too many recordings."))
    if facts is not None and facts.damage:
        rows.append(("Damage", facts.damage))
    return [(name, value) for name, value in rows if value and value != UNKNOWN]

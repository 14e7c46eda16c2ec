"""The allocator's settings as the snapshot has them, and how the file was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from PySide6.QtWidgets import QVBoxLayout, QWidget

from gpudash.memory.snapshot.model import Snapshot
from gpudash.ui.tables import Column, Table
from gpudash.units import format_count

COLUMNS = (Column("setting"), Column("value", wide=True))


class SettingsPane(QWidget):
    """One table: the settings, then the file."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table = Table("Allocator settings", COLUMNS, "The snapshot tells nothing of the allocator's settings.")
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 6, 4, 2)
        column.addWidget(self.table)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show what a file tells of itself."""
        rows = [(name, words_of(value)) for name, value in sorted(snapshot.settings.items())]
        if not rows:
            rows = [("allocator settings", "not in this file")]
        rows.append(("file", snapshot.kind or "not reported"))
        rows.append(("events in the file", format_count(snapshot.events_in_file)))
        rows += [("warning", words) for words in snapshot.warnings]
        self.table.show_rows(list(rows))


def words_of(value: object) -> str:
    """A setting's value in words."""
    if isinstance(value, Mapping):
        return ", ".join(_pairs(value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return format_count(value)
    return str(value) if value not in (None, "") else "not set"


def _pairs(value: Mapping[object, object]) -> Iterator[str]:
    for key, inner in value.items():
        yield f"{key}: {words_of(inner)}"

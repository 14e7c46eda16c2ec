"""The dialog that asks for a card by its memory or its name."""

from __future__ import annotations

from contextlib import suppress

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLineEdit, QWidget

from gpudash.devices.names import SimulatedCard, parse_simulated, size_of
from gpudash.ui.widgets.labels import set_role
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes

PROMPT = "Memory of the card, or its name:"
WIDE_PX = 360


class OwnSizeDialog(QDialog):
    """Stays open until its text names a card; below the text is what it means, or why it means nothing.

    Attributes:
        card: the card; ``None`` until one was accepted.
        field: where it is typed.
        hint: what the text means.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Own Size")
        self.card: SimulatedCard | None = None
        self.field = QLineEdit()
        self.field.setPlaceholderText("12GiB, h100")
        self.field.setAccessibleName("Memory or name of the card")
        self.field.setMinimumWidth(scaled(WIDE_PX))
        self.hint = PlainLabel(role="muted", wraps=True)
        # Two lines: the dialog does not move while it is typed in.
        self.hint.setMinimumHeight(2 * self.hint.fontMetrics().lineSpacing())
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        in_column(PlainLabel(PROMPT), self.field, self.hint, buttons, parent=self, margins=(12, 12, 12, 12), spacing=8)
        self.field.textChanged.connect(self._show_meaning)

    def _show_meaning(self, text: str) -> None:
        """Say how large the card is; while nothing valid is typed yet, nothing."""
        meaning = ""
        with suppress(ValueError):  # said once it is entered
            meaning = f"{text.strip()} = {format_bytes(size_of(parse_simulated(text.strip())))}"
        set_role(self.hint, "muted")
        self.hint.setText(meaning)

    def accept(self) -> None:
        try:
            self.card = parse_simulated(self.field.text().strip())
        except ValueError as error:
            set_role(self.hint, "error")
            self.hint.setText(str(error))
            self.field.setFocus()
            return
        super().accept()

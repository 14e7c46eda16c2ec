"""The settings as a form: checked as it is typed, kept in the settings file, in force at once where that can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QVBoxLayout, QWidget

from gpudash.settings import Settings, settings_file
from gpudash.ui.widgets.fields import Control, is_bytes, make_control, on_change, read_control, tooltip, write_control
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

TITLES: Mapping[str, str] = {
    "rate_hz": "Memory readings a second",
    "warn_ratio": "Warn at",
    "critical_ratio": "Critical at",
    "hysteresis_ratio": "Passed when lower by",
    "guard": "Guard host memory",
    "record": "Record every session",
    "recordings_bytes": "Room for recordings",
    "recordings_count": "Number of recordings",
    "isolate": "Runs in a process of their own",
    "reports_bytes": "Room for out-of-memory reports",
    "reports_keep": "Number of out-of-memory reports",
    "theme": "Look",
    "smoothing": "Smoothing",
    "window_s": "Seconds shown",
    "frames_hz": "Redraws a second",
    "hints": "Hints after the first run",
    "serve": "Serve for Prometheus at",
}
LATER = ("record", "recordings_bytes", "recordings_count", "serve")
"""Settings that concern the recording and the serving, which are opened when a session begins."""


class Preferences(QDialog):
    """One control per setting.

    Args:
        settings: in force now.
        apply: given the new settings when the user accepts them; may raise OSError or ValueError.
    """

    def __init__(self, settings: Settings, apply: Callable[[Settings], bool], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Preferences")
        self._apply = apply
        self._controls: dict[str, Control] = {}
        form = QFormLayout()
        form.setHorizontalSpacing(16)
        for name, field in Settings.model_fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            control = make_control(field, extra)
            later = "\nTakes effect with the next session." if name in LATER else ""
            control.setToolTip(plain_tip(tooltip(field, extra) + later))
            control.setAccessibleName(TITLES[name])
            control.setMinimumWidth(170)
            write_control(control, getattr(settings, name), is_bytes(field))
            on_change(control, self._check)
            label = PlainLabel(TITLES[name])
            label.setBuddy(control)
            label.setToolTip(control.toolTip())
            form.addRow(label, control)
            self._controls[name] = control
        self._problem = PlainLabel()
        self._problem.setProperty("role", "error")
        self._problem.setWordWrap(True)
        where = PlainLabel(f"Kept in {settings_file()}")
        where.setProperty("role", "muted")
        where.setWordWrap(True)
        self._buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Save
            | QDialogButtonBox.StandardButton.Cancel
            | QDialogButtonBox.StandardButton.RestoreDefaults
        )
        self._buttons.accepted.connect(self.accept)
        self._buttons.rejected.connect(self.reject)
        self._buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).clicked.connect(self.restore_defaults)
        layout = QVBoxLayout(self)
        layout.addLayout(form)
        layout.addWidget(self._problem)
        layout.addWidget(where)
        layout.addWidget(self._buttons)
        self._check()

    def control(self, name: str) -> Control:
        """The control of a setting."""
        return self._controls[name]

    def restore_defaults(self) -> None:
        """Fill the form with the defaults; nothing is kept before it is saved."""
        for name, field in Settings.model_fields.items():
            write_control(self._controls[name], field.default, is_bytes(field))
        self._check()

    def settings(self) -> Settings | None:
        """The settings in the form, or ``None`` while one is not allowed."""
        found = self._read()
        return found if isinstance(found, Settings) else None

    def accept(self) -> None:
        """Keep the settings and close; stays open when they cannot be kept."""
        settings = self.settings()
        if settings is not None and self._apply(settings):
            super().accept()

    def _read(self) -> Settings | str:
        values: dict[str, Any] = {name: read_control(control) for name, control in self._controls.items()}
        try:
            settings = Settings.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            title = TITLES.get(str(first["loc"][0])) if first["loc"] else None
            return f"{title}: {message[0].lower()}{message[1:]}" if title else message
        if settings.serve:
            from gpudash.session.serving import setting_problem  # few serve, and it takes a web server with it

            if problem := setting_problem(settings.serve):
                return f"{TITLES['serve']}: {problem}"
        return settings

    def _check(self) -> None:
        found = self._read()
        problem = found if isinstance(found, str) else ""
        self._problem.setText(problem)
        self._buttons.button(QDialogButtonBox.StandardButton.Save).setEnabled(not problem)

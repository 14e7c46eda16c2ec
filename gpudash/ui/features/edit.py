"""The Edit menu: undo, including changes to views; copy, find, and the preferences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import shiboken6
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QLineEdit, QWidget

from gpudash.devices.names import parse_cards
from gpudash.specs.invalid import describe
from gpudash.system.settings import PERCENT, Settings, save_settings, settings_file
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.features.appearance import choose_theme
from gpudash.ui.forms.workload_panel import FormState, WorkloadPanel
from gpudash.ui.widgets.fields import Control, is_bytes, make_control, on_change, read_control, tooltip, write_control
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics
from gpudash.ui.widgets.undo import Undoing
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

COPY_KEYS, PICTURE_KEYS = ("Ctrl+C",), ("Ctrl+Shift+C",)


def commands(workspace: Workspace) -> list[Command]:
    """Make changes to the dashboards' views undoable; returns the commands of Edit."""
    workspace.serve_pages(lambda page: CurveHistory(workspace.undo, page))
    workspace.serve_dashboards(lambda dashboard: LayoutHistory(workspace.undo, dashboard))
    workspace.serve_dashboards(lambda dashboard: FormHistory(workspace.undo, dashboard.panel))
    find = Command(
        "Edit",
        "Find in Output…",
        "Search the output of your own program",
        partial(find_in_output, workspace),
        ("Ctrl+F",),
        id="edit.find",
    )
    return [
        *_undo_commands(workspace),
        Command(
            "Edit",
            "Copy Values",
            "Copy the selection as tab-separated text",
            lambda: (workspace.front or workspace.dashboard).copy_values(),
            COPY_KEYS,
            id="edit.copy_values",
            keys_taken=lambda: _front_has_keys(workspace, COPY_KEYS),
        ),
        Command(
            "Edit",
            "Copy Graph as Image",
            "Copy a picture of the plots",
            lambda: (workspace.front or workspace.dashboard).copy_picture(),
            PICTURE_KEYS,
            id="edit.copy_graph",
            keywords="png picture screenshot",
            keys_taken=lambda: _front_has_keys(workspace, PICTURE_KEYS),
        ),
        *((find,) if workspace.live else ()),
        Command(
            "Edit",
            "Preferences…",
            "Thresholds, rates, recordings and look",
            partial(show_preferences, workspace),
            ("Ctrl+,",),
            id="edit.preferences",
            keywords="settings options configuration",
            separated=True,
            role=QAction.MenuRole.PreferencesRole,
        ),
    ]


def _undo_commands(workspace: Workspace) -> list[Command]:
    undo = workspace.undo
    return [
        Command(
            "Edit",
            "Undo",
            "Undo the last change",
            undo.undo,
            ("Ctrl+Z",),
            id="edit.undo",
            text=lambda: without_mnemonics(f"Undo {undo.undo_text}".strip()),
            why_not=lambda: "" if undo.undo_text else "There is nothing to undo.",
        ),
        Command(
            "Edit",
            "Redo",
            "Redo the change that was undone last",
            undo.redo,
            ("Ctrl+Shift+Z", "Ctrl+Y"),
            id="edit.redo",
            text=lambda: without_mnemonics(f"Redo {undo.redo_text}".strip()),
            why_not=lambda: "" if undo.redo_text else "There is nothing to redo.",
        ),
    ]


def show_preferences(workspace: Workspace) -> None:
    """Open the preferences with the current settings, including the theme, which has its own menu."""
    settings = workspace.session.settings.model_copy(update={"theme": workspace.theme})
    Preferences(settings, partial(_keep, workspace), workspace).open()


def find_in_output(workspace: Workspace) -> None:
    """Show the output of the user's own program, with the search field focused."""
    dashboard = workspace.show_a_dashboard()
    if dashboard.tabs.collapsed:
        dashboard.toggle_tables()
    dashboard.tabs.show_output()
    dashboard.tabs.output.search.setFocus()
    dashboard.tabs.output.search.selectAll()


def _front_has_keys(workspace: Workspace, keys: tuple[str, ...]) -> bool:
    """Whether the current document handles one of ``keys`` itself: two owners would make the shortcut ambiguous.

    Documents with a dashboard leave these keys to the window.
    """
    document = workspace.front
    if document is None or document.plots_page is not None:
        return False
    sequences = list(map(QKeySequence, keys))
    return any(shortcut.key() in sequences for shortcut in document.findChildren(QShortcut))


def _keep(workspace: Workspace, settings: Settings) -> bool:
    """Save the settings to their file and use them; returns whether they could be saved."""
    if not workspace.attempt(lambda: save_settings(settings.model_dump())):
        return False
    workspace.apply_settings(settings)
    if settings.theme != workspace.theme:
        choose_theme(workspace, settings.theme)
    return True


TITLES: Mapping[str, str] = {
    "rate_hz": "Memory readings a second",
    "warn_ratio": "Warn at",
    "critical_ratio": "Critical at",
    "hysteresis_ratio": "Clear the warning this far below",
    "guard": "Guard host memory",
    "record": "Record every session",
    "recordings_bytes": "Disk space for recordings",
    "recordings_count": "Number of recordings",
    "ask_cudnn": "Ask cuDNN about convolutions",
    "isolate": "Run workloads in a separate process",
    "reports_bytes": "Disk space for out-of-memory reports",
    "reports_keep": "Number of out-of-memory reports",
    "theme": "Theme",
    "smoothing": "Smoothing",
    "window_s": "Seconds shown",
    "frames_hz": "Redraws a second",
    "cards": "Cards to choose from",
    "cards_order": "Order of these cards",
    "serve": "Serve Prometheus metrics at",
    "notify": "Notify",
}
EMPTY = {
    "cards": "usual; or rtx5090, 12GiB",
    "serve": "off; for example :10950",
    "notify": "off; for example ntfy:TOPIC",
}
"""The meaning of an empty setting, and an example of another value."""

LATER = ("record", "recordings_bytes", "recordings_count", "serve", "notify")
"""Settings of recordings, serving and notifications, which take effect when the next session begins."""


class Preferences(QDialog):
    """A dialog with one control per setting.

    Args:
        settings: the current settings.
        apply: called with the new settings when the user accepts them; returns whether they could be saved.
    """

    def __init__(self, settings: Settings, apply: Callable[[Settings], bool], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Preferences")
        self._apply = apply
        self._controls: dict[str, Control] = {}
        form = QFormLayout()
        form.setHorizontalSpacing(16)
        for name, field in Settings.model_fields.items():
            extra = {}
            if isinstance(field.json_schema_extra, dict):
                extra = field.json_schema_extra
            control = make_control(field, extra)
            later = ""
            if name in LATER:
                later = "\nTakes effect with the next session."
            control.setToolTip(plain_tip(tooltip(field, extra) + later))
            control.setAccessibleName(TITLES[name])
            control.setMinimumWidth(200)
            if isinstance(control, QLineEdit):
                control.setPlaceholderText(EMPTY.get(name, ""))
            self._write(name, control, getattr(settings, name))
            on_change(control, self._check)
            label = PlainLabel(TITLES[name])
            label.setBuddy(control)
            label.setToolTip(control.toolTip())
            form.addRow(label, control)
            self._controls[name] = control
        self._problem = PlainLabel(role="error", wraps=True)
        where = PlainLabel(f"Settings file: {settings_file()}", role="muted", wraps=True)
        self._buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Save
            | QDialogButtonBox.StandardButton.Cancel
            | QDialogButtonBox.StandardButton.RestoreDefaults,
            parent=self,  # set now, or its buttons get icons without the window's style sheet
        )
        self._buttons.accepted.connect(self.accept)
        self._buttons.rejected.connect(self.reject)
        self._buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).clicked.connect(self.restore_defaults)
        in_column(form, self._problem, where, self._buttons, parent=self)
        self._check()

    def control(self, name: str) -> Control:
        """The control for a setting."""
        return self._controls[name]

    def restore_defaults(self) -> None:
        """Fill the form with the defaults; they are saved only by Save."""
        for name, field in Settings.model_fields.items():
            self._write(name, self._controls[name], field.default)
        self._check()

    def settings(self) -> Settings | None:
        """The settings in the form, or ``None`` if one is invalid."""
        found = self._read()
        if isinstance(found, Settings):
            return found
        return None

    def accept(self) -> None:
        """Save the settings and close; stay open if they cannot be saved."""
        settings = self.settings()
        if settings is not None and self._apply(settings):
            super().accept()

    def _write(self, name: str, control: Control, value: Any) -> None:
        field = Settings.model_fields[name]
        in_percent = _unit(field) == PERCENT
        write_control(control, round(value * 100, 6) if in_percent else value, is_bytes(field))

    def _value(self, name: str, control: Control) -> Any:
        """A control's value as the setting takes it; text that is not a number stays as typed."""
        value = read_control(control)
        if value is None or _unit(Settings.model_fields[name]) != PERCENT:
            return value
        try:
            return float(value.removesuffix(PERCENT)) / 100
        except ValueError:
            return value

    def _read(self) -> Settings | str:
        values = {name: self._value(name, control) for name, control in self._controls.items()}
        try:
            settings = Settings.model_validate(values)
        except ValidationError as error:
            return self._wrong(error.errors()[0])
        try:
            parse_cards(settings.cards)
        except ValueError as error:
            return f"{TITLES['cards']}: {error}"
        if settings.serve:
            from gpudash.session.serving import setting_problem  # imports a web server, which few users need

            if problem := setting_problem(settings.serve):
                return f"{TITLES['serve']}: {problem}"
        if settings.notify:
            from gpudash.session.live.notifying import parse_target

            try:
                parse_target(settings.notify)
            except ValueError as error:
                return f"{TITLES['notify']}: {error}"
        return settings

    def _wrong(self, problem: ErrorDetails) -> str:
        """A sentence about what is wrong, with settings named by their titles and ratios in percent."""
        if not problem["loc"]:
            message = problem["msg"].removeprefix("Value error, ")
            return re.sub(r"\w+", lambda word: f"“{TITLES[word[0]]}”" if word[0] in TITLES else word[0], message)
        name = str(problem["loc"][0])
        unit = _unit(Settings.model_fields[name])
        if unit == PERCENT:
            problem["ctx"] = {limit: value * 100 for limit, value in problem.get("ctx", {}).items()}
        return f"{TITLES[name]}: {describe(problem, read_control(self._controls[name]), unit)}"

    def _check(self) -> None:
        found = self._read()
        problem = ""
        if isinstance(found, str):
            problem = found
        self._problem.setText(problem)
        self._buttons.button(QDialogButtonBox.StandardButton.Save).setEnabled(not problem)


def _unit(field: FieldInfo) -> str | None:
    """The unit of a setting."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "unit" in extra:
        return str(extra["unit"])
    return None


Hidden = Mapping[str, frozenset[str]]
"""Plot id → names of its hidden curves."""


class CurveHistory(QObject):
    """Makes hiding and showing curves undoable.

    Args:
        undoing: the window's undo stack.
        page: the page with the plots.
    """

    def __init__(self, undoing: Undoing, page: PlotsPage) -> None:
        super().__init__(page)
        self._undoing, self._plots = undoing, page.plots
        self._hidden: Hidden = self._hidden_now()
        page.plots.hidden_changed.connect(self._hidden_changed)
        page.refreshed.connect(self._settle)

    def _settle(self) -> None:
        """Take the current state as the baseline for the user's next change: the window makes changes too."""
        self._hidden = self._hidden_now()

    def _hidden_now(self) -> Hidden:
        return {plot.spec.id: plot.hidden for plot in self._plots.plots}

    def _hidden_changed(self) -> None:
        before, after = self._hidden, self._hidden_now()
        self._hidden = after
        hides = sorted({name for plot, names in after.items() for name in names - before.get(plot, frozenset())})
        shows = sorted({name for plot, names in before.items() for name in names - after.get(plot, frozenset())})
        if hides:
            self._push_hidden(f"Hide {_named(hides)}", before, after)
        elif shows:
            self._push_hidden(f"Show {_named(shows)}", before, after)

    def _push_hidden(self, text: str, before: Hidden, after: Hidden) -> None:
        self._undoing.push(text, partial(self._hide, before), partial(self._hide, after))

    def _hide(self, hidden: Hidden) -> None:
        _require_open(self._plots)
        for plot in self._plots.plots:
            plot.legend.set_hidden(hidden.get(plot.spec.id, frozenset()))


class LayoutHistory(QObject):
    """Makes changes to the split between plots and tables undoable.

    Args:
        undoing: the window's undo stack.
        dashboard: the dashboard whose tables can be collapsed.
    """

    def __init__(self, undoing: Undoing, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._undoing = undoing
        self._tabs, self._splitter = dashboard.tabs, dashboard.splitter
        self._settle()
        dashboard.tabs.collapsed_changed.connect(self._collapsed_changed)
        dashboard.splitter.splitterMoved.connect(self._moved)
        dashboard.refreshed.connect(self._settle)

    def _settle(self) -> None:
        """Take the current state as the baseline for the user's next change."""
        self._collapsed = self._tabs.collapsed
        self._sizes = self._splitter.sizes()

    def _collapsed_changed(self) -> None:
        before, after = self._collapsed, self._tabs.collapsed
        self._collapsed = after
        if before != after:
            text = "Show Tables"
            if after:
                text = "Hide Tables"
            self._undoing.push(text, partial(self._collapse, before), partial(self._collapse, after))

    def _collapse(self, collapsed: bool) -> None:
        _require_open(self._tabs)
        self._tabs.set_collapsed(collapsed)
        self._tabs.collapsed_changed.emit()

    def _moved(self) -> None:
        before, after = self._sizes, self._splitter.sizes()
        self._sizes = after
        self._undoing.push(
            "Change Layout",
            partial(self._resize, before),
            partial(self._resize, after),
            kind=f"splitter {id(self._splitter)}",
        )

    def _resize(self, sizes: list[int]) -> None:
        _require_open(self._tabs)
        self._splitter.setSizes(sizes)
        self._splitter.splitterMoved.emit(sizes[0], 1)


class FormHistory(QObject):
    """Makes changes that the window made to the form undoable: a change that would fit, another batch size.

    Args:
        undoing: the window's undo stack.
        panel: the panel with the form.
    """

    def __init__(self, undoing: Undoing, panel: WorkloadPanel) -> None:
        super().__init__(panel)
        self._undoing = undoing
        self._panel = panel
        panel.replaced.connect(self._replaced)

    def _replaced(self, text: str, before: FormState, after: FormState, kind: str, drag: int) -> None:
        undo, redo = partial(self._put_back, before), partial(self._put_back, after)
        self._undoing.push(text, undo, redo, kind=kind, drag=drag)

    def _put_back(self, state: FormState) -> None:
        _require_open(self._panel)
        self._panel.put_back(state)


def _require_open(part: QObject) -> None:
    if not shiboken6.isValid(part):
        raise RuntimeError("The tab that this was done in is closed.")


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names)} Curves"

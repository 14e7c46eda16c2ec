"""How the window looks: its layout, its theme, its text size, and presentation mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import shiboken6
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QMenuBar, QSplitter, QWidget

from gpudash.system.settings import save_settings
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.widgets.text_size import SIZES, text_scale
from gpudash.ui.widgets.theme import Choice, restyle
from gpudash.ui.window.compact_card import CompactCards
from gpudash.ui.window.main_window import default_place, forget_layout
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

_TEXT_SIZE = "text_size"
"""Key under which the chosen size is remembered."""

USUAL_KEY = "Ctrl+0"
"""With Alt, the keys that zoom a plot change the text size; this one is free without."""


def commands(workspace: Workspace) -> list[Command]:
    """Restore the chosen text size; returns the commands of View that change the layout and the look."""
    return [*_layout_commands(workspace), *_appearance_commands(workspace)]


def _layout_commands(workspace: Workspace) -> list[Command]:
    compact_cards = CompactCards(workspace)
    workspace.serve_dashboards(partial(_place_panel, workspace))
    workspace.dashboard.chooser.own_changed.connect(partial(keep_cards, workspace, "cards"))
    workspace.dashboard.chooser.order_changed.connect(partial(keep_cards, workspace, "cards_order"))
    return [
        Command(
            "View",
            "Next Tab",
            "Switch to the next document, after the last one to the dashboard",
            workspace.show_next,
            ("Ctrl+Tab",),
            id="view.next_tab",
            why_not=lambda: "" if workspace.count else "No document is open.",
            separated=True,
        ),
        Command(
            "View",
            "Show or Hide Tables",
            "Collapse the tables to their bar, or open them",
            lambda: workspace.target_dashboard.toggle_tables(),
            ("F9",),
            id="view.tables",
            separated=True,
        ),
        Command(
            "View",
            "Workload Panel",
            "Show the panel at the left",
            workspace.show_panels,
            ("F8",),
            id="view.panel",
            checked=lambda: workspace.panel_shown,
        ),
        Command(
            "View",
            "Compact Card",
            "Show the device's memory in a small window that stays on top, or close it; on Wayland it may be "
            "unable to stay there",
            compact_cards.toggle,
            id="view.compact_card",
        ),
        Command(
            "View",
            "Full Screen",
            "Use the whole screen",
            partial(_fill_screen, workspace),
            ("F11",),
            id="view.full_screen",
            checked=lambda: workspace.window().isFullScreen(),
            separated=True,
        ),
        Command(
            "View",
            "Reset Layout",
            "Restore the layout of the first start",
            partial(reset_layout, workspace),
            id="view.reset_layout",
        ),
    ]


def _appearance_commands(workspace: Workspace) -> list[Command]:
    presentation = Presentation(workspace)
    sizes = _TextSize(workspace)
    return [
        *(
            Command(
                "View/Theme",
                choice.capitalize(),
                f"Use the {choice} look",
                partial(_take_theme, workspace, choice),
                id=f"view.theme.{choice}",
                after="view.panel",
                checked=partial(_has_theme, workspace, choice),
                group="theme",
            )
            for choice in get_args(Choice)
        ),
        *(
            Command(
                "View/Text Size",
                _percent(size),
                f"Draw text at {_percent(size)} of the system's size",
                partial(sizes.take, size),
                (USUAL_KEY,) if size == 1.0 else (),
                id=f"view.text_size.{size:.0%}".removesuffix("%"),
                after="view.panel",
                checked=partial(sizes.has, size),
                group="text size",
                why_not=partial(_why_no_size, workspace),
            )
            for size in SIZES
        ),
        Command(
            "View/Text Size",
            "Larger Text",
            "Draw text in the next larger size",
            sizes.enlarge,
            ("Ctrl+Alt++", "Ctrl+Alt+="),
            id="view.larger_text",
            after="view.panel",
            why_not=partial(_why_no_size, workspace),
            separated=True,
            keywords="font zoom",
        ),
        Command(
            "View/Text Size",
            "Smaller Text",
            "Draw text in the next smaller size",
            sizes.reduce,
            ("Ctrl+Alt+-",),
            id="view.smaller_text",
            after="view.panel",
            why_not=partial(_why_no_size, workspace),
            keywords="font zoom",
        ),
        Command(
            "View",
            "Presentation Mode",
            "Large text and thick lines, with only cards, warnings and plots; Esc leaves it",
            presentation.set_on,
            ("F10",),
            id="view.presentation",
            after="view.panel",
            checked=lambda: presentation.on,
        ),
    ]


def keep_cards(workspace: Workspace, name: str, value: str) -> None:
    """Save the user's own cards, or their order, in the setting of that name."""
    workspace.attempt(partial(save_settings, {name: value}))
    workspace.session.set_settings(workspace.session.settings.model_copy(update={name: value}))


def choose_theme(workspace: Workspace, choice: Choice) -> None:
    """Use the theme ``choice``."""
    workspace.theme = choice
    workspace.theme_chosen.emit(choice)
    workspace.attempt(partial(save_settings, {"theme": choice}))
    workspace.changed.emit()


def _take_theme(workspace: Workspace, choice: Choice, chosen: bool) -> None:
    if chosen and choice != workspace.theme:
        choose_theme(workspace, choice)


def _has_theme(workspace: Workspace, choice: Choice) -> bool:
    return choice == workspace.theme


class _TextSize:
    """The text size; presentation mode has its own and restores this one."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.chosen = text_scale()
        size = recall(_TEXT_SIZE)
        if isinstance(size, int | float):  # an earlier version offered others
            self.take(min(SIZES, key=lambda offered: abs(offered - size)), True)

    def has(self, size: float) -> bool:
        """Whether text is scaled by ``size`` relative to the system's size."""
        return size == self.chosen

    def take(self, size: float, chosen: bool) -> None:
        """Scale text by ``size`` relative to the system's size, if ``chosen``."""
        if chosen and size != self.chosen:
            self.chosen = size
            restyle(self._workspace.window(), self._workspace.colours, size)
            self._workspace.fit_panels()
            remember(_TEXT_SIZE, size)

    def enlarge(self) -> None:
        """Take the next larger size."""
        self._step(min((size for size in SIZES if size > self.chosen), default=self.chosen))

    def reduce(self) -> None:
        """Take the next smaller size."""
        self._step(max((size for size in SIZES if size < self.chosen), default=self.chosen))

    def _step(self, size: float) -> None:
        if size == self.chosen:
            self._workspace.report(f"Text is at {_percent(size)} already.")
        self.take(size, True)
        self._workspace.changed.emit()


def _why_no_size(workspace: Workspace) -> str:
    if workspace.presenting:
        return "Presentation mode has a text size of its own."
    return ""


def _percent(size: float) -> str:
    return f"{size:.0%}".replace("%", " %")


def _place_panel(workspace: Workspace, dashboard: Dashboard) -> None:
    dashboard.show_panel(workspace.panel_shown)
    dashboard.panel.fit_width()


def _fill_screen(workspace: Workspace, full: bool) -> None:
    """Switch to full screen or back."""
    window = workspace.window()
    if full:
        window.showFullScreen()
    else:
        window.showNormal()


def reset_layout(workspace: Workspace) -> None:
    """Reset the layout to that of the first start."""
    window = workspace.window()
    forget_layout()
    window.showNormal()
    window.setGeometry(default_place(window))
    workspace.show_panels(True)
    for page in workspace.pages:
        page.reset_layout()
    workspace.changed.emit()


SCALE, LARGE_SCALE = 1.5, 2.25
"""Text scale in a window of ordinary height, and in a tall one, where pixels are small: there the tick labels of a
plot have 18 pt."""

TALL_PX = 1300
"""Height in logical pixels above which a window is tall."""


@dataclass(frozen=True, slots=True)
class _Before:
    """The state before: the text size, whether each part was hidden, and the sizes in the splitters."""

    scale: float
    hidden: dict[QWidget, bool] = field(default_factory=dict)
    sizes: dict[QSplitter, list[int]] = field(default_factory=dict)


class Presentation(QObject):
    """Presentation mode; Esc leaves it too.

    Args:
        workspace: the contents of the window to present.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._before: _Before | None = None
        workspace.front_changed.connect(self._follow)
        workspace.serve_pages(lambda _page: self._follow())
        workspace.closing.connect(lambda: self.set_on(False))

    @property
    def on(self) -> bool:
        """Whether the mode is on."""
        return self._before is not None

    def set_on(self, on: bool) -> None:
        """Enter the mode, or leave it and restore everything."""
        if on != self.on:
            if on:
                self._enter()
            else:
                self._leave()
            self._workspace.presenting = on
            self._workspace.fit_panels()
            self._workspace.changed.emit()

    def _follow(self) -> None:
        """Hide the chrome of a tab that opens while the mode is on."""
        if self._before is not None:
            self._hide_chrome(self._before)

    def _hide_chrome(self, before: _Before) -> None:
        workspace = self._workspace
        parts: list[QWidget] = list(workspace.window().findChildren(QMenuBar))
        for dashboard in workspace.dashboards:
            parts += [dashboard.left, dashboard.tabs, dashboard.chooser]
            dashboard.plots.set_presented(True)
        parts += [page.status_line for page in workspace.pages]
        for part in parts:
            before.hidden.setdefault(part, part.isHidden())
        for part in (*parts, workspace.bar):
            part.hide()

    def _enter(self) -> None:
        window = self._workspace.window()
        sizes: dict[QSplitter, list[int]] = {
            dashboard.splitter: dashboard.splitter.sizes() for dashboard in self._workspace.dashboards
        }
        self._before = _Before(text_scale(), sizes=sizes)
        self._hide_chrome(self._before)
        application = _application()
        scale = SCALE
        if window.height() >= TALL_PX:
            scale = LARGE_SCALE
        restyle(window, self._workspace.colours, max(scale, text_scale()))
        application.installEventFilter(self)

    def _leave(self) -> None:
        before, self._before = self._before, None
        assert before is not None
        application = _application()
        application.removeEventFilter(self)
        restyle(self._workspace.window(), self._workspace.colours, before.scale)
        for part, hidden in before.hidden.items():
            if shiboken6.isValid(part):  # its tab may have been closed in the meantime
                part.setHidden(hidden)
        for dashboard in self._workspace.dashboards:
            dashboard.plots.set_presented(False)
        self._workspace.bar.setVisible(self._workspace.count > 0)
        for splitter, sizes in before.sizes.items():
            if shiboken6.isValid(splitter):
                splitter.setSizes(sizes)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Leave on Esc in the window itself; a dialog, a menu, a result or an explanation is closed by it first."""
        if isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape and self._target():
            if event.type() is QEvent.Type.ShortcutOverride:
                event.accept()
                return True
            if event.type() is QEvent.Type.KeyPress:
                if not self._workspace.target_dashboard.uncover():
                    self.set_on(False)
                return True
        return False

    def _target(self) -> bool:
        no_other = QApplication.activePopupWidget() is None and QApplication.activeModalWidget() is None
        return no_other and QApplication.activeWindow() is self._workspace.window()


def _application() -> QApplication:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return application

"""Presentation mode: large type and thick lines, and nothing on the screen but cards, warnings and plots."""

from __future__ import annotations

from dataclasses import dataclass, field

import shiboken6
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QMenuBar, QSplitter, QWidget

from gpudash.ui.widgets.text_size import text_scale
from gpudash.ui.widgets.theme import restyle
from gpudash.ui.window.workspace import Workspace

SCALE, LARGE_SCALE = 1.5, 2.0
"""How large words are drawn in a window of usual height, and in a tall one, whose pixels are small."""

TALL_PX = 1300
"""Logical pixels of height from which a window is tall."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What was shown: the text size, each part with whether it was hidden, and the places of the splitters."""

    scale: float
    hidden: dict[QWidget, bool] = field(default_factory=dict)
    sizes: dict[QSplitter, list[int]] = field(default_factory=dict)


class Presentation(QObject):
    """Enters and leaves the mode; Esc leaves it too.

    Args:
        workspace: what is presented, in its window.
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
        """Enter the mode, or leave it and put everything back."""
        if on != self.on:
            if on:
                self._enter()
            else:
                self._leave()
            self._workspace.presenting = on
            self._workspace.fit_panels()
            self._workspace.changed.emit()

    def _follow(self) -> None:
        """Hide the chrome of a tab that has come while the mode is on, too."""
        if self._before is not None:
            self._hide_chrome(self._before)

    def _hide_chrome(self, before: _Before) -> None:
        workspace = self._workspace
        parts: list[QWidget] = list(workspace.window().findChildren(QMenuBar))
        for dashboard in workspace.dashboards:
            parts += [dashboard.panel, dashboard.tabs]
        parts += [page.status_line for page in workspace.pages]
        for part in parts:
            before.hidden.setdefault(part, part.isHidden())
        for part in (*parts, workspace.bar):
            part.hide()

    def _enter(self) -> None:
        window = self._workspace.window()
        sizes = {dashboard.splitter: dashboard.splitter.sizes() for dashboard in self._workspace.dashboards}
        self._before = _Before(text_scale(), sizes=sizes)
        self._hide_chrome(self._before)
        application = _application()
        scale = LARGE_SCALE if window.height() >= TALL_PX else SCALE
        restyle(window, self._workspace.colours, max(scale, text_scale()))
        application.installEventFilter(self)

    def _leave(self) -> None:
        before, self._before = self._before, None
        assert before is not None
        application = _application()
        application.removeEventFilter(self)
        restyle(self._workspace.window(), self._workspace.colours, before.scale)
        for part, hidden in before.hidden.items():
            if shiboken6.isValid(part):  # its tab may have been closed meanwhile
                part.setHidden(hidden)
        self._workspace.bar.setVisible(self._workspace.count > 0)
        for splitter, sizes in before.sizes.items():
            if shiboken6.isValid(splitter):
                splitter.setSizes(sizes)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Esc in the window itself leaves; in a dialog or a menu over it, it means that one."""
        if isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape and self._meant():
            if event.type() is QEvent.Type.ShortcutOverride:
                event.accept()
                return True
            if event.type() is QEvent.Type.KeyPress:
                self.set_on(False)
                return True
        return False

    def _meant(self) -> bool:
        no_other = QApplication.activePopupWidget() is None and QApplication.activeModalWidget() is None
        free = no_other and not self._workspace.escape_taken
        return free and QApplication.activeWindow() is self._workspace.window()


def _application() -> QApplication:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return application

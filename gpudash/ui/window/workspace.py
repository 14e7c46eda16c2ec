"""The contents of the window: the live session's dashboard and the open documents, and what can be done with them.

All features and parts of the window share a workspace: it shows tabs, opens files and reports messages. A tab bar
appears above the dashboard while a document is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QMessageBox, QStackedWidget, QTabBar, QToolButton, QWidget

from gpudash.session.live.running import A_RUN_IS_ON
from gpudash.session.recordings.file_kinds import FoundFile, Kind, find_file, form_input
from gpudash.session.source import DashboardSource
from gpudash.system.settings import Settings
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.document import Document
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.dashboard.status_line import StatusLine
from gpudash.ui.forms.last_form import remember_form
from gpudash.ui.forms.workload_panel import put_into_panel
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.notice import Notice
from gpudash.ui.widgets.plain_text import message_box, plain_tip, without_mnemonics
from gpudash.ui.widgets.remembered import add_recent
from gpudash.ui.widgets.theme import Choice
from gpudash.ui.widgets.undo import Undoing
from gpudash.ui.window.dropping import leave_drops
from gpudash.ui.window.menus import Command

DASHBOARD = "Dashboard"
"""Title of the first tab, which is always present."""

LONGEST_TITLE = 32
"""Maximum length of a tab's title in characters; the tooltip has the whole path."""

LEAST_PX = QSize(960, 570)
"""Logical pixels: what every page is laid out for at least. A smaller window scrolls it."""


class Workspace(QWidget):
    """The live dashboard and the documents; one of them is visible.

    Args:
        session: shown in the first tab, and used to start runs; it is not closed here.
        colours: the initial palette.

    Attributes:
        dashboard: the dashboard of `session`, visible while no document is.
        colours: the palette in use.
        undo: the undo stack.
        notice: a strip at the bottom with the outcome of opening or writing a file.
        status_line: the status line of documents that have no session plots and hence none of their own.
        openers: kind of file → creates a document for it; an OSError, ValueError or RuntimeError it raises is
            reported.
        commands: the window's commands in menu order; set by the window.
        theme: the user's choice.
        panel_shown: whether to show the panels at the left of the dashboards.
        hidden_marks: categories of marks hidden in all plots.
        presenting: whether presentation mode is on.
        playing_demo: whether the demo is running.

    Signals:
        front_changed: another tab became the current one.
        changed: texts or availability of commands may have changed.
        refreshed: a frame has been drawn.
        closing: the window is closing; its documents are still open.
        action: a button of a banner or a result was pressed: its action, and the event shown beside it.
        theme_chosen: the user chose "system", "light" or "dark".
        settings_changed: these `Settings` are now in use.
        colours_changed: everything has been drawn in new colours.
    """

    front_changed = Signal()
    changed = Signal()
    refreshed = Signal()
    closing = Signal()
    action = Signal(str, object)
    theme_chosen = Signal(str)
    settings_changed = Signal(object)
    colours_changed = Signal()

    def __init__(self, session: DashboardSource, colours: Palette) -> None:
        super().__init__()
        self.session = session
        self.colours = colours
        self.dashboard = Dashboard(session, colours)
        self.undo = Undoing(self)
        self.openers: dict[Kind, Callable[[FoundFile], Document]] = {}
        self.commands: Sequence[Command] = ()
        self.theme: Choice = session.settings.theme
        self.panel_shown = True
        self.hidden_marks: frozenset[str] = frozenset()
        self.presenting = self.playing_demo = False
        self._servers: list[Callable[[Dashboard], object]] = []
        self._page_servers: list[Callable[[PlotsPage], object]] = []
        self._closers: list[Callable[[], bool]] = []
        self._open: dict[Path | str, Document] = {}
        self._titles: dict[Document, str] = {}
        self.notice = Notice(self, self._banner_height)
        self.status_line = StatusLine()
        self.status_line.hide()
        self.bar = _Tabs()
        self._stack = _Pages()
        self._build()
        self.bar.currentChanged.connect(self._show)
        self.front_changed.connect(self.changed)
        self.undo.changed.connect(self.changed)
        self.undo.failed.connect(self.notice.report)
        self.dashboard.start_requested.connect(self.start_run)
        self.dashboard.action.connect(self.action)

    def _build(self) -> None:
        self.bar.setAccessibleName("Dashboard and open documents")
        self.bar.setExpanding(False)
        self.bar.setDrawBase(False)
        self.bar.setDocumentMode(True)
        self.bar.setElideMode(Qt.TextElideMode.ElideMiddle)
        self.bar.addTab(DASHBOARD)
        self.bar.setTabToolTip(0, "What this computer is doing now")
        self.bar.hide()
        self._stack.addWidget(self.dashboard)
        in_column(self.bar, (self._stack, 1), self.status_line, parent=self, margins=(0, 0, 0, 0), spacing=0)

    def minimumSizeHint(self) -> QSize:
        return super().minimumSizeHint().boundedTo(LEAST_PX)

    def heightForWidth(self, _width: int) -> int:
        """The least height, too: Qt's own is what wrapped text prefers, and would be scrolled in windows with room."""
        return self.minimumSizeHint().height()

    def _banner_height(self) -> int:
        """Height of what the dashboard says at its bottom, which a notice leaves in sight."""
        if self.dashboard.banner.isVisible():
            return self.dashboard.banner.height()
        return 0

    @property
    def live(self) -> bool:
        """Whether there is a live session, which can be controlled; a recording is read-only."""
        return self.session.live is not None

    @property
    def front(self) -> Document | None:
        """The current document; ``None`` while the dashboard is current."""
        shown = self._stack.currentWidget()
        return next((document for document in self._open.values() if document is shown), None)

    @property
    def front_dashboard(self) -> Dashboard | None:
        """The current dashboard: the live one, or that of the current recording."""
        front = self.front
        if front is None:
            return self.dashboard
        return front.dashboard

    @property
    def front_page(self) -> PlotsPage | None:
        """The current plots: a dashboard's, or those of a GPU's past."""
        front = self.front
        if front is None:
            return self.dashboard
        return front.plots_page

    @property
    def target(self) -> PlotsPage:
        """The plots that commands act on: the current ones, or else those of the live dashboard."""
        return self.front_page or self.dashboard

    @property
    def target_dashboard(self) -> Dashboard:
        """The dashboard that commands act on: the current one, or else the live one."""
        return self.front_dashboard or self.dashboard

    @property
    def front_title(self) -> str:
        """The full title of the current tab; "" for the dashboard."""
        return next((title for document, title in self._titles.items() if document is self.front), "")

    @property
    def count(self) -> int:
        """The number of open documents."""
        return len(self._open)

    @property
    def dashboards(self) -> list[Dashboard]:
        """The live dashboard and those of all open recordings."""
        return [self.dashboard, *(d.dashboard for d in self._open.values() if d.dashboard is not None)]

    @property
    def pages(self) -> list[PlotsPage]:
        """All pages with session plots: those of the dashboards, and of each GPU's past."""
        return [self.dashboard, *(d.plots_page for d in self._open.values() if d.plots_page is not None)]

    def document(self, path: Path | str) -> Document | None:
        """The document added under ``path``; ``None`` if there is none."""
        return self._open.get(path)

    def is_open(self, path: Path | str) -> bool:
        """Whether there is a document under ``path``."""
        return path in self._open

    def show_path(self, path: Path | str) -> bool:
        """Switch to the document added under ``path``; false if it is not open."""
        document = self._open.get(path)
        if document is not None:
            self.bar.setCurrentIndex(self._stack.indexOf(document))
        return document is not None

    def show_dashboard(self) -> None:
        """Switch to the dashboard."""
        self.bar.setCurrentIndex(0)

    def show_a_dashboard(self) -> Dashboard:
        """The current dashboard; if there is none, switch to the live one."""
        if self.front_dashboard is None:
            self.show_dashboard()
        return self.target_dashboard

    def show_next(self) -> None:
        """Switch to the next tab; after the last one, to the dashboard."""
        self.bar.setCurrentIndex((self.bar.currentIndex() + 1) % self.bar.count())

    def open(self, path: Path, *, remember: bool = True, run: int | None = None) -> bool:
        """Open a file, or the folder of an out-of-memory report; a failure is reported in one sentence.

        Args:
            path: the file or folder.
            remember: whether to add it to the recent files.
            run: the run of a recording to show, counted from 1; without it, the view is left alone.
        """
        try:
            file = find_file(path)
        except ValueError as error:
            self.notice.report(str(error))
            return False
        self.open_file(file, remember=remember, run=run)
        return True

    def open_file(self, file: FoundFile, *, remember: bool = True, run: int | None = None) -> None:
        """As `open`, for a file that `find_file` has found."""
        self.notice.dismiss()
        if remember:
            add_recent(file.path)
        if not self.show_path(file.path):
            # Documents are keyed by path: if it is open already, its tab comes to the front, and nothing is read
            # twice.
            try:
                self.add(self.openers[file.kind](file), file.path, file.title)
            except (OSError, ValueError, RuntimeError) as error:
                self.notice.report(f"{file.title} cannot be opened: {error}")
                return
        if run is not None:
            self._open[file.path].show_run(run)

    def open_dropped(self, paths: Iterable[Path], arguments: str = "") -> None:
        """Open dropped or chosen files. A Python file becomes the script to run, with ``arguments`` as typed in a
        shell, a model folder the model."""
        for path in paths:
            taken = form_input(path)
            if taken is None or not self.live:
                self.open(path)
                continue
            self.show_dashboard()
            if taken == "script":
                self.dashboard.panel.take_script(path, arguments)
            else:
                self.dashboard.panel.take_model(path)
            self.dashboard.show_form()

    def add(self, document: Document, path: Path | str, title: str) -> None:
        """Open a tab for ``document`` and switch to it.

        Args:
            document: closed together with its tab.
            path: the file it shows, or a unique name.
            title: the tab's title; the tooltip of a file shows its whole path.
        """
        self._open[path], self._titles[document] = document, title
        document.closed.connect(lambda: self.close_document(document))
        document.said.connect(self.report)
        document.retitled.connect(lambda: self._retitle(document))
        leave_drops(document)
        self._stack.addWidget(document)
        row = self.bar.addTab(_tab_text(document, title))
        # Only a file has a path to show.
        self.bar.setTabToolTip(row, plain_tip(str(path) if isinstance(path, Path) else title))
        self.bar.setTabButton(row, QTabBar.ButtonPosition.RightSide, self._close_button(document, title))
        self.bar.show()
        self.bar.setCurrentIndex(row)

    def _retitle(self, document: Document) -> None:
        """Change a document's title: a comparison knows the names of its runs only after reading them."""
        self._titles[document] = title = document.title
        row = self._stack.indexOf(document)
        self.bar.setTabText(row, _tab_text(document, title))
        self.bar.setTabToolTip(row, plain_tip(document.title_tip or title))
        button = self.bar.tabButton(row, QTabBar.ButtonPosition.RightSide)
        if button is not None:
            button.setAccessibleName(f"Close {title}")
        if document is self.front:
            self.front_changed.emit()

    def serve_dashboards(self, serve: Callable[[Dashboard], object]) -> None:
        """Call ``serve`` with every existing dashboard, and with each new one as soon as it is ready."""
        self._servers.append(serve)
        for dashboard in self.dashboards:
            serve(dashboard)

    def serve_pages(self, serve: Callable[[PlotsPage], object]) -> None:
        """Call ``serve`` with every existing page of plots, and with each new one as soon as it is ready."""
        self._page_servers.append(serve)
        for page in self.pages:
            serve(page)

    def serve(self, document: Document) -> None:
        """Let commands act on a document's contents: a loaded recording, or a GPU of a fleet."""
        page, dashboard = document.plots_page, document.dashboard
        if dashboard is not None:
            dashboard.action.connect(self.action)
            for serve in self._servers:
                serve(dashboard)
        if page is not None:  # after the dashboard's: features that hide its parts must come last
            for serve_page in self._page_servers:
                serve_page(page)

    def _close_button(self, document: Document, title: str) -> QToolButton:
        button = QToolButton()
        button.setText("×")
        button.setAccessibleName(f"Close {title}")
        button.setToolTip("Close (Ctrl+W)")
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        button.clicked.connect(lambda: self.close_document(document))
        return button

    def close_front(self) -> None:
        """Close the current document; the dashboard stays."""
        if self.front is not None:
            self.close_document(self.front)

    def close_document(self, document: Document) -> None:
        """Close ``document`` and stop reading its file; does nothing if it is closed already."""
        # Also called by a document's own signal after it was closed from here.
        path = next((path for path, other in self._open.items() if other is document), None)
        if path is None:
            return
        # Remove it first: reactions to the closing must see it as closed.
        del self._open[path], self._titles[document]
        document.close_document()
        row = self._stack.indexOf(document)
        self._stack.removeWidget(document)
        self.bar.removeTab(row)
        self.bar.setVisible(bool(self._open))
        document.hide()
        document.deleteLater()
        # Removing a tab changes the current index, and the bar does not always emit a signal for that.
        self._show(self.bar.currentIndex())

    def at_close(self, close: Callable[[], bool]) -> None:
        """Call ``close`` when the window closes, after the documents; it returns whether everything ended in time."""
        self._closers.append(close)

    def close_documents(self) -> None:
        """Close every document."""
        for document in list(self._open.values()):
            self.close_document(document)

    def close_all(self) -> bool:
        """Close every document and stop the features' background work; false if something did not end in time."""
        self.closing.emit()
        self.close_documents()
        # Call each one once, even if closing is requested again.
        closers, self._closers = self._closers, []
        # Call all of them, even after one that timed out: a generator in `all` would stop there.
        ended = [close() for close in closers]
        return all(ended)

    def report(self, text: str) -> None:
        """Show ``text`` for a while in the visible status line."""
        page = self.front_page
        (self.status_line if page is None else page.status_line).report(text)

    def attempt(self, act: Callable[[], object]) -> bool:
        """Call ``act``; a failure is reported in one sentence. Returns whether it succeeded."""
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            message_box(self, QMessageBox.Icon.Warning, "gpudash", str(text)).exec()
            return False
        return True

    def start_run(self) -> None:
        """Run what is in the panel: a workload on its device, or the user's own program."""
        session, panel = self.session.live, self.dashboard.panel
        if session is None:
            return
        if session.running:
            self.report(A_RUN_IS_ON)
            return
        if not panel.ready:
            self.report(panel.start_text())
            return
        self.show_dashboard()
        # A range chosen earlier would hide the new run.
        self.dashboard.view.follow()
        spec, isolate = panel.spec(), session.settings.isolate
        if spec is None:
            request = panel.script.request()
            started = self.attempt(lambda: session.watch(request))
        else:
            started = self.attempt(lambda: session.start_run(spec, panel.device_name, isolate=isolate))
        remember_form(panel)
        if started:
            self.dashboard.refresh_figures()

    def run_again(self, run: RunView) -> None:
        """Put the settings of a recorded run into the live dashboard, and switch to it."""
        if self.session.running:
            self.notice.report("A run is in progress; stop it first, then run this one again.", "note")
            return
        self.show_dashboard()
        self.dashboard.show_form()
        panel = self.dashboard.panel
        sentence = put_into_panel(run, panel, self.session.devices(), self.session.default_device())
        if not sentence and run.spec.get("edit"):
            sentence = "That run used a changed copy of the program; this one runs the program as it is."
        if sentence:
            self.notice.report(sentence, "note")
        panel.button.setFocus()

    def apply_settings(self, settings: Settings) -> None:
        """Use other settings."""
        self.session.set_settings(settings)
        self.dashboard.apply_settings()
        self.settings_changed.emit(settings)

    def show_panels(self, shown: bool) -> None:
        """Show or hide the panels at the left of the dashboards; can be undone."""
        if shown == self.panel_shown:
            return
        self.panel_shown = shown
        for dashboard in self.dashboards:
            dashboard.show_panel(shown)
        text = f"{'Show' if shown else 'Hide'} Workload Panel"
        # Undo calls this method too; the push it makes then is part of the undo and is ignored.
        self.undo.push(text, partial(self.show_panels, not shown), partial(self.show_panels, shown))
        self.changed.emit()

    def fit_panels(self) -> None:
        """Make the panels at the left as wide as their texts need at the current text size."""
        for dashboard in self.dashboards:
            dashboard.panel.fit_width()

    def why_no_plots(self) -> str:
        """Why no command can act on plots now; "" if one can."""
        if self.front_page is not None:
            return ""
        return "The current tab has no session plots."

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer."""
        front = self.front
        # Even behind a document: warnings and the state of runs go on; `front` controls the drawing of plots.
        self.dashboard.refresh(front=front is None)
        if front is not None:
            front.refresh()
        self.status_line.setVisible(self.front_page is None)
        self.refreshed.emit()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours everywhere."""
        self.colours = palette
        self.dashboard.set_palette(palette)
        for document in self._open.values():
            document.set_palette(palette)
        self.colours_changed.emit()

    def _show(self, row: int) -> None:
        if 0 <= row < self._stack.count():
            self._stack.setCurrentIndex(row)
            if self.front is not None:
                self.front.setFocus()
            self.front_changed.emit()


class _Pages(QStackedWidget):
    """A stack that is as small as its current page may be, however large the others are."""

    def minimumSizeHint(self) -> QSize:
        page = self.currentWidget()
        if page is None:
            return super().minimumSizeHint()
        return page.minimumSizeHint()


class _Tabs(QTabBar):
    """The tab bar; its first tab, the way back to the dashboard, is never elided."""

    def minimumTabSizeHint(self, index: int) -> QSize:
        if index == 0:
            return self.tabSizeHint(index)
        return super().minimumTabSizeHint(index)


def _tab_text(document: Document, title: str) -> str:
    half = LONGEST_TITLE // 2
    if len(title) <= LONGEST_TITLE:
        text = title
    else:
        text = f"{title[:half]}…{title[-half:]}"
    return without_mnemonics(document.title_within(LONGEST_TITLE) or text)

"""What a window works on: the live session's dashboard and the open documents, and what may be done with them.

The features of the window and its parts are given a workspace; what is in front, what is told and what is opened goes
through it. A bar of tabs stands above the dashboard while a document is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QMessageBox, QStackedWidget, QTabBar, QToolButton, QWidget

from gpudash.session.live.running import A_RUN_IS_ON
from gpudash.session.recordings.file_kinds import FoundFile, Kind, find_file
from gpudash.session.source import DashboardSource
from gpudash.specs.model_names import has_config
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
"""Title of the first tab, which is always there."""

LONGEST_TITLE = 32
"""Characters of a title that a tab shows; the whole path is its tooltip."""

SCRIPT_SUFFIX = ".py"


class Workspace(QWidget):
    """The live dashboard and the documents, one in front.

    Args:
        session: what the first tab shows, and what runs are started in; it is not closed here.
        colours: at the start.

    Attributes:
        dashboard: over `session`, in front while no document is open.
        colours: in force.
        undo: what the user has done, with the way back.
        notice: a strip above what is in front, for what came of opening a file.
        status_line: below a document without plots of a session, and so without such a line of its own.
        openers: kind of file → a document that reads it; an OSError, ValueError or RuntimeError of it is reported.
        commands: what can be done in the window, in the order of its menus; filled by the window.
        theme: what the user has chosen.
        panel_shown: whether the panels at the left of the dashboards are wanted.
        hidden_marks: kinds of marks that no plot shows.
        presenting: whether presentation mode is on.
        playing_demo: whether the demo is on.

    Signals:
        front_changed: another one came to the front.
        changed: what commands say or allow may be another thing now.
        refreshed: a frame has been drawn.
        closing: the window closes; its documents are still open.
        action: a button of the banner or of a result was pressed: its action, and the event that it stands beside.
        theme_chosen: the user picks "system", "light" or "dark".
        settings_changed: the `Settings` that are in force from now on.
        colours_changed: everything has been drawn in the colours that are in force now.
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
        self.notice = Notice()
        self.status_line = StatusLine()
        self.status_line.hide()
        self.bar = _Tabs()
        self._stack = QStackedWidget()
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
        in_column(
            self.bar, self.notice, (self._stack, 1), self.status_line, parent=self, margins=(0, 0, 0, 0), spacing=0
        )

    @property
    def live(self) -> bool:
        """Whether a session is on that can be commanded; a recording can only be looked at."""
        return self.session.live is not None

    @property
    def front(self) -> Document | None:
        """The document in front; ``None`` while the dashboard is."""
        shown = self._stack.currentWidget()
        return next((document for document in self._open.values() if document is shown), None)

    @property
    def front_dashboard(self) -> Dashboard | None:
        """The dashboard in front: the live one, or that of the recording in front."""
        front = self.front
        if front is None:
            return self.dashboard
        return front.dashboard

    @property
    def front_page(self) -> PlotsPage | None:
        """The plots in front: of a dashboard, or of a GPU's past."""
        front = self.front
        if front is None:
            return self.dashboard
        return front.plots_page

    @property
    def target(self) -> PlotsPage:
        """The plots that a command means: those in front, else those of the live dashboard."""
        return self.front_page or self.dashboard

    @property
    def target_dashboard(self) -> Dashboard:
        """The dashboard that a command means: the one in front, else the live one."""
        return self.front_dashboard or self.dashboard

    @property
    def front_title(self) -> str:
        """The whole title of the tab in front; "" while it is the dashboard."""
        return next((title for document, title in self._titles.items() if document is self.front), "")

    @property
    def count(self) -> int:
        """Number of open documents."""
        return len(self._open)

    @property
    def dashboards(self) -> list[Dashboard]:
        """The live dashboard, and that of every open recording."""
        return [self.dashboard, *(d.dashboard for d in self._open.values() if d.dashboard is not None)]

    @property
    def pages(self) -> list[PlotsPage]:
        """All plots of a session that there are: of the dashboards, and of every GPU's past."""
        return [self.dashboard, *(d.plots_page for d in self._open.values() if d.plots_page is not None)]

    def document(self, key: Path | str) -> Document | None:
        """The document that was added under ``key``; ``None`` when none was."""
        return self._open.get(key)

    def is_open(self, key: Path | str) -> bool:
        """Whether a document was added under ``key``."""
        return key in self._open

    def show_path(self, key: Path | str) -> bool:
        """Bring the document that was added under ``key`` to the front; false when it is not open."""
        document = self._open.get(key)
        if document is not None:
            self.bar.setCurrentIndex(self._stack.indexOf(document))
        return document is not None

    def show_dashboard(self) -> None:
        """Bring the dashboard to the front."""
        self.bar.setCurrentIndex(0)

    def show_a_dashboard(self) -> Dashboard:
        """The dashboard in front; the live one comes there when there is none."""
        if self.front_dashboard is None:
            self.show_dashboard()
        return self.target_dashboard

    def show_next(self) -> None:
        """Bring the tab at the right to the front, after the last one the dashboard."""
        self.bar.setCurrentIndex((self.bar.currentIndex() + 1) % self.bar.count())

    def open(self, path: Path, *, remember: bool = True, run: int | None = None) -> bool:
        """Open a file, or the folder of an out-of-memory report; a failure is reported in one sentence.

        Args:
            path: of the file or folder.
            remember: whether it is listed among those opened last.
            run: the run of a recording to bring into view, counted from 1; left out, what comes first or was in view.
        """
        try:
            found = find_file(path)
        except ValueError as error:
            self.notice.report(str(error))
            return False
        self.notice.dismiss()
        if remember:
            add_recent(found.path)
        if not self.show_path(found.path):
            # Opened under the same path: the tab comes to the front, and the file is not read twice.
            try:
                self.add(self.openers[found.kind](found), found.path, found.title)
            except (OSError, ValueError, RuntimeError) as error:
                self.notice.report(f"{found.title} cannot be opened: {error}")
                return True
        if run is not None:
            self._open[found.path].show_run(run)
        return True

    def open_dropped(self, paths: Iterable[Path]) -> None:
        """Open what was dropped; a Python file becomes the script to run, a model's folder the model to predict."""
        for path in paths:
            if path.suffix == SCRIPT_SUFFIX and path.is_file() and self.live:
                self.show_dashboard()
                self.dashboard.show_form()
                self.dashboard.panel.take_script(path)
            elif self.live and has_config(path):
                self.show_dashboard()
                self.dashboard.show_form()
                self.dashboard.panel.take_model(path)
            else:
                self.open(path)

    def add(self, document: Document, key: Path | str, title: str) -> None:
        """Open a tab for ``document`` and bring it to the front.

        Args:
            document: it is closed with its tab.
            key: the file it shows, or a name that no other document has.
            title: what the tab says; a file's whole path is its tooltip.
        """
        self._open[key], self._titles[document] = document, title
        document.closed.connect(lambda: self.close_document(document))
        document.said.connect(self.report)
        document.retitled.connect(lambda: self._retitle(document))
        leave_drops(document)
        self._stack.addWidget(document)
        row = self.bar.addTab(_tab_text(document, title))
        # Only of a file there is a path to show.
        self.bar.setTabToolTip(row, plain_tip(str(key) if isinstance(key, Path) else title))
        self.bar.setTabButton(row, QTabBar.ButtonPosition.RightSide, self._close_button(document, title))
        self.bar.show()
        self.bar.setCurrentIndex(row)

    def _retitle(self, document: Document) -> None:
        """What a document is turned out to be called: a comparison knows its runs' names when they have been read."""
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
        """Call ``serve`` with every dashboard there is, and with each that comes, as soon as it can be looked at."""
        self._servers.append(serve)
        for dashboard in self.dashboards:
            serve(dashboard)

    def serve_pages(self, serve: Callable[[PlotsPage], object]) -> None:
        """Call ``serve`` with all plots there are, and with those that come, as soon as they can be looked at."""
        self._page_servers.append(serve)
        for page in self.pages:
            serve(page)

    def serve(self, document: Document) -> None:
        """Let the commands act on what a document shows: a recording that has been read, a fleet's GPU."""
        page, dashboard = document.plots_page, document.dashboard
        if dashboard is not None:
            dashboard.action.connect(self.action)
            for serve in self._servers:
                serve(dashboard)
        if page is not None:  # behind its parts: what hides some of them has the last word
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
        """Close the document in front; the dashboard stays."""
        if self.front is not None:
            self.close_document(self.front)

    def close_document(self, document: Document) -> None:
        """Close ``document``, and what reads its file; one that is closed already is left alone."""
        # Also called by a document's own signal, after it was closed from here.
        key = next((key for key, other in self._open.items() if other is document), None)
        if key is None:
            return
        # Taken out first: reactions to the closing see it as closed.
        del self._open[key], self._titles[document]
        document.close_document()
        row = self._stack.indexOf(document)
        self._stack.removeWidget(document)
        self.bar.removeTab(row)
        self.bar.setVisible(bool(self._open))
        document.hide()
        document.deleteLater()
        # Removing a tab changes the row in front, of which the bar does not always tell.
        self._show(self.bar.currentIndex())

    def at_close(self, close: Callable[[], bool]) -> None:
        """Call ``close`` when the window closes, after the documents; it tells whether everything ended in time."""
        self._closers.append(close)

    def close_documents(self) -> None:
        """Close every document."""
        for document in list(self._open.values()):
            self.close_document(document)

    def close_all(self) -> bool:
        """Close every document, and what the features have at work; false when something did not end in time."""
        self.closing.emit()
        self.close_documents()
        # Each closer once, also where closing is asked for again.
        closers, self._closers = self._closers, []
        # All of them, also behind one that took too long: a generator in `all` would stop there.
        ended = [close() for close in closers]
        return all(ended)

    def report(self, text: str) -> None:
        """Say ``text`` for a while in the status line that is in sight."""
        page = self.front_page
        (self.status_line if page is None else page.status_line).report(text)

    def attempt(self, act: Callable[[], object]) -> bool:
        """Do ``act``; a failure is reported in one sentence. Returns whether it was done."""
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
            message_box(self, QMessageBox.Icon.Warning, "gpudash", str(text)).exec()
            return False
        return True

    def start_run(self) -> None:
        """Run what the panel holds: a workload on the device it names, or the user's own program."""
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
        # A recording's range would hide what now begins.
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
        """Put what a recorded run was asked into the live dashboard, and go there."""
        if self.session.running:
            self.notice.report("A run is in progress; stop it first, then run this one again.", "note")
            return
        self.show_dashboard()
        self.dashboard.show_form()
        panel = self.dashboard.panel
        sentence = put_into_panel(run, panel, self.session.devices(), self.session.default_device())
        if not sentence and run.spec.get("edit"):
            sentence = "That run had a change of the program, from a copy; this one runs the program as it is."
        if sentence:
            self.notice.report(sentence, "note")
        panel.button.setFocus()

    def apply_settings(self, settings: Settings) -> None:
        """Put other settings in force."""
        self.session.set_settings(settings)
        self.dashboard.apply_settings()
        self.settings_changed.emit(settings)

    def show_panels(self, shown: bool) -> None:
        """Show the panels at the left of the dashboards, or hide them; this can be undone."""
        if shown == self.panel_shown:
            return
        self.panel_shown = shown
        for dashboard in self.dashboards:
            dashboard.show_panel(shown)
        text = f"{'Show' if shown else 'Hide'} of Workload Panel"
        # Undo calls this same method, whose push is then a step of the undo itself and ignored by it.
        self.undo.push(text, partial(self.show_panels, not shown), partial(self.show_panels, shown))
        self.changed.emit()

    def fit_panels(self) -> None:
        """Make the panels at the left as wide as their words need at the text size in force."""
        for dashboard in self.dashboards:
            dashboard.panel.fit_width()

    def why_no_plots(self) -> str:
        """Why no command can act on plots now; "" when it can."""
        if self.front_page is not None:
            return ""
        return "The document in front has no plots of a session."

    def refresh(self) -> None:
        """Draw what is new; the window's timer calls it."""
        front = self.front
        # Also behind a document: warnings and the run's state go on; `front` says whether plots are drawn.
        self.dashboard.refresh(front=front is None)
        if front is not None:
            front.refresh()
        self.status_line.setVisible(self.front_page is None)
        self.refreshed.emit()

    def set_palette(self, palette: Palette) -> None:
        """Draw everything in other colours."""
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


class _Tabs(QTabBar):
    """The first tab, by which everybody comes home, keeps its whole title."""

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

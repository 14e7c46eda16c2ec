"""The result of a run over the plots of a dashboard."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit

from gpudash.session.source import DashboardSource
from gpudash.telemetry.results.outcome import ended_badly, is_put_forward
from gpudash.telemetry.runs import RunView
from gpudash.ui.dashboard.result_page import ResultPage
from gpudash.ui.dashboard.showing.runs import ShownRuns
from gpudash.ui.plots.stack import PlotStack


class ShownResult:
    """The result page, with the run it is filled with.

    Attributes:
        run: that run; ``None`` before the first.
    """

    def __init__(self, session: DashboardSource, page: ResultPage, plots: PlotStack, runs: ShownRuns) -> None:
        self._session = session
        self._page = page
        self._plots = plots
        self._runs = runs
        self.run: RunView | None = None

    def show(self) -> None:
        """Show the result of the run that commands act on."""
        run = self._runs.in_front()
        if run is not None and not run.running:
            self._bring(run)

    def show_newest(self) -> None:
        """Show the newest run's result, if it says more than the plots do."""
        run = self._runs.newest()
        if run is not None and not run.running and is_put_forward(run):
            self._bring(run)

    def refill(self) -> None:
        """Show what has become known of the run since."""
        if self.run is not None and not self._page.isHidden():
            self._fill(self.run)

    def why_ended(self) -> str:
        """How the newest run failed, while its result is shown beside the plots; "" otherwise.

        The caller holds the store's lock.
        """
        newest = self._session.store.run
        if newest is None or newest is not self.run or self._page.isHidden():
            return ""
        return ended_badly(newest)

    def _bring(self, run: RunView) -> None:
        """Show a result, and focus it so that Esc closes it, unless the user is typing."""
        self._fill(run)
        if not isinstance(QGuiApplication.focusObject(), (QLineEdit, QPlainTextEdit, QAbstractSpinBox, QComboBox)):
            self._page.setFocus()

    def _fill(self, run: RunView) -> None:
        store = self._session.store
        self.run = run
        with store.lock:
            commanding = self._session.live is not None
            self._page.show_run(run, list(store.runs), self._runs.name(run), commanding=commanding)
        self._plots.cover(covered=True)

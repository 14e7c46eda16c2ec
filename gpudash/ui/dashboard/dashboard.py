"""Cards, workload panel, plots and tables over one session, live or recorded.

When memory is about to run out, its plot is extended by the forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QTableView, QWidget

from gpudash.devices.names import SimulatedCard, shown_name
from gpudash.devices.simulated_cards import exact_text
from gpudash.session.recordings.run_names import process_text
from gpudash.session.source import DashboardSource
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.plots import PlotSpec, run_in_view
from gpudash.telemetry.records import Event, Note, RemediesFound, RunEnd, RunStarted
from gpudash.telemetry.results.outcome import has_verdict
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.banner import Banner
from gpudash.ui.dashboard.card_chips import CardChooser
from gpudash.ui.dashboard.cards import DeviceCards
from gpudash.ui.dashboard.first_screen.page import FirstScreen
from gpudash.ui.dashboard.footer import Footer
from gpudash.ui.dashboard.left_column import LeftColumn
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.dashboard.result_page import ResultPage
from gpudash.ui.dashboard.showing.devices import ShownDevice, key_of
from gpudash.ui.dashboard.showing.events import NewEvents
from gpudash.ui.dashboard.showing.figures import ShownFigures
from gpudash.ui.dashboard.showing.form import FormChanges
from gpudash.ui.dashboard.showing.halves import PlotsAndTables
from gpudash.ui.dashboard.showing.overlay import ShownOverlay
from gpudash.ui.dashboard.showing.plots import ShownPlots
from gpudash.ui.dashboard.showing.prediction import ShownPrediction
from gpudash.ui.dashboard.showing.results import ShownResult
from gpudash.ui.dashboard.showing.runs import ShownRuns
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.dashboard.view_bar import ViewBar
from gpudash.ui.explanation.view import ExplanationView
from gpudash.ui.forms.between_frames import BetweenFrames
from gpudash.ui.forms.fit_follower import FitFollower
from gpudash.ui.forms.workload_panel import WorkloadPanel, put_into_panel
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.text_size import scaled

if TYPE_CHECKING:
    from gpudash.session.live.session import Session

TITLE = "gpudash"
"""Title of the window while no document is in front."""

LOW_WINDOW = 920
"""Logical pixels; in a lower window the tables start collapsed and the cards take one line."""

PLOTS_GAP = 2
"""Logical pixels between the row of controls and the plots."""

FIRST_SCREEN_ROW = 1
"""Index of the first screen in the dashboard's layout: below the cards."""

FIRST_SCREEN_SHARE, MONITOR_SHARE, MONITOR_PX = 3, 2, 170
"""Stretch factors while the first screen is shown, and minimum height of the monitor in logical pixels."""

BUSY = "utilisation"
"""Plot shown beside the memory plot on the first screen."""


class Dashboard(PlotsPage):
    """One session on one time axis.

    Args:
        session: session to show; it is not closed here.
        palette: colours at the start.
        panel: workload panel; created if not given, like
        tabs: the tables, and
        result: the page over the plots. These three take longest to create.
        holder: outside any window, holds the large parts until `arrange` lays them out; without it, that is done now.

    Attributes:
        left: column at the left; the panel is one of its faces.
        footer: the status line, with the strips that lie over it.
        fit: predicts the form's run; ``None`` for a recording.
        first_screen: replaces the column and the tables until something has started; ``None`` after that.
        result: result of a run, over the plots; Esc closes it.
        results_in_front: whether a result opens by itself when a run ends.
        figures, form_changes, shown_device, runs, shown_result, prediction, overlay, shown_plots: what is shown, by
            subject.

    Signals:
        start_requested: run what the panel holds.
        action: action of a button of the banner or a result, and the event it belongs to.
        happened: an `Event` that is new here.
    """

    session: DashboardSource
    start_requested = Signal()
    action = Signal(str, object)
    happened = Signal(object)

    def __init__(
        self,
        session: DashboardSource,
        palette: Palette,
        parent: QWidget | None = None,
        *,
        panel: WorkloadPanel | None = None,
        tabs: LowerTabs | None = None,
        result: ResultPage | None = None,
        holder: QWidget | None = None,
    ) -> None:
        super().__init__(session, palette, parent)
        self.figures = ShownFigures(session)
        self._events = NewEvents(session.store)
        self.results_in_front = True
        self._has_runs, self._origin = True, ""
        self._opened_s = session.store.newest_s
        self._low: bool | None = None
        self.first_screen: FirstScreen | None = None
        self._program_ended = False
        self._panel_wanted = True
        self.panel = panel or WorkloadPanel()
        self.tabs = tabs or LowerTabs()
        self.result = result or ResultPage()
        self._build()
        self._connect()
        if holder is None:
            for _part in self.arrange():
                continue
            return
        # Without a parent they would outlive a dashboard that is closed before it is laid out.
        for part in (self.left, self._upper, self.tabs, self.footer, self.banner):
            part.setParent(holder)

    def _build(self) -> None:
        palette, settings = self.palette_, self.session.settings
        self.cards = DeviceCards(palette)
        self.banner = Banner()
        self.footer = Footer(self.status_line)
        self.banner.commanding = self.live
        self.panel.set_commanding(self.live)
        self.panel.fit.set_palette(palette)
        self.plots.lay_over(self.result, self.result.place_in)
        self.view_bar = ViewBar(self.view, settings.smoothing, live=self.live)
        self.tabs.set_palette(palette)
        self._upper = QWidget()
        self.busy = PlotStack(self.session.store, self.view, palette)
        self.busy.show_alone(True)
        self.busy.hide()
        plots = in_row((self.plots, 2), (self.busy, 1), margins=(0, 0, 0, 0), spacing=10)
        in_column(self.view_bar, (plots, 1), parent=self._upper, margins=(0, 0, 0, 0), spacing=PLOTS_GAP)
        self.splitter = PlotsAndTables(self.tabs)
        self.left = LeftColumn(self.panel)
        self._middle = in_row((self.splitter, 1), spacing=10)
        whole = QWidget()
        whole.setLayout(self.rows)
        self.chooser = CardChooser(palette)
        self.chooser.set_own(settings.cards)
        self.chooser.order = settings.cards_order
        self.rows.addLayout(in_row(self.cards, (self.chooser, 1), spacing=10))
        if not self.live:
            self.chooser.hide()
        self.rows.addLayout(self._middle, 1)
        self._build_subjects()
        self.explanation = ExplanationView(self.session, self.panel, whole, palette)
        self.explanation.run_in_front = self.runs.in_front
        in_column(self.explanation, parent=self, margins=(0, 0, 0, 0))
        self.chooser.focus_group.join(self.cards.focus_group)

    def _build_subjects(self) -> None:
        """What is shown, by subject, in the parts that are built already."""
        live = self.session.live
        self.fit = None
        if live is not None:
            self.fit = FitFollower(live, self.panel)
        self.form_changes = FormChanges(self.panel)
        self.shown_device = ShownDevice(self.session, self.panel, self.cards, self.chooser)
        self.runs = ShownRuns(self.session, self.view)
        self.shown_result = ShownResult(self.session, self.result, self.plots, self.runs)
        self.overlay = ShownOverlay(self.session, self.view, self.runs, self.status_line.report)
        self.prediction = ShownPrediction(
            self.session, self.fit, self.panel, self.plots, self.shown_device, self.runs, self.overlay
        )
        self.shown_plots = ShownPlots(self.session, self.view, self.shown_device, self.prediction, self.overlay)

    def arrange(self) -> Iterator[None]:
        """Lay out the large parts, one per step of the iterator.

        If the dashboard is in a window already, Qt applies the window's style sheet to each widget of a part as the
        part is added; for all parts at once, that takes several frames.
        """
        # In the order of the Tab key.
        self._middle.insertWidget(0, self.left)
        yield
        self.splitter.addWidget(self._upper)
        self.splitter.setStretchFactor(0, 1)
        yield
        self.splitter.addWidget(self.tabs)
        self.splitter.setStretchFactor(1, 0)
        yield
        self.rows.addWidget(self.footer)
        self.footer.hold(self.banner)
        self.setTabOrder(self.view_bar.smoothing, self.panel.workload)  # Pause comes before the many fields

    def _connect(self) -> None:
        self.result.closed.connect(self.plots.dismiss)
        self.result.applied.connect(self._apply_to_result)
        self.result.action.connect(self._act_on_result)
        self.cards.chosen.connect(self.select_device)
        self.chooser.chosen.connect(self._simulate)
        self.panel.device_chosen.connect(self.shown_device.choose_named)
        self.panel.start_requested.connect(self.start_requested)
        self.panel.changed.connect(self._form_changed)
        self.banner.action.connect(lambda name: self.action.emit(name, self.banner.shown))
        self.view_bar.show_all.connect(self.plots.show_all)
        self.view_bar.smoothing_changed.connect(self.plots.set_smoothing)
        self.explanation.start_requested.connect(self.start_requested)
        self.explanation.reported.connect(self.status_line.report)
        self.tabs.collapsed_changed.connect(self.splitter.rebalance)
        self.tabs.output.reported.connect(self.status_line.report)
        if self.session.live is not None and self.fit is not None:
            self._connect_live(self.session.live, self.fit)

    def _connect_live(self, live: Session, fit: FitFollower) -> None:
        """Connect what starts and stops runs, and what predicts them."""
        self.panel.is_on = lambda: live.running
        self.panel.is_isolated = lambda: live.settings.isolate
        self.panel.stop_requested.connect(self._stop_run)
        self.panel.answered.connect(self._answer_press)
        self.result.verdict.again.connect(self._run_again)
        self.panel.fit.regarded.connect(self._show_remedy)
        self.plots.size_wanted.connect(fit.take_size)
        fit.cards = self.chooser.cards
        self.chooser.changed.connect(fit.form_changed)
        between = BetweenFrames(self._ask_now, self._show_answer, lambda: 1 / live.settings.frames_hz, self)
        fit.on_answer = between.answered
        for source in (self.panel, self.chooser):
            source.changed.connect(between.changed)
        for card in live.machine.simulated.given[:1]:  # a script runs there too, whatever was remembered
            self.panel.script.simulate.set_card(exact_text(card))

    def leave_out_runs(self, origin: str) -> None:
        """Remove everything about runs for a source without them: the panel at the left and the tables of runs.

        Args:
            origin: where the readings come from, for the status line.
        """
        self._has_runs, self._origin = False, origin
        self.show_panel(False)
        self.chooser.hide()
        self.tabs.leave_out_runs()

    def show_panel(self, shown: bool) -> None:
        """Show the column at the left, or hide it; it stays hidden if nothing can be run."""
        self._panel_wanted = shown
        self.left.setVisible(shown and self._has_runs and self.first_screen is None)

    def show_form(self) -> None:
        """Bring the form of a new run to the front, with the focus in its first field."""
        self.leave_first_screen()
        self.left.show_form()
        self.panel.focus_first_field()  # else Qt gives it to whatever comes next, a card, which Enter then chooses

    def show_first_screen(self, screen: FirstScreen) -> None:
        """Show ``screen`` in place of the left column and the tables, with a live monitor below it."""
        if self.first_screen is not None:
            return
        self.first_screen = screen
        self.plots.dismiss()
        self.form_changes.take_first_screen()
        self.view.follow()
        self.rows.insertWidget(FIRST_SCREEN_ROW, screen, FIRST_SCREEN_SHARE)
        self.rows.setStretch(FIRST_SCREEN_ROW + 1, MONITOR_SHARE)
        self.rows.insertWidget(self.rows.indexOf(self.footer), screen.bottom)
        self._arrange_first_screen()

    def leave_first_screen(self) -> None:
        """Bring back the form and the tables because something starts; does nothing if they are shown."""
        screen = self.first_screen
        if screen is None:
            return
        self.first_screen = None
        for part in (screen, screen.bottom):
            self.rows.removeWidget(part)
            part.hide()
        self._arrange_first_screen()
        if self.fit is not None:
            self.fit.form_changed()

    def _arrange_first_screen(self) -> None:
        """Show or hide what the first screen replaces."""
        screen = self.first_screen
        shown = screen is not None
        self.shown_device.on_first_screen = shown
        if screen is not None:
            screen.show()
            screen.bottom.show()
        self.left.setVisible(not shown and self._panel_wanted and self._has_runs)
        self.tabs.setVisible(not shown)
        self.busy.setVisible(shown)
        self.splitter.setMinimumHeight(scaled(MONITOR_PX) if shown else 0)
        self.plots.show_alone(shown)
        self.refresh_figures()

    def select_device(self, key: str) -> None:
        """Show the device with this key ("host" or a GPU's UUID) in the plots, and run on it if torch can."""
        self.shown_device.choose(key)

    def _simulate(self, card: SimulatedCard) -> None:
        """Make a card the form's device: for the user's own program through its field, else as a simulated device.

        On the first screen it becomes a simulated device whatever is chosen there, for the program too.
        """
        live = self.session.live
        if live is None:
            return
        if self.panel.watching:
            self.panel.script.simulate.set_card(exact_text(card))
        if self.shown_device.is_scripts_own:
            return
        if self.session.running:
            self.status_line.report("A run is in progress; choose another card once it has ended.")
            return
        try:
            name = live.simulate(card)
        except ValueError as error:
            self.status_line.report(str(error))
            return
        self.refresh_figures()  # the panel must list the card before it is selected there
        self.panel.take_device(name)

    def _form_changed(self) -> None:
        """A changed form shows its prediction instead of the earlier run that was viewed."""
        self.runs.earlier_viewed = False
        if not self.session.running and self.form_changes.has_other_program:
            self.tabs.drop_newest_line()
        if self.form_changes.leaves_ended_run():
            # What became of the last run no longer stands beside the prediction of another.
            self.banner.leave_run()
            self.plots.cover(covered=False)
        if self.first_screen is not None and self.form_changes.has_left_first_screen:
            self.leave_first_screen()

    def apply_settings(self) -> None:
        """Apply the session's settings."""
        self.view.set_window(self.session.settings.window_s)
        self.chooser.set_own(self.session.settings.cards)
        self.chooser.order = self.session.settings.cards_order
        self.view_bar.smoothing.setValue(round(self.session.settings.smoothing * 100))

    def set_palette(self, palette: Palette) -> None:
        super().set_palette(palette)
        for part in (self.cards, self.chooser, self.panel.fit, self.explanation, self.tabs):
            part.set_palette(palette)
        self.busy.set_palette(palette)
        if self.first_screen is not None:
            self.first_screen.set_palette(palette)

    def prepare(self) -> Iterator[None]:
        """Do most of the first `refresh` before the dashboard is shown, one part per step: all at once would freeze
        the window."""
        self._take_events()
        yield
        self.refresh_figures()
        self._frame = 1
        yield
        plots = self.wanted_plots()
        yield
        for count in range(1, len(plots)):
            self.plots.set_plots(plots[:count], self.topic)
            yield
        self._choose_plots()
        yield
        yield from self.plots.load()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Esc closes what covers the plots, as its button says, even from the form and the cards."""
        if event.key() != Qt.Key.Key_Escape or not self.uncover():
            super().keyPressEvent(event)

    def uncover(self) -> bool:
        """Close the explanation, or else the result over the plots; whether there was either."""
        if self.explanation.open and self.isVisible():
            self.explanation.page.leave()
            return True
        if self.result.isVisible():
            self.plots.dismiss()
            return True
        return False

    def dismiss(self) -> None:
        if not self.uncover():
            super().dismiss()

    def refresh(self, *, front: bool = True) -> None:
        self._take_events()
        with self.session.store.lock:
            newest = self.session.store.newest_s
        self.banner.tick(newest)
        self._ask_now()
        super().refresh(front=front)

    def _ask_now(self) -> None:
        """Ask about a changed form, and take what has been answered, which the next drawing shows."""
        if self.fit is not None and self.first_screen is None:
            self.fit.refresh()

    def _show_answer(self) -> None:
        """Draw the first answer to a request at once; what follows it waits for the frame."""
        if self.fit is None or not self.fit.awaited:
            return
        self._ask_now()
        if not self.plots.visibleRegion().isEmpty():
            self._choose_plots()
            self.prediction.draw()
            self.plots.refresh()

    def _draw(self) -> None:
        self.splitter.balance()
        self.overlay.align()
        self.view.since_s = self.runs.program_began_s()
        self.prediction.draw()
        requests = self.shown_device.requests
        self.plots.set_requests("memory", requests)
        self.prediction.draw_behind_run()
        super()._draw()
        self.view_bar.offer_smoothing(self.plots.smooths)
        self.busy.refresh()
        self.explanation.refresh()
        self.tabs.refresh_output(self.session.output)
        run = self.runs.in_view()
        why_none = ""
        if run is not None and run.workload == WATCH and run.device != "cpu":
            why_none = self.session.requests.why_none
        live = self.session.live
        ended = live is not None and bool(live.runs.after_end)
        self.tabs.refresh_source(requests, run, self.view.cursor_s, why_none, program_ended=ended)

    def _take_events(self) -> None:
        events = self._events.take()
        if self._events.rewound:
            self.tabs.forget_events()
            self.banner.forget()
        self.tabs.take(events, self.session.began_wall_s)
        self.explanation.take(events)
        for event in events:
            self.banner.take(event)
            self._take_program(event)
            self.happened.emit(event)

    def _take_program(self, event: Event) -> None:
        """When a program starts, bring its output to the front; when a run ends, bring its result."""
        if isinstance(event, RunEnd):
            if self.live and event.time_s > self._opened_s:
                self._hold_run()
                self.form_changes.take_end()
                # The panel must not say that it runs beside a view that says that it has ended.
                self.refresh_figures()
            if self.results_in_front and (event.time_s > self._opened_s if self.live else has_verdict(event.result)):
                self.shown_result.show_newest()
        elif isinstance(event, RemediesFound):
            self.shown_result.refill()
        elif isinstance(event, RunStarted):
            self._take_start(event)
        elif isinstance(event, Note):
            self.shown_device.take_note(event)

    def _take_start(self, event: RunStarted) -> None:
        self.leave_first_screen()
        self.form_changes.take_start()
        self._program_ended = False
        self.plots.cover(covered=False)
        if self.view.held:
            self.view.follow()
        if self.live:
            self.view.begin_page(event.time_s)
        self.shown_device.take_start(event)
        if event.workload == WATCH:
            run = RunView.of(event)
            self.tabs.output.begin(process_text(run), elsewhere="pid" in event.spec)
            self.tabs.show_output(requested=False)
            self.form_changes.take_program()
            return
        self.tabs.leave_output()

    def _hold_run(self) -> None:
        """Keep the run that just ended in view."""
        run = self.runs.hold_newest(program_ended=self._program_ended)
        if run is not None and run.of_demo:
            self.shown_device.choose_of_demo(run)

    def hold_run(self, number: int) -> None:
        """Show a whole run of the session, counted from 1, and its device, until something new starts."""
        run = self.runs.hold(number)
        if run is None:
            return
        self.leave_first_screen()
        self.shown_device.choose_named(run.device)
        self.plots.cover(covered=False)

    def show_result(self) -> None:
        """Show the result of the run in view over the plots."""
        self.shown_result.show()

    def _act_on_result(self, name: str) -> None:
        if self.shown_result.run is not None:
            self.action.emit(name, self.shown_result.run.error)

    def _apply_to_result(self, remedy: Remedy) -> None:
        if self.shown_result.run is not None:
            self.explanation.apply(self.shown_result.run, remedy)

    def _stop_run(self, when: str) -> None:
        live = self.session.live
        if live is not None:
            live.stop_run(when)
            self.refresh_figures()

    def _answer_press(self, sentence: str) -> None:
        """Report the effect of a press of the panel's button; what the panel showed was out of date."""
        self.refresh_figures()
        self.status_line.report(sentence)

    def _run_again(self) -> None:
        """Start the comparison again whose verdict is shown."""
        run = self.shown_result.run
        if run is not None and not self.session.running:
            put_into_panel(run, self.panel, self.session.devices(), self.session.default_device())
            self.start_requested.emit()

    @property
    def selected(self) -> str:
        return self.shown_device.key

    @property
    def topic(self) -> str | None:
        """The workload in view; "" if no run is in view."""
        run = self.runs.in_view()
        if run is None:
            return ""
        return run.workload

    def wanted_plots(self) -> Sequence[PlotSpec]:
        with self.session.store.lock:
            found = self.shown_plots.specs(
                to_capacity=self.memory_to_capacity(), rank=self.tabs.selected_rank, warned=self.banner.warns
            )
        if self.first_screen is not None:
            self.busy.set_plots([plot for plot in found if plot.id == BUSY])
            return [plot for plot in found if plot.id == "memory"]
        return found

    def _show_remedy(self) -> None:
        """Show the remedy at once rather than with the next frame: it follows the pointer."""
        self.prediction.draw_remedy()
        self.plots.refresh()

    def captions(self) -> tuple[str, str]:
        title = TITLE
        with self.session.store.lock:
            run = run_in_view(self.session.store, self.view.range())
            if run is not None:
                title = self.runs.name(run)
        return title, self.caption(self.selected, self.session.device_text(self.selected))

    def caption(self, selected: str, unlisted: str) -> str:
        """Name of the device ``selected`` in a picture; ``unlisted`` if the session does not list it."""
        found = (device for device in self.session.devices() if key_of(device) == selected)
        return next((f"{shown_name(device.name)} · {device.product}" for device in found), unlisted)

    def refresh_figures(self) -> None:
        """Update cards, tables and text."""
        session, store, live = self.session, self.runs.store(), self.session.live
        self.shown_device.choose_awaited()
        stop = None
        after_end = ""
        self.figures.refresh_forecasts()
        if live is not None:
            stop = live.runs.stopping
            after_end = live.runs.after_end
        if after_end and not self._program_ended:
            self._program_ended = True
            self._hold_run()
        with store.lock:
            self.tabs.refresh(store, self.view.selection, self.figures.refresh(store))
            # The strip may leave the reason out only while the newest run's result is shown beside the plots.
            ended = self.shown_result.why_ended()
            progress = store.run
            memory = "host"
            if progress is not None:
                memory = self.shown_device.memory_of(progress.device)
                if self.form_changes.wants_another and progress.error is not None:
                    progress = None
            ahead = self.figures.forecasts.get(memory)
            self.panel.show_run(progress, session.running, self._loading(), ahead, stop, after_end)
        answers = None if self.fit is None else self.fit.on_cards
        self.shown_device.show_cards(self.figures.on_cards(), answers)
        self._show_standing()
        self.shown_device.offer_to_form()
        self.banner.set_running(session.running)
        self.banner.set_brief(ended)
        self.result.verdict.again_button.setEnabled(not session.running)
        self.result.ending.remedies.setEnabled(not session.running)
        if self.result.offer_tab(not self.tabs.isHidden()):
            self.plots.place_over()
        self.view_bar.refresh()  # it shows how far the view is behind, like the status line
        self._refresh_search()
        self._refresh_status()
        self.figures.draw_forecast(self.plots, self.selected)
        super().refresh_figures()

    def _refresh_search(self) -> None:
        """Show how far a search for remedies has come."""
        live = self.session.live
        searching = [view for view in (self.result.ending.remedies, *self.explanation.remedies) if view.searching]
        if live is not None and searching:  # only then: accessing `remedies` loads the search
            for shown in searching:
                shown.show_so_far(live.remedies.so_far)
            self.plots.place_over()  # its text may need more lines

    def _refresh_status(self) -> None:
        live, path = self.session.live, self.session.recording_path
        if live is not None:
            simulated = self.shown_device.simulated_names
            self.status_line.show_status(live.status(), self._origin, live.gpu_problem, self._loading(), simulated)
            return
        origin = self._origin or f"recording {path.name if path else ''}"
        self.status_line.show_status(None, origin, None, self._loading())

    def _show_standing(self) -> None:
        """Update the warning in the strip, with the remaining time shown on the cards and the actions available."""
        live = self.session.live
        if live is None:
            return
        for warning in self.banner.standing:
            now = live.standing(warning, self.figures.forecasts.get(warning.device))
            if now is not None:
                self.banner.say_now(warning, now)

    def _loading(self) -> str:
        live = self.session.live
        if live is None or live.torch_ready:
            return ""
        return "PyTorch loading…"

    def show_run(self) -> None:
        """Show the last run, or everything if there is none, and put the run's parameters into the form."""
        run = self.runs.newest()
        self.runs.show(run)
        if run is not None:
            self.panel.show_spec(run.workload, run.device, run.spec)

    def copy_values(self) -> None:
        """Copy from the table or output that has the focus, else the selection of the plots."""
        focus, table = QGuiApplication.focusObject(), self.tabs.current()
        if table is not None and isinstance(focus, QTableView) and self.tabs.isAncestorOf(focus):
            table.copy()
        elif focus is self.tabs.output.text:
            self.tabs.output.copy()
        else:
            super().copy_values()

    def toggle_tables(self) -> None:
        """Collapse the tables to their tab bar, or open them."""
        if self.first_screen is not None:
            self.leave_first_screen()
            return
        self.tabs.set_collapsed(not self.tabs.collapsed)
        self.tabs.collapsed_changed.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.panel.fit_width()
        low = self.window().height() < LOW_WINDOW
        if low != self._low:
            self._low = low
            self.cards.set_compact(low)
            self.tabs.set_collapsed(low)
            self.splitter.rebalance()

    def reset_layout(self) -> None:
        """Reset tables, curves and the split between plots and tables to their defaults."""
        self.tabs.set_collapsed(self.window().height() < LOW_WINDOW)
        super().reset_layout()
        self.splitter.reset()

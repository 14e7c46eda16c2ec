"""Cards, workload panel, plots and tables over one session, live or recorded.

When memory is about to run out, its plot is extended by the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTableView,
    QWidget,
)

from gpudash.devices.names import Device, SimulatedCard, known_product, shown_name, simulated_card
from gpudash.devices.simulated_cards import address_of, exact_text, is_program_card
from gpudash.drawing.ghost import RunningGhost
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.request_log import RequestLog
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import ends_in
from gpudash.session.predicting.deviations import Deviation
from gpudash.session.recordings.run_names import given_name, process_text
from gpudash.session.source import DashboardSource
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.plots import CurveSpec, PlotSpec, memory_plot, plots_for, run_in_view
from gpudash.telemetry.records import Event, Note, RemediesFound, RunEnd, RunStarted, Table, Topic
from gpudash.telemetry.results.outcome import ended_badly, has_verdict, is_put_forward
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.banner import Banner
from gpudash.ui.dashboard.card_chips import CardChooser
from gpudash.ui.dashboard.cards import CardContent, DeviceCards, device_rows, gpu_card, host_card
from gpudash.ui.dashboard.first_screen.page import FirstScreen
from gpudash.ui.dashboard.footer import Footer
from gpudash.ui.dashboard.left_column import LeftColumn
from gpudash.ui.dashboard.plots_page import PlotsPage
from gpudash.ui.dashboard.result_page import ResultPage
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.dashboard.view_bar import ViewBar
from gpudash.ui.explanation.view import ExplanationView
from gpudash.ui.forms.between_frames import BetweenFrames
from gpudash.ui.forms.fit_follower import FitFollower
from gpudash.ui.forms.workload_panel import WorkloadPanel, put_into_panel
from gpudash.ui.plots.prediction.copies import CopiesView, copies_plot
from gpudash.ui.plots.prediction.ghost import COLOURS, GhostView
from gpudash.ui.plots.prediction.remedy import RemedyView
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.widgets.layouts import in_column, in_halves, in_row
from gpudash.ui.widgets.text_size import scaled

if TYPE_CHECKING:
    from gpudash.session.recordings.comparing.overlaid_runs import OverlaidRuns

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

MARGIN_S, MARGIN_RATIO = 0.5, 0.05
"""Margin in seconds on either side of a run, and its maximum as a fraction of the run."""

LEAST_SPAN_S = 2.0
"""Minimum seconds shown for a run: a shorter one has few readings of its own."""


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
        laid: recorded runs overlaid on the live plots; ``None`` before any was requested.
        result: result of a run, over the plots; Esc closes it.
        results_in_front: whether a result opens by itself when a run ends.
        forecasts: memory ("host" or a GPU's UUID) → its forecast, as shown on cards, strip and plots.

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
        self._selected: str | None = None
        self._awaited_device: str | None = None
        self._printing = ("", "")  # what the form held when the newest program began
        self._shown_for_program: str | None = None
        self.forecasts: dict[str, Forecast | None] = {}
        self._events_seen = 0
        self._rewound = session.store.rewound
        self._balanced: object = None
        self._tables_height = 0
        self.results_in_front = True
        self._has_runs, self._origin = True, ""
        self._resulting: RunView | None = None
        self._opened_s = session.store.newest_s
        self._viewed_earlier = False
        self._low: bool | None = None
        self.overlaid: OverlaidRuns | None = None
        self._shows_overlaid = False
        self.first_screen: FirstScreen | None = None
        self._form_before: object = None
        self._form_of_ended: object = None
        self._wants_another = False
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
        self.splitter = in_halves(across=False)
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
        self.explanation = ExplanationView(self.session, self.panel, whole, palette)
        self.explanation.run_in_front = self.run_in_front
        in_column(self.explanation, parent=self, margins=(0, 0, 0, 0))
        self.chooser.focus_group.join(self.cards.focus_group)

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
        self.panel.device_chosen.connect(self._device_chosen)
        self.panel.start_requested.connect(self.start_requested)
        self.panel.changed.connect(self._form_changed)
        self.banner.action.connect(lambda name: self.action.emit(name, self.banner.shown))
        self.view_bar.show_all.connect(self.plots.show_all)
        self.view_bar.smoothing_changed.connect(self.plots.set_smoothing)
        self.explanation.start_requested.connect(self.start_requested)
        self.explanation.reported.connect(self.status_line.report)
        self.tabs.collapsed_changed.connect(self.rebalance)
        live = self.session.live
        if live is not None:
            self.panel.is_on = lambda: live.running
            self.panel.stop_requested.connect(self._stop_run)
            self.panel.answered.connect(self._answer_press)
            self.result.verdict.again.connect(self._run_again)
        self.tabs.output.reported.connect(self.status_line.report)
        self.splitter.splitterMoved.connect(self._balanced_by_hand)
        if live is None:
            self.fit = None
        else:
            self.fit = FitFollower(live, self.panel)
            self.panel.fit.regarded.connect(self._show_remedy)
            self.plots.size_wanted.connect(self.fit.take_size)
            self.fit.cards = self.chooser.cards
            self.chooser.changed.connect(self.fit.form_changed)
            between = BetweenFrames(self._ask_now, self._show_answer, lambda: 1 / live.settings.frames_hz, self)
            self.fit.on_answer = between.answered
            for source in (self.panel, self.chooser):
                source.changed.connect(between.changed)
            for card in live.machine.simulated.given[:1]:  # a script runs there too, whatever was remembered
                self.panel.script.simulate.set_card(exact_text(card))

    def overlay_runs(self, runs: OverlaidRuns, places: Sequence[Path]) -> None:
        """Overlay recorded runs as thin curves on the live plots, from the start of the run in view, else from now.

        None removes them.

        Unless a run goes on, the view stays with them: they are in view whole, and do not move away with time.
        """
        shown = self.overlaid is not None and self.overlaid.chosen
        self.overlaid = runs
        run = self._run_in_view()
        if run is not None:
            began_s = run.began_s
        elif self.view.origin_s is not None:
            began_s = self.view.origin_s
        else:
            began_s = self.session.store.newest_s
        runs.choose(places, began_s)
        self._shows_overlaid = runs.chosen and (run is None or run.ended_s is not None)
        if shown and not runs.chosen:
            self.view.origin_s = None
            self.view.follow()

    def _run_in_view(self) -> RunView | None:
        """The run in view; ``None`` if there is none."""
        with self.session.store.lock:
            return run_in_view(self.session.store, self.view.range())

    def _program_began_s(self) -> float:
        """When the program began that is watched now, if what ran before was another one: beside each other, the curves
        of two programs look like those of one. -inf otherwise."""
        with self.session.store.lock:
            runs = list(self.session.store.runs)[-2:]
        if len(runs) < 2 or not self.view.following or runs[1].ended_s is not None:
            return -math.inf
        before, now = ((run.workload, run.spec.get("command"), run.spec.get("pid")) for run in runs)
        if before == now or WATCH not in (before[0], now[0]):
            return -math.inf
        return runs[1].began_s

    def _align_overlaid(self) -> None:
        """Keep the overlaid runs aligned with the run in view, and report what could not be read."""
        if self.overlaid is None:
            return
        run = self._run_in_view()
        if run is not None:
            self.overlaid.align(run.began_s)
        span = self.overlaid.span
        if not self.overlaid.chosen:
            self.view.origin_s = None
        elif span is not None:
            self.view.origin_s = span[0]
        if span is not None and self._shows_overlaid:
            self._shows_overlaid = False
            self.view.hold(span[0], span[1] + (span[1] - span[0]) * MARGIN_RATIO)
        if self.overlaid.problem:
            self.status_line.report(self.overlaid.problem)
            self.overlaid.problem = ""

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
        self._form_before = self._form_values()
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
        if screen is not None:
            screen.show()
            screen.bottom.show()
        self.left.setVisible(not shown and self._panel_wanted and self._has_runs)
        self.tabs.setVisible(not shown)
        self.busy.setVisible(shown)
        self.splitter.setMinimumHeight(scaled(MONITOR_PX) if shown else 0)
        self.plots.show_alone(shown)
        self.refresh_figures()

    def _form_values(self) -> object:
        """The values of the form, without the device."""
        if self.panel.watching:
            return replace(self.panel.script.script(), simulate="", as_cuda=False)
        values = self.panel.form.values()
        values.pop("devices", None)
        return self.panel.workload.currentData(), values

    def select_device(self, key: str) -> None:
        """Show the device with this key ("host" or a GPU's UUID) in the plots, and run on it if torch can."""
        self._selected = key
        for device in self.session.devices():
            if (device.uuid or "host") == key:
                self.panel.choose_card(device.name)
                self._run_script_on(device)

    def _run_script_on(self, device: Device) -> None:
        """Make a device the one that the user's own program finds; its own simulated card is that already."""
        if self._is_scripts_own and not is_program_card(device.name) and not self.session.running:
            self.panel.script.simulate.set_card(exact_text(simulated_card(device)) if device.simulated else "")

    def _simulate(self, card: SimulatedCard) -> None:
        """Make a card the form's device: for the user's own program through its field, else as a simulated device.

        On the first screen it becomes a simulated device whatever is chosen there, for the program too.
        """
        live = self.session.live
        if live is None:
            return
        if self.panel.watching:
            self.panel.script.simulate.set_card(exact_text(card))
        if self._is_scripts_own:
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

    def _show_answers(self, contents: Sequence[CardContent]) -> None:
        """Show on every card whether the form's run fits it."""
        live = self.session.live
        if live is None or self.fit is None:
            return
        answers = self.fit.on_cards
        if self.first_screen is not None:
            answers = CardsAnswer()
        devices = [device for device in self.session.devices() if device.problem is None]
        answered = devices
        if self.panel.watching:  # a script has verdicts only for the cards its run or prediction covers
            answered = [device for device in devices if device.name in answers.known]
        made = live.machine.simulated.chosen
        by_key = self._simulated_devices()
        names = {device.memory: device.name for device in answered}
        if self._is_scripts_own:  # its card is answered for as a card, not as a device of the session
            names |= {device.memory: key for key, device in by_key.items() if key in answers.known}
        self.cards.show_answers(answers, names)
        used = {content.key: content.used or 0.0 for content in contents}
        selected = next((key for key, device in by_key.items() if device.uuid == self.selected), "")
        if self._is_scripts_own:
            selected = self._card_of_script()
        self.chooser.show_answers(
            answers,
            {key: device.name for key, device in by_key.items()},
            {key: used.get(device.memory, 0.0) for key, device in by_key.items()},
            selected,
            [key for key, device in by_key.items() if device.uuid not in made],
            inviting=self.first_screen is not None,
        )

    def _simulated_devices(self) -> dict[str, Device]:
        """The session's simulated cards that a run can use, by the cards' keys; of equal ones the first."""
        return {
            exact_text(simulated_card(device)): device
            for device in reversed(self.session.devices())
            if device.problem is None and device.simulated and not is_program_card(device.name)
        }

    @property
    def _outlined(self) -> str:
        """Key of the device whose card is marked: the selected one, or, for the user's own program, where it runs; ""
        if that has a chip instead.
        """
        if not self._is_scripts_own or self.session.running:
            return self.selected
        by_key = self._simulated_devices()
        card = self._card_of_script()
        if card in by_key:
            return by_key[card].uuid or ""
        if card or any(device.uuid == self.selected for device in by_key.values()):
            return ""
        return self.selected

    @property
    def _is_scripts_own(self) -> bool:
        """Whether a chosen card is that of the user's own program alone, which has no device of the session."""
        return self.panel.watching and self.first_screen is None

    def _card_of_script(self) -> str:
        """Key of the card that the user's own program runs on; "" for none."""
        try:
            card = self.panel.script.script().simulated_card
        except ValueError:
            return ""
        if card is None:
            return ""
        return exact_text(card)

    def _device_chosen(self, name: str) -> None:
        for device in self.session.devices():
            if device.name == name:
                self._selected = device.uuid or "host"

    def _form_changed(self) -> None:
        """A changed form shows its prediction instead of the earlier run that was viewed."""
        self._viewed_earlier = False
        if not self.session.running and self._requested_program() != self._printing:
            self.tabs.drop_newest_line()
        if self._form_of_ended is not None and self._form_values() != self._form_of_ended:
            self._leave_ended_run()
        # Ignore a changed device alone: selecting or finding a card does not start anything.
        if self.first_screen is not None and self._form_values() != self._form_before:
            self.leave_first_screen()

    def _leave_ended_run(self) -> None:
        """The form asks for another run: what became of the last one no longer stands beside its prediction."""
        self._form_of_ended = None
        self._wants_another = True
        self.banner.leave_run()
        self.plots.cover(covered=False)

    def _requested_program(self) -> tuple[str, str]:
        """The workload that the form holds, and the script if that is the user's own."""
        return str(self.panel.workload.currentData()), self.panel.script.script().file

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
        """Esc closes the result, as its button says, even from the form and the cards, which do not use the key."""
        if event.key() == Qt.Key.Key_Escape and self.result.isVisible():
            self.plots.dismiss()
            return
        super().keyPressEvent(event)

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
            self._take_prediction()
            self.plots.refresh()

    def _draw(self) -> None:
        self._balance()
        self._align_overlaid()
        self.view.since_s = self._program_began_s()
        self._take_prediction()
        requests = self._requests()
        self.plots.set_requests("memory", requests)
        self.plots.set_running_ghost("memory", *self._running_ghost())
        super()._draw()
        self.view_bar.offer_smoothing(self.plots.smooths)
        self.busy.refresh()
        self.explanation.refresh()
        self.tabs.refresh_output(self.session.output)
        with self.session.store.lock:
            run = run_in_view(self.session.store, self.view.range())
        why_none = ""
        if run is not None and run.workload == WATCH and run.device != "cpu":
            why_none = self.session.requests.why_none
        live = self.session.live
        ended = live is not None and bool(live.runs.after_end)
        self.tabs.refresh_source(requests, run, self.view.cursor_s, why_none, program_ended=ended)

    def _take_prediction(self) -> None:
        self.plots.set_ghost("memory", self.ghost)
        self.plots.set_copies("transfer", self._copies())
        self.plots.set_remedy("memory", self._remedy())

    def _take_events(self) -> None:
        store = self.session.store
        with store.lock:
            rewound, self._rewound = store.rewound != self._rewound, store.rewound
            if rewound:
                self._events_seen = 0
            fresh = min(store.event_count - self._events_seen, len(store.events))
            events = list(islice(reversed(store.events), fresh))[::-1]
            self._events_seen = store.event_count
        if rewound:
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
                self._form_of_ended = self._form_values()
                # The panel must not say that it runs beside a view that says that it has ended.
                self.refresh_figures()
            if self.results_in_front and (event.time_s > self._opened_s if self.live else has_verdict(event.result)):
                self._show_newest_result()
        elif isinstance(event, RemediesFound) and not self.result.isHidden() and self._resulting is not None:
            self._fill_result(self._resulting)
        elif isinstance(event, RunStarted):
            self._take_start(event)
        elif isinstance(event, Note) and event.topic == Topic.DEVICE and self._follows_program():
            self._awaited_device = event.details.get("device")

    def _take_start(self, event: RunStarted) -> None:
        self.leave_first_screen()
        self._form_of_ended = None
        self._wants_another = False
        self._program_ended = False
        self.plots.cover(covered=False)
        if self.view.held:
            self.view.follow()
        if event.workload == WATCH:
            run = RunView.of(event)
            self.tabs.output.begin(process_text(run), elsewhere="pid" in event.spec)
            self.tabs.show_output(requested=False)
            self._printing = self._requested_program()
            self._awaited_device = event.device
            return
        self.tabs.leave_output()
        if self._selected is not None and self._selected == self._shown_for_program:
            self._awaited_device = event.device  # the program's card is not that of this run

    def _hold_run(self) -> None:
        """Keep the whole of the run that just ended in view; leave a paused view alone, the user chose it."""
        with self.session.store.lock:
            run = self.session.store.run
            newest = self.session.store.newest_s
        if run is None or not (self.view.following or (self.view.held and self._program_ended)):
            return
        if run.of_demo:
            # The demo's run is on a card of its own; the user's next run shows that of the form.
            self._select_card_of(run)
            self._shown_for_program = self._selected
        if run.ended_s is not None:
            self.view.hold(*_span_of(run, run.ended_s))
        elif self._program_ended:
            self.view.hold(*_span_of(run, newest))

    def _select_card_of(self, run: RunView) -> None:
        keys = {device.name: device.uuid or "host" for device in self.session.devices()}
        self._selected = keys.get(run.device, self._selected)

    def hold_run(self, number: int) -> None:
        """Show a whole run of the session, counted from 1, and its device, until something new starts."""
        with self.session.store.lock:
            runs = list(self.session.store.runs)
        if not 1 <= number <= len(runs):
            return
        self.leave_first_screen()
        run = runs[number - 1]
        self._select_card_of(run)
        self._viewed_earlier = True
        self.plots.cover(covered=False)
        if run.ended_s is None:
            self.view.follow()
            return
        left, right = _span_of(run, run.ended_s)
        if number < len(runs):  # with the margin, the next run would become the run in view
            right = min(right, math.nextafter(runs[number].began_s, -math.inf))
        self.view.hold(left, right)

    def run_in_front(self) -> RunView | None:
        """The run that commands act on: the one in view, else the newest."""
        store = self.session.store
        with store.lock:
            in_view = None
            if not self.view.following:
                in_view = run_in_view(store, self.view.range())
            return in_view or store.run

    def show_result(self) -> None:
        """Show the result of the run in view over the plots."""
        run = self.run_in_front()
        if run is not None and not run.running:
            self._bring_result(run)

    def _show_newest_result(self) -> None:
        """Show the newest run's result over the plots, if it says more than they do."""
        with self.session.store.lock:
            run = self.session.store.run
        if run is not None and not run.running and is_put_forward(run):
            self._bring_result(run)

    def _bring_result(self, run: RunView) -> None:
        """Show a result, and focus it so that Esc closes it, unless the user is typing."""
        self._fill_result(run)
        if not isinstance(QGuiApplication.focusObject(), (QLineEdit, QPlainTextEdit, QAbstractSpinBox, QComboBox)):
            self.result.setFocus()

    def _fill_result(self, run: RunView) -> None:
        store = self.session.store
        self._resulting = run
        with store.lock:
            self.result.show_run(run, list(store.runs), self.run_name(run), commanding=self.live)
        self.plots.cover(covered=True)

    def _act_on_result(self, name: str) -> None:
        if self._resulting is not None:
            self.action.emit(name, self._resulting.error)

    def _apply_to_result(self, remedy: Remedy) -> None:
        if self._resulting is not None:
            self.explanation.apply(self._resulting, remedy)

    def run_name(self, run: RunView) -> str:
        """Name of a run of the session, as in the library. The caller holds the store's lock."""
        runs = enumerate(self.session.store.runs, 1)
        number = next((number for number, one in runs if (one.run_id, one.began_s) == (run.run_id, run.began_s)), 0)
        return self.session.run_title(number) or given_name(run.workload, run.device, run.spec)

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
        run = self._resulting
        if run is not None and not self.session.running:
            put_into_panel(run, self.panel, self.session.devices(), self.session.default_device())
            self.start_requested.emit()

    def _show_awaited_device(self) -> None:
        """Select the device of the watched program once it exists, and the device it changes to unless the user
        selected another."""
        for device in self.session.devices():
            if device.name == self._awaited_device:
                self._selected, self._awaited_device = device.uuid or "host", None
                self._shown_for_program = self._selected

    def _follows_program(self) -> bool:
        return self._awaited_device is not None or self._selected == self._shown_for_program

    @property
    def selected(self) -> str:
        """The device shown: the one the user selected, else the one a run would use."""
        if self._selected is None or self._selected not in ("host", *(gpu.uuid for gpu in self.session.gpus)):
            name = self.panel.device_name
            return next((d.uuid for d in self.session.devices() if d.name == name and d.uuid), "host")
        return self._selected

    @property
    def selected_device(self) -> Device | None:
        """The device shown; ``None`` for a GPU that torch does not know."""
        return next((device for device in self.session.devices() if (device.uuid or "host") == self.selected), None)

    @property
    def topic(self) -> str | None:
        """The workload in view; "" if no run is in view."""
        with self.session.store.lock:
            run = run_in_view(self.session.store, self.view.range())
        if run is None:
            return ""
        return run.workload

    def wanted_plots(self) -> Sequence[PlotSpec]:
        session, selected = self.session, self.selected
        warn = session.settings.warn_ratio
        by_key = {device.uuid or "host": device.name for device in session.devices()}
        gpus = {gpu.uuid: gpu for gpu in session.gpus}
        with session.store.lock:
            compared = self._compared()
            if compared and selected not in compared:
                selected = compared[-1]
            plots = plots_for(
                session.store,
                selected=selected,
                device_name=session.device_text(selected),
                allocator=None if selected == "host" else by_key.get(selected),
                warn_ratio=warn,
                to_capacity=self.memory_to_capacity(),
                gpu=gpus.get(selected),
                rank=self.tabs.selected_rank,
                span=self.view.range(),
                warned=self.banner.warns,
                own=process_text(
                    run_in_view(session.store, self.view.range()), session.store.newest_s, self.view.drawn()[0]
                ),
            )
            plots = self._named(self._with_line(plots), selected)
            if self.overlaid is not None:
                plots = self.overlaid.on(plots)
            shown = (key for key in compared if key != selected)
            others = [
                memory_plot(session.store, key, by_key[key], by_key[key], warn, to_capacity=False, gpu=gpus.get(key))
                for key in shown
            ]
        plots = self._with_ghost(plots)
        found = [*plots[:1], *(replace(plot, id=f"{plot.id} {plot.title}") for plot in others), *plots[1:]]
        if self.first_screen is not None:
            self.busy.set_plots([plot for plot in found if plot.id == BUSY])
            return [plot for plot in found if plot.id == "memory"]
        return found

    @property
    def ghost(self) -> GhostView | None:
        """The prediction for the run about to start, if the memory plot shows it.

        It is shown while nothing runs and the view follows, or holds the last run. Going back in time, or selecting a
        range, shows measurements instead.
        """
        if not (self.view.following or self.view.held) or self.view.selection is not None:
            return None
        if self._viewed_earlier and self.view.held:
            return None
        # Overlaid runs belong on measurements.
        if self.overlaid is not None and self.overlaid.chosen:
            return None
        return self._prediction

    @property
    def _prediction(self) -> GhostView | None:
        """The prediction, whether or not it is shown at the moment."""
        if self.fit is None or self.first_screen is not None:
            return None
        # A script names its device itself; it may be a card that exists only while the script runs.
        if not (self.panel.watching or self._shows(self.fit.device)):
            return None
        return self.fit.ghost

    def _copies(self) -> CopiesView | None:
        """The copies of the run whose ghost is shown; ``None`` if there are none."""
        shown = self.ghost
        if shown is None or not _has_copies(shown):
            return None
        assert shown.ghost is not None
        return CopiesView(shown.ghost, shown.faded)

    def _remedy(self) -> RemedyView | None:
        """What the remedy under the pointer would change in the ghost that is shown."""
        if self.fit is None or self.ghost is None:
            return None
        return self.fit.remedy

    def _show_remedy(self) -> None:
        """Show the remedy at once rather than with the next frame: it follows the pointer."""
        self.plots.set_remedy("memory", self._remedy())
        self.plots.refresh()

    def _with_line(self, plots: Sequence[PlotSpec]) -> tuple[PlotSpec, ...]:
        """Mark the predicted peak of the run in view in the memory plot. The caller holds the store's lock."""
        run = run_in_view(self.session.store, self.view.range())
        line = None
        if self.fit is not None and run is not None and self._shows(run.device):
            line = self.fit.prediction_line(run)
        if line is None:
            return tuple(plots)
        return tuple(replace(plot, lines=(line, *plot.lines)) if plot.id == "memory" else plot for plot in plots)

    def _running_ghost(self) -> tuple[RunningGhost | None, Sequence[Deviation]]:
        """The ghost of the run in view on its time axis, and where the run deviates from it."""
        span = self.view.range()
        with self.session.store.lock:
            run = run_in_view(self.session.store, span)
            if self.fit is None or run is None or not self._shows(run.device):
                return None, ()
            running = self.fit.running_ghost_of(run, span)
            if running is None:
                return None, ()
            return running, self.fit.deviations_of(running, run)

    def _requests(self) -> RequestLog | None:
        """The allocation requests of the device shown."""
        names = (one.name for one in self.session.devices() if (one.uuid or "host") == self.selected)
        logs = (self.session.requests.of(name) for name in names)
        return next((log for log in logs if log is not None), None)

    def _shows(self, device: str) -> bool:
        """Whether this is torch's name of the device shown."""
        keys = {one.name: one.uuid or "host" for one in self.session.devices()}
        return keys.get(device) == self.selected

    def _with_ghost(self, plots: Sequence[PlotSpec]) -> tuple[PlotSpec, ...]:
        """Replace the memory plot's curves with the ribbons of the ghost while one is shown."""
        predicted = self._prediction
        if predicted is None:
            return tuple(plots)
        shown = self.ghost
        found = []
        if _has_copies(predicted):
            below = copies_plot(shown is not None)
            plots = [*plots[:1], below, *(plot for plot in plots[1:] if plot.id != below.id)]
        for plot in plots:
            if plot.id == "memory":
                # Keep the height when it shows readings for a while: a range is selected with the pointer, so nothing
                # may move.
                if shown is None:
                    plot = replace(plot, stretch=GHOST_STRETCH)
                else:
                    plot = _predicted(plot, shown)
            found.append(plot)
        return tuple(found)

    def _compared(self) -> list[str]:
        """The devices ("host" or a GPU's UUID) of the comparison in view. The caller holds the store's lock."""
        run = run_in_view(self.session.store, self.view.range())
        if run is None or run.workload != "comparison":
            return []
        names = dict.fromkeys(str(run.spec.get("devices", "")).split(","))
        keys = {device.name: device.uuid or "host" for device in self.session.devices()}
        return [keys[name] for name in names if name in keys]

    def _named(self, plots: Sequence[PlotSpec], selected: str) -> tuple[PlotSpec, ...]:
        """Name the simulated card in the memory plot's title, as its chip does."""
        live = self.session.live
        if live is None or selected not in live.machine.simulated.chosen:
            return tuple(plots)
        product = next((known_product(one.product) for one in self.session.devices() if one.uuid == selected), "")
        if not product:
            return tuple(plots)
        found = []
        for plot in plots:
            if plot.id == "memory":
                plot = replace(plot, title=f"{plot.title} · {product}")
            found.append(plot)
        return tuple(found)

    def captions(self) -> tuple[str, str]:
        title = TITLE
        with self.session.store.lock:
            run = run_in_view(self.session.store, self.view.range())
            if run is not None:
                title = self.run_name(run)
        return title, self.caption(self.selected, self.session.device_text(self.selected))

    def caption(self, selected: str, unlisted: str) -> str:
        """Name of the device ``selected`` in a picture; ``unlisted`` if the session does not list it."""
        found = (device for device in self.session.devices() if (device.uuid or "host") == selected)
        return next((f"{shown_name(device.name)} · {device.product}" for device in found), unlisted)

    def refresh_figures(self) -> None:
        """Update cards, tables and text."""
        session, store, live = self.session, self.session.store, self.session.live
        self._show_awaited_device()
        devices = session.devices()
        names = {device.uuid: device.name for device in devices if device.uuid}
        warn = session.settings.warn_ratio
        memories = ("host", *(gpu.uuid for gpu in session.gpus))
        if live is None:
            self.forecasts = {}
        else:
            self.forecasts = {key: live.forecast(key) for key in memories}
        stop = None
        after_end = ""
        if live is not None:
            stop = live.runs.stopping
            after_end = live.runs.after_end
        if after_end and not self._program_ended:
            self._program_ended = True
            self._hold_run()
        with store.lock:
            contents = [host_card(store, devices[0], session.host_capacity_source, warn)]
            rows: list[tuple[str, Table, str | None]] = [("cpu", "host", None)]
            for gpu in session.gpus:
                name = names.get(gpu.uuid)
                contents.append(gpu_card(store, gpu, name or f"GPU {gpu.number}", warn))
                rows.append((shown_name(name) if name else f"GPU {gpu.number}", "gpu", gpu.uuid))
            self.tabs.refresh(store, self.view.selection, device_rows(store, rows))
            device = None
            if store.run is not None:
                device = store.run.device
            memory = next((uuid for uuid, name in names.items() if name == device), "host")
            progress = store.run
            if self._wants_another and progress is not None and progress.error is not None:
                progress = None
            self.panel.show_run(progress, session.running, self._loading(), self.forecasts.get(memory), stop, after_end)
            # The strip may leave the reason out only while the newest run's result is shown beside the plots.
            ended = ""
            if store.run is not None and store.run is self._resulting and not self.result.isHidden():
                ended = ended_badly(store.run)
        left_out = self._without_card(names)
        listed = [in_time(one, self.forecasts.get(one.key)) for one in contents if one.key not in left_out]
        self.cards.show_contents(listed, self._outlined)
        self._show_answers(contents)
        self._show_standing()
        offered = [device for device in devices if not (self.live and is_program_card(device.name))]
        self.panel.set_devices(offered, session.default_device())
        self.banner.set_running(session.running)
        self.banner.set_brief(ended)
        self.result.verdict.again_button.setEnabled(not session.running)
        if self.result.offer_tab(not self.tabs.isHidden()):
            self.plots.place_over()
        self.view_bar.refresh()  # it shows how far the view is behind, like the status line
        self.result.ending.remedies.setEnabled(not session.running)
        searching = [view for view in (self.result.ending.remedies, *self.explanation.remedies) if view.searching]
        if live is not None and searching:  # only then: accessing `remedies` loads the search
            for shown in searching:
                shown.show_so_far(live.remedies.so_far)
            self.plots.place_over()  # its text may need more lines
        origin = self._origin
        if not origin and not self.live:
            origin = f"recording {session.recording_path.name if session.recording_path else ''}"
        if live is None:
            status, problem = (None, None)
        else:
            status, problem = (live.status(), live.gpu_problem)
        self.status_line.show_status(status, origin, problem, self._loading())
        draw_forecast(session, self.plots, self.selected, self.forecasts.get(self.selected))
        super().refresh_figures()

    def _without_card(self, names: Mapping[str, str]) -> frozenset[str]:
        """UUIDs of the simulated cards that get no device card at the top.

        These are the cards that a chip stands for, and an unused card whose name a program's own card has: side by
        side, nobody could tell which ``sim:0`` is meant.

        Args:
            names: UUID of each device → its name.
        """
        live = self.session.live
        if live is None:
            return frozenset()
        simulated = live.machine.simulated
        taken = {address_of(name) for name in names.values() if is_program_card(name)}
        doubled = {uuid for uuid in simulated.unused if names.get(uuid) in taken and uuid != self.selected}
        return simulated.chosen | doubled

    def _show_standing(self) -> None:
        """Update the warning in the strip, with the remaining time shown on the cards and the actions available."""
        live = self.session.live
        if live is None:
            return
        for warning in self.banner.standing:
            now = live.standing(warning, self.forecasts.get(warning.device))
            if now is not None:
                self.banner.say_now(warning, now)

    def _loading(self) -> str:
        live = self.session.live
        if live is None or live.torch_ready:
            return ""
        return "PyTorch loading…"

    def show_run(self) -> None:
        """Show the last run, or everything if there is none, and put the run's parameters into the form."""
        store = self.session.store
        with store.lock:
            run, newest = store.run, store.newest_s
        if run is None:
            self.view.show(0.0, max(newest, 1.0))
            return
        if run.ended_s is None:
            end = newest
        else:
            end = run.ended_s
        self.view.show(*_span_of(run, end))
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
            self.rebalance()

    def reset_layout(self) -> None:
        """Reset tables, curves and the split between plots and tables to their defaults."""
        self.tabs.set_collapsed(self.window().height() < LOW_WINDOW)
        super().reset_layout()
        self._tables_height = 0
        self.rebalance()

    def rebalance(self) -> None:
        """Recompute the split between plots and tables; a height that was dragged stays while the tables are open."""
        self._balanced = None
        self._balance()

    def _balance(self) -> None:
        """Give the tables the same height for every tab, and the plots the rest."""
        key = (self.splitter.height(), self.tabs.collapsed)
        if self._balanced == key:
            return
        self._balanced = key
        height = self.splitter.height() - self.splitter.handleWidth()
        open_height = self._tables_height or self.tabs.usual_height(height)
        lower = open_height
        if self.tabs.collapsed:
            lower = self.tabs.minimumHeight()
        self.splitter.setSizes([max(1, height - lower), lower])

    def _balanced_by_hand(self) -> None:
        if not self.tabs.collapsed:
            self._tables_height = self.splitter.sizes()[1]


def _span_of(run: RunView, end_s: float) -> tuple[float, float]:
    """Session time range that shows a run up to ``end_s`` whole, with a margin."""
    margin = min(MARGIN_S, (end_s - run.began_s) * MARGIN_RATIO)
    return max(0.0, min(run.began_s - margin, end_s + margin - LEAST_SPAN_S)), end_s + margin


GHOST_STRETCH = 6
"""Stretch factor of a plot that shows a prediction."""


def _has_copies(shown: GhostView) -> bool:
    return shown.ghost is not None and len(shown.ghost.copies) > 0


def _predicted(plot: PlotSpec, shown: GhostView) -> PlotSpec:
    """The memory plot with one curve per ribbon. They stand in for readings and have none."""
    table, _, device = plot.curves[0].key
    names: Sequence[str] = ()
    if shown.ghost is not None:
        names = shown.ghost.names
    curves = tuple(
        CurveSpec((table, f"predicted {name}", device), name, "bytes", COLOURS.get(name, name), stack=True)
        for name in names
    )
    state = "not predicted"
    if names:
        state = "predicted"
    title = shown.title or f"{plot.title}, {state}"
    return replace(plot, title=title, curves=curves, lines=(), stretch=GHOST_STRETCH)


SHOWN_S = 60.0
"""Remaining seconds below which the plot shows the forecast."""


def in_time(content: CardContent, ahead: Forecast | None) -> CardContent:
    """A card's content with the remaining time as its first fact once the plot shows the forecast."""
    if ahead is None or ahead.seconds > SHOWN_S:
        return content
    return replace(content, facts=[ends_in(ahead), *content.facts])


def draw_forecast(session: DashboardSource, plots: PlotStack, selected: str, ahead: Forecast | None) -> None:
    """Draw the forecast of the memory ``selected`` ("host" or a GPU's UUID), or remove it."""
    if ahead is None or ahead.seconds > SHOWN_S:
        plots.set_forecast("memory", None)
        return
    table: Table = "gpu"
    if selected == "host":
        table = "host"
    with session.store.lock:
        reading = session.store.latest(table, "used_bytes", None if selected == "host" else selected)
    if isinstance(reading.value, (int, float)) and reading.time_s is not None:
        begin = (reading.time_s, float(reading.value))
        end = (reading.time_s + ahead.seconds, begin[1] + ahead.bytes_per_second * ahead.seconds)
        plots.set_forecast("memory", [begin, end])

"""The main window: it places the parts and passes wishes on; it holds no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCloseEvent, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QHBoxLayout, QMainWindow, QSplitter, QVBoxLayout, QWidget

from gpudash.devices import shown_name
from gpudash.session import Replay, Session
from gpudash.settings import Settings
from gpudash.telemetry.records import Event, Note, RunStarted, Table
from gpudash.ui.banner import Banner
from gpudash.ui.cards import DeviceCards
from gpudash.ui.commands import Commands
from gpudash.ui.documents import Documents
from gpudash.ui.dropping import Dropping
from gpudash.ui.explanation_view import ExplanationView
from gpudash.ui.fit_follower import FitFollower
from gpudash.ui.forecast_line import draw_forecast
from gpudash.ui.layout import default_place, forget_layout, keep_layout, restore_layout
from gpudash.ui.live_plots import plots_for, reaches_to_capacity
from gpudash.ui.lower_tabs import LowerTabs
from gpudash.ui.notify import notify
from gpudash.ui.opening import Opening
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.readings import device_rows, gpu_card, host_card
from gpudash.ui.run_progress import WATCH
from gpudash.ui.status_line import StatusLine
from gpudash.ui.theme import Choice, Palette
from gpudash.ui.view_bar import ViewBar
from gpudash.ui.workload_panel import WorkloadPanel

LOW_WINDOW = 920
"""Logical pixels of height below which the tables start collapsed and the cards take one line."""

PLOTS_GAP = 4
"""Logical pixels between the row of controls and the plots."""

BY_HAND = "by hand"
"""Stands for the balance of plots and tables while the user has set it."""

SLOW_REFRESH = 4
"""Cards, tables and status line are refreshed every so many frames: nobody reads figures at 15 Hz."""


TITLE = "gpudash"
"""Of the window, while no document is in front."""

ISOLATION: Mapping[str, bool | None] = {"automatic": None, "always": True, "never": False}
"""Setting → whether a run is hosted in a process of its own; ``None`` leaves it to the session."""


class MainWindow(QMainWindow):
    """The dashboard over a live session, or over a recording that is looked at.

    Args:
        session: what is shown and commanded; the window closes it.
        palette: colours at the start.
        set_theme: called with "system", "light" or "dark" when the user picks a theme.
    """

    def __init__(self, session: Session | Replay, palette: Palette, set_theme: Callable[[Choice], None]) -> None:
        super().__init__()
        self.session = session
        self.palette_ = palette
        self.joined = True
        self._set_theme = set_theme
        self._selected: str | None = None
        self._awaited_device: str | None = None
        self._layout_key: object = None
        self._to_capacity = False
        self._events_seen = 0
        self._frame = 0
        self._balanced: object = None
        self._closed = False
        self._live = not isinstance(session, Replay)
        self._own_title = f"{session.recording.name} – {TITLE}" if isinstance(session, Replay) else TITLE
        self.setWindowTitle(self._own_title)
        self.setMinimumSize(960, 600)
        self.view = TimeView(session.settings.window_s, self)
        self._build()
        self.commands = Commands(self, set_theme)
        self._connect()
        self._restore_layout()
        self.setFocus()  # else the first activation gives it to a card, and Space would mean that card
        self.timer = QTimer(self)
        self.timer.setInterval(round(1000 / session.settings.frames_hz))
        self.timer.timeout.connect(self.refresh)
        self.timer.start()

    def _build(self) -> None:
        store, palette = self.session.store, self.palette_
        self.cards = DeviceCards(palette)
        self.banner = Banner()
        self.panel = WorkloadPanel()
        self.panel.set_commanding(self._live)
        self.panel.fit.set_palette(palette)
        self.view_bar = ViewBar(self.view, self.session.settings.smoothing, live=self._live)
        self.plots = PlotStack(store, self.view, palette)
        self.tabs = LowerTabs()
        self.tabs.output.set_palette(palette)
        self.status_line = StatusLine()
        upper = QWidget()
        rows = QVBoxLayout(upper)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setSpacing(PLOTS_GAP)
        rows.addWidget(self.view_bar)
        rows.addWidget(self.plots, 1)
        self.splitter = QSplitter(Qt.Orientation.Vertical)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.addWidget(upper)
        self.splitter.addWidget(self.tabs)
        self.splitter.setStretchFactor(0, 1)
        self.splitter.setStretchFactor(1, 0)
        middle = QHBoxLayout()
        middle.setSpacing(10)
        middle.addWidget(self.panel)
        middle.addWidget(self.splitter, 1)
        whole = QWidget()
        outer = QVBoxLayout(whole)
        outer.setContentsMargins(12, 4, 12, 0)
        outer.setSpacing(6)
        outer.addWidget(self.cards)
        outer.addWidget(self.banner)
        outer.addLayout(middle, 1)
        outer.addWidget(self.status_line)
        self.explanation = ExplanationView(self, whole)
        self.documents = Documents(self.explanation)
        self.opening = Opening(self)
        self.setCentralWidget(self.documents)
        self.dropping = Dropping(self, palette, self.opening.open_dropped)

    def _connect(self) -> None:
        self.cards.chosen.connect(self.select_device)
        self.panel.device_chosen.connect(self._device_chosen)
        self.panel.start_requested.connect(self.start_run)
        self.panel.stop_requested.connect(self.session.stop_run)
        self.banner.action.connect(self.commands.do)
        self.view_bar.show_all.connect(self.plots.show_all)
        self.view_bar.smoothing_changed.connect(self.plots.set_smoothing)
        self.plots.mark_requested.connect(self.commands.add_mark)
        self.plots.told.connect(self.status_line.tell)
        self.plots.failed.connect(self.status_line.tell)
        self.tabs.collapsed_changed.connect(self._rebalance)
        self.tabs.output.told.connect(self.status_line.tell)
        self.documents.said.connect(self.status_line.tell)
        self.documents.front_changed.connect(self._front_changed)
        self.splitter.splitterMoved.connect(self._balanced_by_hand)
        self.plots.set_smoothing(self.session.settings.smoothing)
        self.fit = None if isinstance(self.session, Replay) else FitFollower(self.session, self.panel)

    def start_run(self) -> None:
        """Run what the panel holds: a workload on the device it names, or the user's own program."""
        session, panel = self.session, self.panel
        if isinstance(session, Replay) or session.running or not panel.ready:
            return
        self.documents.show_dashboard()
        self.view.follow()
        spec, isolate = panel.spec(), ISOLATION[session.settings.isolate]
        if spec is None:
            request = panel.script.request()
            started = self.commands.attempt(lambda: session.watch(request))
            panel.script.remember()
        else:
            started = self.commands.attempt(lambda: session.start_run(spec, panel.device_name, isolate=isolate))
        if started:
            self._refresh_figures()

    def select_device(self, key: str) -> None:
        """Show the device with this key ("host" or a GPU's UUID) in the plots, and run on it where torch can."""
        self._selected = key
        for device in self.session.devices():
            if (device.uuid or "host") == key:
                self.panel.choose_device(device.name)

    def _device_chosen(self, name: str) -> None:
        for device in self.session.devices():
            if device.name == name:
                self._selected = device.uuid or "host"

    def apply_settings(self, settings: Settings) -> None:
        """Show what new settings ask for."""
        self.timer.setInterval(round(1000 / settings.frames_hz))
        self.view.set_window(settings.window_s)
        self.view_bar.smoothing.setValue(round(settings.smoothing * 100))

    def set_palette(self, palette: Palette) -> None:
        """Redraw everything in other colours."""
        self.palette_ = palette
        parts = (self.cards, self.plots, self.panel.fit, self.explanation.page, self.tabs.output, self.dropping)
        for part in (*parts, self.documents, self.opening):
            part.set_palette(palette)
        self.refresh()

    def refresh(self) -> None:
        """Draw what is new; the one timer calls it."""
        store = self.session.store
        self._take_events()
        with store.lock:
            newest = store.newest_s
        self.view.set_now(newest)
        self.banner.tick(newest)
        if self._frame % SLOW_REFRESH == 0:
            self._refresh_figures()
        if self.fit is not None:
            self.fit.refresh()
        self._choose_plots()
        self.opening.refresh()
        if self.documents.front is None:
            self._balance()
            self.plots.refresh()
            self.explanation.page.refresh()
            self.tabs.refresh_output(self.session.output)
        else:
            self.documents.refresh()
        self._frame += 1

    def _take_events(self) -> None:
        store = self.session.store
        with store.lock:
            fresh = min(store.event_count - self._events_seen, len(store.events))
            events = list(islice(reversed(store.events), fresh))[::-1]
            self._events_seen = store.event_count
        self.tabs.take(events, self.session.began_wall_s)
        self.explanation.take(events)
        for event in events:
            self.banner.take(event)
            self._take_program(event)
            if not self.isActiveWindow():
                notify(self, event)

    def _take_program(self, event: Event) -> None:
        """A program of the user's begins, or has saved the snapshot that was asked for."""
        if isinstance(event, RunStarted) and event.workload == WATCH:
            self.tabs.output.begin()
            self.tabs.show_output()
            self._awaited_device = event.device
        elif isinstance(event, Note) and event.topic == "snapshot" and self._live:
            path = event.details.get("path")
            if path is None:
                self.documents.notice.tell(event.text)
            else:
                self.opening.open(Path(path))

    def _show_awaited_device(self) -> None:
        """Show the device of the program that was started, once it is there."""
        for device in self.session.devices():
            if device.name == self._awaited_device:
                self._selected, self._awaited_device = device.uuid or "host", None

    @property
    def selected(self) -> str:
        """The device shown: the one that was chosen, else the one a run would use."""
        if self._selected is None:
            name = self.panel.device_name
            return next((d.uuid for d in self.session.devices() if d.name == name and d.uuid), "host")
        return self._selected

    def _choose_plots(self) -> None:
        selected = self.selected
        words = self.session.device_words(selected)
        allocator = next((device.name for device in self.session.devices() if device.uuid == selected), None)
        with self.session.store.lock:
            self._to_capacity = reaches_to_capacity(self.session.store, selected, self._to_capacity)
            specs = plots_for(
                self.session.store,
                selected=selected,
                words=words,
                allocator=allocator,
                warn_ratio=self.session.settings.warn_ratio,
                to_capacity=self._to_capacity,
                gpu=next((gpu for gpu in self.session.gpus if gpu.uuid == selected), None),
            )
        if specs != self._layout_key:
            self._layout_key = specs
            self.plots.set_plots(specs)
            self.plots.set_caption(TITLE, self._caption(selected, words))

    def _caption(self, selected: str, words: str) -> str:
        found = (device for device in self.session.devices() if (device.uuid or "host") == selected)
        return next((f"{shown_name(device.name)} · {device.product}" for device in found), words)

    def _refresh_figures(self) -> None:
        session, store = self.session, self.session.store
        self._show_awaited_device()
        devices = session.devices()
        names = {device.uuid: device.name for device in devices if device.uuid}
        gpus = session.gpus
        warn = session.settings.warn_ratio
        with store.lock:
            contents = [host_card(store, devices[0], session.host_capacity_source, warn)]
            rows: list[tuple[str, Table, str | None]] = [("cpu", "host", None)]
            for gpu in gpus:
                name = names.get(gpu.uuid)
                contents.append(gpu_card(store, gpu, name or f"GPU {gpu.nvml_index}", warn))
                rows.append((shown_name(name) if name else f"GPU {gpu.nvml_index}", "gpu", gpu.uuid))
            run = store.run
            selection = self.view.selection
            self.tabs.refresh(store, selection, device_rows(store, rows))
            self.panel.show_run(run, session.running, self._loading())
        self.cards.show_contents(contents, self.selected)
        self.panel.set_devices(devices, session.default_device())
        self.banner.set_running(session.running)
        words = self.view.status() if self._live else f"recording {session.recording.name if session.recording else ''}"
        self.status_line.show_status(session.status(), words, session.gpu_problem, self._loading())
        draw_forecast(session, self.plots, self.selected)
        self.commands.refresh()

    def _loading(self) -> str:
        return "" if self.session.torch_ready else "PyTorch loading…"

    def keyPressEvent(self, event: QKeyEvent) -> None:
        free = QApplication.focusWidget() in (None, self) and self.documents.front is None
        if free and event.key() == Qt.Key.Key_Space and not event.modifiers():
            self.view.toggle()
        else:
            super().keyPressEvent(event)

    def _front_changed(self) -> None:
        front = self.documents.front_title
        self.setWindowTitle(f"{front} – {TITLE}" if front else self._own_title)
        self.commands.refresh()

    def recording_window(self, replay: Replay) -> MainWindow:
        """A window like this one over a recording; not shown yet."""
        replay.set_settings(self.session.settings)
        return MainWindow(replay, self.palette_, self._set_theme)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        low = self.height() < LOW_WINDOW
        if low != (event.oldSize().height() < LOW_WINDOW) or not event.oldSize().isValid():
            self.cards.set_compact(low)
            self.tabs.set_collapsed(low)
            self._rebalance()

    def _rebalance(self) -> None:
        """Share the height between plots and tables anew, also where the user had moved the handle."""
        self._balanced = None
        self._balance()

    def _balance(self) -> None:
        """Give the plots what they need to be seen whole, and the tables the rest of what they can use."""
        key = (self.splitter.height(), self.plots.needed_height, self.tabs.collapsed)
        if self._balanced in (key, BY_HAND):
            return
        self._balanced = key
        height = self.splitter.height() - self.splitter.handleWidth()
        needed = self.view_bar.sizeHint().height() + PLOTS_GAP + self.plots.needed_height
        lower = min(max(height - needed, self.tabs.minimumHeight()), self.tabs.maximumHeight())
        self.splitter.setSizes([max(1, height - lower), lower])

    def _balanced_by_hand(self) -> None:
        self._balanced = BY_HAND

    def reset_layout(self) -> None:
        """Everything back to where it was at the first start."""
        forget_layout()
        self.showNormal()
        self._take_default_place()
        self.commands.actions["Full Screen"].setChecked(False)
        self.commands.actions["Workload Panel"].setChecked(True)
        self.tabs.set_collapsed(self.height() < LOW_WINDOW)
        self.plots.show_all_curves()
        self._rebalance()

    def _restore_layout(self) -> None:
        self._take_default_place()
        if self._live and not restore_layout(self):
            self._take_default_place()

    def _take_default_place(self) -> None:
        self.setGeometry(default_place(self))

    def closeEvent(self, event: QCloseEvent) -> None:
        event.accept()
        if self._closed:
            return
        self._closed = True
        self.timer.stop()
        if self._live:
            keep_layout(self)
        self.documents.close_all()
        read = self.opening.close()
        self.joined = self.session.close() and read

"""A fleet in a tab: every GPU that a Prometheus server knows, the fullest first, a strip of warnings, and a row of
controls that search, sort and group.

Its figures can be copied as tab-separated text, with units in the header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QPushButton, QSizePolicy, QStackedWidget, QWidget

from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.metrics import SENSORS
from gpudash.ui.dashboard.document import Document
from gpudash.ui.fleet.controls import FleetControls
from gpudash.ui.fleet.grid import FleetGrid
from gpudash.ui.fleet.header import FleetHeader
from gpudash.ui.fleet.labels import Level, cell_of, clock_text, details, format_age, levels, one_line, summary
from gpudash.ui.fleet.layout import Order, group_of
from gpudash.ui.fleet.warnings_strip import WarningsStrip, count_text
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics

if TYPE_CHECKING:
    from gpudash.session.fleet.overview import AnyFleet
    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.telemetry.records import Warning
    from gpudash.ui.colours import Palette


NONE_FOUND = "No GPU matches the search."
NO_WARNINGS = "No GPU has a warning."

SERVERS = "Readings of a Prometheus server are not recorded here; open a GPU, and export its curves with File > Export."

HINT = "Enter or a double click opens a GPU · Ctrl+click selects two to compare · type to search"

AGE_S = 1.0
"""Seconds between updates of the ages shown, while no reply arrives."""


class FleetDocument(Document):
    """The overview: header, warnings, controls and the grid.

    Closing it stops the polling. Tabs of single GPUs send their own queries and stay open.

    Args:
        fleet: fleet to poll; closed with the document.
        palette: current colours.
        open_gpu: opens the history of a GPU.
        compare: compares two GPUs, or a GPU with another of its days.
        save: asks where, and saves the recordings of all machines; ``None`` if nothing is recorded.
        clock: any clock, in seconds.
    """

    pictured = "the overview"

    def __init__(
        self,
        fleet: AnyFleet,
        palette: Palette,
        *,
        open_gpu: Callable[[FleetGpu], object],
        compare: Callable[[Sequence[FleetGpu]], object],
        save: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.title = fleet.address
        self.fleet = fleet
        self._open_gpu, self._compare = open_gpu, compare
        self.save = save
        self._clock = clock
        self._version = -1
        self._drawn_s = -AGE_S
        self._gpus: dict[str, FleetGpu] = {}
        self._levels: Mapping[str, Level] = {}
        self._warnings: tuple[Warning, ...] = ()
        self.order = Order()
        self.header = FleetHeader()
        self.strip = WarningsStrip()
        self.controls = FleetControls()
        self.controls.days = fleet.days
        self.controls.save.setVisible(save is not None)
        self.controls.show_choice(0)
        self.grid = FleetGrid(palette, clock)
        self.grid.tip = self._tip
        self._build()
        self._connect()
        self.setAccessibleName(f"Fleet of {fleet.address}")
        self.setFocusProxy(self.grid)
        self.refresh()

    def _build(self) -> None:
        self.label = PlainLabel(role="muted", wraps=True, selectable=True)
        self.label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.show_all = QPushButton("Show all GPUs")
        self.show_all.setToolTip("Clear the search and show GPUs without a warning too")
        self.reconnect = QPushButton("Reconnect")
        self.reconnect.setProperty("role", "primary")
        self.reconnect.hide()
        nothing = QWidget()
        middle = in_column(1, self.label, parent=nothing, margins=(80, 0, 80, 0), spacing=14)
        for button in (self.show_all, self.reconnect):
            middle.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        middle.addStretch(1)
        self._nothing = nothing
        self.detail = PlainLabel(HINT, role="muted")
        self.detail.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._layers = QStackedWidget()
        self._layers.addWidget(nothing)
        self._layers.addWidget(self.grid)
        in_column(
            self.header,
            self.strip,
            self.controls,
            (self._layers, 1),
            self.detail,
            parent=self,
            margins=(12, 8, 12, 8),
            spacing=8,
        )

    def _connect(self) -> None:
        controls, grid = self.controls, self.grid
        controls.changed.connect(self._rearrange)
        controls.density_changed.connect(lambda: grid.set_density(controls.density_wanted))
        controls.sort_now.connect(self.sort_now)
        controls.open_wanted.connect(lambda: self.open(grid.chosen[0] if grid.chosen else grid.current))
        controls.compare_wanted.connect(self.compare)
        controls.save_wanted.connect(lambda: None if self.save is None else self.save())
        controls.search.left.connect(self._into_grid)
        self.show_all.clicked.connect(lambda _checked=False: controls.clear())
        for button in (self.reconnect, controls.reconnect):
            button.clicked.connect(lambda _checked=False: self.link_again())
        self.strip.chosen.connect(self.go_to)
        grid.opened.connect(self.open)
        grid.typed.connect(self._type)
        grid.choice_changed.connect(self._choice_changed)
        grid.menu_wanted.connect(self._show_menu)

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while the tab is in front."""
        version, now = self.fleet.version, self._clock()
        if version == self._version and now - self._drawn_s < AGE_S:
            return
        fresh = version != self._version
        self._version, self._drawn_s = version, now
        if fresh:
            self._take()
        elif self.order.old:
            self._place()
        self._show_state()

    def _take(self) -> None:
        """Show a new reply."""
        gpus = self.fleet.gpus()
        self._gpus = {gpu.key: gpu for gpu in gpus}
        self._warnings = self.fleet.warnings()
        self._levels = levels(self._warnings)
        now_s = self.fleet.now_s()
        self.grid.show_cells({gpu.key: cell_of(gpu, self._levels.get(gpu.key, ""), now_s) for gpu in gpus})
        self.strip.show_warnings(self._warnings)
        self.header.show_size(summary(gpus) if gpus else "No GPU yet")
        self._place()
        self._show_detail()

    def _place(self) -> None:
        """Update the order of the cells, unless the pointer or the keyboard is in use in the grid."""
        wanted = self.controls.arrangement
        moved = self.order.update(list(self._gpus.values()), wanted, self._levels, self._clock(), busy=self.grid.busy)
        titles = self._group_titles()
        if moved:
            self.grid.show_sections(self.order.sections, titles)
        else:
            self.grid.show_titles(titles)
        shown = len(self.grid.layout_.keys)
        self.controls.show_found(shown, len(self._gpus))
        age = self.fleet.now_s() - (self._clock() - self.order.taken_s)
        self.controls.show_old(clock_text(age) if self.order.old and self.grid.busy else "")
        self._show_layer(shown)

    def _show_layer(self, shown: int) -> None:
        self._layers.setCurrentWidget(self.grid if shown else self._nothing)
        self.controls.setVisible(bool(self._gpus))
        self.detail.setVisible(bool(shown))
        self.show_all.setVisible(bool(self._gpus) and not shown)
        if self._gpus and not shown:
            self.label.setText(NONE_FOUND if self.controls.search.text().strip() else NO_WARNINGS)

    def _show_state(self) -> None:
        """Show the source, the age of its newest reading, and any problem."""
        self._show_links()
        problem, address = self.fleet.problem, self.fleet.address
        newest = max((gpu.seen_s for gpu in self._gpus.values()), default=None)
        if newest is None:
            self.header.show_source(address)
            self.header.show_problem()
            self.label.setText(f"{problem}\n\n{self.fleet.trying}" if problem else self.fleet.asking)
            self._show_layer(0)
            return
        self.header.show_source(f"{address} · newest reading {format_age(self.fleet.now_s() - newest)} old")
        moment = f"The readings shown are from {clock_text(newest)}"
        self.header.show_problem(*((problem, moment, self.fleet.trying) if problem else ()))

    def _show_links(self) -> None:
        """Offer to reconnect machines that are not linked."""
        names = self.unlinked or ()
        if len(names) == 1:
            what = names[0]
        else:
            what = f"{len(names)} machines"
        for button in (self.reconnect, self.controls.reconnect):
            button.setText(without_mnemonics(f"Reconnect {what}"))
            button.setToolTip(plain_tip(f"Link {', '.join(names)} now; ssh may ask for a password"))
            button.setVisible(bool(names))

    @property
    def why_no_saving(self) -> str:
        if self.save is not None:
            return ""
        return SERVERS

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        return self.fleet.unlinked

    def link_again(self) -> None:
        self.fleet.link_again()
        self._show_state()

    def _group_titles(self) -> dict[str, str]:
        group = self.controls.arrangement.group
        if group == "none":
            return {}
        members: dict[str, list[FleetGpu]] = {}
        for gpu in self._gpus.values():
            members.setdefault(group_of(gpu, group), []).append(gpu)
        titles = {}
        for title, gpus in members.items():
            keys = {gpu.key for gpu in gpus}
            warned = [warning for warning in self._warnings if warning.device in keys]
            size = summary(gpus).split(" · ", 1 if group == "machine" else 0)[-1]
            titles[title] = f"{title}   {size}{f'   {count_text(warned)}' if warned else ''}"
        return titles

    def _rearrange(self) -> None:
        self._place()
        self._show_state()

    def sort_now(self) -> None:
        """Sort now, and scroll to the top."""
        self.order.forget()
        self._place()
        self.grid.verticalScrollBar().setValue(0)
        self.grid.setFocus()

    def _type(self, text: str) -> None:
        """Start a search with a key that has no meaning in the grid."""
        self.controls.search.setFocus()
        self.controls.search.setText(self.controls.search.text() + text)

    def _into_grid(self) -> None:
        self.grid.setFocus()
        if not self.grid.current and self.grid.layout_.keys:
            self.grid.make_current(self.grid.layout_.keys[0])

    def _choice_changed(self) -> None:
        self.controls.show_choice(len(self.grid.chosen))
        self._show_detail()

    def _show_detail(self) -> None:
        gpu = self._gpus.get(self.grid.current)
        self.detail.setText(HINT if gpu is None else one_line(gpu))

    def _tip(self, key: str) -> str:
        gpu = self._gpus.get(key)
        if gpu is None:
            return ""
        return details(gpu, self._warnings, self.fleet.now_s())

    def go_to(self, key: str) -> None:
        """Select a GPU and scroll to it, clearing a search or filter that hides it."""
        if key not in self._gpus:
            self.said.emit("This GPU is no longer there.")
            return
        if self.grid.layout_.place_of(key) is None:
            self.controls.clear()
        self.grid.make_current(key)
        self.grid.setFocus()

    def open(self, key: str) -> None:
        """Open the history of a GPU in a tab."""
        gpu = self._gpus.get(key)
        if gpu is not None:
            self._open_gpu(gpu)

    def compare(self) -> None:
        """Compare the selected GPUs: two with each other, or one with another of its days."""
        chosen = [self._gpus[key] for key in self.grid.chosen if key in self._gpus]
        if len(chosen) in self.controls.comparable:
            self._compare(chosen)

    def _show_menu(self, key: str, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Open", lambda: self.open(key))
        count = len(self.grid.chosen)
        compare = menu.addAction(
            "Compare with another day" if count != 2 and self.controls.days else "Compare", self.compare
        )
        compare.setEnabled(count in self.controls.comparable)
        menu.addSeparator()
        menu.addAction("Copy values", self.copy_values)
        menu.popup(place)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.grid.set_palette(palette)

    def copy_values(self) -> None:
        """Copy the selected GPUs, or else all that are shown, as tab-separated text."""
        keys = self.grid.chosen or self.grid.layout_.keys
        gpus = [self._gpus[key] for key in keys if key in self._gpus]
        QGuiApplication.clipboard().setText(table_text(gpus))
        self.said.emit(f"Copied the figures of {len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}.")

    def close_document(self) -> None:
        """Stop the polling."""
        self.fleet.close()


COLUMNS = (
    "machine",
    "index",
    "uuid",
    "product",
    "used_bytes",
    "total_bytes",
    "utilisation",
    *(metric.name for metric in SENSORS),
    "run",
    "exporter",
    "simulated",
    "stale",
)


def table_text(gpus: Sequence[FleetGpu]) -> str:
    """A header and one line per GPU; unknown values are empty fields."""
    lines: list[Sequence[str]] = [COLUMNS]
    for gpu in gpus:
        values = (
            gpu.host,
            gpu.number,
            gpu.uuid,
            gpu.product,
            gpu.used_bytes,
            gpu.total_bytes,
            gpu.utilisation,
            *(gpu.values.get(metric.name) for metric in SENSORS),
            gpu.run,
            gpu.exporter,
            "yes" if gpu.simulated else "no",
            "yes" if gpu.stale else "no",
        )
        lines.append(["" if value is None else str(value) for value in values])
    return tab_separated(lines)

"""A fleet in a tab: every GPU that a Prometheus server knows, the fullest first.

Its figures can be copied as tab-separated text, with units in the header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QPushButton, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from gpudash.telemetry.metrics import SENSORS
from gpudash.ui.dashboard.document import Document
from gpudash.ui.fleet.arranging import Order, group_of
from gpudash.ui.fleet.controls import FleetControls
from gpudash.ui.fleet.grid import FleetGrid
from gpudash.ui.fleet.header import TRYING, FleetHeader
from gpudash.ui.fleet.warnings_strip import WarningsStrip, count_words
from gpudash.ui.fleet.words import Level, cell_of, clock_words, details, format_age, levels, one_line, summary
from gpudash.ui.widgets.plain_text import PlainLabel

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetGpu, FleetWarning
    from gpudash.ui.colours import Palette


ASKING = "Asking {address} which GPUs it knows…"
NONE_FOUND = "No GPU holds these words."
NO_WARNINGS = "No GPU has a warning."

HINT = "Enter or a double click opens a GPU · Ctrl and a click chooses two to compare · typing searches"

AGE_S = 1.0
"""How often the ages in words are brought up to date while no answer comes."""


class Polled(Protocol):
    """What the overview needs of a `gpudash.session.fleet.Fleet`."""

    address: str
    version: int
    problem: str | None

    def gpus(self) -> tuple[FleetGpu, ...]:
        """Every GPU, fullest first."""

    def warnings(self) -> tuple[FleetWarning, ...]:
        """Every warning."""

    def close(self) -> bool:
        """End the polling."""


class FleetDocument(Document):
    """The overview: head, warnings, controls and the grid.

    Closing it ends the polling. Tabs of single GPUs, which ask for themselves, stay open.

    Args:
        fleet: which is polled, and closed with the document.
        palette: colours in force.
        open_gpu: shows the past of a GPU.
        compare: lays two GPUs over one another, or one over another day of its own.
        wall_clock: seconds since the epoch.
        clock: any clock, in seconds.
    """

    def __init__(
        self,
        fleet: Polled,
        palette: Palette,
        *,
        open_gpu: Callable[[FleetGpu], object],
        compare: Callable[[Sequence[FleetGpu]], object],
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.title = fleet.address
        self.fleet = fleet
        self._open_gpu, self._compare = open_gpu, compare
        self._wall_clock, self._clock = wall_clock, clock
        self._version = -1
        self._drawn_s = -AGE_S
        self._gpus: dict[str, FleetGpu] = {}
        self._levels: Mapping[str, Level] = {}
        self._warnings: tuple[FleetWarning, ...] = ()
        self.order = Order()
        self.header = FleetHeader()
        self.strip = WarningsStrip()
        self.controls = FleetControls()
        self.grid = FleetGrid(palette, clock)
        self.grid.tip = self._tip
        self._build()
        self._connect()
        self.setAccessibleName(f"Fleet of {fleet.address}")
        self.setFocusProxy(self.grid)
        self.refresh()

    def _build(self) -> None:
        self.words = PlainLabel()
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setWordWrap(True)
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.words.setProperty("role", "muted")
        self.show_all = QPushButton("Show all GPUs")
        self.show_all.setToolTip("Empty the search and show GPUs without a warning too")
        nothing = QWidget()
        middle = QVBoxLayout(nothing)
        middle.setContentsMargins(80, 0, 80, 0)
        middle.setSpacing(14)
        middle.addStretch(1)
        middle.addWidget(self.words)
        middle.addWidget(self.show_all, 0, Qt.AlignmentFlag.AlignHCenter)
        middle.addStretch(1)
        self._nothing = nothing
        self.detail = PlainLabel(HINT)
        self.detail.setProperty("role", "muted")
        self.detail.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._layers = QStackedWidget()
        self._layers.addWidget(nothing)
        self._layers.addWidget(self.grid)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 12, 8)
        column.setSpacing(8)
        column.addWidget(self.header)
        column.addWidget(self.strip)
        column.addWidget(self.controls)
        column.addWidget(self._layers, 1)
        column.addWidget(self.detail)

    def _connect(self) -> None:
        controls, grid = self.controls, self.grid
        controls.changed.connect(self._rearrange)
        controls.density_changed.connect(lambda: grid.set_density(controls.density_wanted))
        controls.sort_now.connect(self.sort_now)
        controls.open_wanted.connect(lambda: self.open(grid.chosen[0] if grid.chosen else grid.current))
        controls.compare_wanted.connect(self.compare)
        controls.search.left.connect(self._into_grid)
        self.show_all.clicked.connect(lambda _checked=False: controls.clear())
        self.strip.chosen.connect(self.go_to)
        grid.opened.connect(self.open)
        grid.typed.connect(self._type)
        grid.choice_changed.connect(self._choice_changed)
        grid.menu_wanted.connect(self._show_menu)

    def refresh(self) -> None:
        """Draw what is new; called by the window's timer while it is in front."""
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
        """Take in a new answer."""
        gpus = self.fleet.gpus()
        self._gpus = {gpu.key: gpu for gpu in gpus}
        self._warnings = self.fleet.warnings()
        self._levels = levels(self._warnings)
        now_s = self._wall_clock()
        self.grid.show_cells({gpu.key: cell_of(gpu, self._levels.get(gpu.key, ""), now_s) for gpu in gpus})
        self.strip.show_warnings(self._warnings)
        self.header.show_size(summary(gpus) if gpus else "No GPU yet")
        self._place()
        self._show_detail()

    def _place(self) -> None:
        """Have the cells where they belong, unless that would take one away under the pointer."""
        wanted = self.controls.arrangement
        moved = self.order.update(list(self._gpus.values()), wanted, self._levels, self._clock(), busy=self.grid.busy)
        titles = self._group_titles()
        if moved:
            self.grid.show_sections(self.order.sections, titles)
        else:
            self.grid.show_titles(titles)
        shown = len(self.grid.layout_.keys)
        self.controls.show_found(shown, len(self._gpus))
        age = self._wall_clock() - (self._clock() - self.order.taken_s)
        self.controls.show_old(clock_words(age) if self.order.old and self.grid.busy else "")
        self._show_layer(shown)

    def _show_layer(self, shown: int) -> None:
        self._layers.setCurrentWidget(self.grid if shown else self._nothing)
        self.controls.setVisible(bool(self._gpus))
        self.detail.setVisible(bool(shown))
        self.show_all.setVisible(bool(self._gpus) and not shown)
        if self._gpus and not shown:
            self.words.setText(NONE_FOUND if self.controls.search.text().strip() else NO_WARNINGS)

    def _show_state(self) -> None:
        """Who answers, how old that is, and what is wrong."""
        problem, address = self.fleet.problem, self.fleet.address
        newest = max((gpu.seen_s for gpu in self._gpus.values()), default=None)
        if newest is None:
            self.header.show_source(address)
            self.header.show_problem("", "")
            self.words.setText(f"{problem}\n\n{TRYING}" if problem else ASKING.format(address=address))
            self._show_layer(0)
            return
        self.header.show_source(f"{address} · newest reading {format_age(self._wall_clock() - newest)} old")
        self.header.show_problem(problem or "", clock_words(newest))

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
            warned = [warning for warning in self._warnings if warning.key in keys]
            size = summary(gpus).split(" · ", 1 if group == "machine" else 0)[-1]
            titles[title] = f"{title}   {size}{f'   {count_words(warned)}' if warned else ''}"
        return titles

    def _rearrange(self) -> None:
        self._place()
        self._show_state()

    def sort_now(self) -> None:
        """Take a new order at once, and show its beginning."""
        self.order.forget()
        self._place()
        self.grid.verticalScrollBar().setValue(0)
        self.grid.setFocus()

    def _type(self, text: str) -> None:
        """A key that means nothing in the grid begins a search."""
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
        return "" if gpu is None else details(gpu, self._warnings, self._wall_clock())

    def go_to(self, key: str) -> None:
        """Choose a GPU and bring it into sight, also where the search or a filter leaves it out."""
        if key not in self._gpus:
            self.said.emit("This GPU is not there any more.")
            return
        if self.grid.layout_.place_of(key) is None:
            self.controls.clear()
        self.grid.make_current(key)
        self.grid.setFocus()

    def open(self, key: str) -> None:
        """Show the past of a GPU in a tab."""
        gpu = self._gpus.get(key)
        if gpu is not None:
            self._open_gpu(gpu)

    def compare(self) -> None:
        """Compare the chosen GPUs: two with one another, one with another day of its own."""
        chosen = [self._gpus[key] for key in self.grid.chosen if key in self._gpus]
        if len(chosen) in (1, 2):
            self._compare(chosen)

    def _show_menu(self, key: str, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Open", lambda: self.open(key))
        count = len(self.grid.chosen)
        compare = menu.addAction("Compare" if count == 2 else "Compare with another day", self.compare)
        compare.setEnabled(count in (1, 2))
        menu.addSeparator()
        menu.addAction("Copy values", self.copy_values)
        menu.popup(place)

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self.grid.set_palette(palette)

    def copy_values(self) -> None:
        """Copy the chosen GPUs, or all that are shown, as tab-separated text."""
        keys = self.grid.chosen or self.grid.layout_.keys
        gpus = [self._gpus[key] for key in keys if key in self._gpus]
        QGuiApplication.clipboard().setText(table_text(gpus))
        self.said.emit(f"Copied the figures of {len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}.")

    def copy_picture(self) -> None:
        """Copy a picture of the overview."""
        QGuiApplication.clipboard().setPixmap(self.grab())
        self.said.emit("Copied the overview as a picture.")

    def close_document(self) -> None:
        """End the polling."""
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
    """A header and one line a GPU; what is not known is an empty field."""
    lines = ["\t".join(COLUMNS)]
    for gpu in gpus:
        values = (
            gpu.host,
            gpu.index,
            gpu.uuid,
            gpu.product,
            gpu.used_bytes,
            gpu.total_bytes,
            gpu.utilisation,
            *(gpu.sensors.get(metric.name) for metric in SENSORS),
            gpu.run,
            gpu.exporter,
            "yes" if gpu.simulated else "no",
            "yes" if gpu.stale else "no",
        )
        lines.append("\t".join("" if value is None else str(value).replace("\t", " ") for value in values))
    return "\n".join(lines)

"""A fleet in a tab: every GPU that a Prometheus server knows, the fullest first, a strip of warnings, and a row of
controls that search, sort and group.

Its figures can be copied as tab-separated text, with units in the header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from PySide6.QtCore import QPoint, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.metrics import SENSORS
from gpudash.ui.dashboard.document import Document
from gpudash.ui.fleet.grid import FleetGrid
from gpudash.ui.fleet.header import FleetHeader
from gpudash.ui.fleet.labels import (
    SHAPES,
    Level,
    cell_of,
    clock_text,
    details,
    format_age,
    levels,
    one_line,
    summary,
)
from gpudash.ui.fleet.layout import GROUPS, SORTS, Arrangement, Density, Order, group_of
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics

if TYPE_CHECKING:
    from gpudash.session.fleet.overview import AnyFleet
    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.telemetry.records import Warning
    from gpudash.ui.colours import Palette


ROWS = 6
"""Rows of the list visible without scrolling."""

KEY = int(Qt.ItemDataRole.UserRole)


class WarningsStrip(QFrame):
    """The strip of warnings, hidden while there are none; clicking one, or Enter, goes to its GPU.

    Signals:
        chosen: key of the GPU.
    """

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "banner")
        self._warnings: Sequence[Warning] = ()
        self.count = PlainLabel(role="figure-small")
        self.worst = QToolButton()
        self.worst.setProperty("role", "fold")
        self.worst.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.worst.setMinimumWidth(40)
        self.worst.clicked.connect(lambda _checked=False: self.go_to_worst())
        self.all = QToolButton()
        self.all.setCheckable(True)
        self.all.setProperty("role", "browse")
        self.all.toggled.connect(self._fold)
        self.list = QListWidget()
        self.list.setAccessibleName("Warnings over the whole fleet, the worst first")
        self.list.setUniformItemSizes(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.itemClicked.connect(self._item_chosen)
        self.list.itemActivated.connect(self._item_chosen)
        row = in_row(self.count, self.worst, 1, self.all, spacing=10)
        in_column(row, self.list, parent=self, margins=(12, 4, 8, 4), spacing=4)
        self._fold(shown=False)
        self.hide()

    def show_warnings(self, warnings: Sequence[Warning]) -> None:
        """Show these warnings, the worst first; nothing is redrawn if they are unchanged."""
        ordered = sorted(warnings, key=lambda warning: warning.level != "critical")
        if ordered == list(self._warnings):
            return
        self._warnings = ordered
        self.setVisible(bool(ordered))
        if not ordered:
            return
        first = ordered[0]
        text = count_text(ordered)
        self.count.setText(text)
        self.worst.setText(without_mnemonics(first.text))
        self.worst.setToolTip(plain_tip(f"{first.text}\nClick to go to the GPU." if first.device else first.text))
        self.all.setVisible(len(ordered) > 1)
        self.setAccessibleName(f"{text}. {first.text}")
        if self.property("level") != first.level:
            self.setProperty("level", first.level)
            for part in (self, *self.findChildren(QWidget)):
                part.style().unpolish(part)
                part.style().polish(part)
        self._fill()

    def _fill(self) -> None:
        """Fill the list. Its items are reused, so that focus and scroll position stay."""
        while self.list.count() > len(self._warnings):
            self.list.takeItem(self.list.count() - 1)
        for row, warning in enumerate(self._warnings):
            item = self.list.item(row)
            if item is None:
                item = QListWidgetItem()
                item.setSizeHint(QSize(0, self._row_height))
                self.list.addItem(item)
            text = f"{SHAPES[warning.level]}  {warning.text}"
            if item.text() != text:
                item.setText(text)
                item.setToolTip(plain_tip(warning.text))
            item.setData(KEY, warning.device)
        self._fold(self.all.isChecked())

    def _fold(self, shown: bool) -> None:
        self.all.setText("Show less" if shown else f"Show all {len(self._warnings)}")
        self.all.setToolTip("Show only the worst warning" if shown else "List every warning, the worst first")
        self.list.setVisible(shown and len(self._warnings) > 1)
        self.list.setFixedHeight(max(1, min(self.list.count(), ROWS)) * self._row_height + 4)

    @property
    def _row_height(self) -> int:
        return self.list.fontMetrics().height() + 6

    def _item_chosen(self, item: QListWidgetItem) -> None:
        self._go(str(item.data(KEY)))

    def go_to_worst(self) -> None:
        """Go to the GPU with the worst warning."""
        for warning in self._warnings[:1]:
            self._go(warning.device)

    def _go(self, key: str) -> None:
        if key:
            self.chosen.emit(key)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())


def count_text(warnings: Sequence[Warning]) -> str:
    """The number of warnings of each level: "◆ 3 critical  ▲ 12 warnings"."""
    critical = sum(warning.level == "critical" for warning in warnings)
    rest = len(warnings) - critical
    parts = []
    if critical:
        parts = [f"{SHAPES['critical']} {critical} critical"]
    if rest:
        parts.append(f"{SHAPES['warning']} {rest} {'warning' if rest == 1 else 'warnings'}")
    return "   ".join(parts)


SORT_TEXT = {
    "fullness": "fullest first",
    "host": "machine",
    "utilisation": "busiest first",
    "temperature": "hottest first",
    "power": "most power first",
}
GROUP_TEXT = {"none": "no groups", "machine": "by machine", "product": "by product", "exporter": "by exporter"}

LONGEST_SEARCH = 300
"""Maximum width in logical pixels."""


class SearchField(QLineEdit):
    """A search field that passes on the keys of the grid: Down and Enter go there; Esc clears the text first.

    Signals:
        left: move the focus to the grid.
    """

    left = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        elif event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Escape):
            self.left.emit()
        else:
            super().keyPressEvent(event)


class FleetControls(QWidget):
    """The controls for what is shown, and how.

    Signals:
        changed: a different arrangement was chosen.
        density_changed: a different cell size was chosen.
        sort_now: sort again now.
        open_wanted: open the current GPU.
        compare_wanted: compare the selected GPUs, or a single one with another of its days.
        save_wanted: save what every machine reported.

    Attributes:
        days: whether a GPU can be compared with another of its days.
    """

    days = True

    changed = Signal()
    density_changed = Signal()
    sort_now = Signal()
    open_wanted = Signal()
    compare_wanted = Signal()
    save_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.search = SearchField()
        self.search.setPlaceholderText("Search machine, product, UUID, run, pod…")
        self.search.setAccessibleName("Search the GPUs")
        self.search.setToolTip("Type anywhere in the overview to search; Esc clears the field")
        self.search.setClearButtonEnabled(True)
        self.search.setMaximumWidth(LONGEST_SEARCH)
        self.search.textChanged.connect(lambda _text: self.changed.emit())
        self.sort = _choice("Order of the GPUs", [(SORT_TEXT[name], name) for name in SORTS])
        self.group = _choice("Groups of GPUs", [(GROUP_TEXT[name], name) for name in GROUPS])
        self.density = _choice("Size of the cells", [(name, name) for name in get_args(Density)])
        self.density.setToolTip("Large cells with figures, or small ones that show the whole fleet at once")
        for box in (self.sort, self.group):
            box.currentIndexChanged.connect(lambda _row: self.changed.emit())
        self.density.currentIndexChanged.connect(lambda _row: self.density_changed.emit())
        self.only_warnings = QCheckBox("only warnings")
        self.only_warnings.setToolTip("Hide GPUs without a warning")
        self.only_warnings.toggled.connect(lambda _on: self.changed.emit())
        self.found = PlainLabel(role="muted")
        self.old = QPushButton("Sort now")
        self.old.setProperty("role", "chip")
        self.old.setToolTip("The order is kept while you point or type here, so that no cell moves away")
        self.old.clicked.connect(lambda _checked=False: self.sort_now.emit())
        self.old.hide()
        self.reconnect = QPushButton("Reconnect")
        self.reconnect.hide()
        self.open = QPushButton("Open")
        self.open.setProperty("role", "primary")
        self.open.clicked.connect(lambda _checked=False: self.open_wanted.emit())
        self.compare = QPushButton("Compare")
        self.compare.clicked.connect(lambda _checked=False: self.compare_wanted.emit())
        self.save = QPushButton("Save recordings…")
        self.save.setToolTip("Save what every machine reported so far to a folder, one recording each (Ctrl+Shift+S)")
        self.save.clicked.connect(lambda _checked=False: self.save_wanted.emit())
        self.save.hide()
        row = in_row((self.search, 1), parent=self, margins=(0, 0, 0, 0), spacing=8)
        for part in (self.sort, self.group, self.density, self.only_warnings, self.found, self.old):
            row.addWidget(part)
        row.addStretch(1)
        row.addWidget(self.reconnect)
        row.addWidget(self.save)
        row.addWidget(self.compare)
        row.addWidget(self.open)
        self.show_choice(0)

    @property
    def comparable(self) -> tuple[int, ...]:
        """How many GPUs can be selected for a comparison."""
        if self.days:
            return (1, 2)
        return (2,)

    @property
    def arrangement(self) -> Arrangement:
        """The search, order, grouping and filter that are set."""
        return Arrangement(
            self.search.text().strip(),
            self.sort.currentData(),
            self.group.currentData(),
            self.only_warnings.isChecked(),
        )

    @property
    def density_wanted(self) -> Density:
        """The chosen cell size."""
        density: Density = self.density.currentData()
        return density

    def show_choice(self, count: int) -> None:
        """Enable what can be done with this many selected GPUs; tooltips say why something cannot."""
        self.open.setEnabled(count == 1)
        self.open.setToolTip("Show the selected GPU's history in a tab (Enter)" if count == 1 else "Select one GPU")
        self.compare.setEnabled(count in self.comparable)
        self.compare.setText("Compare with another day" if count == 1 and self.days else "Compare")
        if count == 2:
            tip = "Overlay the two selected GPUs on one axis"
        elif not self.days:
            tip = "Select two GPUs with Ctrl+click"
        elif count == 1:
            tip = "Compare the selected GPU's last hour with the same hour of another day"
        else:
            tip = "Select one GPU to compare two of its days, or two GPUs with Ctrl+click"
        self.compare.setToolTip(plain_tip(tip))

    def show_found(self, shown: int, all_: int) -> None:
        """Show how many GPUs are shown, if some are filtered out."""
        self.found.setText("" if shown == all_ else f"{shown} of {all_}")
        self.found.setVisible(shown != all_)

    def show_old(self, since: str) -> None:
        """Say that the order dates from ``since``, a clock time, and offer to sort again; "" if it is current."""
        self.old.setVisible(bool(since))
        if since:
            self.old.setText(f"Order of {since} · Sort now")

    def clear(self) -> None:
        """Clear the search and the filter."""
        with QSignalBlocker(self.search), QSignalBlocker(self.only_warnings):
            self.search.clear()
            self.only_warnings.setChecked(False)
        self.changed.emit()


def _choice(name: str, entries: list[tuple[str, str]]) -> ChoiceField:
    box = ChoiceField()
    box.setAccessibleName(name)
    box.setToolTip(plain_tip(name))
    for text, value in entries:
        box.addItem(text, value)
    return box


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

    def copy_picture(self) -> None:
        """Copy a picture of the overview."""
        QGuiApplication.clipboard().setPixmap(self.grab())
        self.said.emit("Copied the overview as a picture.")

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

"""The device cards at the top, and how cards and tables show the store's latest readings.

One card per device: its memory as a bar, everything else as a line of figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from PySide6.QtCore import QEvent, QObject, QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QEnterEvent, QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QScrollArea, QSizePolicy, QWidget

from gpudash.devices.health import marks, xid
from gpudash.devices.names import (
    OF_AN_INSTANCE,
    SHARED,
    SIMULATED,
    Device,
    Gpu,
    badged_name,
    known_product,
    short_product,
)
from gpudash.devices.simulated_cards import is_program_card
from gpudash.memory.predicting.card_text import CardsAnswer, CardText, Standing
from gpudash.session.recordings.run_names import process_text
from gpudash.telemetry.metrics import GPU_METRICS, METRICS, SENSORS, Metric
from gpudash.telemetry.plots import THIS_PROCESS
from gpudash.telemetry.records import State, Table
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import first_words, polish_again, set_role
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import (
    NOT_REPORTED,
    format_bytes,
    format_number,
    format_pair,
    format_percent,
    format_rate,
    memory_unit,
)

SHORT_NAME_WORDS = 2
"""Number of words of a product's name that take precedence over facts, and without which it says nothing: RTX 4090."""

FAINT_BANDS, FAINT_FILLING = frozenset({"cache"}), 0.3
"""Bands of memory that can be freed on demand, drawn as faint as in the plots, and their opacity."""

COMPACT_PX = 232
"""Width of a card in a low window, beside chips; in logical pixels."""

LEAST_PX = 150
"""Least width of a card: its name and the size of its verdict fit; beyond that the row scrolls."""

LEAST_GROUP = 4
"""From how many equal GPUs on they share a card."""

FIT_ROLES: Mapping[Standing, str] = {"fits": "good", "uncertain": "warn", "short": "error"}
"""Label role of the verdict on the form's run; muted for all others."""

_SEPARATOR = "   "


@dataclass(frozen=True, slots=True)
class CardContent:
    """What a card shows.

    Attributes:
        key: "host" or the GPU's UUID.
        device: torch's name ("cpu", "cuda:0"), or "GPU 1" if torch does not see it.
        product: product name.
        used, total: bytes; ``None`` if not reported.
        memory_name: "RAM", "VRAM"; with the limit's name if a container limits it.
        bands: (curve colour name, bytes, label) from the left.
        mark_ratio: position of the tick at the warning level.
        facts: figures at the right: "97 %", "71 °C".
        state: a sentence if the device cannot be read, else "".
        details: the tooltip.
        simulated: whether to show the badge of a simulated device.
        members: the devices that share the card; none if it is that of one.
    """

    key: str
    device: str
    product: str
    used: float | None
    total: float | None
    memory_name: str
    bands: Sequence[tuple[str, float, str]] = ()
    mark_ratio: float | None = None
    facts: Sequence[str] = field(default=())
    state: str = ""
    details: str = ""
    simulated: bool = False
    members: Sequence[CardContent] = ()


def grouped(contents: Sequence[CardContent], selected: str) -> list[CardContent]:
    """``contents``, in which one card stands for `LEAST_GROUP` or more equal GPUs that can be read.

    Args:
        selected: key of the device whose name a shared card has.
    """
    kinds: dict[tuple[object, ...], list[CardContent]] = {}
    for content in contents:
        apart = content.key if content.key == "host" or content.state else ""
        kind = (apart, content.product, content.total, content.memory_name, content.simulated)
        kinds.setdefault(kind, []).append(content)
    found = []
    for members in kinds.values():
        if len(members) < LEAST_GROUP:
            found += members
        else:
            found.append(_shared(members, selected))
    places = {content.key: place for place, content in enumerate(contents)}
    return sorted(found, key=lambda content: places[content.key])


def _shared(members: Sequence[CardContent], selected: str) -> CardContent:
    first = members[0]
    chosen = next((member.device for member in members if member.key == selected), "")
    bands: dict[tuple[str, str], float] = {}
    for member in members:
        for colour, size, name in member.bands:
            bands[colour, name] = bands.get((colour, name), 0.0) + size
    known = [member.used for member in members if member.used is not None]
    return replace(
        first,
        device=f"{len(members)} × {first.product} ▾",
        product=chosen or f"{first.device} to {members[-1].device}",
        used=sum(known) if known else None,
        total=None if first.total is None else first.total * len(members),
        bands=[(colour, size, name) for (colour, name), size in bands.items()],
        facts=next((member.facts for member in members if member.key == selected), ()),
        details="\n".join((*map(_member_text, members), "click to choose one")),
        members=members,
    )


def _member_text(content: CardContent) -> str:
    return f"{content.device}: {format_pair(content.used, content.total)}"


class MemoryBar(PaintedWidget):
    """A bar of bands, scaled to the capacity, with a tick at the warning level."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette)
        self._content: CardContent | None = None
        self.setFixedHeight(8)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_content(self, content: CardContent, palette: Palette) -> None:
        self._content, self._palette = content, palette
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        whole = QRectF(0, 1, self.width(), self.height() - 2)
        painter.setBrush(QColor(self._palette.window))
        painter.drawRoundedRect(whole, 2, 2)
        content = self._content
        if content is None or not content.total:
            return
        left = 0.0
        for colour, size, _name in content.bands:
            if math.isnan(size) or size <= 0:
                continue
            width = whole.width() * min(size / content.total, 1.0)
            filling = QColor(self._palette.curves[colour])
            filling.setAlphaF(FAINT_FILLING if colour in FAINT_BANDS else 1.0)
            painter.setBrush(filling)
            painter.drawRect(QRectF(left, whole.top(), min(width, whole.width() - left), whole.height()))
            left += width
        if content.mark_ratio is not None:
            painter.setBrush(QColor(self._palette.critical))
            painter.drawRect(QRectF(round(whole.width() * content.mark_ratio) - 1, 0, 2, self.height()))


class Card(QFrame):
    """The card of one device. A click, Enter or Space selects the device.

    Signals:
        chosen: the key of the device.
        focused: it has the focus.
    """

    chosen = Signal(str)
    focused = Signal()

    def __init__(self, key: str, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.key = key
        self.setProperty("role", "card")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self._name = PlainLabel()
        self._name.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._badge = PlainLabel(SIMULATED, role="badge")
        self._badge.setVisible(False)
        self._facts = PlainLabel(role="muted")
        self._used = PlainLabel(role="figure")
        self._total = PlainLabel(role="muted")
        self._total_texts: Sequence[str] = ("",)
        self._text = CardText("unasked")
        self._fit_verdict_text = PlainLabel()
        self._fit_verdict_text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._fit_verdict_text.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignBottom)
        self._bar = MemoryBar(palette)
        self._top = in_row((self._name, 1), self._badge, self._facts, spacing=8)
        self._figures = QHBoxLayout()
        self._figures.setSpacing(6)
        self._figures.addWidget(self._used, alignment=Qt.AlignmentFlag.AlignBottom)
        self._figures.addWidget(self._total, alignment=Qt.AlignmentFlag.AlignBottom)
        self._figures.addWidget(self._fit_verdict_text, 1)
        self._outer = in_column(self._top, self._figures, self._bar, parent=self)
        self.setMinimumWidth(scaled(LEAST_PX))
        self._compact: bool | None = None
        self._simulated = False
        self._full_name = ""
        self._details = ""
        self._names: Sequence[str] = ("", "")
        self._all_facts: Sequence[str] = ()
        self.set_compact(False)

    def set_compact(self, compact: bool) -> None:
        """Use smaller figures, for low windows."""
        if compact == self._compact:
            return
        self._compact = compact
        self._outer.setContentsMargins(*((10, 1, 10, 1) if compact else (14, 9, 14, 11)))
        self._outer.setSpacing(0 if compact else 4)
        set_role(self._used, "figure-small" if compact else "figure")

    def show_text(self, text: CardText) -> None:
        """Show whether the form's run fits the device."""
        self._text = text
        set_role(self._fit_verdict_text, FIT_ROLES.get(text.standing, "muted"))
        self.setAccessibleDescription(text.sentence)
        self._show_tip()
        self._fit()

    def set_palette(self, palette: Palette) -> None:
        self._bar.set_palette(palette)

    def show_content(self, content: CardContent, palette: Palette, selected: bool) -> None:
        """Show new content."""
        if self.property("selected") != selected:
            self.setProperty("selected", selected)
            polish_again(self)
        self._names = _names(content)
        self._full_name = self._names[0]
        self._all_facts = content.facts
        self._simulated = content.simulated
        if content.state:
            self._used.setText("–")
            self._total_texts = (content.state,)
        elif content.used is None or content.total is None:
            self._used.setText("–")
            self._total_texts = (f"{content.memory_name}: not reported",)
        else:
            unit = memory_unit(content.total)
            self._used.setText(format_number(content.used, unit))
            size = f"/ {format_number(content.total, unit)} {unit}"
            self._total_texts = (f"{size} {content.memory_name}", size)
        self._fit()
        self._bar.show_content(content, palette)
        text = content.state or format_pair(content.used, content.total)
        if content.simulated:
            marked = f"{content.device}, {SIMULATED}"
        else:
            marked = content.device
        self.setAccessibleName(f"{marked}, {content.product}: {text} {content.memory_name}")
        self._details = content.details
        self._show_tip()

    def _show_tip(self) -> None:
        """Show name, verdict and details in the tooltip: the card may have no room for why there is no verdict."""
        self.setToolTip(plain_tip("\n".join(filter(None, (self._full_name, self._details, self._text.sentence)))))

    @property
    def facts(self) -> Sequence[str]:
        """The facts shown at the right."""
        return self._facts.text().split(_SEPARATOR)

    def resizeEvent(self, event: object) -> None:
        self._fit()

    def _fit(self) -> None:
        """Show as many facts as leave room for a short name, then as many words of the name as fit."""
        metrics = self._name.fontMetrics()
        margins = self._outer.contentsMargins()
        room = self.width() - margins.left() - margins.right() - self._top.spacing() - 4
        short = metrics.horizontalAdvance(self._names[-2])
        badge = self._badge.sizeHint().width() + self._top.spacing()
        # The name, as sim:0, says it too: without it nobody knows which card this is.
        self._badge.setVisible(self._simulated and badge + short <= room)
        if not self._badge.isHidden():
            room -= badge
        facts = list(self._all_facts)
        while facts and metrics.horizontalAdvance(_SEPARATOR.join(facts)) + short > room:
            facts.pop()
        text = _SEPARATOR.join(facts)
        self._facts.setText(text)
        self._facts.setVisible(bool(text))
        room -= metrics.horizontalAdvance(text)
        fitting = (name for name in self._names if metrics.horizontalAdvance(name) <= room)
        self._name.setText(next(fitting, self._names[-1]))
        self._fit_verdict()

    def _fit_verdict(self) -> None:
        """Show the longest form of the verdict that fits beside the figures, dropping the memory's name before the
        verdict's words: the verdict, its sign and size, or the sign."""
        known = self._text
        margins = self._outer.contentsMargins()
        room = self.width() - margins.left() - margins.right() - 2 * self._figures.spacing() - 4
        room -= self._used.sizeHint().width()
        metrics = self._fit_verdict_text.fontMetrics()
        figures = self._total.fontMetrics()
        forms = [known.headline, f"{known.sign} {known.size}", known.sign]
        if known.standing == "asking" and not known.size:
            forms = ["predicting…"]  # three dots alone are too faint to notice
        ways = [(form.strip(), total) for form in forms[:2] for total in self._total_texts]
        if known.standing != "asking":
            # Without a total rather than without a verdict, and with the sign alone only if nothing else fits.
            ways += [(form.strip(), total) for form in forms for total in ("", *self._total_texts)]
        if known.reason:
            # Whole without the total, else as much as there is room for beside it: the tooltip has both.
            beginning = metrics.elidedText(
                known.headline, Qt.TextElideMode.ElideRight, room - figures.horizontalAdvance(self._total_texts[-1])
            )
            ways = [(known.headline, total) for total in (*self._total_texts, "")]
            ways += [(beginning, self._total_texts[-1]), (known.sign, "")]
        fitting = (way for way in ways if metrics.horizontalAdvance(way[0]) + figures.horizontalAdvance(way[1]) <= room)
        text, total = next(fitting, ("", self._total_texts[0]))
        self._total.setText(total)
        self._fit_verdict_text.setText(text)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self.chosen.emit(self.key)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.chosen.emit(self.key)
        else:
            super().keyPressEvent(event)

    def enterEvent(self, event: QEnterEvent | QEvent) -> None:
        self.update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focused.emit()

    def sizeHint(self) -> QSize:
        return QSize(scaled(COMPACT_PX) if self._compact else 300, 42 if self._compact else 84)


def _names(content: CardContent) -> Sequence[str]:
    """The name of a card, then shorter ones, down to the device alone."""
    product = content.product.split(", ")[0]
    if content.device.endswith(f" · {product}"):  # a program's own card is called by it already
        return content.device, content.device
    beginnings = [first_words(product, count) for count in range(len(product.split(" ")), SHORT_NAME_WORDS - 1, -1)]
    products = dict.fromkeys((content.product, product, *beginnings))
    return (*(f"{content.device} · {name}" for name in products), content.device)


class DeviceCards(QScrollArea):
    """The row of cards; the wheel and the arrow keys scroll it where they do not all fit.

    Attributes:
        focus_group: focus group of the cards.

    Signals:
        chosen: key of the device that was selected.
    """

    chosen = Signal(str)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._cards: dict[str, Card] = {}
        self.focus_group = FocusGroup(self)
        self._inside = QWidget()
        self._inside.setProperty("role", "scrolled")
        self._row = in_row(parent=self._inside, margins=(0, 0, 0, 0), spacing=10)
        self._compact = False
        self._shown: dict[str, CardContent] = {}
        self._texts: dict[str, CardText] = {}
        self._selected = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidget(self._inside)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()  # Qt tells a scroll area only that its cards need another room
        return super().eventFilter(watched, event)

    def sizeHint(self) -> QSize:
        return self._inside.sizeHint()

    def minimumSizeHint(self) -> QSize:
        return QSize(scaled(LEAST_PX), self._inside.minimumSizeHint().height())

    def wheelEvent(self, event: QWheelEvent) -> None:
        turned = event.angleDelta()
        bar = self.horizontalScrollBar()
        bar.setValue(bar.value() - turned.x() - turned.y())

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        for card in self._cards.values():
            card.set_palette(palette)

    def set_compact(self, compact: bool) -> None:
        """Use one-line cards, for low windows."""
        self._compact = compact
        for card in self._cards.values():
            card.set_compact(compact)

    def show_answers(self, answers: CardsAnswer, names: Mapping[str, str]) -> None:
        """Show on each card whether the form's run fits that device.

        Args:
            names: card key → torch's name of the device, for devices that a run can use.
        """
        self._texts = {key: answers.of(name) for key, name in names.items()}
        for key, card in self._cards.items():
            card.show_text(self._text_of(self._shown[key]))

    def _text_of(self, content: CardContent) -> CardText:
        """What is known of a device; of several, of the chosen one, else of the first."""
        key = content.key
        if any(member.key == self._selected for member in content.members):
            key = self._selected
        return self._texts.get(key, CardText("unasked"))

    def facts(self, key: str) -> Sequence[str]:
        """The figures shown at the right of a device's card."""
        return self._cards[key].facts

    def menu(self, key: str) -> QMenu:
        """The devices that share a card, each with its memory and whether the form's run fits."""
        menu = QMenu(self)
        for member in self._shown[key].members:
            text = self._texts.get(member.key, CardText("unasked"))
            action = menu.addAction(without_mnemonics("\t".join(filter(None, (_member_text(member), text.headline)))))
            action.setCheckable(True)
            action.setChecked(member.key == self._selected)
            action.triggered.connect(partial(self.chosen.emit, member.key))
        return menu

    def _choose(self, key: str) -> None:
        if not self._shown[key].members:
            self.chosen.emit(key)
            return
        card = self._cards[key]
        self.menu(key).popup(card.mapToGlobal(QPoint(0, card.height())))

    def show_contents(self, contents: Sequence[CardContent], selected: str) -> None:
        """Show one card per content, in order, and one for several equal devices; the card of a device is reused."""
        self._selected = selected
        contents = grouped(contents, selected)
        self._shown = {content.key: content for content in contents}
        keys = [content.key for content in contents]
        if keys != list(self._cards):
            for key in [key for key in self._cards if key not in keys]:
                card = self._cards.pop(key)
                self._row.removeWidget(card)
                card.deleteLater()
            for position, key in enumerate(keys):
                if key not in self._cards:
                    card = Card(key, self._palette)
                    card.set_compact(self._compact)
                    card.chosen.connect(self._choose)
                    card.focused.connect(partial(self.ensureWidgetVisible, card))
                    self._cards[key] = card
                    self._row.insertWidget(position, card, 1)
            self._cards = {key: self._cards[key] for key in keys}
            self.focus_group.hold(list(self._cards.values()))
            self.updateGeometry()
        for content in contents:
            keys_on_it = {content.key, *(member.key for member in content.members)}
            self._cards[content.key].show_content(content, self._palette, selected in keys_on_it)


STATE_TEXT = {
    State.LOST: "stopped answering",
    State.ASLEEP: "asleep, not woken",
    State.STALE: "driver does not answer",
    State.NO_PERMISSION: "not permitted",
    State.NOT_SUPPORTED: "not reported",
}


def host_card(store: Store, device: Device, capacity_source: str, warn_ratio: float) -> CardContent:
    """The card of the CPU and its memory."""
    used, total = _number(store, "host", "used_bytes"), _number(store, "host", "total_bytes")
    own = _number(store, "host", "process_bytes")
    cpu, swap = _number(store, "host", "cpu_utilisation"), _number(store, "host", "swap_used_bytes")
    cache = _number(store, "host", "file_cache_bytes")
    bands: list[tuple[str, float, str]] = []
    if used is not None and own is not None:
        bands = [
            ("process", own, process_text(store.run) if store.run is not None and store.run.running else THIS_PROCESS),
            ("other", max(0.0, used - own), "other processes"),
            ("cache", min(cache or 0.0, max(0.0, (total or 0.0) - used)), "file cache"),
        ]
    facts = []
    if cpu is not None:
        facts = [f"CPU {format_percent(cpu)}"]
    if swap is not None:
        facts.append(f"swap {format_bytes(swap)}" if swap else "swap 0")
    memory_name = "of a limit"
    if capacity_source in ("", "RAM"):
        memory_name = "RAM"
    details = [f"{name}: {format_bytes(size)}" for _colour, size, name in bands]
    details.append(f"capacity: {format_bytes(total)} ({capacity_source or 'RAM'})")
    return CardContent(
        key="host",
        device="cpu",
        product=short_product(device.product),
        used=used,
        total=total,
        memory_name=memory_name,
        bands=bands,
        mark_ratio=warn_ratio,
        facts=facts,
        details="\n".join(details),
    )


def gpu_card(store: Store, gpu: Gpu, name: str, warn_ratio: float) -> CardContent:
    """The card of a GPU."""
    key = gpu.uuid
    used, total = _number(store, "gpu", "used_bytes", key), _number(store, "gpu", "total_bytes", key)
    state = store.latest("gpu", "used_bytes", key).state
    bands = _gpu_bands(store, key, used, "context" if gpu.simulated or gpu.by_torch else "CUDA context")
    shown = (GPU_METRICS["gpu_utilisation"], *SENSORS)
    facts = marks(_number(store, "gpu", "last_xid", key), _number(store, "gpu", "clocks_event_reasons", key))
    facts += [
        metric.distinguished(value)
        for metric in shown
        if (value := _number(store, "gpu", metric.name, key)) is not None
    ]
    generation, width = _number(store, "gpu", "pcie_generation", key), _number(store, "gpu", "pcie_width", key)
    if generation is not None and width is not None:
        facts.append(f"Gen{generation:.0f} x{width:.0f}")
    product = short_product(gpu.product)
    if gpu.simulated:  # the badge says so beside it, where the name's words have little room
        product = known_product(gpu.product) or product
    return CardContent(
        key=key,
        device=badged_name(name),
        product=product,
        used=used,
        total=total,
        memory_name=SHARED if gpu.shared_memory else "VRAM",
        bands=bands,
        mark_ratio=warn_ratio,
        facts=facts,
        state=_state_text(gpu, state),
        details="\n".join(_gpu_details(store, gpu, name, bands)),
        simulated=gpu.simulated,
    )


def _gpu_details(store: Store, gpu: Gpu, name: str, bands: Sequence[tuple[str, float, str]]) -> Iterator[str]:
    """What the tooltip of a GPU's card says, line by line."""
    yield from (f"{text}: {format_bytes(size)}" for _colour, size, text in bands)
    if is_program_card(name):
        yield "the card of a watched program, separate from this session's own"
    if gpu.simulated:
        yield "only the memory accounting of this GPU exists; the CPU computes"
    elif gpu.by_torch:
        yield "reported by torch while a run uses it; nothing else is known about this GPU"
        if gpu.shared_memory:
            yield "of the maximum that Metal recommends for one program; what others hold is not reported"
    elif gpu.shared_memory:
        held = [size for row in store.processes(gpu.uuid) if isinstance(size := row.get("memory_bytes"), int | float)]
        yield f"held by programs on the GPU: {format_bytes(sum(held)) if held else NOT_REPORTED}"
        yield "it has no memory of its own: what programs on the CPU use is missing here, too"
    else:
        yield f"driver reserved: {format_bytes(_number(store, 'gpu', 'driver_reserved_bytes', gpu.uuid))}"
    yield f"free: {format_bytes(_number(store, 'gpu', 'free_bytes', gpu.uuid))}"
    yield from _health(store, gpu.uuid)
    if gpu.parent:
        yield OF_AN_INSTANCE
    elif gpu.instances:
        yield f"divided into {gpu.instances} MIG instances, which programs use instead"


def _health(store: Store, key: str) -> list[str]:
    """Errors and link state as reported by the driver, if there is anything to report."""
    found = []
    if code := int(_number(store, "gpu", "last_xid", key) or 0):
        found.append(f"newest XID error: {code}, {xid(code).label}")
    received, sent, links = (
        _number(store, "gpu", f"nvlink_{name}", key) for name in ("rx_bytes_per_second", "tx_bytes_per_second", "links")
    )
    if received is not None and sent is not None and links is not None:
        found.append(f"{links:.0f} NVLinks: {format_rate(received)} in, {format_rate(sent)} out")
    return found


def _state_text(gpu: Gpu, state: State) -> str:
    if gpu.by_torch:
        if state is State.OK:
            return ""
        return "read while a run uses it"
    if state in (State.OK, State.NOT_SUPPORTED):
        return ""
    if state is State.STALE and gpu.simulated:
        # It has no driver: its program answers no more.
        return "the program is ending"
    return STATE_TEXT[state]


def _gpu_bands(store: Store, key: str, used: float | None, context: str) -> list[tuple[str, float, str]]:
    """The newest values of the plot's bands; a band without a value is left out."""
    if used is None:
        return []
    found: dict[str, float] = {}
    for name in ("other", "context", "allocated", "idle"):
        last = store.last("gpu", f"{name}_bytes", key)
        if last is not None and not math.isnan(last[1]):
            found[name] = last[1]
    if "context" in found:
        others = "other processes"
    else:
        others = f"{context} and other processes"
    names = {"other": others, "context": context, "allocated": "allocated", "idle": "idle inside PyTorch"}
    return [(name, size, names[name]) for name, size in found.items()]


def device_rows(store: Store, devices: list[tuple[str, Table, str | None]]) -> list[tuple[str, str, str, str]]:
    """(device, metric, value, state) for every metric of every device, for the devices table."""
    found = []
    for name, table, key in devices:
        for metric in METRICS[table]:
            value = store.latest(table, metric.name, key)
            if value.time_s is not None:
                found.append((name, metric.title, _format(metric, value.value), value.state.value))
    return found


def _format(metric: Metric, value: object) -> str:
    if not isinstance(value, (int, float)):
        if value is None:
            return NOT_REPORTED
        return str(value)
    return metric.label(value)


def _number(store: Store, table: Table, metric: str, device: str | None = None) -> float | None:
    return store.latest(table, metric, device).number

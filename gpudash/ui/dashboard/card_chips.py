"""The card chooser: each chip shows whether the form's run fits that card, and simulates the card when clicked.

Neighbours with one and the same answer share a frame, in which the answer stands once. The chips are one tab stop; the
arrow keys move between them. Chips that do not fit are in a menu, where cards of any size can be added.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from PySide6.QtCore import QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QActionGroup,
    QColor,
    QFont,
    QFontMetrics,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton, QWidget

from gpudash.devices.known_gpus import KNOWN_GPUS, KnownGpu, find
from gpudash.devices.names import SimulatedCard, parse_cards, size_of
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.predicting.card_text import CardsAnswer, CardText, Standing
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.speed.time_text import rate_text, short_text
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.own_size import OwnSizeDialog
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.ui.widgets.text_size import scaled
from gpudash.ui.widgets.theme import PaintedButton
from gpudash.units import format_bytes

OFFERED = ("rtx3060", "rtx4060", "rtx4090", "l4", "l40s", "a100-40gb", "a100-80gb", "h100", "h200", "b200")
"""Cards that have a chip, in the default order, from the smallest kind to the largest."""

ORDERS: Mapping[str, str] = {
    "usual": "As Usual",
    "name": "By Name",
    "memory": "By Memory",
    "time": "By Predicted Time of a Step",
}
"""Sort orders: settings value → menu text."""

LEAST_PX = 140
WIDE_PX = 203
GAP_PX = 8
"""Logical pixels: minimum width of a chip, which shows the whole verdict; maximum width; gap between chips."""

TALL_PX = 64
"""Height from which a chip shows one more line."""

MORE = "More ▾"

OWN_SIZE = "Own size…"

MOST_OWN = 8
"""Maximum number of the user's own cards; the newest are kept."""

COLOURS: Mapping[Standing, str] = {"fits": "good", "uncertain": "warn", "short": "critical"}
"""Standing → palette colour of its text; all others are muted."""

ANSWERED: Collection[Standing] = ("fits", "uncertain", "short", "refused")
"""Standings that are an answer to what the form asks now."""

MUTED_OPACITY = 0.6

TIP_LETTERS = 72
"""Letters on a line of a chip's tooltip."""

FAMILIES = ("data centre", "workstation", "GeForce", "laptop")
"""Families of known cards, in the order of the menu."""

APART = "    "
"""Minimum space between two texts on a line."""

UNASKED, UNASKED_SHORT = "ask what would fit", "ask"
"""Text of a chip about which nothing is known yet, and its short form."""


@dataclass(frozen=True, slots=True)
class ChipContent:
    """What a chip shows.

    Attributes:
        card: the card it stands for.
        text: what is known about it.
        used: bytes in use, if the card is simulated already; 0 if none.
        selected: whether the form runs on this card.
        inviting: whether a chip without a verdict invites a click.
    """

    card: SimulatedCard
    text: CardText
    used: float = 0.0
    selected: bool = False
    inviting: bool = False

    @property
    def key(self) -> str:
        """Key of the card."""
        return exact_text(self.card)

    @property
    def name(self) -> str:
        """Name of the card."""
        if isinstance(self.card, KnownGpu):
            return self.card.name.removesuffix("GB")
        return "Own size"

    @property
    def capacity(self) -> str:
        """Its memory size as text."""
        return format_bytes(size_of(self.card))

    @property
    def detail(self) -> str:
        """The last line: memory in use, else the detail of the verdict."""
        if self.used:
            return f"{format_bytes(self.used)} in use"
        if self.inviting and self.text.standing == "unasked":
            return UNASKED
        return self.text.detail

    @property
    def answer(self) -> tuple[str, str] | None:
        """What neighbours must have in common to share a frame; ``None`` for a chip that stands alone.

        A chosen card has a frame of its own, and so has one in use, whose last line differs. Of cards with an answer
        only those of one size share it: the same words on another card mean another thing.
        """
        if self.selected or self.used or self.text.standing not in ANSWERED:
            return None
        if self.text.reason:
            return self.text.headline, ""
        return f"{self.text.headline}, {self.text.detail}", self.capacity

    def last_line(self, has_room: Callable[[str], bool], *, shared: bool = False) -> tuple[str, str]:
        """The texts at the left and right of the last line.

        Args:
            has_room: whether a text of both, side by side, fits.
            shared: whether the chip at its left says the detail for it.
        """
        detail = self.detail
        if shared:
            detail = ""
        time = self.text.time
        short = detail.removeprefix("up to ")  # the figure matters more than the words around it
        short = short.removesuffix(UNASKED.removeprefix(UNASKED_SHORT))
        if isinstance(self.text.estimate, ServerOnCard) and self.text.estimate.speed and not self.used:
            speed = self.text.estimate.speed
            return (detail, speed) if has_room(f"{detail}{APART}{speed}") else (detail, "")
        if time is None or self.used:
            return (detail if has_room(detail) else short), ""
        step = short_text(time)
        whole = f"{step} · {rate_text(time)}"
        for left, right in ((detail, whole), (short, whole), (short, step), (whole, "")):
            if has_room(f"{left}{APART}{right}"):
                return left, right
        # The batch size is also in the tooltip; the step time is shown nowhere else.
        return step, ""

    @property
    def sentence(self) -> str:
        """The whole content in one sentence."""
        parts = [self.text.sentence, f"{format_bytes(self.used)} in use" if self.used else ""]
        return "; ".join(filter(None, parts)) or "nothing is predicted for it"


class CardChip(PaintedButton):
    """The chip of one card.

    Attributes:
        span: where the chips that share its answer are, itself among them, in pixels from its own left edge.
    """

    def __init__(self, content: ChipContent, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._content = content
        self.span = range(0)
        self.setCheckable(True)

    def share(self, span: range) -> None:
        """Show the part of a common answer that lies on this chip: each paints it all, and Qt clips it."""
        if span != self.span:
            self.span = span
            self.update()

    @property
    def content(self) -> ChipContent:
        """What the chip shows."""
        return self._content

    def show_content(self, content: ChipContent, palette: Palette) -> None:
        """Show new content."""
        self.setChecked(content.selected)
        if (content, palette) == (self._content, self._palette) and self.accessibleName():
            return
        self._content = content
        self._palette = palette
        self.setAccessibleName(f"Simulated {content.name}, {content.capacity}")
        self.setAccessibleDescription(content.sentence)
        simulate = "click to simulate this card"
        if content.selected:
            simulate = "is simulated"
        tip = textwrap.fill(f"{content.name}, {content.capacity}: {content.sentence}", TIP_LETTERS)
        self.setToolTip(plain_tip(f"{tip}\n{simulate}"))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(scaled(LEAST_PX), scaled(30))

    def nextCheckState(self) -> None:
        """Do not toggle: a click requests the card, and the chip is checked once the card is selected."""

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left = 10
        right = self.width() - 10
        bold = self._bold()
        small = QFont(self.font())
        small.setPointSizeF(self.font().pointSizeF() * 8 / 9)
        tall = self.height() >= scaled(TALL_PX)
        line = QFontMetrics(bold).height()
        lines = 2
        if tall:
            lines = 3
        top = (self.height() - lines * line - 4) / 2
        self._paint_frame(painter, top + line)
        content = self._content
        shares_size = len(self.span) > self.width() and not content.text.reason
        capacity = content.capacity
        if shares_size:
            capacity = ""  # it stands once, beside the verdict
        self._paint_pair(painter, (left, top, right, line), (content.name, bold), (capacity, small))
        colour = getattr(self._palette, COLOURS.get(content.text.standing, "muted"))
        if not self.isEnabled():
            colour = self._palette.muted
        answer_box = (self.span.start + 10, top + line, self.span.stop - 10, line)
        self._paint_verdict(painter, answer_box, colour, bold, small)
        if shares_size:
            self._paint_aside(painter, answer_box, content.capacity, small)
        self._paint_bar(painter, colour)
        if not tall:
            return
        if content.text.reason:
            below = (answer_box[0], top + 2 * line, answer_box[2], line)
            self._paint_text(painter, below, content.detail, small, self._palette.muted)
            return
        below = (left, top + 2 * line, right, line)
        detail, aside = content.last_line(
            lambda text: QFontMetrics(small).horizontalAdvance(text) <= right - left, shared=self.span.start < 0
        )
        self._paint_text(painter, below, detail, small, self._palette.muted)
        self._paint_aside(painter, below, aside, small)

    def _paint_verdict(
        self, painter: QPainter, box: tuple[float, float, float, float], colour: str, bold: QFont, small: QFont
    ) -> None:
        """Paint the verdict; in a low chip, which has no further line, the reason or the invitation in its place."""
        known = self._content.text
        if self.height() < scaled(TALL_PX) and known.reason:
            self._paint_text(painter, box, known.headline, small, colour)
            return
        if self.height() < scaled(TALL_PX) and known.standing == "unasked":
            self._paint_text(painter, box, self._content.detail, small, self._palette.muted)
        if known.standing == "asking" and known.size:
            painter.setOpacity(MUTED_OPACITY)
        self._paint_text(painter, box, f"{known.sign} {known.verdict}".strip(), bold, colour)
        painter.setOpacity(1.0)

    def _paint_aside(self, painter: QPainter, box: tuple[float, float, float, float], text: str, font: QFont) -> None:
        """Paint a fact at the right end of a line."""
        left, top, right, height = box
        painter.setFont(font)
        painter.setPen(QColor(self._palette.muted))
        painter.drawText(QRectF(left, top, right - left, height), Qt.AlignmentFlag.AlignRight | _MIDDLE, text)

    def _paint_frame(self, painter: QPainter, name_bottom: float) -> None:
        """Paint the frame, of a group the part that lies here, and a line between its names."""
        palette = self._palette
        content = self._content
        width = 1.0
        edge = palette.border
        if self.underMouse():
            edge = palette.muted
        if content.selected:
            width = 2.0
            if content.text.standing == "short":
                edge = palette.critical
            else:
                edge = palette.accent
        inset = width / 2
        whole = QRectF(self.span.start, 0, len(self.span), self.height())
        frame = whole.adjusted(inset, inset, -inset, -inset)
        painter.setPen(QPen(QColor(edge), width))
        painter.setBrush(QColor(palette.panel))
        painter.drawRoundedRect(frame, 6, 6)
        if self.span.start < 0:
            painter.setPen(QPen(QColor(palette.border), 1))
            painter.drawLine(QPointF(0.5, 6), QPointF(0.5, name_bottom))
        if self.hasFocus():
            painter.setPen(QPen(QColor(palette.text), 1, Qt.PenStyle.DotLine))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            bottom = self.height() - 3.0
            if len(self.span) > self.width():
                bottom = name_bottom  # the answer below runs on over the neighbours
            painter.drawRoundedRect(QRectF(3.5, 3.5, self.width() - 7, bottom - 4), 4, 4)

    def _paint_pair(
        self,
        painter: QPainter,
        box: tuple[float, float, float, float],
        first: tuple[str, QFont],
        last: tuple[str, QFont],
    ) -> None:
        """Paint a name at the left and facts at the right. Without room for both, facts give way to known names."""
        left, _top, right, _height = box
        wide = QFontMetrics(first[1]).horizontalAdvance(first[0])
        capacity_width = QFontMetrics(last[1]).horizontalAdvance(last[0])
        if wide + capacity_width + 6 > right - left and isinstance(self._content.card, KnownGpu):
            last = ("", last[1])
        elif wide + capacity_width + 6 > right - left:
            first = last
            last = ("", last[1])
            first = (first[0], self._bold())
        self._paint_text(painter, box, first[0], first[1], self._palette.text)
        self._paint_aside(painter, box, *last)

    def _bold(self) -> QFont:
        font = QFont(self.font())
        font.setBold(True)
        return font

    def _paint_text(
        self, painter: QPainter, box: tuple[float, float, float, float], text: str, font: QFont, colour: str
    ) -> None:
        left, top, right, height = box
        painter.setFont(font)
        painter.setPen(QColor(colour))
        shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, round(right - left))
        painter.drawText(QRectF(left, top, right - left, height), Qt.AlignmentFlag.AlignLeft | _MIDDLE, shown)

    def _paint_bar(self, painter: QPainter, colour: str) -> None:
        """Paint the share of the card that the run needs."""
        share = self._content.text.share
        whole = QRectF(self.span.start + 10, self.height() - 6, len(self.span) - 20, 2)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._palette.border))
        painter.drawRect(whole)
        if share is not None:
            painter.setBrush(QColor(colour))
            painter.drawRect(QRectF(whole.left(), whole.top(), max(2.0, whole.width() * share), 2))


_MIDDLE = Qt.AlignmentFlag.AlignVCenter


def _family(gpu: KnownGpu) -> str:
    """Which of `FAMILIES` a card belongs to, by its driver's product name."""
    if "Laptop" in gpu.product:
        return "laptop"
    if "GeForce" in gpu.product:
        return "GeForce"
    if "RTX" in gpu.product:
        return "workstation"
    return "data centre"


def _by_family(gpu: KnownGpu) -> tuple[int, int, str]:
    """Sort key: family, then memory, then name."""
    return FAMILIES.index(_family(gpu)), gpu.total_bytes, gpu.name


class CardChooser(QWidget):
    """As many chips as fit, and a menu with the rest.

    Attributes:
        cards: cards that can be chosen, in the default order.
        order: current sort order, of `ORDERS`.
        focus_group: focus group of the chips.

    Signals:
        chosen: simulate this `SimulatedCard`.
        own_changed: the user's own cards, separated by commas, to save in the settings.
        order_changed: the sort order, to save in the settings.
        changed: the cards that can be chosen changed.
    """

    chosen = Signal(object)
    own_changed = Signal(str)
    order_changed = Signal(str)
    changed = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self.cards: list[SimulatedCard] = list(filter(None, map(find, OFFERED)))
        self.order = "usual"
        self._seconds: dict[str, float] = {}
        self._own: list[SimulatedCard] = []
        self._contents: dict[str, ChipContent] = {}
        self._chips: dict[str, CardChip] = {}
        self._left_out: list[str] = []
        self.more = QToolButton(self)
        self.more.setText(MORE)
        self.more.setProperty("role", "browse")
        self.more.setAccessibleName("More cards")
        self.more.setToolTip("Cards there is no room for, other known ones, any size, and their order")
        self.more.clicked.connect(self._open_menu)
        self.focus_group = FocusGroup(self, [self.more])
        self.ask: Callable[[], SimulatedCard | None] = self._ask_card
        self.setAccessibleName("Cards to simulate")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        for chip in self._chips.values():
            chip.show_content(chip.content, palette)

    def show_answers(
        self,
        answers: CardsAnswer,
        devices: Mapping[str, str],
        used: Mapping[str, float],
        selected: str,
        without: Sequence[str] = (),
        *,
        inviting: bool = False,
    ) -> None:
        """Show what is known about every card.

        Args:
            answers: verdicts, by card key for cards that are not simulated, and by device name.
            devices: card key → device that simulates it.
            used: card key → bytes in use there.
            selected: key of the card the form runs on; "" for none. One that is not offered has a chip while it is.
            without: keys of cards that are shown elsewhere.
            inviting: whether chips without a verdict invite a click.
        """
        cards = list(self.cards)
        if selected and selected not in map(exact_text, cards):
            cards += parse_cards(selected)
        contents = [
            ChipContent(card, answers.of(devices.get(key, key)), used.get(key, 0.0), key == selected, inviting)
            for card in cards
            if (key := exact_text(card)) not in without
        ]
        self._contents = {content.key: content for content in self._in_order(contents)}
        self._arrange()

    def _in_order(self, contents: list[ChipContent]) -> list[ChipContent]:
        """Contents in the sort order; cards without the value to sort by come last, in default order."""
        if self.order == "name":
            return sorted(contents, key=lambda content: content.name.casefold())
        if self.order == "memory":
            return sorted(contents, key=lambda content: size_of(content.card))
        if self.order != "time":
            return contents
        for content in contents:
            # While a new answer is pending, sort by the previous one, so that chips do not jump at every keystroke.
            if content.text.standing in ("asking", "stale"):
                continue
            self._seconds[content.key] = inf
            if content.text.time is not None:
                self._seconds[content.key] = content.text.time.median_s
        return sorted(contents, key=lambda content: self._seconds.get(content.key, inf))

    def sort_by(self, order: str) -> None:
        """Sort the cards by another of `ORDERS` and save the choice."""
        self.order = order
        self._contents = {content.key: content for content in self._in_order(list(self._contents.values()))}
        self._arrange()
        self.order_changed.emit(order)

    def choose(self, card: SimulatedCard) -> None:
        """Request a card; one without a chip is added to the user's own cards."""
        if exact_text(card) not in map(exact_text, self.cards):
            self._own = [card, *self._own][:MOST_OWN]
            self.cards.append(card)
            self.own_changed.emit(", ".join(map(exact_text, self._own)))
            self.changed.emit()
        self.chosen.emit(card)

    @property
    def shown(self) -> list[CardChip]:
        """The visible chips, from the left."""
        return [chip for chip in self._chips.values() if not chip.isHidden()]

    def menu(self) -> QMenu:
        """The cards without a visible chip, the other known cards, and a size of one's own."""
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        for key in self._left_out:
            content = self._contents[key]
            if isinstance(content.card, KnownGpu):
                name = content.name
            else:
                name = f"Own size, {content.capacity}"
            action = self._entry(menu, content.card, f"{name}\t{content.text.headline}")
            action.setToolTip(plain_tip(content.sentence))
            action.setCheckable(True)
            action.setChecked(content.selected)
        menu.addSeparator()
        there = set(map(exact_text, self.cards))
        others = menu.addMenu("Other known cards")
        family = ""
        for gpu in sorted((gpu for gpu in KNOWN_GPUS if gpu.key not in there), key=_by_family):
            if family not in ("", _family(gpu)):
                others.addSeparator()
            family = _family(gpu)
            self._entry(others, gpu, f"{gpu.name}\t{format_bytes(gpu.total_bytes)}")
        menu.addAction(OWN_SIZE).triggered.connect(self._add_size)
        orders = menu.addMenu("Sort Cards")
        group = QActionGroup(orders)
        for order, called in ORDERS.items():
            action = orders.addAction(called)
            action.setCheckable(True)
            action.setChecked(order == self.order)
            action.triggered.connect(lambda _checked=False, order=order: self.sort_by(order))
            group.addAction(action)
        return menu

    def _entry(self, menu: QMenu, card: SimulatedCard, text: str) -> QAction:
        action = menu.addAction(without_mnemonics(text))
        action.triggered.connect(lambda _checked=False: self.choose(card))
        return action

    def _open_menu(self) -> None:
        self.menu().popup(self.more.mapToGlobal(QPoint(0, self.more.height())))

    def _add_size(self) -> None:
        card = self.ask()
        if card is not None:
            self.choose(card)

    def _ask_card(self) -> SimulatedCard | None:
        dialog = OwnSizeDialog(self.window())
        dialog.exec()
        return dialog.card

    def set_own(self, text: str) -> None:
        """Add the user's own cards, separated by commas; text that names no card is ignored."""
        own: list[SimulatedCard] = []
        for part in text.split(","):
            with suppress(ValueError):
                own += parse_cards(part)
        usual = list(filter(None, map(find, OFFERED)))
        there = set(map(exact_text, usual))
        cards = [*usual, *(card for card in own if exact_text(card) not in there)]
        self._own = own[:MOST_OWN]
        if cards != self.cards:
            self.cards = cards
            self.changed.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def sizeHint(self) -> QSize:
        return QSize(scaled(3 * LEAST_PX), scaled(30))

    def minimumSizeHint(self) -> QSize:
        return QSize(self.more.sizeHint().width(), scaled(30))

    def _arrange(self) -> None:
        """Show as many chips as fit, in order; the selected one is always among them."""
        more = self.more.sizeHint().width()
        gap = scaled(GAP_PX)
        room = self.width() - more - gap
        count = max(0, (room + gap) // (scaled(LEAST_PX) + gap))
        keys = list(self._contents)
        shown = keys[:count]
        chosen = next((key for key in keys if self._contents[key].selected), None)
        if chosen is not None and chosen not in shown and shown:
            shown[-1] = chosen
        self._left_out = [key for key in keys if key not in shown]
        width = 0
        if shown:
            width = min(scaled(WIDE_PX), (room + gap) // len(shown) - gap)
        for key in [key for key in self._chips if key not in self._contents]:
            self._chips.pop(key).deleteLater()
        for key, content in self._contents.items():
            if key not in self._chips:
                self._chips[key] = self._made(content)
            chip = self._chips[key]
            chip.setVisible(key in shown)
            chip.show_content(content, self._palette)
        self._chips = {key: self._chips[key] for key in self._contents}
        self._place(shown, width, gap)
        self.more.setGeometry(len(shown) * (width + gap), 0, more, self.height())
        self.focus_group.hold([*self._chips.values(), self.more])

    def _place(self, shown: Sequence[str], width: int, gap: int) -> None:
        """Put the chips side by side, without a gap between those that have one answer in common.

        Every name stays where it would be alone, so that nothing moves when an answer changes.
        """
        groups: list[list[int]] = []
        for place, key in enumerate(shown):
            answer = self._contents[key].answer
            if place and answer is not None and answer == self._contents[shown[place - 1]].answer:
                groups[-1].append(place)
            else:
                groups.append([place])
        for group in groups:
            end = group[-1] * (width + gap) + width
            for place in group:
                left = place * (width + gap)
                right = min(end, left + width + gap)
                chip = self._chips[shown[place]]
                chip.setGeometry(left, 0, right - left, self.height())
                chip.share(range(group[0] * (width + gap) - left, end - left))

    def _made(self, content: ChipContent) -> CardChip:
        chip = CardChip(content, self._palette, self)
        chip.clicked.connect(lambda: self.choose(chip.content.card))
        return chip

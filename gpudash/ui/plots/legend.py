"""The line above a plot: its title, its curves and, at the right, the levels that cross it.

Runs that are laid over have lines of their own where the first has no room for them: they are what is compared, so none
of them is folded into the menu.

Clicking an entry hides its curve, "only" isolates it, and a chip shows all of them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QEvent, QMargins, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QIcon,
    QKeyEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QPixmap,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QApplication, QHBoxLayout, QMenu, QSizePolicy, QToolButton, QWidget

from gpudash.telemetry.plots import CurveSpec
from gpudash.ui.colours import Palette
from gpudash.ui.plots.canvas import label_font
from gpudash.ui.plots.overlay import BETWEEN_ALPHA, FAINT_ALPHA, HATCH, PATCH, PEN_STYLES, PlotLevel
from gpudash.ui.plots.painting.layers import hatch
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics
from gpudash.ui.widgets.text_size import scaled, text_scale
from gpudash.ui.widgets.theme import PaintedWidget

HEIGHT_PX = 24
"""Height of the line. Its entries are clicked, and a smaller target is hard to hit."""

ONLY_PX = 24
"""Room for "only", which appears while the pointer is over the entry."""

MORE_PX = 64
"""Room for the button that holds the entries that do not fit."""

TIGHT_PX = 10
"""Room around the name of an entry in a further line."""

MOST_FURTHER = 2
"""Most lines below the first."""

SWATCH_LEFT_PX = 4
"""Room to the left of an entry's swatch."""

_ANY_WIDTH = 16_777_215
"""Qt's QWIDGETSIZE_MAX."""

_DASHED_SWATCHES = {"dash": [2.5, 1.0], "dot": [1.0, 1.0], "dashdot": [2.5, 1.0, 1.0, 1.0]}
"""Line styles that would not be recognisable in a small swatch, as lines and gaps in pen widths."""

_BEFORE_ENTRIES = 2
"""Items in the row before the first curve: the title and a spacer."""


SWATCH_PX = 18
"""Room for a patch, or for the sample line in front of a level's name."""

PATCH_PX = (14, 12)
"""Width and height of a curve's patch."""

AROUND_PX, LEAST_NAME_PX = SWATCH_PX + 14, 24
"""Room that a level needs besides its text, and the width below which a name is unreadable."""


class Button(QToolButton):
    """A button that handles its own keys, although they are also shortcuts of the surrounding plots."""

    def event(self, event: QEvent) -> bool:
        presses = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Space
        # Space is also the plots' shortcut (pause): without this override the shortcut would win over the button.
        if presses and event.type() is QEvent.Type.ShortcutOverride:
            event.accept()
            return True
        return super().event(event)


class LegendEntry(QWidget):
    """One curve in the legend.

    Attributes:
        button: hides or shows the curve.

    Signals:
        clicked: the curve's name, and whether Ctrl was held or "only" was pressed.
    """

    clicked = Signal(str, bool)

    def __init__(self, spec: CurveSpec, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.spec = spec
        self._palette = palette
        self._shown_name = spec.name
        self.button = Button(self)
        self.button.setProperty("role", "legend")
        self.button.setText(without_mnemonics(spec.name))
        self.button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.button.setCheckable(True)
        self.button.setChecked(True)
        self.button.setToolTip(
            plain_tip(f"{spec.note}\n" * bool(spec.note) + "Click hides the curve, Ctrl+click shows it alone")
        )
        self.button.clicked.connect(self._pressed)
        self._only = QToolButton(self)
        self._only.setProperty("role", "only")
        self._only.setText("only")
        self._only.setAccessibleName(f"Show only {spec.name}")
        self._only.setToolTip(plain_tip(f"Show only {spec.name}"))
        self._only.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._only.clicked.connect(lambda: self.clicked.emit(self.spec.name, True))
        self._only.hide()
        self._roomy = True
        for button in (self.button, self._only):  # as high as the line: easy to hit
            button.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Ignored)
        in_row(self.button, self._only, parent=self, margins=(0, 0, 0, 0), spacing=0)
        self._measure()
        self.set_palette(palette)
        self.set_shown(True)

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self.button.setIcon(QIcon(swatch(self.spec, palette, self.devicePixelRatioF())))
        self.button.setIconSize(patch_size())

    def set_shown(self, shown: bool) -> None:
        """Strike the name through if the curve is hidden."""
        self.button.setChecked(shown)
        font = self.button.font()
        font.setStrikeOut(not shown)
        self.button.setFont(font)
        self.button.setAccessibleName(f"{self.spec.name}, {'shown' if shown else 'hidden'}")

    def _measure(self) -> None:
        """Reserve the room that the current text size needs."""
        self._only.setFixedWidth(scaled(ONLY_PX))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._measure()
            self.set_palette(self._palette)

    @property
    def icon(self) -> QIcon:
        """The curve's swatch."""
        return self.button.icon()

    @property
    def least_width(self) -> int:
        """The entry's width with its whole name and without its "only"."""
        return self._around + self.button.fontMetrics().horizontalAdvance(self.spec.name)

    @property
    def _around(self) -> int:
        """The width of all but the name."""
        return self.button.sizeHint().width() - self.button.fontMetrics().horizontalAdvance(self._shown_name)

    @property
    def tight_width(self) -> int:
        """The same without the space that buttons leave around their text."""
        name = self.button.fontMetrics().horizontalAdvance(self.spec.name)
        return SWATCH_LEFT_PX + patch_size().width() + name + scaled(TIGHT_PX)

    def set_tight(self, width: int | None) -> None:
        """Be ``width`` pixels wide, with the name cut in its middle where that is too little, and without "only".

        ``None`` for the usual width.
        """
        self._shown_name = self.spec.name
        widest = _ANY_WIDTH
        if width is not None:
            widest = width
            self.set_roomy(False)
        if width is not None and width < self.tight_width:
            metrics = self.button.fontMetrics()
            room = width - self.tight_width + metrics.horizontalAdvance(self.spec.name)
            self._shown_name = metrics.elidedText(self.spec.name, Qt.TextElideMode.ElideMiddle, room)
        self.button.setText(without_mnemonics(self._shown_name))
        self.button.setMaximumWidth(widest)

    def paint(self, painter: QPainter, palette: Palette) -> None:
        """Paint the swatch and the name at their place in the legend."""
        place = self.geometry()
        painter.save()
        painter.translate(place.left() + SWATCH_LEFT_PX, place.center().y() + 1 - patch_size().height() // 2)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint_swatch(painter, self.spec, palette)
        painter.restore()
        text = place.adjusted(SWATCH_LEFT_PX + scaled(SWATCH_PX), 0, 0, 0)
        write_text(painter, self.button, self.spec.name, text, palette.text)

    def set_roomy(self, roomy: bool) -> None:
        """Reserve room for "only" beside the name, or give it up."""
        self._roomy = roomy
        policy = self._only.sizePolicy()
        if policy.retainSizeWhenHidden() != roomy:
            policy.setRetainSizeWhenHidden(roomy)
            self._only.setSizePolicy(policy)

    def enterEvent(self, event: QEvent) -> None:
        self._only.setVisible(self._roomy)

    def leaveEvent(self, event: QEvent) -> None:
        self._only.hide()

    def _pressed(self) -> None:
        alone = bool(QApplication.keyboardModifiers() & Qt.KeyboardModifier.ControlModifier)
        self.clicked.emit(self.spec.name, alone)


class LevelKey(PaintedWidget):
    """Names the lines across a plot, each beside a sample of it. In the plot the names would cover curves."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(palette, parent)
        self._texts: list[str] = []
        self.levels: Sequence[PlotLevel] = ()
        self.setProperty("role", "legend")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)

    def show_levels(self, levels: Sequence[PlotLevel]) -> None:
        """Name these levels, the most important first."""
        self.levels = levels
        text = "\n".join(level.text for level in levels)
        self.setToolTip(plain_tip(text))
        self.setAccessibleName(text.replace("\n", ", "))
        self.update()

    @property
    def texts(self) -> list[str]:
        """The texts shown for the first levels; the remaining ones have no text."""
        return list(self._texts)

    @property
    def unnamed(self) -> Sequence[PlotLevel]:
        """The levels whose whole name has no room."""
        named = [text for text in self._texts if not text.endswith("…")]
        return self.levels[len(named) :]

    @property
    def least_width(self) -> int:
        """The width in pixels of the names of areas, whose colours nothing else names, and of the first other level."""
        areas = [level.name for level in self.levels if level.style in (PATCH, HATCH)]
        return sum(self._widths([level.name for level in self.levels[: len(areas) + 1]]))

    @property
    def first_width(self) -> int:
        """The width in pixels of the first level's name."""
        return sum(self._widths([level.name for level in self.levels[:1]]))

    def fit(self, room: int) -> int:
        """Show as much text as fits in ``room``; returns the pixels used.

        The first level keeps its value longest, and its name when no other has one. A name that does not fit is
        elided.
        """
        texts, names = [level.text for level in self.levels], [level.name for level in self.levels]
        # In the order of what is given up: the others' values, the first one's value, then names from the end.
        choices = [texts, [*texts[:1], *names[1:]], names, *(names[:count] for count in range(len(names) - 1, 0, -1))]
        fitting = (choice for choice in choices if sum(self._widths(choice)) <= room)
        self._texts = next(fitting, [])
        if names and not self._texts and room >= scaled(LEAST_NAME_PX + AROUND_PX):
            metrics = QFontMetrics(self._font)
            self._texts = [metrics.elidedText(names[0], Qt.TextElideMode.ElideRight, room - scaled(AROUND_PX))]
        width = sum(self._widths(self._texts))
        self.setFixedWidth(width)
        self.update()
        return width

    def _widths(self, texts: Sequence[str]) -> list[int]:
        metrics = QFontMetrics(self._font)
        return [metrics.horizontalAdvance(text) + scaled(AROUND_PX) for text in texts]

    @property
    def _font(self) -> QFont:
        return label_font(self)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.paint(painter, self.rect())

    def paint(self, painter: QPainter, place: QRect) -> None:
        """Paint the levels that fit, right-aligned in ``place``."""
        painter.setFont(self._font)
        right, middle = place.right(), place.center().y() + 1
        for level, text, width in zip(self.levels, self._texts, self._widths(self._texts), strict=False):
            left = right - width + scaled(10)
            label = QRect(left + scaled(SWATCH_PX), place.top(), width, place.height())
            paint_sample(painter, level, left, middle)
            painter.setPen(QColor(self._palette.muted))
            painter.drawText(label, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip, text)
            right -= width


@dataclass(frozen=True, slots=True)
class _Named:
    """A curve or a level of which a picture has the name on a further line, and its width there in pixels."""

    text: str
    shown: CurveSpec | PlotLevel
    width: int


class Legend(QWidget):
    """The title and the curves of one plot, and which of them are hidden.

    Attributes:
        focus_group: the focus group of its buttons.

    Signals:
        hidden_changed: a curve was hidden or shown.
    """

    hidden_changed = Signal()

    def __init__(
        self, title: str, curves: Sequence[CurveSpec], palette: Palette, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._palette = palette
        self._hidden: set[str] = set()
        self._hidden_before: set[str] = set()
        self._entries: list[LegendEntry] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._row = in_row(margins=(0, 0, 0, 0), spacing=0)
        self._further = [in_row(margins=(0, 0, 0, 0), spacing=0) for _line in range(MOST_FURTHER)]
        self._lines = in_column((self._row, 1), *self._further, parent=self, margins=(0, 0, 0, 0), spacing=0)
        # The rows must not request the width of all names: `_fit` decides what fits.
        self._lines.setSizeConstraint(QHBoxLayout.SizeConstraint.SetNoConstraint)
        self._below: list[list[LegendEntry]] = []
        self._whole_title = title
        self._title = PlainLabel(title, role="title")
        self._row.addWidget(self._title)
        self._row.addSpacing(6)
        self._chip = Button(self)
        self._chip.setProperty("role", "chip")
        self._chip.clicked.connect(self.show_all)
        self._chip.hide()
        self._more = Button(self)
        self._more.setProperty("role", "legend")
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._more.setMenu(QMenu(self._more))
        self._more.menu().aboutToShow.connect(self._fill_menu)
        self._more.hide()
        self._row.addWidget(self._more)
        self._row.addSpacing(4)
        self._row.addWidget(self._chip)
        self._row.addStretch(1)
        self._levels = LevelKey(palette, self)
        self._row.addWidget(self._levels)
        self.focus_group = FocusGroup(self)
        self._set_entries(curves)

    @property
    def hidden(self) -> frozenset[str]:
        """The names of the hidden curves."""
        return frozenset(self._hidden)

    def set_title(self, title: str) -> None:
        """Change the title."""
        if title != self._whole_title:
            self._whole_title = title
            self._fit()

    def set_curves(self, curves: Sequence[CurveSpec]) -> None:
        """List these curves. A hidden curve stays hidden, even if it was renamed or disappears for a while."""
        names = {curve.name for curve in curves}
        renamed = {entry.spec.key for entry in self._entries if entry.spec.name in self._hidden - names}
        # A curve that disappeared while hidden is still hidden when it returns, as when a device reconnects.
        before = self._hidden | self._hidden_before
        hidden = {curve.name for curve in curves if curve.name in before or curve.key in renamed}
        self._hidden_before = before - names
        self._set_entries(curves)
        self._show_hidden(hidden)

    def _set_entries(self, curves: Sequence[CurveSpec]) -> None:
        kept = {entry.spec: entry for entry in self._entries}
        # Kept entries reuse their widget, so that focus and hover survive.
        entries = [kept.pop(curve) if curve in kept else self._entry(curve) for curve in curves]
        for entry in kept.values():
            entry.hide()
            for row in (self._row, *self._further):
                row.removeWidget(entry)
            entry.deleteLater()
        self._entries = entries
        self._place_entries([])
        self.focus_group.hold([*(entry.button for entry in entries), self._more, self._chip])

    def _place_entries(self, below: Sequence[Sequence[LegendEntry]]) -> None:
        """Put these entries into the further lines, which there are for them alone, and all others into the first."""
        self._below = [list(line) for line in below]
        for entry in self._entries:
            for row in (self._row, *self._further):
                row.removeWidget(entry)
        for position, entry in enumerate(entry for entry in self._entries if not self._is_below(entry)):
            self._row.insertWidget(_BEFORE_ENTRIES + position, entry)
        for place, row in enumerate(self._further):
            self._lines.setStretchFactor(row, int(place < len(below)))
        for row, line in zip(self._further, below, strict=False):
            row.setAlignment(Qt.AlignmentFlag.AlignLeft)
            for entry in line:
                row.addWidget(entry)
        self.setFixedHeight(self._line_height * (1 + len(below)))

    def _is_below(self, entry: LegendEntry) -> bool:
        return any(entry in line for line in self._below)

    @property
    def _line_height(self) -> int:
        return scaled(HEIGHT_PX)

    def _entry(self, curve: CurveSpec) -> LegendEntry:
        entry = LegendEntry(curve, self._palette, self)
        entry.clicked.connect(self._clicked)
        return entry

    def minimumSizeHint(self) -> QSize:
        return QSize(80, self.height())

    def set_palette(self, palette: Palette) -> None:
        self._palette = palette
        self._levels.set_palette(palette)
        for entry in self._entries:
            entry.set_palette(palette)

    @property
    def levels(self) -> list[str]:
        """The texts of the levels across the plot."""
        return [level.text for level in self._levels.levels]

    def set_levels(self, levels: Sequence[PlotLevel]) -> None:
        """Show these levels in the key."""
        if list(levels) != list(self._levels.levels):
            self._levels.show_levels(list(levels))
            self._fit()

    def set_insets(self, left: float, right: float) -> None:
        """Align both ends with the plot area."""
        margins = QMargins(int(left), 0, int(right), 0)
        if margins != self._row.contentsMargins():
            for row in (self._row, *self._further):
                row.setContentsMargins(margins)
            self._fit()

    def toggle(self, name: str) -> None:
        """Hide or show the curve."""
        self._set_hidden(self._hidden ^ {name})

    def isolate(self, name: str) -> None:
        """Show only this curve; a second call shows all again."""
        others = {entry.spec.name for entry in self._entries} - {name}
        self._set_hidden(set() if self._hidden == others else others)

    def show_all(self) -> None:
        """Show every curve."""
        self._hidden_before = set()
        self._set_hidden(set())

    def set_hidden(self, names: Iterable[str]) -> None:
        """Hide exactly these curves."""
        self._hidden_before = set()
        self._set_hidden(set(names) & {entry.spec.name for entry in self._entries})

    def paint(self, painter: QPainter) -> None:
        """Paint the title and the shown curves as lines and text, for a picture, in which nothing can be clicked."""
        self._lines.activate()  # after a new layout of the plot the lines may be outdated
        write_text(painter, self._title, self._title.text(), self._title.geometry(), self._palette.text)
        for entry in self._entries:
            if entry.isVisible() and not self._is_below(entry) and entry.spec.name not in self._hidden:
                entry.paint(painter, self._palette)
        self._levels.set_palette(self._palette)
        self._levels.paint(painter, self._levels.geometry())
        painter.setFont(label_font(self))
        for number, row in enumerate(self._further_rows(), 1):
            self._paint_row(painter, row, QRect(0, number * self._line_height, self.width(), self._line_height))

    def _paint_row(self, painter: QPainter, row: Sequence[_Named], place: QRect) -> None:
        left = self._row.contentsMargins().left()
        middle = place.center().y() + 1
        for named in row:
            if isinstance(named.shown, CurveSpec):
                painter.save()
                painter.translate(left, middle - patch_size().height() // 2)
                paint_swatch(painter, named.shown, self._palette)
                painter.restore()
            else:
                paint_sample(painter, named.shown, left, middle)
            painter.setPen(QColor(self._palette.text))
            text = QRect(left + scaled(SWATCH_PX), place.top(), named.width, place.height())
            painter.drawText(text, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip, named.text)
            left += named.width

    @property
    def picture_height(self) -> int:
        """The height in a picture: there, further lines have all names for which there is no room in the first."""
        return self._line_height * (1 + len(self._further_rows()))

    def _further_rows(self) -> list[list[_Named]]:
        rows: list[list[_Named]] = []
        margins, metrics = self._row.contentsMargins(), QFontMetrics(label_font(self))
        whole = self.width() - margins.left() - margins.right()
        room = 0
        curves = [entry.spec for entry in self._entries if self._is_below(entry) or not entry.isVisible()]
        shown: list[tuple[str, CurveSpec | PlotLevel]] = [
            (curve.name, curve) for curve in curves if curve.name not in self._hidden
        ]
        shown += [(level.text, level) for level in self._levels.unnamed]
        for text, what in shown:
            named = _Named(text, what, metrics.horizontalAdvance(text) + scaled(AROUND_PX))
            if not rows or named.width > room:
                rows.append([])
                room = whole
            rows[-1].append(named)
            room -= named.width
        return rows

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit()

    def showEvent(self, event: QShowEvent) -> None:
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._place_entries(self._below)
            self._fit()

    def _fit(self) -> None:
        """Fit the lines: runs that are laid over go below the first where it would fold any of them away."""
        margins = self._row.contentsMargins()
        room = self.width() - margins.left() - margins.right() - 10
        runs = [entry for entry in self._entries if entry.spec.is_laid_over]
        for run in runs:
            run.set_tight(None)
        below: list[list[LegendEntry]] = []
        if self._fit_first(self._entries, room).intersection(runs):
            self._fit_first([entry for entry in self._entries if entry not in runs], room)
            below = _lines_of(runs, room)
        if below != self._below:
            self._place_entries(below)
        for line in below:
            for run, width in zip(line, shares([run.tight_width for run in line], room), strict=True):
                run.set_tight(width)
                run.show()

    def _fit_first(self, entries: Sequence[LegendEntry], room: int) -> set[LegendEntry]:
        """Fit these entries into the first row; returns those that are folded into the menu.

        The room for "only" goes first, then the values and names of levels, except the first level's name. Then entries
        move into a menu, from the last to the first, those marked ``aside`` before the others. Curve names are never
        cut, and the title before the name of the first level, but not within its first word. The menu also names the
        levels for which the row has no room.
        """
        if self._hidden:
            room -= self._chip.sizeHint().width() + 4
        more = 0
        if entries or self._levels.levels:
            self._more.setText(f"{len(entries) + len(self._levels.levels)} more")
            more = max(scaled(MORE_PX), self._more.sizeHint().width())
        self._fit_title(room - self._levels.first_width - more, room - more)
        room -= self._title.sizeHint().width()
        widths = [entry.least_width for entry in entries]
        used = self._levels.fit(max(room - sum(widths), min(self._levels.least_width, room - more)))
        if self._levels.unnamed:
            # Once more, beside the button whose menu has their names.
            room -= more
            used = self._levels.fit(max(room - sum(widths), min(self._levels.least_width, room)))
            more = 0
        room -= used
        roomy = sum(widths) + scaled(ONLY_PX) * len(widths) <= room
        # Sorted for `pop`: entries that may move aside come last, and among equals the last one.
        shown = sorted(range(len(widths)), key=lambda position: entries[position].spec.aside)
        if not roomy and sum(widths) > room:
            while shown and sum(widths[position] for position in shown) + more > room:
                shown.pop()
        for position, entry in enumerate(entries):
            entry.set_roomy(roomy)
            entry.setVisible(position in shown)
        aside = len(widths) - len(shown) + len(self._levels.unnamed)
        self._more.setVisible(aside > 0)
        self._more.setText(f"{aside} more")
        return {entry for position, entry in enumerate(entries) if position not in shown}

    def _fit_title(self, room: int, whole_room: int) -> None:
        """Show the title, cut where ``room`` is too small for it; within its first word only if ``whole_room`` is."""
        self._title.setText(f"{self._whole_title.split(' ')[0]}…")
        room = max(room, min(whole_room, self._title.sizeHint().width() + 2))
        self._title.setText(self._whole_title)
        tip = ""
        if self._title.sizeHint().width() > room:
            elided = Qt.TextElideMode.ElideRight
            metrics = self._title.fontMetrics()
            # A label can be two pixels wider than the text was cut to: its width and that of its frame are rounded up.
            width = max(scaled(LEAST_NAME_PX), room - 2)
            self._title.setText(metrics.elidedText(self._whole_title, elided, width))
            tip = self._whole_title
        self._title.setToolTip(plain_tip(tip))

    def _fill_menu(self) -> None:
        menu = self._more.menu()
        menu.clear()
        for entry in self._entries:
            if not entry.isVisible():
                name = entry.spec.name
                action = menu.addAction(entry.icon, without_mnemonics(name), partial(self.toggle, name))
                action.setCheckable(True)
                action.setChecked(name not in self._hidden)
        for level in self._levels.unnamed:
            menu.addAction(QIcon(_sample(level, self.devicePixelRatioF())), without_mnemonics(level.text))

    def _clicked(self, name: str, alone: bool) -> None:
        if alone:
            self.isolate(name)
        else:
            self.toggle(name)

    def _set_hidden(self, hidden: set[str]) -> None:
        self._show_hidden(hidden)
        self.hidden_changed.emit()

    def _show_hidden(self, hidden: set[str]) -> None:
        self._hidden = hidden
        for entry in self._entries:
            entry.set_shown(entry.spec.name not in hidden)
        self._chip.setText(f"{len(hidden)} hidden - show all")
        self._chip.setVisible(bool(hidden))
        self._fit()


def _lines_of(entries: Sequence[LegendEntry], room: int) -> list[list[LegendEntry]]:
    """The entries in one line if it has room for their whole names, else in `MOST_FURTHER`."""
    if sum(entry.tight_width for entry in entries) <= room:
        return [list(entries)]
    longest = math.ceil(len(entries) / MOST_FURTHER)
    return [list(entries[start : start + longest]) for start in range(0, len(entries), longest)]


def shares(widths: Sequence[int], room: int) -> list[int]:
    """``room`` divided among widths: what a small one does not need is for the large ones."""
    found = list(widths)
    left = room
    for rank, place in enumerate(sorted(range(len(widths)), key=widths.__getitem__)):
        found[place] = min(widths[place], left // (len(widths) - rank))
        left -= found[place]
    return found


def patch_size() -> QSize:
    """The size of a curve's patch in logical pixels, at the current text size."""
    return QSize(*map(scaled, PATCH_PX))


def swatch(spec: CurveSpec, palette: Palette, ratio: float) -> QPixmap:
    """A patch of size `patch_size` in the curve's colour and line style."""
    pixmap = QPixmap(patch_size() * ratio)
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    paint_swatch(painter, spec, palette)
    painter.end()
    return pixmap


def write_text(painter: QPainter, like: QWidget, text: str, place: QRect, colour: str) -> None:
    """Draw text in the font of the widget ``like``."""
    painter.setFont(like.font())
    painter.setPen(QColor(colour))
    painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextDontClip, text)


def paint_sample(painter: QPainter, level: PlotLevel, left: int, middle: int) -> None:
    """Paint a piece of the line or the area that a level is, at this height."""
    colour = QColor(level.colour)
    patch = QRectF(left, middle - scaled(5), scaled(9), scaled(9))
    if level.style == PATCH:
        painter.fillRect(patch, colour)
        return
    if level.style == HATCH:
        shape = QPainterPath()
        shape.addRect(patch)
        painter.setPen(QPen(colour, 1))
        painter.drawPath(shape)
        hatch(painter, shape, colour, patch, patch.bottom())
        return
    pen = QPen(colour, scaled(2), PEN_STYLES[level.style], Qt.PenCapStyle.FlatCap)
    if level.style in _DASHED_SWATCHES:
        pen.setDashPattern(_DASHED_SWATCHES[level.style])
    painter.setPen(pen)
    painter.drawLine(left, middle, left + scaled(SWATCH_PX - 4), middle)


def _sample(level: PlotLevel, ratio: float) -> QPixmap:
    """A level's sample as a picture of its own, for a menu."""
    side = scaled(SWATCH_PX)
    pixmap = QPixmap(QSize(side, side) * ratio)
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    paint_sample(painter, level, scaled(2), side // 2)
    painter.end()
    return pixmap


def paint_swatch(painter: QPainter, spec: CurveSpec, palette: Palette) -> None:
    """Paint the patch of a curve at the painter's origin, scaled with the text."""
    painter.save()
    painter.scale(text_scale(), text_scale())
    colour = QColor(palette.curves[spec.colour])
    if spec.stack:
        if spec.faint:
            painter.setPen(QPen(colour, 1))
            colour.setAlphaF(0.25)
        painter.setBrush(colour)
        painter.drawRect(QRectF(1.5, 1.5, 8, 8)) if spec.faint else painter.fillRect(QRectF(1, 1, 9, 9), colour)
    else:
        if spec.down_to:
            colour.setAlphaF(BETWEEN_ALPHA)
            painter.fillRect(QRectF(0, 1, 12, 10), colour)
        colour.setAlphaF(FAINT_ALPHA if spec.faint else 1.0)
        pen = QPen(colour, 2, PEN_STYLES[spec.style], Qt.PenCapStyle.FlatCap)
        if spec.style in _DASHED_SWATCHES:
            pen.setDashPattern(_DASHED_SWATCHES[spec.style])
        painter.setPen(pen)
        painter.drawLine(0, 6, 12, 6)
    painter.restore()

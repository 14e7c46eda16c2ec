"""One control per field of a pydantic model: created, read, filled and explained from the field itself."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QSignalBlocker, QSize, Qt
from PySide6.QtGui import QAction, QCursor, QKeyEvent, QKeySequence, QStandardItemModel, QWheelEvent
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QStyleOptionComboBox,
    QVBoxLayout,
    QWidget,
)

from gpudash.system.settings import PERCENT
from gpudash.ui.widgets.labels import polish_again, wrapped_text
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.units import GIB, KIB, MIB, format_bytes

Control = QLineEdit | QComboBox | QCheckBox

WORKING_FOLDER = ""
"""Where a dialog for the user's own files begins: for Qt this is the folder that gpudash was started in, or the one
that a dialog was left in last."""


AROUND_WORDS_PX, AROUND_NARROW_PX = 30, 24
"""Width of a combo box beside its text, in logical pixels: border, padding and arrow of the style sheet, and Qt's own
margin; and the same for the role "narrow", used for two boxes side by side.
"""

_EXPLAINED = re.compile(r": | \(")
"""Separates a choice's name from its explanation."""


class ChoiceField(QComboBox):
    """A combo box that ignores the wheel, so that the area around it scrolls; with the focus and Ctrl, the wheel
    works.

    If its text does not fit, it shows the part before the first colon or parenthesis; its popup shows all of it. A
    command's key with Ctrl closes the popup, which would swallow it, and runs the command.

    Args:
        name: accessible name.
        tip: tooltip.
        entries: the text of each choice, and its value.
    """

    def __init__(self, name: str = "", tip: str = "", entries: Iterable[tuple[str, object]] = ()) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # else the wheel takes the focus from a field being typed in
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(tip))
        for text, value in entries:
            self.addItem(text, value)

    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.hasFocus() and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def showPopup(self) -> None:
        self.view().installEventFilter(self)  # Qt gives a popup the keyboard, and a window's shortcuts are off
        super().showPopup()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() is not QEvent.Type.KeyPress:
            return super().eventFilter(watched, event)
        if not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            return super().eventFilter(watched, event)
        keys = QKeySequence(event.keyCombination())
        for action in self.window().findChildren(QAction):
            if action.isEnabled() and keys in action.shortcuts():
                self.hidePopup()
                action.trigger()
                return True
        return super().eventFilter(watched, event)

    def sizeHint(self) -> QSize:
        """Wide enough for the longest entry."""
        metrics = self.fontMetrics()
        longest = max((metrics.horizontalAdvance(self.itemText(row)) for row in range(self.count())), default=0)
        return super().sizeHint().expandedTo(QSize(longest + self._around, 0))

    @property
    def _around(self) -> int:
        if self.property("role") == "narrow":
            return AROUND_NARROW_PX
        return AROUND_WORDS_PX

    def initStyleOption(self, option: QStyleOptionComboBox) -> None:
        super().initStyleOption(option)
        room, metrics, text = self.width() - self._around, self.fontMetrics(), option.currentText
        if metrics.horizontalAdvance(text) > room:
            short = _EXPLAINED.split(text, maxsplit=1)[0]
            option.currentText = metrics.elidedText(short, Qt.TextElideMode.ElideRight, room)


_OF_FIELD = (
    QEvent.Type.FocusIn,
    QEvent.Type.FocusOut,
    QEvent.Type.Show,
    QEvent.Type.ShowToParent,
    QEvent.Type.HideToParent,
)
"""Events of a field after which the lines of errors are brought up to date."""


LAYOUTS_AROUND = 6
"""Layouts inside each other, from that of a form's rows to the window's."""


@dataclass(eq=False)
class _Checked:
    """A field, the line below it, and what is wrong with its value; "" while it is valid."""

    control: QWidget
    line: QLabel
    error: str = ""

    def fit(self) -> None:
        """Show the error in lines as wide as the field."""
        self.line.ensurePolished()
        self.line.setText(wrapped_text(self.error, self.line.fontMetrics(), self.control.width()))


class FieldErrors(QObject):
    """Shows what is wrong with a field in a line below it, which covers nothing.

    The field that has the focus is not moved while it is typed in: until the focus leaves it, the lines above it stay
    as they are. Nor is what the pointer is on: a line above that closes once the pointer or the focus has left.
    """

    def __init__(self, form: QWidget) -> None:
        super().__init__(form)
        self._form = form
        self._fields: dict[str, _Checked] = {}
        self._pointed: QWidget | None = None

    def add(self, name: str, control: QWidget) -> QLabel:
        """Register a field called ``name``, below the others; returns the line to lay out under it."""
        line = PlainLabel(role="error")
        # Not a label that wraps: in a form layout, its row and others would have a wrong height for a moment.
        line.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        line.hide()
        self._fields[name] = _Checked(control, line)
        control.installEventFilter(self)
        return line

    def error(self, name: str) -> str:
        """The error of a field, whether it is visible or not; "" while it is valid."""
        return self._fields[name].error

    def show_errors(self, errors: Mapping[str, str]) -> None:
        """Mark exactly the fields in ``errors``, with these errors."""
        for name, field in self._fields.items():
            field.error = errors.get(name, "")
            if field.control.property("invalid") != (name in errors):
                field.control.setProperty("invalid", name in errors)
                polish_again(field.control)
        self._show(self._typed_in)

    @property
    def _typed_in(self) -> QWidget | None:
        return next((field.control for field in self._fields.values() if field.control.hasFocus()), None)

    def _show(self, typed_in: QWidget | None) -> None:
        """Bring the lines up to date, but for those that would move the field ``typed_in``."""
        before = self._lines()
        above = typed_in is not None
        for field in self._fields.values():
            above = above and field.control is not typed_in
            if field.line.parentWidget() is None:
                continue
            if field.control.isHidden() or not (field.error or typed_in):
                field.line.hide()
            elif above:
                continue
            elif field.error:
                field.line.setMinimumHeight(0)
                field.fit()
                field.line.show()
            elif self._points_below(field.line):
                field.line.setMinimumHeight(field.line.height())
                field.line.clear()
            else:
                field.line.hide()
        if before == self._lines():
            return
        # Until all that is around it is laid out, too, the form is squeezed into the height that it had; left to the
        # event loop, that takes a turn for each layout, and is seen.
        for _layout in range(LAYOUTS_AROUND):
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)

    def _points_below(self, line: QLabel) -> bool:
        """Whether the pointer is on something that moves when ``line`` closes; its leaving that is then waited for."""
        place = QCursor.pos()
        pointed = QApplication.widgetAt(place)
        if line.isHidden() or pointed is None or pointed.window() is not line.window():
            return False
        is_outside = not 0 <= self._form.mapFromGlobal(place).x() < self._form.width()
        if is_outside or line.mapFromGlobal(place).y() < 0:
            return False
        self._pointed = pointed
        pointed.installEventFilter(self)
        return True

    def _lines(self) -> list[tuple[bool, str]]:
        return [(field.line.isHidden(), field.line.text()) for field in self._fields.values()]

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._pointed and event.type() is QEvent.Type.Leave:
            self._leave(self._pointed)
        of_field = any(field.control is watched for field in self._fields.values())
        if of_field and event.type() in _OF_FIELD:
            self._show(None)
        elif event.type() is QEvent.Type.Resize:
            for field in self._fields.values():
                if field.control is watched and field.error:
                    field.fit()
        return False

    def _leave(self, pointed: QWidget) -> None:
        """Close what stayed open for the sake of a widget that the pointer has left."""
        self._pointed = None
        if all(field.control is not pointed for field in self._fields.values()):
            pointed.removeEventFilter(self)
        self._show(self._typed_in)


def make_control(field: FieldInfo, extra: Mapping[str, Any]) -> Control:
    """The control for ``field``: a combo box, a check box, or a line edit with its unit."""
    choices = ()
    if typing.get_origin(field.annotation) is typing.Literal:
        choices = typing.get_args(field.annotation)
    if choices:
        labels = extra.get("labels", {})
        combo = ChoiceField(entries=[(labels.get(choice, choice), choice) for choice in choices])
        combo.setMinimumContentsLength(8)
        combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        return combo
    if field.annotation is bool:
        return QCheckBox()
    line = QLineEdit()
    line.setProperty("role", "value")  # aligns its text with that of a combo box
    line.setAcceptDrops(False)  # a file dropped anywhere on the window opens
    if "unit" in extra and not is_bytes(field):
        unit = PlainLabel(str(extra["unit"]), line)
        unit.setProperty("role", "muted")
        unit.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        inside = QVBoxLayout(line)
        inside.setContentsMargins(0, 0, 8, 0)
        inside.addWidget(unit, alignment=Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    if _optional(field):
        line.setPlaceholderText("automatic")
    return line


def _optional(field: FieldInfo) -> bool:
    return typing.get_origin(field.annotation) in (typing.Union, types.UnionType)


def is_bytes(field: FieldInfo) -> bool:
    """Whether the field is a size, written and read like 512MiB."""
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("unit") == "bytes"


def tooltip(field: FieldInfo, extra: Mapping[str, Any]) -> str:
    """The field's help, with its range if it has one."""
    limits = {type(limit).__name__: limit for limit in field.metadata}
    low = getattr(limits.get("Ge"), "ge", None)
    high = getattr(limits.get("Le"), "le", None)
    lines = [f"{field.description}."]
    if low is not None and high is not None:
        if extra.get("unit") == PERCENT:
            low, high = round(low * 100), round(high * 100)
        if is_bytes(field):
            ends = (format_bytes(low), format_bytes(high))
        else:
            ends = (f"{low:,}", f"{high:,}")
        if is_bytes(field):
            unit = ""
        else:
            unit = f" {extra.get('unit', '')}".rstrip()
        lines.append(f"{ends[0]} to {ends[1]}{unit}")
    return "\n".join(lines)


def on_change(control: Control, callback: Any) -> None:
    """Call ``callback`` whenever the control's value changes."""
    if isinstance(control, QComboBox):
        control.currentIndexChanged.connect(callback)
    elif isinstance(control, QCheckBox):
        control.toggled.connect(callback)
    else:
        control.textChanged.connect(callback)


def read_control(control: Control) -> Any:
    """The value of a control; empty text is ``None``."""
    if isinstance(control, QComboBox):
        return control.currentData()
    if isinstance(control, QCheckBox):
        return control.isChecked()
    return control.text().strip() or None


def write_control(control: Control, value: Any, is_bytes: bool) -> None:
    """Fill a control without emitting signals."""
    with QSignalBlocker(control):
        if isinstance(control, QComboBox):
            control.setCurrentIndex(control.findData(value))
        elif isinstance(control, QCheckBox):
            control.setChecked(bool(value))
        elif value is None:
            control.clear()
        else:
            control.setText(_number_text(value, is_bytes))
            control.setCursorPosition(0)  # a value longer than its field shows its beginning


def _number_text(value: Any, is_bytes: bool) -> str:
    if is_bytes:
        return _exact_size(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _exact_size(size: int) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return str(size)


def disable_choices(combo: QComboBox, refused: Mapping[str, str]) -> None:
    """Disable the choices in ``refused`` (value → reason), and enable all others."""
    model = combo.model()
    assert isinstance(model, QStandardItemModel)
    for row in range(combo.count()):
        why = refused.get(str(combo.itemData(row)))
        item = model.item(row)
        item.setEnabled(why is None)
        item.setToolTip(plain_tip(f"{combo.itemText(row)}: {why}" if why else ""))

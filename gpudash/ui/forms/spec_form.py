"""A form made from a workload's spec: essential fields first, others by group under More; validated while typing."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QFormLayout,
    QFrame,
    QLabel,
    QScrollArea,
    QToolButton,
    QWidget,
)

from gpudash.specs import Spec, flag, invalid_fields
from gpudash.ui.widgets.fields import (
    Control,
    FieldErrors,
    disable_choices,
    is_bytes,
    make_control,
    on_change,
    read_control,
    tooltip,
    write_control,
)
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.remembered import recall, remember

LABEL_WIDTH = 118
"""Width of the label column in logical pixels; the same in every form so that nothing moves between workloads."""


class SpecForm(QWidget):
    """The fields of one spec class, for one device.

    Fields stay in place while it is filled in: one that does not apply is disabled, and only the line of an error,
    below its field, moves what follows.

    Args:
        spec: the class.
        without: fields to leave out, because another form has them.

    Attributes:
        more: opens the fields that are not essential.

    Signals:
        changed: any value changed.
    """

    changed = Signal()
    hidden: ClassVar[Collection[str]] = ()
    """Fields whose control is hidden because others fill it."""
    kept_by_presets: ClassVar[Collection[str]] = ()
    """Fields that a preset does not change: what is worked on, not how."""
    more_title: ClassVar[str] = "More"

    def __init__(self, spec: type[Spec], parent: QWidget | None = None, *, without: Collection[str] = ()) -> None:
        super().__init__(parent)
        self.spec_type = spec
        self._without = without
        self._device = "cpu"
        self._locked = False
        self._controls: dict[str, Control] = {}
        self._defaults: dict[str, Any] = {}
        self._labels: dict[str, QLabel] = {}
        self._errors = FieldErrors(self)
        self._essentials, self._others = _rows(), _rows()
        self._folded = QWidget()
        self._folded.setLayout(self._others)
        self.more = QToolButton()
        self._build()
        self._write({})
        self._defaults = {name: read_control(control) for name, control in self._controls.items()}
        self.set_values({})

    def _build(self) -> None:
        tiers = self.spec_type.tiers()
        for group, names in tiers.items():
            shown = [name for name in names if name not in self._without]
            if group is not None and shown:
                title = PlainLabel(group.capitalize(), role="group")
                title.setIndent(0)
                self._others.addRow(title)
                self._begin_group(group)
            for name in shown:
                self._add(name, self._essentials if group is None else self._others)
        parts = (self._essentials, self.more, self._folded, 1)
        in_column(*parts, parent=self, margins=(0, 0, 0, 0), spacing=4)
        self.more.setProperty("role", "fold")
        self.more.setCheckable(True)
        self.more.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.more.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.more.setAccessibleName(self.more_title)
        self.more.setToolTip(plain_tip(", ".join(str(group) for group in tiers if group).capitalize()))
        kept = f"more_{self.spec_type.__name__}"
        self._fold(recall(kept) is True)
        self.more.setChecked(recall(kept) is True)
        self.more.toggled.connect(self._fold)
        self.more.toggled.connect(lambda opened: remember(kept, opened))

    def _begin_group(self, group: str) -> None:
        """Add what has to be said about a group above its fields."""

    def _fold(self, opened: bool) -> None:
        self.more.setArrowType(Qt.ArrowType.DownArrow if opened else Qt.ArrowType.RightArrow)
        self._folded.setVisible(opened)

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Fill the form with the defaults, changed by ``values``."""
        self._write(values)
        self._check()

    def _write(self, values: Mapping[str, Any]) -> None:
        for name, control in self._controls.items():
            field = self.spec_type.model_fields[name]
            write_control(control, values.get(name, field.default), is_bytes(field))

    def take_preset(self, values: Mapping[str, Any]) -> None:
        """Fill the form with a preset's changes to the defaults."""
        now = self.values()
        self.set_values({**{name: now[name] for name in self.kept_by_presets}, **values})

    def change_fields(self, fields: Mapping[str, Any]) -> None:
        """Set some fields; does nothing while a value is invalid."""
        spec = self.spec()
        if spec is not None:
            self.set_values({**spec.model_dump(), **fields})

    def set_device(self, device: str) -> None:
        """Disable what ``device`` cannot do, with the reason as tooltip."""
        self._device = device
        self._disable_refused(device)
        self._check()

    @property
    def own_device(self) -> str | None:
        """The first device named by the fields; ``None`` if the choice of a device decides."""
        return None

    def set_locked(self, locked: bool) -> None:
        """Make the values read-only while they are being run."""
        self._locked = locked
        self._allow()

    def values(self) -> dict[str, Any]:
        """The values of the form, not validated; empty text is ``None``."""
        return {name: read_control(control) for name, control in self._controls.items()}

    def spec(self) -> Spec | None:
        """The spec; ``None`` while a value is invalid."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError:
            return None
        if self._problems(spec):
            return None
        return spec

    def errors(self) -> dict[str, str]:
        """Field → what is wrong with it; "" for the values together."""
        try:
            spec = self.spec_type.model_validate(self.values())
        except ValidationError as error:
            return invalid_fields(error)
        problems = self._problems(spec)
        if problems:
            return {"": "; ".join(problems)}
        return {}

    def control(self, name: str) -> Control:
        """The control of a field."""
        return self._controls[name]

    def error_text(self, name: str) -> str:
        """The error shown at a field; "" if it is valid."""
        return self._errors.error(name)

    def title(self, name: str) -> str:
        """The label of a field."""
        text = name.replace("_", " ").replace("nan", "NaN")
        return text[0].upper() + text[1:]

    def why_not(self, name: str) -> str:
        """Why a field does not apply now, whatever its value; "" if it does."""
        field = self.spec_type.model_fields[name]
        extra = {}
        if isinstance(field.json_schema_extra, dict):
            extra = field.json_schema_extra
        when = typing.cast("Mapping[str, list[str]]", extra.get("when", {}))
        for other, allowed in when.items():
            if other in self._controls and str(read_control(self._controls[other])) not in allowed:
                return f"only with {self.title(other).lower()} {' or '.join(allowed)}"
        return ""

    def _add(self, name: str, rows: QFormLayout) -> None:
        field = self.spec_type.model_fields[name]
        extra = {}
        if isinstance(field.json_schema_extra, dict):
            extra = field.json_schema_extra
        control = self._make(name, field, extra)
        title = self.title(name)
        control.setAccessibleName(title)
        label = PlainLabel(title, role="muted")
        label.setBuddy(control)
        label.setMinimumWidth(LABEL_WIDTH)
        if name in self.hidden:
            control.setParent(self)
            control.hide()
        else:
            rows.addRow(label, control)
        self._controls[name], self._labels[name] = control, label
        line = self._errors.add(name, control)
        if name not in self.hidden:
            rows.addRow("", line)
        on_change(control, self._check_and_report)

    def _problems(self, spec: Spec) -> list[str]:
        """Why ``spec`` cannot be run on its device."""
        return spec.problems(spec.own_device or self._device)

    def _disable_refused(self, device: str) -> None:
        refused = self.spec_type.refusals(device)
        for name, control in self._controls.items():
            if isinstance(control, QComboBox):
                disable_choices(control, {value: why for (field, value), why in refused.items() if field == name})

    def _make(self, _name: str, field: FieldInfo, extra: Mapping[str, Any]) -> Control:
        """Create the control of a field."""
        return make_control(field, extra)

    def _check_and_report(self) -> None:
        self._check()
        self.changed.emit()

    def _check(self) -> None:
        errors = self.errors()
        texts = {name: text.removeprefix(f"{flag(name)} ") for name, text in errors.items()}
        for name, text in texts.items():
            if name in self._controls and read_control(self._controls[name]) is None:
                texts[name] = f"{text[:1].upper()}{text[1:]}"  # no value and no flag comes before it
        self._allow()
        self._errors.show_errors(texts)
        self._say_more(errors)

    def _allow(self) -> None:
        """Enable the fields that apply, unless the form is locked; tooltips of the others say what they require."""
        for name, control in self._controls.items():
            why = self.why_not(name)
            control.setEnabled(not self._locked and not why)
            self._labels[name].setEnabled(not why)
            field = self.spec_type.model_fields[name]
            extra = {}
            if isinstance(field.json_schema_extra, dict):
                extra = field.json_schema_extra
            text = f"{tooltip(field, extra)}\n{why.capitalize()}.".removesuffix("\n.")
            for part in (control, self._labels[name]):
                part.setToolTip(plain_tip(text))

        for name, other in self.spec_type.alternatives.items():
            if name in self._controls and other in self._controls:
                matters = not self.why_not(name)
                self._essentials.setRowVisible(self._controls[name], matters)
                self._essentials.setRowVisible(self._controls[other], not matters)

    def _say_more(self, errors: Iterable[str]) -> None:
        """Show on the More button which hidden field is invalid, or how many were changed."""
        behind = [name for group, names in self.spec_type.tiers().items() if group for name in names]
        behind = [name for name in behind if name in self._controls and name not in self.hidden]
        wrong = [self.title(name) for name in errors if name in behind]
        changed = [name for name in behind if read_control(self._controls[name]) != self._defaults.get(name)]
        changed = [name for name in changed if not self.why_not(name)]
        if wrong:
            said = f": correct {wrong[0]}"
        elif changed:
            said = f", {len(changed)} changed"
        else:
            said = ""
        self.more.setText(f"{self.more_title}{said}")
        self.more.setVisible(bool(behind))


class StillScrollArea(QScrollArea):
    """A scroll area that scrolls only on request: what is visible stays in place when its size changes.

    It is never higher than its content, so that what follows starts right below.

    Args:
        content: what is scrolled.
        kept: a row of the content that stays in view: where it would be scrolled away, it lies at that edge.
    """

    def __init__(self, content: QWidget, kept: QWidget) -> None:
        super().__init__()
        self._content = content
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._kept, self._gap = kept, QWidget()
        self._leave_gap()
        self.setWidget(content)
        self.verticalScrollBar().installEventFilter(self)
        self._leave_margin()
        self.verticalScrollBar().valueChanged.connect(self._scrolled)
        content.installEventFilter(self)

    def _leave_gap(self) -> None:
        """Put a gap of the same size in the place of the row that is kept in view, which no layout may move."""
        around = self._kept.parentWidget()
        layout = None
        if around is not None:
            layout = around.layout()
        assert layout is not None
        layout.replaceWidget(self._kept, self._gap)
        self._kept.setParent(self._content)
        self._kept.installEventFilter(self)
        part: QWidget | None = self._gap
        while part is not None and part is not self._content:
            part.installEventFilter(self)
            part = part.parentWidget()

    def _leave_margin(self) -> None:
        """Keep the content as wide without the scroll bar as beside it."""
        layout = self._content.layout()
        assert layout is not None
        bar = self.verticalScrollBar()
        # Not the bar's size hint: it is that of an unstyled bar until the first time it is shown.
        layout.setContentsMargins(0, 0, 0 if bar.isVisibleTo(self) else BAR_PX, 0)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.verticalScrollBar():
            if event.type() in (QEvent.Type.Show, QEvent.Type.Hide):
                self._leave_margin()
        elif event.type() in _PLACING:
            self._place_kept()
        if watched is self._content and event.type() is QEvent.Type.LayoutRequest:
            self._hold()
            self._limit_height()
        return super().eventFilter(watched, event)

    def _limit_height(self) -> None:
        self.setMaximumHeight(max(self._content_height, self._content.minimumHeight()))

    @property
    def _content_height(self) -> int:
        if self._content.hasHeightForWidth():
            return self._content.heightForWidth(self.viewport().width())
        return self._content.sizeHint().height()

    def _place_kept(self) -> None:
        kept, gap = self._kept, self._gap
        height = kept.sizeHint().height()
        if kept.hasHeightForWidth():
            height = kept.heightForWidth(gap.width())
        if gap.minimumHeight() != height:
            gap.setFixedHeight(height)
        shown = gap.isVisibleTo(self._content)
        if kept.isHidden() == shown:
            kept.setVisible(shown)
        place = gap.mapTo(self._content, QPoint())
        first = self.verticalScrollBar().value()
        last = max(first, first + self.viewport().height() - height)
        kept.setGeometry(place.x(), max(first, min(place.y(), last)), gap.width(), height)
        kept.raise_()

    def show_top(self) -> None:
        """Scroll to the top."""
        self.verticalScrollBar().setValue(0)
        self._hold()

    def show_top_if_all_fits(self) -> None:
        """Scroll to the top if there is room for all of the content, which otherwise stays where it was scrolled to."""
        if self.viewport().height() >= self._content_height:
            self.show_top()

    def show_below_kept(self, above: int) -> None:
        """Scroll down to what follows the row that is kept in view, as far as it goes with ``above`` logical pixels of
        what comes before the row."""
        if self.viewport().height() >= self._content_height:
            self.show_top()
            return
        bar = self.verticalScrollBar()
        place = self._gap.mapTo(self._content, QPoint()).y()
        bar.setValue(max(bar.value(), min(bar.maximum(), place - above)))

    def focusNextPrevChild(self, forward: bool) -> bool:
        moved = super().focusNextPrevChild(forward)
        self._uncover(QApplication.focusWidget())
        return moved

    def _uncover(self, part: QWidget | None) -> None:
        """Scroll ``part`` out from below the row that is kept in view."""
        if part is None or not self._content.isAncestorOf(part) or self._kept.isAncestorOf(part):
            return
        kept = self._kept.geometry()
        place = part.rect().translated(part.mapTo(self._content, QPoint()))
        if not kept.intersects(place):
            return
        bar = self.verticalScrollBar()
        if self._gap.mapTo(self._content, QPoint()).y() > kept.y():
            bar.setValue(bar.value() + place.bottom() - kept.top() + AROUND_FOCUS_PX)
        else:
            bar.setValue(bar.value() - (kept.bottom() - place.top()) - AROUND_FOCUS_PX)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._hold()
        super().resizeEvent(event)
        self._limit_height()
        self._place_kept()

    def _scrolled(self) -> None:
        self._hold()
        self._place_kept()

    def _hold(self) -> None:
        """Keep the content as long as the scroll position requires, or more room or fewer fields would move it."""
        scrolled = self.verticalScrollBar().value()
        seen = 0
        if scrolled:
            seen = scrolled + self.viewport().height()
        # A minimum that is set outweighs that of what the content holds, which may have grown since.
        self._content.setMinimumHeight(max(seen, self._content_height) if seen else 0)


_PLACING = (
    QEvent.Type.LayoutRequest,
    QEvent.Type.Move,
    QEvent.Type.Resize,
    QEvent.Type.Show,
    QEvent.Type.Hide,
    QEvent.Type.ShowToParent,
    QEvent.Type.HideToParent,
)
"""Events after which the row that is kept in view may belong elsewhere."""

BAR_PX = 10
"""Width of a scroll bar in logical pixels, as in the style sheet."""

AROUND_FOCUS_PX = 6
"""Logical pixels between a field with the focus and the row that is kept in view."""


def _rows() -> QFormLayout:
    rows = QFormLayout()
    rows.setContentsMargins(0, 0, 0, 0)
    rows.setHorizontalSpacing(10)
    rows.setVerticalSpacing(4)
    rows.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
    rows.setRowWrapPolicy(QFormLayout.RowWrapPolicy.DontWrapRows)
    return rows


def preset_text(preset: str, values: Mapping[str, Any]) -> str:
    """What a preset changes, as text."""
    if not values:
        return f"{preset}: the defaults"
    return f"{preset}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())

"""Devices in a choice: each with what it is, and those that cannot be chosen with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction, QKeyEvent, QMouseEvent, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QMenu, QToolButton, QWidget

from gpudash.devices.names import Device, short_product, simulated_words
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import whole_words
from gpudash.ui.widgets.plain_text import plain_tip, without_mnemonics
from gpudash.units import format_bytes

WORDS_WIDTH = 116
"""Logical pixels for a device's name and product in its choice."""


def device_choice(title: str, tip: str, characters: int) -> QComboBox:
    """An empty choice of devices, at least ``characters`` wide."""
    choice = ChoiceField()
    choice.setAccessibleName(title)
    choice.setToolTip(plain_tip(tip))
    choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    choice.setMinimumContentsLength(characters)
    return choice


def device_words(device: Device, choice: QComboBox) -> str:
    """A device's name and product, as far as there is room."""
    words = f"{device.name} · {product_words(device)}"
    return whole_words(words, choice.fontMetrics(), WORDS_WIDTH)


def product_words(device: Device) -> str:
    """What a device is, shortly: "RTX 4090", "SIMULATED", "SIMULATED H100 80GB"."""
    return simulated_words(device.product) if device.simulated else short_product(device.product)


def offer(choice: QComboBox, words: str, device: Device, problem: str | None) -> None:
    """Add ``device`` to ``choice``; with a ``problem``, which its tooltip tells, it cannot be chosen."""
    choice.addItem(words, device.name)
    row = choice.count() - 1
    choice.setItemData(row, plain_tip(problem or device.product), Qt.ItemDataRole.ToolTipRole)
    model = choice.model()
    assert isinstance(model, QStandardItemModel)
    model.item(row).setEnabled(problem is None)


CPU_RANKS = (2, 3, 4, 8)
"""Numbers of ranks on the CPU that are offered; any other can be typed."""

ONE = "One device, no ranks"

SIMULATED_RANK = "A SIMULATED GPU holds no rank: the backends that connect ranks know no such device"

ARROW_PX = 20


class DevicesLine(QLineEdit):
    """Several devices as text, ``cuda:0,cuda:1``, with a menu that writes it; empty is one device."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._devices: tuple[Device, ...] = ()
        self.setAcceptDrops(False)
        self.setPlaceholderText("one, as above")
        self.setTextMargins(0, 0, ARROW_PX, 0)
        self.menu = StayingMenu(self)
        self.menu.setToolTipsVisible(True)
        self.menu.setAccessibleName("Devices of the ranks")
        self.menu.aboutToShow.connect(self._fill)
        self.arrow = QToolButton(self)
        self.arrow.setProperty("role", "inside")
        self.arrow.setArrowType(Qt.ArrowType.DownArrow)
        self.arrow.setAutoRaise(True)
        self.arrow.setCursor(Qt.CursorShape.ArrowCursor)
        self.arrow.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.arrow.setAccessibleName("Choose several devices")
        self.arrow.setToolTip("Choose several devices: one rank runs on each (Alt+Down)")
        self.arrow.clicked.connect(self.open_menu)
        inside = QHBoxLayout(self)
        inside.setContentsMargins(0, 1, 2, 1)
        inside.addStretch(1)
        inside.addWidget(self.arrow)

    def offer(self, devices: Sequence[Device]) -> None:
        """Have these devices in the menu from now on."""
        self._devices = tuple(devices)

    @property
    def chosen(self) -> list[str]:
        """The names in the text."""
        return [name.strip() for name in self.text().split(",") if name.strip()]

    def open_menu(self) -> None:
        """Show the choice below the line."""
        self.menu.popup(self.mapToGlobal(QPoint(0, self.height())))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Down and event.modifiers() & Qt.KeyboardModifier.AltModifier:
            self.open_menu()
        else:
            super().keyPressEvent(event)

    def _fill(self) -> None:
        self.menu.clear()
        self._add(ONE, not self.chosen, partial(self.setText, ""), "The run has one process, on the device above")
        self.menu.addSeparator()
        for count in CPU_RANKS:
            tip = f"{count} processes share the CPU and its memory; Gloo connects them"
            names = ["cpu"] * count
            self._add(f"{count} ranks on the CPU", self.chosen == names, partial(self.setText, ",".join(names)), tip)
        gpus = [device for device in self._devices if device.kind != "cpu"]
        if gpus:
            self.menu.addSeparator()
        for device in gpus:
            size = f" · {format_bytes(device.total_bytes)}" if device.total_bytes else ""
            refused = SIMULATED_RANK if device.simulated else device.problem
            words = f"{device.name} · {product_words(device)}{size}"
            action = self._add(words, device.name in self.chosen, partial(self._toggle, device.name), refused or words)
            action.setEnabled(refused is None)

    def _add(self, words: str, checked: bool, act: partial[None], tip: str) -> QAction:
        action = self.menu.addAction(without_mnemonics(words))
        action.setCheckable(True)
        action.setChecked(checked)
        action.setToolTip(plain_tip(tip))
        action.triggered.connect(lambda _checked=False: act())
        return action

    def _toggle(self, name: str) -> None:
        """Have a rank on this GPU, or none; in the order of the devices, and without ranks on the CPU."""
        chosen = {*self.chosen} ^ {name}
        self.setText(
            ",".join(device.name for device in self._devices if device.kind != "cpu" and device.name in chosen)
        )


class StayingMenu(QMenu):
    """A menu that stays open while several of its entries are chosen: a click or Space chooses, Enter and Esc leave."""

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        action = self.actionAt(event.position().toPoint())
        if action is None or not self._choose(action):
            super().mouseReleaseEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        action = self.activeAction()
        if event.key() != Qt.Key.Key_Space or action is None or not self._choose(action):
            super().keyPressEvent(event)

    def _choose(self, action: QAction) -> bool:
        """Choose an entry and show what is chosen then; false for one that cannot be."""
        if not (action.isEnabled() and action.isCheckable()):
            return False
        place = self.actions().index(action)
        action.trigger()
        self.aboutToShow.emit()
        if place < len(self.actions()):  # devices may have gone since the menu was filled
            self.setActiveAction(self.actions()[place])
        return True

"""Devices in a choice: each with what it is, and those that cannot be chosen with the reason."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QComboBox

from gpudash.devices import SIMULATED, Device
from gpudash.ui.cards import short_product, whole_words

WORDS_WIDTH = 116
"""Logical pixels for a device's name and product in its choice."""


def device_choice(title: str, tip: str, characters: int) -> QComboBox:
    """An empty choice of devices, at least ``characters`` wide."""
    choice = QComboBox()
    choice.setAccessibleName(title)
    choice.setToolTip(tip)
    choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    choice.setMinimumContentsLength(characters)
    return choice


def device_words(device: Device, choice: QComboBox) -> str:
    """A device's name and product, as far as there is room."""
    words = f"{device.name} · {SIMULATED if device.simulated else short_product(device.product)}"
    return whole_words(words, choice.fontMetrics(), WORDS_WIDTH)


def offer(choice: QComboBox, words: str, device: Device, problem: str | None) -> None:
    """Add ``device`` to ``choice``; with a ``problem``, which its tooltip tells, it cannot be chosen."""
    choice.addItem(words, device.name)
    row = choice.count() - 1
    choice.setItemData(row, problem or device.product, Qt.ItemDataRole.ToolTipRole)
    model = choice.model()
    assert isinstance(model, QStandardItemModel)
    model.item(row).setEnabled(problem is None)

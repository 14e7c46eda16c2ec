"""Text from recordings, snapshots, servers and scripts is never HTML: not in a label, a tooltip, a menu or a box."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import Qt
from PySide6.QtWidgets import QApplication, QLabel, QMessageBox, QToolTip
from pytestqt.qtbot import QtBot

import gpudash.ui
from gpudash.ui.widgets.plain_text import (
    LONGEST_TEXT,
    PlainLabel,
    message_box,
    plain_notification,
    plain_tip,
    plain_title,
    without_mnemonics,
)

MARKUP = "<img src=gone.png><b>&shown</b>"
"""A name as somebody may give it to a device, a function or a file."""

TIPS = {"setToolTip": -1, "setTabToolTip": -1, "setWhatsThis": -1, "showText": 1}
"""Calls that take a tooltip, and which of their arguments it is."""


def is_ours(node: ast.expr) -> bool:
    """Whether an argument is a constant, or passes `plain_tip`."""
    if isinstance(node, ast.IfExp):
        return is_ours(node.body) and is_ours(node.orelse)
    if isinstance(node, ast.Call):
        words = ast.unparse(node.func)
        return words == "plain_tip" or words.endswith((".toolTip", ".tabToolTip"))
    if isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())


def careless(tree: ast.AST) -> Iterator[str]:
    """Calls that would let Qt decide whether a text is HTML."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if called == "QLabel" or (called.startswith("QMessageBox.") and name in ("warning", "question", "information")):
            yield f"{node.lineno}: {called}"
        if name in TIPS and called != "console.showText" and node.args and not is_ours(node.args[TIPS[name]]):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_every_label_and_tooltip_of_the_window_passes_the_place_that_decides() -> None:
    root = Path(gpudash.ui.__file__).parent
    files = [path for path in root.rglob("*.py") if path.name != "plain_text.py"]
    assert len(files) > 100
    found = [f"{path.relative_to(root)}:{call}" for path in files for call in careless(ast.parse(path.read_text()))]
    assert found == []


def test_the_search_for_careless_calls_finds_them() -> None:
    source = "QLabel(name)\na.setToolTip(name)\nQMessageBox.warning(w, 't', name)\nb.setToolTip(TIP)\nPlainLabel(name)"
    assert [call.partition(":")[0] for call in careless(ast.parse(source))] == ["1", "2", "3"]


def test_a_label_shows_markup_as_it_is_written(qtbot: QtBot) -> None:
    label, plain = PlainLabel(MARKUP), QLabel(MARKUP)
    plain.setTextFormat(Qt.TextFormat.PlainText)
    for widget in (label, plain):
        qtbot.addWidget(widget)
        widget.resize(600, 40)
    assert label.text() == MARKUP and label.grab().toImage() == plain.grab().toImage()


@pytest.mark.parametrize("text", [MARKUP, "a\n<b>", "&lt;b&gt;", "a < b", "R&D", "<b>one\n  two</b>"])
def test_a_tooltip_reads_as_the_text_it_was_made_of(qtbot: QtBot, text: str) -> None:
    parent = QLabel()
    qtbot.addWidget(parent)
    parent.show()
    QToolTip.showText(QPoint(10, 10), plain_tip(text), parent)
    [shown] = [found for found in QApplication.topLevelWidgets() if found.inherits("QTipLabel") and found.isVisible()]
    assert isinstance(shown, QLabel)
    shown.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    shown.setSelection(0, len(text))
    assert shown.selectedText().replace("\u2028", "\n").replace("\u2029", "\n") == text
    QToolTip.hideText()


def test_boxes_titles_menus_and_notices_have_their_own_ways_of_being_misled() -> None:
    box = message_box(None, QMessageBox.Icon.Warning, "gpudash", MARKUP)
    assert box.text() == MARKUP and box.textFormat() is Qt.TextFormat.PlainText
    assert without_mnemonics("R&D") == "R&&D"
    assert plain_title("run[*]\n2") == "run[*][*] 2"
    assert not Qt.mightBeRichText(plain_notification(MARKUP)) and "&" not in plain_notification(MARKUP)


def test_a_text_of_megabytes_is_shown_in_part(qtbot: QtBot) -> None:
    label = PlainLabel("x" * 10_000_000)
    qtbot.addWidget(label)
    assert len(label.text()) == LONGEST_TEXT + 1 == len(plain_tip("x" * 10_000_000))

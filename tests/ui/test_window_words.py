"""Nothing the window says is cut, covered, too faint or without a glyph."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QAbstractButton, QLabel, QWidget

from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.guide import pages
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import LONG_NAMES, FakeSession, gpu
from tests.ui.words import complaints, label, weakest

NO_GPU = "No NVIDIA driver was found (libnvidia-ml.so.1); runs use the CPU."


def one_card() -> FakeSession:
    session = FakeSession(gpu_problem=NO_GPU).feed(10)
    session.start()
    session.train(25)
    return session


def four_cards() -> FakeSession:
    session = FakeSession([gpu(number, name) for number, name in enumerate(LONG_NAMES)]).feed(20)
    session.start("cuda:0")
    session.train(25, device="cuda:0")
    session.feed(1, lost=session.gpus[2].uuid)
    return session


@pytest.mark.parametrize(
    ("make", "size", "theme"),
    [
        (one_card, (1280, 800), "dark"),
        (one_card, (2560, 1440), "light"),
        (four_cards, (1440, 960), "dark"),
        (four_cards, (1280, 800), "light"),
    ],
)
def test_no_word_is_cut_covered_or_outside_its_parent(
    open_window: OpenWindow, make: type, size: tuple[int, int], theme: Choice
) -> None:
    session = make()
    window = open_window(session, theme=theme, size=size)
    assert len(label(window)) > 30
    assert complaints(window) == []
    session.warn("critical")
    settle(window)
    window.workspace.dashboard.view.pause()
    session.feed(5)
    settle(window)
    assert complaints(window) == []


def test_the_walk_finds_what_is_cut_covered_and_outside(open_window: OpenWindow) -> None:
    window = open_window(one_card())
    narrow = QLabel("a word that does not fit", window)
    narrow.setGeometry(QRect(window.width() - 30, 120, 60, 20))
    over = QLabel("over it", window)
    over.setGeometry(QRect(window.width() - 60, 120, 60, 20))
    for widget in (narrow, over):
        widget.show()
    found = "\n".join(complaints(window))
    assert "cut at the right: 'a word" in found
    assert "partly outside its parent: 'a word" in found
    assert "'a word that does not fit' covers 'over it'" in found


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_word_stands_out_from_its_ground_by_pixel(open_window: OpenWindow, theme: Choice) -> None:
    session = four_cards()
    session.warn("warning", session.gpus[0].uuid)
    window = open_window(session, theme=theme)
    low = [found for found in weakest(window, window.grab().toImage()) if found[0] < 4.5]
    assert low == []


def test_every_character_has_a_glyph(open_window: OpenWindow) -> None:
    window = open_window(four_cards())
    texts = [word.text for word in label(window)]
    texts += [widget.toolTip() + widget.accessibleName() for widget in window.findChildren(QWidget)]
    texts += [action.text() + action.toolTip() for action in window.menus.actions.values()]
    texts += [label.text for plot in window.workspace.dashboard.plots.plots for label in plot.labels()]
    metrics = QFontMetrics(window.font())
    missing = {
        c
        for c in "".join([*texts, *(page.text for page in pages()), "❚▶■↑●×→·…–"])
        if c > " " and not metrics.inFontUcs4(ord(c))
    }
    assert missing == set()


def test_every_control_has_a_name_for_screen_readers(open_window: OpenWindow) -> None:
    window = open_window(one_card())
    labelled = {label.buddy() for label in window.findChildren(QLabel) if label.buddy() is not None}
    nameless = [
        widget
        for widget in window.findChildren(QWidget)
        if widget.isVisible()
        and widget.focusProxy() is None
        and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        and not widget.accessibleName()
        and widget not in labelled
        and not (isinstance(widget, QAbstractButton) and widget.text())
    ]
    assert nameless == []


def test_no_figure_of_a_range_is_cut(open_window: OpenWindow) -> None:
    window = open_window(one_card(), size=(1280, 800))
    window.workspace.dashboard.plots.strip.set_open(True)
    settle(window)
    table = window.workspace.dashboard.plots.strip.card._table
    metrics = table.fontMetrics()
    cells = [table.item(row, column) for row in range(table.rowCount()) for column in range(1, table.columnCount())]
    assert len(cells) > 30
    assert [
        item.text()
        for item in cells
        if item is not None and metrics.horizontalAdvance(item.text()) > table.columnWidth(item.column()) - 10
    ] == []

"""Icicle and treemap: zoomed by mouse and by keys, lit up by the search, in the colours of the categories."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.ui.colours import Palette
from gpudash.ui.snapshot.drawing.call_tree import Box, TreeBranch
from gpudash.ui.snapshot.drawing.views import Icicle, TreePane, TreeView
from gpudash.ui.snapshot.page import SnapshotPage
from gpudash.units import MIB
from tests.ui.snapshot.conftest import OpenDocument

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def page(leaking: Snapshot, open_document: OpenDocument) -> SnapshotPage:
    return open_document(leaking).page


def box_of(view: TreeView, name: str) -> Box:
    return next(box for box in view.boxes() if box.branch.name == name and box.branch.line != 90)


def middle(box: Box) -> QPoint:
    return QPoint(round(box.left + box.width / 2), round(box.top + min(box.height / 2, 8)))


@pytest.mark.parametrize("name", ["treemap", "icicle"])
def test_a_click_zooms_in_and_backspace_out(page: SnapshotPage, qtbot: QtBot, name: str) -> None:
    pane: TreePane = getattr(page, name)
    page.tabs.setCurrentWidget(pane)
    QApplication.processEvents()
    assert pane.view.boxes()[0].branch.name in ("all", "<module>") and not pane.out.isEnabled()
    build = box_of(pane.view, "build")
    assert build.branch.bytes == 40 * MIB
    qtbot.mouseClick(pane.view, LEFT, pos=middle(build))
    first = pane.view.boxes()[0]
    assert (first.branch.name, round(first.width)) == ("build", pane.view.width())
    assert "train.py:10 in build" in page.stack.text.toPlainText()
    qtbot.keyClick(pane.view, Qt.Key.Key_Backspace)
    assert box_of(pane.view, "build").width < pane.view.width()
    pane.view.zoom(())
    assert not pane.out.isEnabled()


@pytest.mark.parametrize(
    ("fits", "lines", "words"),
    [
        ("train.py:10 build  40 MiB", 5, ["train.py:10 build  40 MiB"]),
        ("train.py:10 build", 5, ["train.py:10 build", "40 MiB"]),
        ("train.py:10", 5, ["train.py:10", "40 MiB"]),
        ("train.py:10  40 MiB", 1, ["train.py:10  40 MiB"]),
        ("train.py:10", 1, ["train.py:10"]),
    ],
)
def test_a_box_keeps_its_place_and_size_longest(page: SnapshotPage, fits: str, lines: int, words: list[str]) -> None:
    view = page.treemap.view
    width, height = view.fontMetrics().horizontalAdvance(fits) + 8, 20 * lines
    branch = TreeBranch("build", "/home/mia/train.py", 10, 40 * MIB, 3)
    box = Box(branch, (("/home/mia/train.py", 10, "build"),), 1, 0.0, 0.0, width, height)
    assert view._text_in(box, view.fontMetrics(), QRectF(0, 0, width, height)) == words


def test_a_legend_names_the_colour_of_each_category_that_is_drawn(page: SnapshotPage) -> None:
    page.tabs.setCurrentWidget(page.treemap)
    QApplication.processEvents()
    named = [words for words, _curve in page.treemap.legend._entries]
    curves = {page.treemap.view._curve_of(box.branch) for box in page.treemap.view.boxes()} - {""}
    assert len(named) == len(set(named)) > 1
    assert curves <= {curve for _words, curve in page.treemap.legend._entries}
    assert page.treemap.legend.isVisible()


def test_keys_walk_the_boxes_and_enter_zooms(page: SnapshotPage, qtbot: QtBot) -> None:
    page.show_icicle()
    view = page.icicle.view
    for _ in range(2):
        qtbot.keyClick(view, Qt.Key.Key_Right)
    wanted = view.boxes()[2].path
    qtbot.keyClick(view, Qt.Key.Key_Return)
    assert page.icicle.path == wanted
    qtbot.keyClick(view, Qt.Key.Key_Left)
    assert view._at == len(view.boxes()) - 1


def test_only_this_narrows_every_pane(page: SnapshotPage, qtbot: QtBot) -> None:
    page.tabs.setCurrentWidget(page.treemap)
    QApplication.processEvents()
    page.treemap.view.zoom(box_of(page.treemap.view, "build").path)
    page.treemap.only.click()
    page.tabs.setCurrentWidget(page.who)
    assert [row[5] for row in page.who.table.model.rows] == ["train.py:10 build"]
    page.selector.take_back()
    assert len(page.who.table.model.rows) > 1


def test_library_lines_are_shown_on_request(page: SnapshotPage) -> None:
    page.show_icicle()
    QApplication.processEvents()
    assert "_apply" not in {box.branch.name for box in page.icicle.view.boxes()}
    page.icicle.library.setChecked(True)
    assert "_apply" in {box.branch.name for box in page.icicle.view.boxes()}


def test_boxes_have_the_colour_of_what_they_hold_most(page: SnapshotPage) -> None:
    page.show_icicle()
    QApplication.processEvents()
    view = page.icicle.view
    assert view._curve_of(box_of(view, "build").branch) == "weights"


def test_what_a_box_is_is_told_in_words(page: SnapshotPage) -> None:
    page.show_icicle()
    QApplication.processEvents()
    words = page.icicle.view.tip(box_of(page.icicle.view, "build"))
    assert words.startswith("build\n/home/mia/train.py:10\n40 MiB, ") and words.endswith("2 blocks")


def test_the_search_makes_the_others_fainter(qtbot: QtBot, palette: Palette) -> None:
    view = Icicle("Icicle", palette)
    qtbot.addWidget(view)
    view.resize(400, 100)
    root = TreeBranch("all", "", 0, 4, 4, (TreeBranch("mlp", "m.py", 1, 2, 1), TreeBranch("loss", "l.py", 1, 2, 1)))
    view.show_tree(root, lambda branch: "weights" if branch.file else "", search="mlp")
    image = view.grab().toImage()
    seen = [image.pixelColor(x, 36).name() for x in (100, 300)]
    assert seen[0] != seen[1]


def test_nothing_alive_is_said(qtbot: QtBot, palette: Palette) -> None:
    view = Icicle("Icicle", palette)
    qtbot.addWidget(view)
    view.show_tree(TreeBranch("all", "", 0, 0, 0), lambda _branch: "")
    assert view.boxes() == [] and not view.grab().isNull()
    assert view.accessibleDescription().startswith("0 B in 0 blocks")

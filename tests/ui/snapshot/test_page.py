"""The page: every pane shows what one selection is about, by mouse and by keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtWidgets import QAbstractButton, QApplication, QComboBox, QLineEdit, QScrollArea, QTableView
from pytestqt.qtbot import QtBot

from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.ui.colours import DARK
from gpudash.ui.explanation.memory_map import IDLE
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.snapshot.page import SnapshotPage
from gpudash.ui.widgets.theme import restyle
from gpudash.units import MIB, format_bytes
from tests.ui.conftest import IN_BOTH_THEMES
from tests.ui.snapshot.conftest import OpenDocument
from tests.ui.words import page_complaints
from tests.unit.memory.snapshot.made import FORWARD, TRAIN, WEIGHTS, Made, explained


@pytest.fixture
def document(leaking: Snapshot, open_document: OpenDocument) -> SnapshotDocument:
    return open_document(leaking)


@pytest.fixture
def page(document: SnapshotDocument) -> SnapshotPage:
    return document.page


def sites(page: SnapshotPage) -> dict[str, str]:
    """Own bytes by call site, as the table shows them."""
    return {row[5]: row[0] for row in page.who.table.model.rows}


def test_the_cause_comes_first_at_the_refused_request(page: SnapshotPage) -> None:
    study = page.study
    assert study is not None
    assert page.header.title.text().startswith("OUT OF MEMORY · event ")
    assert "train.py:44" in page.header.headline.text() and "keeps" in page.header.headline.text()
    assert study.home == int(study.history.ooms[-1])
    assert "The last request was" in page.header.request.text()
    assert "asked for " in page.filled._whole.text()


def test_the_table_tells_who_holds_how_much(page: SnapshotPage) -> None:
    study = page.study
    assert study is not None
    rows = sites(page)
    assert rows["train.py:10 build"] == "40 MiB"
    live = study.levels.at(study.home)[0]
    assert page.who.sums.text().startswith(format_bytes(live))
    assert page.who.table.model.rows[0][5] == "train.py:44 step"


def test_a_part_of_the_bar_narrows_every_pane_and_esc_widens_it(page: SnapshotPage, qtbot: QtBot) -> None:
    piece = next(p for p in page.bar._pieces() if p.part is not None and p.part.name == "weights")
    qtbot.mouseClick(page.bar, Qt.MouseButton.LeftButton, pos=QPoint(round((piece.left + piece.right) / 2), 12))
    assert sites(page) == {"train.py:10 build": "40 MiB"}
    chip = page.chips.buttons["category"]
    assert chip.isVisible() and chip.text().startswith("weights")
    page.tabs.setCurrentWidget(page.treemap)
    boxes = page.treemap.view.boxes()
    assert boxes[0].branch.bytes == 40 * MIB
    qtbot.keyClick(page.treemap.view, Qt.Key.Key_Escape)
    assert not chip.isVisible() and len(sites(page)) == 1, "a hidden table waits"
    page.tabs.setCurrentWidget(page.who)
    assert len(sites(page)) > 1


def test_a_chip_takes_its_choice_away(page: SnapshotPage, qtbot: QtBot) -> None:
    page.selector.change(category="weights", search="build")
    qtbot.mouseClick(page.chips.buttons["category"], Qt.MouseButton.LeftButton)
    assert page.selector.now.category == "" and page.selector.now.search == "build"


def test_the_search_narrows_by_stack_and_by_category(page: SnapshotPage, qtbot: QtBot) -> None:
    qtbot.keyClick(page.who.table.view, "/")
    qtbot.keyClicks(QApplication.focusWidget(), "build")
    assert list(sites(page)) == ["train.py:10 build"]
    page.chips.search.setText("weights")
    assert list(sites(page)) == ["train.py:10 build"]
    page.chips.search.setText("nowhere")
    assert sites(page) == {}


def test_a_picked_moment_changes_bar_table_map_and_words(page: SnapshotPage) -> None:
    study = page.study
    assert study is not None
    moment = 3
    page._pick((moment, None))
    live, reserved = study.levels.at(moment)
    assert page.who.sums.text().startswith(format_bytes(live))
    assert sum(part.bytes for part in page.bar._parts if part.kind == "category") == live
    assert f"at {study.label(moment)}" in page.filled._whole.text()
    page.tabs.setCurrentWidget(page.blocks)
    assert page.blocks._map is not None and page.blocks._map.total == reserved
    assert page.chips.buttons["moment"].text().startswith(study.label(moment))


def test_two_moments_are_compared_row_by_row_and_in_words(page: SnapshotPage) -> None:
    study = page.study
    assert study is not None
    steps = study.steps()
    page._pick((steps[5].end, steps[1].end))
    rows = {row[5]: row for row in page.who.changes.model.rows}
    assert rows["train.py:44 step"][:5] == ("+16 MiB", "8 MiB", "24 MiB", "+4", "grew")
    assert rows["train.py:10 build"][4] == "same"
    assert "grew by 16 MiB" in page.who.sums.text() and "train.py:44 step" in page.who.sums.text()
    page.who.total.toggle()
    assert "grew by 16 MiB" in page.who.sums.text(), "an order is of one moment's rows, not of a comparison"
    page.tabs.setCurrentWidget(page.icicle)
    assert page.icicle.view.boxes()[0].branch.bytes == 16 * MIB, "what came in between and is still there"
    assert page.selector.take_back() and page.selector.now.compared is None


def test_equal_moments_are_the_same_in_every_row(page: SnapshotPage) -> None:
    page._pick((5, 5))
    assert {row[4] for row in page.who.changes.model.rows} == {"same"}


def test_swapping_two_moments_flips_signs_and_nothing_else(page: SnapshotPage) -> None:
    study = page.study
    assert study is not None
    page._pick((120, 40))
    forth = {row[5]: row[:3] for row in page.who.changes.model.rows}
    page._pick((40, 120))
    back = {row[5]: row[:3] for row in page.who.changes.model.rows}
    flip = str.maketrans("+−", "−+")
    assert {name: (row[0].translate(flip), row[2], row[1]) for name, row in back.items()} == forth


def test_keys_reach_panes_moments_and_the_icicle(page: SnapshotPage, qtbot: QtBot) -> None:
    study = page.study
    assert study is not None
    for key, pane in (("1", page.bar), ("3", page.timeline), ("4", page.stack.text), ("2", page.who.table.view)):
        qtbot.keyClick(QApplication.focusWidget(), key)
        assert QApplication.focusWidget() is pane
    qtbot.keyClick(page.who.table.view, "t")
    assert page.who.total.isChecked()
    qtbot.keyClick(page.who.table.view, "p")
    assert study.moment_of(page.selector.now) == study.levels.peak
    qtbot.keyClick(page.who.table.view, "o")
    assert study.moment_of(page.selector.now) == study.levels.ooms[-1]
    qtbot.keyClick(page.who.table.view, "i")
    assert page.tabs.currentWidget() is page.icicle and QApplication.focusWidget() is page.icicle.view


def test_jumping_to_an_out_of_memory_that_was_none_says_so(healthy: Snapshot, open_document: OpenDocument) -> None:
    document = open_document(healthy)
    said: list[str] = []
    document.said.connect(said.append)
    document.page.go("oom")
    assert said == ["No request was refused in this snapshot."]
    assert not document.page.when.to_oom.isVisible()


def test_without_an_out_of_memory_the_page_is_about_the_peak(healthy: Snapshot, open_document: OpenDocument) -> None:
    page = open_document(healthy).page
    assert page.header.title.text().startswith("PEAK · event ")
    assert page.header.headline.text().startswith("Peak at ")
    assert "Would have fitted" not in " ".join(label.text() for label in page.header.findChildren(type(page.evidence)))


def test_without_history_the_page_says_how_to_record_and_still_ranks(
    without_history: Snapshot, open_document: OpenDocument
) -> None:
    page = open_document(without_history).page
    assert page.when.no_history.isVisible() and not page.timeline.isVisible()
    assert "_record_memory_history" in page.when.no_history.text()
    assert sites(page)["train.py:10 build"] == "40 MiB"
    page.go("peak")
    page.tabs.setCurrentWidget(page.events)
    assert page.events.sums.text() == "0 events"


def test_the_table_has_the_figures_of_the_terminals_with_a_workspace_for_itself(open_document: OpenDocument) -> None:
    made = Made()
    made.malloc(20 * MIB, WEIGHTS)
    made.malloc(3 * MIB, FORWARD)
    made.malloc(8_519_680, FORWARD)
    snapshot = made.snapshot()
    page = open_document(snapshot).page
    owners = explained(snapshot).owners
    assert {owner.category for owner in owners} >= {"workspace"}
    shown = [row[:3] for row in page.who.table.model.rows]
    assert shown == [(format_bytes(owner.bytes), format_bytes(owner.total_bytes), str(owner.count)) for owner in owners]
    assert sites(page)["workspace of cuBLAS, first used at train.py:41 step"] == "8 MiB"


@pytest.mark.parametrize("group", ["function", "file", "category", "size", "stream"])
def test_every_grouping_adds_up_to_the_same(page: SnapshotPage, group: str) -> None:
    study = page.study
    assert study is not None
    rows = study.holders(study.alive(page.selector.now), group)
    assert sum(row.own for row in rows) == study.levels.at(study.home)[0]
    page.who.group.setCurrentText(f"by {group}")
    assert [row[5] for row in page.who.table.model.rows] == [row.name for row in rows]


def test_the_stack_of_the_row_has_the_users_lines_first(page: SnapshotPage) -> None:
    row = [row[5] for row in page.who.table.model.rows].index("train.py:10 build")
    page.who.table.view.selectRow(row)
    text = page.stack.text.toPlainText()
    assert text == "    … 1 library line\n/home/mia/train.py:10 in build\n/home/mia/train.py:90 in <module>"
    assert page.editor.isEnabled()


def test_show_blocks_narrows_the_map_to_the_line(page: SnapshotPage) -> None:
    row = [row[5] for row in page.who.table.model.rows].index("train.py:10 build")
    page.who.table.view.selectRow(row)
    page.show_blocks.click()
    assert page.tabs.currentWidget() is page.blocks
    assert int(page.blocks.view._bright.sum()) == 2
    assert page.chips.buttons["path"].text().startswith("train.py:10 build")


def test_a_block_of_the_map_tells_what_it_is_and_shows_its_stack(page: SnapshotPage, qtbot: QtBot) -> None:
    page.tabs.setCurrentWidget(page.blocks)
    QApplication.processEvents()
    view = page.blocks.view
    lines = view.lines()
    row, column = divmod(int((lines.block.ravel() >= 0).argmax()), lines.block.shape[1])
    place = QPoint(column, row * 23 + 5)
    assert "20 MiB (20\u202f971\u202f520 bytes)" in view.text_at(place.toPointF())
    row, column = divmod(int((lines.block.ravel() == IDLE).argmax()), lines.block.shape[1])
    assert view.text_at(QPointF(column, row * 23 + 5)).startswith("idle, ")
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=place)
    assert "train.py:10 in build" in page.stack.text.toPlainText()


def test_the_steps_tell_what_each_keeps_and_a_click_compares_its_ends(page: SnapshotPage, qtbot: QtBot) -> None:
    page.tabs.setCurrentWidget(page.steps)
    assert page.steps.growth.model.rows[0][0] == "+4 MiB every step" and "train.py:44" in page.steps.label.text()
    assert page.steps.steps.model.rows[4][3] == "+4 MiB"
    assert page.steps.growth.view.verticalScrollBar().maximum() == 0
    assert page.steps.growth.height() < page.steps.steps.height() / 2, "the long table has the room"
    view = page.steps.steps.view
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.visualRect(view.model().index(4, 0)).center())
    page.tabs.setCurrentWidget(page.who)
    assert page.who.changes.model.rows[0][0] == "+4 MiB"


def test_every_control_has_a_name_and_says_what_it_does(page: SnapshotPage) -> None:
    for widget in page.findChildren(QAbstractButton):
        if widget.isVisible() and not widget.objectName().startswith("qt_"):
            assert widget.accessibleName() or widget.text(), widget
    for kind in (QLineEdit, QComboBox, QTableView):
        for widget in page.findChildren(kind):
            inside = isinstance(widget.parent(), QComboBox)
            assert inside or widget.accessibleName() or widget.objectName().startswith("qt_"), widget


@IN_BOTH_THEMES
@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_word_is_cut_or_covered(leaking: Snapshot, open_document: OpenDocument, size: tuple[int, int]) -> None:
    document = open_document(leaking, size=size)
    for tab in range(document.page.tabs.count()):
        document.page.tabs.setCurrentIndex(tab)
        QApplication.processEvents()
        assert not page_complaints(document), document.page.tabs.tabText(tab)


def test_the_source_shows_what_each_line_held_at_the_moment_and_keeps_of_every_step(
    leaking: Snapshot, open_document: OpenDocument, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n".join(f"line_{number} = model({number})" for number in range(1, 60)))
    device = leaking.devices[0]
    here = [
        [(str(script) if frame[0] == TRAIN else frame[0], *frame[1:]) for frame in stack] for stack in device.stacks
    ]
    moved = replace(device, stacks=tuple(tuple(stack) for stack in here))
    page = open_document(replace(leaking, devices=(moved,))).page
    page.tabs.setCurrentWidget(page.lines)
    source = page.lines.view.source
    assert source is not None and source.file == str(script)
    held = {row.number: (row.bytes, row.growth) for row in source.rows if row.bytes}
    assert held[10] == (40 * MIB, 0.0) and held[44][1] == 4 * MIB
    page.go("peak")
    assert page.study is not None and page.study.label(page.study.levels.peak) in page.lines.foot.text()


def test_the_source_of_a_program_that_is_elsewhere_is_said_to_be_missing(page: SnapshotPage) -> None:
    page.tabs.setCurrentWidget(page.lines)
    assert page.lines.note.isVisible() and page.lines.note.text().startswith(f"{TRAIN} cannot be read here")
    source = page.lines.view.source
    assert page.lines.view.isVisible() and source is not None
    held = {row.number: (row.bytes, row.growth) for row in source.rows}
    assert held[10] == (40 * MIB, 0.0) and held[44][1] == 4 * MIB and all(size for size, _growth in held.values())


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize(("scale", "scrolls"), [(1.0, False), (2.0, True)])
def test_large_text_leaves_every_pane_its_height_and_the_page_scrolls(
    leaking: Snapshot, open_document: OpenDocument, scale: float, scrolls: bool
) -> None:
    document = open_document(leaking)
    restyle(document, DARK, scale)
    document.resize(1280, 800)
    for _ in range(4):
        QApplication.processEvents()
        document.refresh()
    page = document.page
    page.tabs.setCurrentWidget(page.lines)
    QApplication.processEvents()
    (area,) = (area for area in document.findChildren(QScrollArea) if area.widget() is page)
    assert (area.verticalScrollBar().maximum() > 0) == scrolls
    assert page.tabs.height() >= 6 * page.tabs.fontMetrics().lineSpacing()
    assert document.height() == 800

"""The overview of a fleet in a tab."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractButton, QApplication, QComboBox, QLineEdit
from pytestqt.qtbot import QtBot

from gpudash.session.fleet.overview import fleet_warning
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.fleet.document import NO_WARNINGS, NONE_FOUND
from tests.ui.fleet.conftest import OpenOverview, Overview
from tests.ui.fleet.fake_fleet import ADDRESS, FakeFleet, generated, gpu

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def shown(overview: OpenOverview) -> Overview:
    return overview(FakeFleet(generated()))


def test_the_three_fullest_of_512_gpus_are_the_first_three_cells(shown: Overview) -> None:
    fullest = [found.key for found in shown.fleet.gpus()[:3]]
    assert shown.keys[:3] == fullest
    assert [shown.grid.layout_.rect(place)[1] for place in range(3)] == [0, 0, 0]
    assert shown.grid.verticalScrollBar().value() == 0


def test_the_head_tells_size_address_and_the_age_of_the_newest_answer(shown: Overview) -> None:
    assert shown.document.header.total.text().startswith("64 machines · 512 GPUs · ")
    assert shown.document.header.source.text() == f"{ADDRESS} · newest reading 0 s old"
    shown.later(75)
    assert shown.document.header.source.text().endswith("75 s old")


def test_before_the_first_answer_it_says_whom_it_asks(overview: OpenOverview) -> None:
    shown = overview(FakeFleet())
    assert ADDRESS in shown.document.label.text()
    assert not shown.grid.isVisible()
    assert not shown.document.controls.isVisible()


def test_a_server_that_is_down_is_told_in_place_and_the_fleet_appears_once_it_answers(overview: OpenOverview) -> None:
    fleet = FakeFleet(problem=f"{ADDRESS} does not answer (connection refused)")
    shown = overview(fleet)
    assert "does not answer" in shown.document.label.text()
    assert "asked again" in shown.document.label.text()
    fleet.problem = None
    fleet.report(generated(2, 2))
    shown.later(0.1)
    assert shown.grid.isVisible()
    assert len(shown.keys) == 4


def test_a_server_that_goes_down_leaves_the_last_figures_and_says_of_when_they_are(shown: Overview) -> None:
    strip = shown.document.header.problem
    assert not strip.isVisible()
    shown.fleet.problem = f"{ADDRESS} does not answer (timed out)."
    shown.later(30)
    assert strip.isVisible()
    assert strip.accessibleName().startswith(f"{ADDRESS} does not answer (timed out). The readings shown are from ")
    assert len(shown.keys) == 512
    shown.fleet.problem = None
    shown.later(1)
    assert not strip.isVisible()


def test_search_leaves_out_the_rest_and_says_how_much_is_shown(shown: Overview, qtbot: QtBot) -> None:
    search = shown.document.controls.search
    qtbot.keyClicks(search, "node-007")
    assert len(shown.keys) == 8
    assert shown.document.controls.found.text() == "8 of 512"
    qtbot.keyClick(search, Qt.Key.Key_Down)
    assert shown.grid.current == shown.keys[0]
    qtbot.keyClick(search, Qt.Key.Key_Escape)
    assert (search.text(), len(shown.keys)) == ("", 512)


def test_a_search_that_finds_nothing_offers_the_way_back(shown: Overview, qtbot: QtBot) -> None:
    shown.document.controls.search.setText("no such machine 99")
    assert shown.document.label.text() == NONE_FOUND
    qtbot.mouseClick(shown.document.show_all, LEFT)
    assert len(shown.keys) == 512


def test_only_warnings_shows_those_alone_and_says_when_there_are_none(overview: OpenOverview) -> None:
    fleet = FakeFleet()
    fleet.report((gpu("a", 0, full=0.95), gpu("b", 0, full=0.2)))
    shown = overview(fleet)
    shown.document.controls.only_warnings.setChecked(True)
    assert shown.keys == ["a/0"]
    fleet.report(fleet.gpus(), ())
    shown.later(60)
    assert shown.keys == []
    assert shown.document.label.text() == NO_WARNINGS


def test_groups_have_titles_that_tell_how_full_they_are(shown: Overview) -> None:
    controls = shown.document.controls
    controls.group.setCurrentIndex(controls.group.findData("machine"))
    titles = shown.document._group_titles()
    assert len(titles) == 64
    assert titles["gpu-node-001"].startswith("gpu-node-001   8 GPUs · ")
    assert len(shown.document.order.sections) == 64


def test_warnings_are_counted_and_the_worst_leads_to_its_gpu(shown: Overview, qtbot: QtBot) -> None:
    strip = shown.document.strip
    warnings = shown.fleet.warnings()
    critical = sum(warning.level == "critical" for warning in warnings)
    assert strip.count.text() == f"◆ {critical} critical   ▲ {len(warnings) - critical} warnings"
    assert not strip.list.isVisible()
    shown.document.controls.search.setText("node-064")
    qtbot.mouseClick(strip.worst, LEFT)
    assert shown.grid.current == warnings[0].device
    assert shown.document.controls.search.text() == ""


def test_every_warning_is_in_the_list_the_worst_first_and_enter_goes_there(shown: Overview, qtbot: QtBot) -> None:
    strip = shown.document.strip
    qtbot.mouseClick(strip.all, LEFT)
    warnings = shown.fleet.warnings()
    assert [strip.list.item(row).text()[3:] for row in range(strip.list.count())] == [w.text for w in warnings]
    strip.list.setCurrentRow(5)
    strip.list.itemActivated.emit(strip.list.currentItem())
    assert shown.grid.current == warnings[5].device
    shown.fleet.report(shown.fleet.gpus())
    shown.later(1)
    assert strip.list.currentRow() == 5


def test_a_warning_of_a_whole_machine_leads_nowhere_and_the_strip_goes_with_the_last_one(
    overview: OpenOverview,
) -> None:
    fleet = FakeFleet()
    fleet.report((gpu(),), (fleet_warning("node-01 told nothing.", "warning", ""),))
    shown = overview(fleet)
    shown.document.strip.go_to_worst()
    assert shown.grid.current == ""
    assert shown.document.strip.isVisible()
    fleet.report(fleet.gpus(), ())
    shown.later(1)
    assert not shown.document.strip.isVisible()


def test_a_warning_of_a_gpu_that_is_gone_is_told(shown: Overview) -> None:
    told: list[str] = []
    shown.document.said.connect(told.append)
    shown.document.go_to("nobody")
    assert told == ["This GPU is no longer there."]


def test_two_chosen_gpus_are_compared_and_one_with_another_day(shown: Overview, qtbot: QtBot) -> None:
    controls, keys = shown.document.controls, shown.keys
    assert not controls.compare.isEnabled()
    shown.grid.make_current(keys[0])
    assert controls.compare.text() == "Compare with another day"
    qtbot.mouseClick(controls.compare, LEFT)
    shown.grid.toggle(keys[5])
    assert controls.compare.text() == "Compare"
    qtbot.mouseClick(controls.compare, LEFT)
    assert [[found.key for found in compared] for compared in shown.compared] == [[keys[0]], [keys[0], keys[5]]]
    shown.grid.toggle(keys[6])
    assert not controls.compare.isEnabled()


def test_open_opens_the_chosen_gpu(shown: Overview, qtbot: QtBot) -> None:
    shown.grid.make_current(shown.keys[7])
    qtbot.mouseClick(shown.document.controls.open, LEFT)
    assert [found.key for found in shown.opened] == [shown.keys[7]]


def test_copying_takes_what_is_chosen_else_what_is_shown(shown: Overview) -> None:
    shown.document.copy_values()
    assert len(QGuiApplication.clipboard().text().split("\n")) == 513
    shown.grid.make_current(shown.keys[0])
    shown.document.copy_values()
    assert len(QGuiApplication.clipboard().text().split("\n")) == 2
    shown.document.copy_picture()
    assert not QGuiApplication.clipboard().image().isNull()


def test_the_fleet_is_let_go_with_its_tab(shown: Overview) -> None:
    shown.document.close_document()
    assert shown.fleet.closings == 1


def test_nothing_is_worked_out_while_nothing_is_new(shown: Overview, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(shown.document, "_take", lambda: taken.append(1))
    for _frame in range(20):
        shown.later(0.05)
    assert taken == []


def test_every_control_has_a_name_and_a_tooltip(shown: Overview) -> None:
    for part in shown.document.findChildren(QAbstractButton) + shown.document.controls.findChildren(QComboBox):
        if part.objectName().startswith("qt_") or isinstance(part.parent(), QLineEdit | QComboBox):
            continue
        assert part.accessibleName() or (isinstance(part, QAbstractButton) and part.text()), part
        assert part.toolTip(), part.accessibleName()


def test_another_theme_draws_other_colours(shown: Overview) -> None:
    shown.document.set_palette(DARK)
    dark = shown.grid.viewport().grab().toImage().pixelColor(4, 4)
    shown.document.set_palette(LIGHT)
    light = shown.grid.viewport().grab().toImage().pixelColor(4, 4)
    assert light.lightness() > dark.lightness() + 100


def test_the_heat_map_shows_the_whole_fleet_without_scrolling(overview: OpenOverview) -> None:
    shown = overview(FakeFleet(generated()), size=(1280, 740))
    shown.document.controls.density.setCurrentIndex(1)
    QApplication.processEvents()
    assert shown.grid.verticalScrollBar().maximum() == 0

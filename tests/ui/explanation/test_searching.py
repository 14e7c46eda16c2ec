"""What is under the pointer stays there while remedies are looked for."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.session.predicting.remedies import SoFar
from gpudash.telemetry.explanation import Remedy
from gpudash.ui.explanation.header import RemediesView, in_shown_order, remedy_text
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui import test_explanation as explained
from tests.ui.conftest import OpenWindow, settle

BATCHES = [Remedy(f"batch {size}", {"batch": size}, predicted_peak_bytes=GIB, fits=True) for size in range(6)]


@pytest.fixture
def row(qtbot: QtBot) -> RemediesView:
    found = RemediesView()
    qtbot.addWidget(found)
    found.resize(1200, 80)
    found.show()
    found.show_remedies([], commanding=True, searching=True)
    return found


def places(window: MainWindow) -> list[QPoint]:
    """Where the parts of the page below its header begin."""
    page = window.workspace.dashboard.explanation.page
    parts = (page.bar, page.owners.table, page.plots, page.program)
    return [part.mapTo(window, QPoint(0, 0)) for part in parts]


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_part_of_the_page_moves_from_the_first_look_to_the_last_remedy(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    session = explained.failed(explained.Session())
    window = open_window(session, size=size)
    window.workspace.dashboard.explanation.explain()
    settle(window)
    remedies = window.workspace.dashboard.explanation.page.header.remedies
    before = places(window)
    for so_far in (
        SoFar(seconds=4),
        SoFar(explained.REMEDIES[:1], 3, predicted=True, seconds=12),
        SoFar(explained.REMEDIES, 9, predicted=True, seconds=20),
    ):
        remedies.show_so_far(so_far)
        settle(window)
        assert places(window) == before, so_far
    session.apply(explained.remedies(*explained.REMEDIES))
    settle(window)
    assert not remedies.searching and places(window) == before


def test_a_better_remedy_takes_no_other_ones_place_and_no_press_is_lost(row: RemediesView, qtbot: QtBot) -> None:
    row.show_so_far(SoFar((BATCHES[2], BATCHES[4]), 3, predicted=True))
    QApplication.processEvents()
    before = {button.text(): (button, button.pos()) for button in seen(row)}
    button = before[remedy_text(BATCHES[4])][0]
    button.setDown(True)
    row.show_so_far(SoFar((BATCHES[0], BATCHES[2], BATCHES[4]), 5, predicted=True))
    row.show_remedies((BATCHES[0], BATCHES[2], BATCHES[4]), commanding=True)
    QApplication.processEvents()
    assert {text: (button, button.pos()) for button in seen(row) if (text := button.text()) in before} == before
    assert [button.text() for button in seen(row)][-1] == remedy_text(BATCHES[0])
    assert button.isDown()
    with qtbot.waitSignal(row.applied) as applied:
        button.click()
    assert applied.args == [BATCHES[4]]


def test_the_open_menu_of_others_grows_at_its_end(row: RemediesView) -> None:
    row.show_so_far(SoFar(tuple(BATCHES[:5]), 5, predicted=True))
    entries = row.more.menu().actions()
    row.show_so_far(SoFar((BATCHES[5], *BATCHES[:5]), 6, predicted=True))
    assert row.more.menu().actions()[: len(entries)] == entries
    assert [entry.text() for entry in row.more.menu().actions()] == [remedy_text(BATCHES[4]), remedy_text(BATCHES[5])]


def test_what_takes_the_place_of_a_remedy_that_is_gone_stands_in_its_place() -> None:
    assert in_shown_order(BATCHES[:3], (BATCHES[5], BATCHES[0], BATCHES[2])) == [BATCHES[0], BATCHES[5], BATCHES[2]]
    assert in_shown_order(BATCHES[:2], BATCHES[3:5]) == BATCHES[3:5]


def seen(row: RemediesView) -> list[QPushButton]:
    """Its buttons, from the left, without the one for the others."""
    buttons = [button for button in row.findChildren(QPushButton) if button.isVisible() and button is not row.more]
    return sorted(buttons, key=lambda button: button.x())


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_no_button_of_the_result_beside_the_plots_moves_while_remedies_arrive(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    session = explained.Session()
    window = open_window(session, size=size)
    explained.failed(session)
    settle(window)
    dashboard = window.workspace.dashboard
    ending = dashboard.result.ending

    def seen_at() -> list[QPoint]:
        buttons = [button for button in ending.buttons if button.isVisible()]
        return [button.mapTo(window, QPoint(0, 0)) for button in (*buttons, *remedies_seen())]

    def remedies_seen() -> list[QPushButton]:
        buttons = ending.remedies.findChildren(QPushButton)
        return sorted((button for button in buttons if button.isVisible()), key=lambda button: button.y())

    before = seen_at()
    assert len(before) == 1 and ending.remedies.searching
    for so_far in (
        SoFar(seconds=4),
        SoFar(explained.REMEDIES[:1], 3, predicted=True, seconds=12),
        SoFar(explained.REMEDIES[:3], 6, predicted=True, seconds=15),
        SoFar(explained.REMEDIES, 9, predicted=True, seconds=20),
    ):
        ending.remedies.show_so_far(so_far)
        dashboard.plots.place_over()
        settle(window)
        assert seen_at()[: len(before)] == before, so_far
        before = seen_at()
    session.apply(explained.remedies(*explained.REMEDIES))
    settle(window)
    assert seen_at() == before

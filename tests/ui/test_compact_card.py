"""The compact cards that stay above all other windows."""

from __future__ import annotations

import dataclasses

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtTest import QTest

from gpudash.devices.names import Gpu
from gpudash.memory.watching.growth import Forecast
from gpudash.telemetry.records import Sample, Warning
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.window.compact_card import CompactCard, CompactCards
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import part

SIMULATED = Gpu(0, "SIM-0", "", "Simulated GPU", 8 * GIB, simulated=True)


def card_of(window: MainWindow) -> CompactCard:
    window.menus.actions["view.compact_card"].trigger()
    settle(window)
    (card,) = part(window, CompactCards).cards
    return card


@pytest.fixture
def session() -> FakeSession:
    return FakeSession((gpu(0), gpu(1))).feed(30)


def test_it_shows_the_memory_of_the_device_in_view_above_all_windows(
    open_window: OpenWindow, session: FakeSession
) -> None:
    card = card_of(open_window(session))
    assert card.isVisible()
    assert card.windowFlags() & Qt.WindowType.WindowStaysOnTopHint
    assert card.windowFlags() & Qt.WindowType.Tool
    assert card.accessibleName().startswith("cuda:0: ")
    assert card.accessibleName().count("of 24.0 GiB VRAM") == 1


def test_it_lies_below_the_figures_of_the_readout(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1440, 960))
    settle(window)
    card = card_of(window)
    readout = window.workspace.dashboard.plots.readout
    top = readout.mapToGlobal(QPoint(0, 0)).y() + readout.height() - readout.free_height
    assert readout.isVisible() and readout.free_height > 0
    assert card.geometry().top() >= top


def test_it_is_at_once_in_the_colours_of_another_theme(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    for palette in (LIGHT, DARK, LIGHT, DARK):
        window.set_palette(palette)
        ground = card.bar.grab().toImage().pixelColor(card.bar.width() - 4, card.bar.height() // 2)
        assert ground.name() == QColor(palette.window).name()


def test_it_grows_with_the_text(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    usual = card.width()
    window.menus.actions["view.text_size.150"].trigger()
    try:
        assert card.width() == round(1.5 * usual)
    finally:
        window.menus.actions["view.text_size.100"].trigger()
    assert card.width() == usual


def test_it_follows_the_readings(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    before = card.accessibleName()
    session.feed(5, full=0.9)
    settle(window, 8)
    assert card.accessibleName() != before
    assert "21.6 of 24.0 GiB" in card.accessibleName()


def test_its_curve_is_drawn_from_the_last_minute(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    before = card.line.grab().toImage()
    session.feed(60, full=0.5)
    settle(window, 8)
    assert colours(card.line.grab().toImage()) > 2
    assert card.line.grab().toImage() != before


def colours(image: QImage) -> int:
    return len({image.pixel(x, y) for x in range(0, image.width(), 2) for y in range(image.height())})


def test_a_simulated_device_says_so(open_window: OpenWindow) -> None:
    window = open_window(FakeSession((SIMULATED,)).feed(5))
    window.workspace.dashboard.select_device("SIM-0")
    card = card_of(window)
    assert "SIMULATED" in card.accessibleName()


def test_cards_strip_and_progress_tell_the_same_time_and_the_newest_figures(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    compact, key = card_of(window), session.gpus[0].uuid
    dashboard = window.workspace.dashboard
    session.start("cuda:0", steps=600)
    session.train(5, device="cuda:0", steps=600)
    raised = Warning(time_s=session.now_s, level="critical", device=key, text="old", cause=None)
    session.memory_watch.set_cause(key, "train.py:31, 64 MiB a step")
    session.apply(raised)
    for seconds, used in ((38.2, 20), (7.6, 23)):
        session.forecasts[key] = Forecast(seconds, seconds, seconds, "capacity", 24 * GIB, 1e8, 0.9)
        values = {"used_bytes": used * GIB, "total_bytes": 24 * GIB}
        session.memory_watch.observe(Sample(session.now_s, "gpu", key, values))
        settle(window)
        told = f"about {round(seconds)} s"
        strip = dashboard.banner.accessibleName()
        assert f"{used}.0 of 24.0 GiB, full in {told}. The growth comes from train.py:31" in strip
        assert compact.text == f"Fills in {told} if it goes on growing."
        assert f"full in {round(seconds)} s" in dashboard.cards.facts(key)
        assert f"step 50 of 600 · full in {round(seconds)} s" in dashboard.panel.progress.label.text()
    session.forecasts.clear()
    settle(window)
    assert "full in" not in dashboard.banner.accessibleName() + "".join(dashboard.cards.facts(key))
    assert "55 s left" in dashboard.panel.progress.label.text(), "written as the others are"


def test_every_device_has_its_own_and_the_command_closes_it_again(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    card_of(window)
    window.workspace.dashboard.select_device("host")
    window.menus.actions["view.compact_card"].trigger()
    assert [card.key for card in part(window, CompactCards).cards] == [session.gpus[0].uuid, "host"]
    window.menus.actions["view.compact_card"].trigger()
    assert [card.key for card in part(window, CompactCards).cards] == [session.gpus[0].uuid]


def test_esc_closes_it(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    QTest.keyClick(card_of(window), Qt.Key.Key_Escape)
    assert part(window, CompactCards).cards == []


def test_it_closes_with_the_window(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    window.close()
    assert not card.isVisible()
    assert part(window, CompactCards).cards == []


def test_a_gpu_that_stops_answering_says_so(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card = card_of(window)
    session.feed(2, lost=session.gpus[0].uuid)
    settle(window, 8)
    assert "stopped answering" in card.accessibleName()


def test_the_card_of_a_gpu_that_is_gone_closes(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    card_of(window)
    session.gpus = tuple(dataclasses.replace(found, uuid="other") for found in session.gpus)
    settle(window, 8)
    assert part(window, CompactCards).cards == []


def test_a_gpu_before_its_first_reading_shows_no_number(open_window: OpenWindow) -> None:
    card = card_of(open_window(FakeSession((gpu(0),))))
    assert "not reported" in card.accessibleName()

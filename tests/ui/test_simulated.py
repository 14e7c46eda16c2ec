"""SIMULATED stands on the card of a simulated GPU, at its run's progress and on what leaves the window."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from gpudash.devices.names import SIMULATED, simulated_gpu
from gpudash.ui.colours import Palette, contrast
from gpudash.ui.dashboard.cards import Card
from gpudash.ui.dashboard.tabs.rows import stage_rows
from gpudash.units import GIB
from tests.ui.conftest import IN_BOTH_THEMES, OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import enabled_choices
from tests.unit.telemetry.copies import copied

SIM = simulated_gpu(0, 8 * GIB)


def session_with_a_run() -> FakeSession:
    session = FakeSession([SIM]).feed(2.0)
    session.start("sim:0")
    session.train(3.0, device="sim:0")
    session.apply(copied(session.now_s, 2**20, 0.001, to_device="sim:0", memory="pageable"))
    return session


def badge(card: Card) -> str:
    return card._badge.text() if card._badge.isVisible() else ""


def test_the_card_of_a_simulated_gpu_has_a_badge_and_no_other_has(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([gpu(0), SIM]))
    window.workspace.session.feed(1.0)  # type: ignore[attr-defined]
    settle(window)
    cards = window.workspace.dashboard.cards._cards
    assert {key: badge(card) for key, card in cards.items()} == {"host": "", "GPU-00000000": "", SIM.uuid: SIMULATED}
    assert SIMULATED in cards[SIM.uuid].accessibleName()
    assert SIMULATED not in cards["GPU-00000000"].accessibleName()


@pytest.mark.parametrize("size", [(1440, 960), (900, 560)])
def test_the_badge_stays_whole_where_there_is_little_room(open_window: OpenWindow, size: tuple[int, int]) -> None:
    window = open_window(FakeSession([*(gpu(index) for index in range(2)), SIM]), size=size)
    window.workspace.session.feed(1.0)  # type: ignore[attr-defined]
    settle(window)
    card = window.workspace.dashboard.cards._cards[SIM.uuid]
    assert card._badge.width() >= card._badge.sizeHint().width() or not card._badge.isVisible()
    assert card._name.text().startswith("sim:0")


@IN_BOTH_THEMES
def test_the_badge_is_readable_in_both_themes(palette: Palette) -> None:
    assert contrast(palette.warn, palette.panel) >= 4.5
    assert QColor(palette.warn).isValid()


def test_the_device_list_offers_it_as_simulated_and_not_first(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([SIM]))
    settle(window)
    device = window.workspace.dashboard.panel.device
    assert [device.itemText(row) for row in range(device.count())][1] == f"sim:0 · {SIMULATED}"
    assert window.workspace.dashboard.panel.device_name == "cpu"
    window.workspace.dashboard.panel.choose_device("sim:0")
    assert window.workspace.dashboard.panel.device_name == "sim:0"


def test_where_torch_cannot_the_list_shows_it_disabled_with_the_reason(open_window: OpenWindow) -> None:
    reason = "torch 2.4.0 cannot be given a device from Python."
    window = open_window(FakeSession([SIM], simulator_problem=reason))
    settle(window)
    device = window.workspace.dashboard.panel.device
    assert "cpu" in enabled_choices(device) and "sim:0" not in enabled_choices(device)
    assert device.itemData(device.findData("sim:0"), Qt.ItemDataRole.ToolTipRole) == reason


def test_plots_of_a_simulated_gpu_leave_it_to_its_card_and_what_is_exported_says_so(open_window: OpenWindow) -> None:
    window = open_window(session_with_a_run())
    window.workspace.dashboard.select_device(SIM.uuid)
    settle(window)
    specs = {spec.id: spec for spec in window.workspace.dashboard.layout_key}
    assert specs["memory"].title == "MEMORY sim:0"
    assert specs["throughput"].title == "THROUGHPUT"
    assert specs["transfer"].title == "TRANSFER BANDWIDTH"
    names = {curve.name for spec in specs.values() for curve in spec.curves}
    assert not {"GPU", "memory controller", "PCIe to the GPU", "PCIe from the GPU"} & names
    assert "sim:0 (SIMULATED)" in window.workspace.dashboard.caption(SIM.uuid, "")


def test_plots_of_a_gpu_say_nothing_of_simulation(open_window: OpenWindow) -> None:
    session = FakeSession([gpu(0), SIM]).feed(1.0)
    session.start("cuda:0")
    session.train(1.0, device="cuda:0")
    window = open_window(session)
    window.workspace.dashboard.select_device("GPU-00000000")
    settle(window)
    words = [
        word
        for spec in window.workspace.dashboard.layout_key
        for word in (spec.title, *(curve.name for curve in spec.curves))
    ]
    assert not [word for word in words if SIMULATED in word]


def test_the_progress_of_a_run_says_so_and_its_table_and_mark_name_the_device(open_window: OpenWindow) -> None:
    session = session_with_a_run()
    window = open_window(session)
    settle(window)
    run = session.store.run
    assert run is not None
    assert window.workspace.dashboard.panel.progress.label.text().startswith(SIMULATED)
    assert {row[1] for row in stage_rows(run)} == {"cpu", "sim:0"}
    assert any(marker.label == "training on sim:0" for marker in session.store.markers)

"""Fleets, GPUs of them and comparisons opened as tabs of the window."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtWidgets import QApplication, QInputDialog

from gpudash.session import fleet as fleet_module
from gpudash.sources.prometheus.address import ServerAddress, read_address
from gpudash.ui.features import fleet as opening
from gpudash.ui.features.fleet import ask_for_server, open_fleet
from gpudash.ui.fleet.compare_document import FleetComparison
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.gpu_document import GpuDocument
from gpudash.ui.window.main_window import MainWindow
from tests.programs import python
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.fleet.fake_fleet import NOW_S, FakeFleet, generated
from tests.ui.fleet.fake_view import FakeView


class LookedAt(FakeFleet):
    """A fleet of sixteen GPUs whose past can be asked for."""

    def __init__(self, address: ServerAddress, **_settings: object) -> None:
        super().__init__(generated(4, 4))
        self.address = str(address)
        self.started = 0
        self.views: list[FakeView] = []

    def start(self) -> None:
        self.started += 1

    def now_s(self) -> float:
        return NOW_S

    def view(self, key: str, began: float, ended: float, points: int) -> FakeView:
        found = next((gpu for gpu in self.gpus() if gpu.key == key), None)
        if found is None:
            raise ValueError(f"{self.address} knows no GPU {key} any more.")
        self.views.append(FakeView(found, began, ended, points))
        return self.views[-1]

    def compare(
        self, a: str, range_a: tuple[float, float], b: str, range_b: tuple[float, float], points: int
    ) -> tuple[FakeView, FakeView]:
        return self.view(a, *range_a, points), self.view(b, *range_b, points)


ADDRESS, OTHER = "http://host:9090", "http://other:9090"


@pytest.fixture
def window(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> MainWindow:
    monkeypatch.setattr("gpudash.session.fleet.Fleet", LookedAt)
    return open_window(FakeSession())


def overview(window: MainWindow, address: str = ADDRESS) -> FleetDocument:
    open_fleet(window.workspace, read_address(address))
    settle(window)
    document = window.workspace.front
    assert isinstance(document, FleetDocument)
    return document


def fake(document: FleetDocument) -> LookedAt:
    assert isinstance(document.fleet, LookedAt)
    return document.fleet


def test_a_fleet_is_one_tab_however_often_it_is_opened(window: MainWindow) -> None:
    document = overview(window)
    assert window.workspace.bar.tabText(1) == ADDRESS
    assert fake(document).started == 1
    window.workspace.show_dashboard()
    assert overview(window) is document
    overview(window, OTHER)
    assert window.workspace.count == 2


def test_live_cards_and_plots_go_on_behind_it(window: MainWindow) -> None:
    overview(window)
    window.workspace.show_dashboard()
    settle(window)
    assert window.workspace.front is None
    assert window.workspace.dashboard.plots.plots


def test_what_can_be_no_address_is_told_in_one_sentence(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window(FakeSession())
    before = threading.active_count()
    ask_for_server(window.workspace)
    [dialog] = window.findChildren(QInputDialog)
    dialog.setTextValue("prometheus:ftp://host")
    dialog.accept()
    assert window.workspace.count == 0
    assert window.workspace.notice.text
    assert threading.active_count() == before


def test_a_gpu_opens_as_a_tab_of_its_own_once_and_outlives_the_overview(window: MainWindow) -> None:
    document = overview(window)
    key = document.grid.layout_.keys[0]
    document.open(key)
    past = window.workspace.front
    assert isinstance(past, GpuDocument)
    assert window.workspace.front_title == past.title
    save = window.menus.actions["file.save_recording"]
    assert not save.isEnabled() and "export its curves" in save.toolTip()
    window.workspace.show_path(f"fleet {ADDRESS}")
    assert not save.isEnabled() and "Readings of a Prometheus server are not recorded here" in save.toolTip()
    document.open(key)
    assert window.workspace.front is past
    assert window.workspace.count == 2
    window.workspace.close_document(document)
    assert fake(document).closings == 1
    view = fake(document).views[0]
    assert view.closings == 0
    view.answer()
    settle(window)
    assert past.past.plots.plots
    window.workspace.close_document(past)
    assert view.closings == 1


def test_keys_of_the_plots_act_on_the_past_of_a_gpu(window: MainWindow) -> None:
    document = overview(window)
    document.open(document.grid.layout_.keys[0])
    past = window.workspace.front
    assert isinstance(past, GpuDocument)
    fake(document).views[0].answer()
    settle(window)
    assert window.workspace.front_page is past.plots_page
    window.menus.actions["view.zoom_in"].trigger()
    low, high = past.past.view.range()
    assert high - low < 3600.0


def test_no_more_points_are_asked_for_than_the_plots_have_pixels(window: MainWindow) -> None:
    document = overview(window)
    document.open(document.grid.layout_.keys[0])
    past = window.workspace.front
    assert isinstance(past, GpuDocument)
    settle(window)
    assert fake(document).views[0].ranges[0][2] <= past.past.plots.width()


def test_two_gpus_and_two_days_are_compared_in_tabs(window: MainWindow) -> None:
    document = overview(window)
    keys = document.grid.layout_.keys
    document.grid.make_current(keys[0])
    document.grid.toggle(keys[1])
    document.compare()
    two = window.workspace.front
    assert isinstance(two, FleetComparison)
    window.workspace.show_path(f"fleet {ADDRESS}")
    document.grid.make_current(keys[0])
    document.compare()
    days = window.workspace.front
    assert isinstance(days, FleetComparison)
    assert days is not two
    assert [view.ranges[0][1] for view in fake(document).views] == [NOW_S, NOW_S, NOW_S, NOW_S - 86_400]
    window.close()
    assert [view.closings for view in fake(document).views] == [1, 1, 1, 1]
    assert fake(document).closings == 1


def test_a_gpu_that_is_gone_is_told_and_no_tab_opens(window: MainWindow) -> None:
    document = overview(window)
    gone = document._gpus[document.grid.layout_.keys[0]]
    fake(document).report(())
    assert opening.open_gpu(window.workspace, fake(document), gone) is None  # type: ignore[arg-type]
    assert opening.compare_gpus(window.workspace, fake(document), [gone]) is None  # type: ignore[arg-type]
    assert "knows no GPU" in window.workspace.notice.text
    assert window.workspace.count == 1


def test_the_addresses_used_last_are_offered_and_the_chosen_one_is_opened(window: MainWindow) -> None:
    overview(window)
    overview(window, OTHER)
    assert opening.known_addresses(opening.REMEMBERED) == [OTHER, ADDRESS]
    ask_for_server(window.workspace)
    [dialog] = window.findChildren(QInputDialog)
    assert dialog.comboBoxItems() == [OTHER, ADDRESS]
    dialog.setTextValue(f" {ADDRESS} ")
    dialog.accept()
    QApplication.processEvents()
    assert window.workspace.front_title == ADDRESS
    assert window.workspace.count == 2


def test_an_empty_address_opens_nothing(window: MainWindow) -> None:
    ask_for_server(window.workspace)
    [dialog] = window.findChildren(QInputDialog)
    assert dialog.comboBoxItems() == [opening.EXAMPLE]
    dialog.setTextValue("  ")
    dialog.accept()
    assert window.workspace.count == 0


def test_a_real_fleet_of_a_server_that_is_not_there_ends_its_thread_with_its_tab(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    open_fleet(window.workspace, read_address("http://127.0.0.1:9"))
    document = window.workspace.front
    assert isinstance(document, FleetDocument)
    assert isinstance(document.fleet, fleet_module.Fleet)
    window.workspace.close_document(document)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpudash-fleet")]


@pytest.mark.process
def test_nothing_of_a_fleet_is_imported_at_the_start() -> None:
    program = (
        "import sys\nimport gpudash.ui.app, gpudash.ui.window.main_window\n"
        "print(*[name for name in sys.modules if ('fleet' in name or 'prometheus' in name) "
        "and name != 'gpudash.ui.features.fleet'])"
    )
    done = python("-c", program, check=True)
    assert done.stdout.split() == []

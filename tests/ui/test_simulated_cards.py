"""Simulated cards of several sizes in the window: each is drawn, named and warned of by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.devices.names import simulated_gpu
from gpudash.sources.simulated_gpus import IDLE_PERIOD_S
from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import Level, RunEnd, RunStarted, Sample, Warning
from gpudash.telemetry.runs import WATCH
from gpudash.ui.dashboard.card_chips import CardChip
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.plots.reading import STALE_S
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.unit.telemetry.run_ends import RAN_OUT

OWN, LARGE, SMALL = simulated_gpu(0, 2 * GIB), simulated_gpu(0, 24 * GIB), simulated_gpu(0, GIB)


def session_on(*cards: object) -> FakeSession:
    session = FakeSession(cards)  # type: ignore[arg-type]
    session.memory_watch.describe = session.device_text
    session.memory_watch.memory_of = {device.name: device.memory for device in session.devices()}.get
    return session


def lists(session: FakeSession, *cards: object) -> None:
    """The session has other cards from now on."""
    session.gpus = cards  # type: ignore[assignment]
    for device in session.devices():
        if device.uuid is not None:
            session.store.link(device.name, device.uuid)


def holds(session: FakeSession, uuid: str, used: int, total: int) -> None:
    session.now_s += 0.1
    values = {"used_bytes": used, "free_bytes": total - used, "total_bytes": total, "process_bytes": used}
    sample = Sample(session.now_s, "gpu", uuid, values)
    session.apply(sample, *session.memory_watch.observe(sample))


def dashboard_of(window: MainWindow) -> Dashboard:
    return window.workspace.dashboard


def memory_title(window: MainWindow) -> str:
    settle(window)
    return next(plot.title for plot in dashboard_of(window).layout_key if plot.id == "memory")


def test_a_program_on_a_card_of_another_size_has_a_card_and_a_plot_of_its_own(open_window: OpenWindow) -> None:
    session = session_on(OWN, LARGE)
    window = open_window(session)
    holds(session, OWN.uuid, 300 * MIB, 2 * GIB)
    session.watched("sim:0@24GiB", {"command": ["python", "leak.py"]})
    holds(session, LARGE.uuid, 8 * GIB, 24 * GIB)
    assert memory_title(window) == "MEMORY sim:0 · 24 GiB"
    cards = dashboard_of(window).cards._cards
    assert list(cards) == ["host", OWN.uuid, LARGE.uuid]
    assert cards[LARGE.uuid]._full_name.startswith("sim:0 · 24 GiB")
    memory = dashboard_of(window).plots.plot("memory")
    assert memory.y_range[1] >= 8 * GIB


def test_a_card_that_is_only_offered_gives_way_to_a_programs_of_the_same_name(open_window: OpenWindow) -> None:
    session = session_on(OWN, LARGE)
    session.only_offered = frozenset({OWN.uuid})
    window = open_window(session)
    session.watched("sim:0@24GiB", {"command": ["python", "leak.py"]})
    assert memory_title(window) == "MEMORY sim:0 · 24 GiB"
    dashboard = dashboard_of(window)
    assert list(dashboard.cards._cards) == ["host", LARGE.uuid]
    dashboard.select_device(OWN.uuid)
    settle(window)
    assert list(dashboard.cards._cards) == ["host", OWN.uuid, LARGE.uuid], "what is looked at has its card"


def test_a_run_on_the_sessions_own_card_is_shown_in_place_of_the_programs(open_window: OpenWindow) -> None:
    session = session_on(OWN, SMALL)
    window = open_window(session)
    session.watched("sim:0@1GiB", {"command": ["python", "leak.py"]})
    assert memory_title(window) == "MEMORY sim:0 · 1 GiB"
    session.end()
    session.start("sim:0")
    assert memory_title(window) == "MEMORY sim:0"


def test_a_card_that_is_listed_no_more_is_not_what_is_shown(open_window: OpenWindow) -> None:
    session = session_on(OWN, LARGE)
    window = open_window(session)
    session.watched("sim:0@24GiB", {"command": ["python", "leak.py"]})
    assert memory_title(window) == "MEMORY sim:0 · 24 GiB"
    session.end()
    lists(session, OWN, SMALL)
    session.watched("sim:0@1GiB", {"command": ["python", "leak.py"]})
    assert memory_title(window) == "MEMORY sim:0 · 1 GiB"
    assert list(dashboard_of(window).cards._cards) == ["host", OWN.uuid, SMALL.uuid]


def test_the_card_of_a_program_is_not_offered_to_other_runs(open_window: OpenWindow) -> None:
    window = open_window(session_on(OWN, LARGE))
    settle(window)
    offered = dashboard_of(window).panel.device
    assert offered.findData("sim:0") >= 0 and offered.findData("sim:0@24GiB") < 0


def outlined(window: MainWindow) -> list[str]:
    """Every card and chip that is marked as chosen."""
    dashboard = dashboard_of(window)
    cards = [key for key, card in dashboard.cards._cards.items() if card.property("selected")]
    return [*cards, *(chip.content.key for chip in dashboard.chooser.shown if chip.isChecked())]


@pytest.mark.parametrize("own", ["24GiB", ""])
@pytest.mark.parametrize("card", ["24GiB", "rtx4090", "rtx5090"])
def test_one_card_is_outlined_before_a_script_runs_while_it_does_and_after_it(
    open_window: OpenWindow, card: str, own: str
) -> None:
    session = session_on(OWN, LARGE)
    window = open_window(session)
    dashboard = dashboard_of(window)
    dashboard.chooser.set_own(own)
    dashboard.panel.workload.setCurrentIndex(dashboard.panel.workload.findData(WATCH))
    dashboard.panel.script.simulate.set_card(card)
    settle(window)
    assert outlined(window) == [card]
    session.watched("sim:0@24GiB", {"command": ["python", "leak.py"]})
    settle(window)
    assert outlined(window) == [LARGE.uuid]
    session.end()
    settle(window)
    assert outlined(window) == [card]


def test_a_card_that_is_not_offered_has_a_chip_as_long_as_a_script_is_on_it(open_window: OpenWindow) -> None:
    window = open_window(session_on(OWN), size=(1280, 800))
    dashboard = dashboard_of(window)
    panel = dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData(WATCH))
    panel.script.simulate.set_card("12GB")
    settle(window)
    assert outlined(window) == ["12GB"]
    panel.script.simulate.set_card("rtx4090")
    settle(window)
    assert outlined(window) == ["rtx4090"]
    assert "12GB" not in [chip.content.key for chip in dashboard.chooser.findChildren(CardChip) if chip.isVisible()]


def buttons(window: MainWindow) -> set[str]:
    banner = dashboard_of(window).banner
    return {name for name, button in banner._buttons.items() if not button.isHidden()}


def words(window: MainWindow) -> str:
    settle(window)
    banner = dashboard_of(window).banner
    return "" if banner.isHidden() else banner.accessibleName()


def begin(session: FakeSession, run: RunStarted) -> None:
    session.running = True
    session.apply(run)
    session.memory_watch.observe_event(run)


def finish(session: FakeSession) -> None:
    ended = RunEnd(time_s=session.now_s, run_id=1, status="cancelled", seconds=session.now_s, steps=1, result={})
    session.running = False
    session.apply(ended)
    session.memory_watch.observe_event(ended)


def test_the_strip_of_a_full_card_stops_its_run_and_no_other_and_goes_once_it_is_empty(
    open_window: OpenWindow,
) -> None:
    session = session_on(OWN)
    window = open_window(session)
    begin(session, RunStarted(time_s=0.0, run_id=1, workload="training", device="sim:0", spec={}))
    holds(session, OWN.uuid, round(1.98 * GIB), 2 * GIB)
    assert "sim:0 (SIMULATED) is 99 % full" in words(window)
    assert {"stop", "free_cache"} <= buttons(window)

    finish(session)
    assert "Stop the run" not in words(window)
    assert "stop" not in buttons(window)

    begin(session, RunStarted(time_s=session.now_s, run_id=2, workload="watch", device="cpu", spec={"pid": 7}))
    words(window)
    assert "stop" not in buttons(window), "what is attached does not fill sim:0"

    holds(session, OWN.uuid, 0, 2 * GIB)
    assert "is over" in words(window)


def test_no_full_card_covers_the_out_of_memory_of_a_script(open_window: OpenWindow) -> None:
    session = session_on(OWN, SMALL)
    window = open_window(session)
    session.watched("sim:0@1GiB", {"command": ["python", "leak.py"]})
    message = "leak.py ran out of memory on sim:0."
    session.end(replace(RAN_OUT, message=message))
    level: Level = "critical"
    session.apply(Warning(time_s=2.0, level=level, device=OWN.uuid, text="sim:0 is 99 % full.", ratio=0.99))
    assert "out of memory" in words(window)


def test_the_curve_of_an_idle_card_does_not_break_between_two_of_its_readings() -> None:
    assert IDLE_PERIOD_S < STALE_S


def test_what_is_allocated_never_has_the_colour_of_weights(open_window: OpenWindow) -> None:
    session = session_on(OWN)
    window = open_window(session)
    session.start_run(TrainingSpec(), "sim:0")
    session.apply(Sample(session.now_s, "allocator", "sim:0", {"allocated_bytes": GIB, "reserved_bytes": GIB}))
    session.apply(Sample(session.now_s, "gpu", OWN.uuid, {"used_bytes": GIB, "process_bytes": GIB}))
    dashboard = window.workspace.dashboard
    dashboard.select_device(OWN.uuid)

    seen = set()
    for divided in (False, True):
        if divided:
            session.requests.made("sim:0")
        settle(window)
        plot = dashboard.plots.plot("memory")
        assert plot is not None
        (curve,) = (curve for curve in plot.spec.curves if curve.name == "allocated")
        seen.add(window.workspace.colours.curves[curve.colour])
    assert len(seen) == 1, "it has one colour, whether ribbons divide it or not"
    assert window.workspace.colours.curves["weights"] not in seen

"""The source of the program that runs, filled while it runs."""

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gpudash.memory.explaining.annotated_source import held_source
from gpudash.memory.frames import Frame
from gpudash.memory.growth_rate import HeldLine
from gpudash.memory.request_log import Request, RequestLog
from gpudash.session import Replay
from gpudash.telemetry.records import RunEnd, RunStarted, StepFinished
from gpudash.ui.colours import DARK
from gpudash.ui.dashboard.tabs.source_tab import NOW, PEAK, SourceTab
from gpudash.ui.explanation.source_view.source import SourceView
from gpudash.units import GIB, MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.test_simulated import SIM
from tests.unit.clock import Clock
from tests.unit.telemetry.recordings import record

SCRIPT = "import torch\nmodel = build()\nfor step in range(9):\n    loss = train(model)\n    history.append(loss)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _running(script: Path) -> FakeSession:
    """A program on the simulated card, whose fifth line keeps a MiB of every step."""
    session = FakeSession([SIM]).feed(2.0)
    session.apply(RunStarted(time_s=1.0, run_id=1, workload="watch", device="sim:0", spec={"command": ["train.py"]}))
    session.running = True
    log = session.requests.made("sim:0")
    log.take([Request(1.0, "weights", 64 * MIB, (Frame(str(script), 2, "<module>"),))])
    for step in range(20):
        time_s = 1.0 + step / 25
        log.take([Request(time_s, step, MIB, (Frame(str(script), 5, "<module>"),))])
        session.apply(StepFinished(time_s=time_s + 0.02, run_id=1, step=step + 1, steps=0, seconds=0.04))
    return session


def _tab_of(session: FakeSession, qtbot: QtBot, clock: Clock) -> tuple[SourceTab, RequestLog]:
    """The tab, with the first figures of the run in it, and what they are of."""
    tab = SourceTab(DARK, clock)
    qtbot.addWidget(tab)
    log = session.requests.made("sim:0")
    tab.refresh(log, session.store.run, None)
    return tab, log


def test_the_gutter_fills_while_the_program_runs(open_window: OpenWindow, script: Path) -> None:
    session = _running(script)
    window = open_window(session)
    tabs = window.workspace.dashboard.tabs
    titles = [tabs.bar.tabText(place) for place in range(tabs.bar.count())]
    assert titles == ["Steps", "Operators", "Output", "Source", "Devices", "Events"]
    tabs.bar.setCurrentIndex(titles.index("Source"))
    tabs.set_collapsed(False)
    settle(window)
    tab = tabs.source
    assert isinstance(tab, SourceTab) and tab.foot.text() == NOW
    source = tab.view.source
    assert source is not None and source.file == str(script)
    assert [(row.number, row.bytes, row.growth) for row in source.rows if row.bytes] == [
        (2, 64 * MIB, 0.0),
        (5, 20 * MIB, float(MIB)),
    ]
    assert "line 5 held 20 MiB, 1 MiB more every step" in tab.view.accessibleDescription()


def test_once_the_program_has_ended_the_peak_is_shown_although_its_run_goes_on(qtbot: QtBot, script: Path) -> None:
    session = _running(script)
    clock = Clock()
    tab, log = _tab_of(session, qtbot, clock)
    assert tab.foot.text() == NOW
    clock.now_s += 1.0
    tab.refresh(log, session.store.run, None, program_ended=True)
    assert session.running and tab.foot.text() == PEAK


def test_of_a_file_that_cannot_be_read_the_lines_are_listed_without_their_text(qtbot: QtBot, script: Path) -> None:
    session = _running(script)
    script.unlink()
    tab = SourceTab(DARK)
    qtbot.addWidget(tab)
    tab.refresh(session.requests.made("sim:0"), session.store.run, None)
    source = tab.view.source
    assert source is not None and tab.note.isVisibleTo(tab) and "cannot be read here" in tab.note.text()
    assert [(row.number, row.bytes, row.text) for row in source.rows] == [(2, 64 * MIB, ""), (5, 20 * MIB, "")]


def test_the_text_stays_where_it_is_while_figures_change(qtbot: QtBot, script: Path) -> None:
    session = _running(script)
    clock = Clock()
    tab, log = _tab_of(session, qtbot, clock)
    document = tab.view.document().revision()
    log.take([Request(2.0, "more", 8 * GIB, (Frame(str(script), 4, "<module>"),))])
    tab.refresh(log, session.store.run, None)
    assert tab.view.source is not None and tab.view.source.rows[3].bytes == 0, "not twice within half a second"
    clock.now_s += 1.0
    tab.refresh(log, session.store.run, None)
    assert tab.view.source.rows[3].bytes == 8 * GIB
    assert tab.view.document().revision() == document


def test_after_a_run_the_tab_shows_its_own_files_and_peak_and_not_those_of_the_run_before(
    qtbot: QtBot, script: Path, tmp_path: Path
) -> None:
    session = _running(script)
    session.apply(RunEnd(time_s=2.0, run_id=1, status="finished", seconds=1.0, steps=1))
    log = session.requests.made("sim:0")
    log.end(2.0)
    second = tmp_path / "evaluate.py"
    second.write_text("import torch\nx = torch.ones(2**20)\n")
    session.apply(RunStarted(time_s=3.0, run_id=2, workload="watch", device="sim:0", spec={"command": ["evaluate.py"]}))
    log.take([Request(3.5, "x", 4 * MIB, (Frame(str(second), 2, "<module>"),))])
    log.end(4.0)
    session.apply(RunEnd(time_s=4.0, run_id=2, status="finished", seconds=1.0, steps=1))
    tab = SourceTab(DARK)
    qtbot.addWidget(tab)
    tab.refresh(log, session.store.run, None)
    source = tab.view.source
    assert tab.foot.text() == PEAK and source is not None and source.file == str(second)
    assert [(row.number, row.bytes) for row in source.rows if row.bytes] == [(2, 4 * MIB)]
    assert [tab.files.itemData(place) for place in range(tab.files.count())] == [str(second)]


def test_a_low_view_shows_the_line_that_holds_most(qtbot: QtBot, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("".join(f"line_{number} = {number}\n" for number in range(1, 40)))
    view = SourceView(DARK)
    qtbot.addWidget(view)
    view.show()
    for height in (400, 70):
        view.resize(400, height)
        source = held_source(str(path), {12: HeldLine(MIB)})
        assert source is not None
        view.show_source(source)
        place = view.place_of(12)
        assert place is not None
        row = view.block_rect(view.document().findBlockByNumber(place))
        assert row.top() >= 0 and row.bottom() <= view.viewport().height()


def test_there_is_no_such_tab_where_nothing_is_known_of_allocations(open_window: OpenWindow) -> None:
    tabs = open_window(FakeSession([SIM]).feed(2.0)).workspace.dashboard.tabs
    assert tabs.source is None


def test_a_recorded_program_without_its_snapshot_says_in_the_tab_why_there_is_no_source(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    path = record(tmp_path / "a.gpudash", workload="watch", device="cuda:0")
    replay = Replay(path)
    window = open_window(replay)
    tabs = window.workspace.dashboard.tabs
    window.workspace.dashboard.view.show(0.0, 10.0)
    settle(window)
    titles = [tabs.bar.tabText(place) for place in range(tabs.bar.count())]
    assert "Source" in titles
    tabs.bar.setCurrentIndex(titles.index("Source"))
    tabs.set_collapsed(False)
    settle(window)
    assert tabs.source is not None
    assert tabs.source.note.isVisible() and tabs.source.note.text().startswith("No memory snapshot of this program")
    assert not tabs.source.view.isVisible()

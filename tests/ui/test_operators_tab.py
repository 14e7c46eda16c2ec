"""The tab with a profile's operators: sorted, searched, chosen in the timeline, exported."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QInputDialog, QMessageBox
from pytestqt.qtbot import QtBot

from gpudash.specs import MatmulSpec
from gpudash.telemetry.records import Note, RunStarted, Topic
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.tabs.operators_tab import (
    EMPTY,
    EMPTY_RECORDING,
    EXPORT_TIP,
    FOLDER_TIP,
    PROFILE_TIP,
    OperatorsTab,
)
from gpudash.ui.features.run import why_no_profile
from gpudash.units import MIB
from tests.ui.conftest import IN_BOTH_THEMES, OpenWindow, settle
from tests.ui.fake_session import FakeSession


def row(name: str, **figures: Any) -> dict[str, Any]:
    kinds = [f"{place}_{own}" for place in ("cpu", "device") for own in ("self_seconds", "total_seconds")]
    kinds += [f"{place}_{own}" for place in ("cpu", "device") for own in ("self_bytes", "total_bytes")]
    return {"name": name, "calls": 3, "shapes": "2×2", "stack": [], **dict.fromkeys(kinds, 0), **figures}


ROWS = [
    row("aten::mm", cpu_self_seconds=0.03, cpu_total_seconds=0.03, cpu_self_bytes=2 * MIB, stack=["net.py:7 forward"]),
    row("aten::linear", cpu_self_seconds=0.01, cpu_total_seconds=0.05, cpu_self_bytes=-4 * MIB),
    row("aten::empty", cpu_self_seconds=0.02, cpu_total_seconds=0.02, cpu_self_bytes=9 * MIB),
]
TIMELINE = {
    "lanes": ["CPU", "cuda:0"],
    "names": ["step 2", "aten::mm", "aten::empty"],
    "spans": [[0, 0, 0, 0, 1000], [0, 1, 1, 0, 500], [0, 1, 2, 600, 100], [1, 0, 1, 100, 300]],
    "seconds": 0.001,
    "left_out": 40,
}


def note(first: int = 2, rows: list[dict[str, Any]] | None = None, **more: Any) -> Note:
    details: dict[str, Any] = {
        "first_step": first,
        "steps": 3,
        "step_seconds": 0.02,
        "plain_step_seconds": 0.01,
        "operators": ROWS if rows is None else rows,
        "timeline": TIMELINE,
        "trace": None,
        "trace_problem": "The disk was full.",
        **more,
    }
    return Note(time_s=1.0, run_id=1, topic=Topic.OPERATORS, text="Profiled steps 2 to 4.", details=details)


def run_with(*notes: Note) -> RunView:
    run = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="matmul", device="cpu", spec={}))
    for told in notes:
        run.apply(told)
    return run


@pytest.fixture
def tab(qtbot: QtBot, palette: Palette) -> OperatorsTab:
    tab = OperatorsTab()
    tab.set_palette(palette)
    qtbot.addWidget(tab)
    tab.resize(1000, 320)
    tab.show()
    tab.refresh(run_with(note()))
    return tab


def names(tab: OperatorsTab) -> list[str]:
    return [str(shown["name"]) for shown in tab.table.operators.rows]


def test_before_any_profile_it_says_what_will_appear_and_how(qtbot: QtBot) -> None:
    tab = OperatorsTab()
    qtbot.addWidget(tab)
    asked: list[bool] = []
    tab.profile_requested.connect(lambda: asked.append(True))
    tab.show()
    tab.refresh(None)

    assert tab.empty_label.isVisible() and "Shift+F5" in EMPTY and tab.empty_label.text() == EMPTY
    tab.first.click()
    assert asked == [True]
    tab.set_commanding(False)
    assert tab.empty_label.text() == EMPTY_RECORDING and not tab.first.isVisible()


def test_the_operators_come_by_own_time_and_the_first_is_explained(tab: OperatorsTab) -> None:
    assert names(tab) == ["aten::mm", "aten::empty", "aten::linear"]
    assert "net.py:7 forward" in tab.stack.toPlainText()
    assert tab.label.text() == "Steps 2 to 4 · 20.0 ms each · 10.0 ms without the profiler"


def test_steps_that_were_no_faster_without_the_profiler_are_left_out(tab: OperatorsTab) -> None:
    tab.refresh(None)
    tab.refresh(run_with(note(plain_step_seconds=0.03)))
    assert tab.label.text() == "Steps 2 to 4 · 20.0 ms each"


def test_any_column_sorts_and_own_and_total_lie_side_by_side(tab: OperatorsTab) -> None:
    headings = [str(tab.table.operators.headerData(place, Qt.Orientation.Horizontal)).strip() for place in range(8)]
    assert headings[2:4] == ["own CPU", "total CPU"] and headings[6:8] == ["own memory", "total memory"]

    tab.table.sortByColumn(3, Qt.SortOrder.DescendingOrder)
    assert names(tab) == ["aten::linear", "aten::mm", "aten::empty"]
    tab.table.sortByColumn(6, Qt.SortOrder.AscendingOrder)
    assert names(tab) == ["aten::linear", "aten::mm", "aten::empty"]
    cell = tab.table.operators.index(0, 6)
    assert cell.data() == "−4 MiB" and cell.data(Qt.ItemDataRole.ToolTipRole) == f"{-4 * MIB} B"


def test_columns_of_a_gpu_are_there_only_where_one_was_used(tab: OperatorsTab) -> None:
    assert tab.table.isColumnHidden(4) and tab.table.isColumnHidden(8)

    tab.refresh(run_with(note(), note(9, [*ROWS, row("gemm", device_self_seconds=0.5)])))
    assert not tab.table.isColumnHidden(4) and tab.table.isColumnHidden(8)
    assert names(tab)[0] == "gemm"


def test_the_search_finds_names_shapes_and_stacks(tab: OperatorsTab) -> None:
    for words, found in (("EMPTY", ["aten::empty"]), ("net.py", ["aten::mm"]), ("nothing", [])):
        tab.search.setText(words)
        assert names(tab) == found


def test_a_click_on_the_timeline_chooses_the_operator_and_dragging_does_not(tab: OperatorsTab) -> None:
    timeline = tab.timeline
    width = timeline.width()
    QTest.mouseClick(timeline, Qt.MouseButton.LeftButton, pos=QPoint(round(0.65 * width), 20))
    assert "aten::empty" in tab.stack.toPlainText()

    QTest.mouseClick(timeline, Qt.MouseButton.LeftButton, pos=QPoint(round(0.95 * width), 20))
    assert "aten::empty" in tab.stack.toPlainText()


def test_the_timeline_zooms_at_the_pointer_and_shows_all_again(tab: OperatorsTab) -> None:
    timeline = tab.timeline
    assert timeline.span_at(QPointF(0.65 * timeline.width(), 20))[2] == 2  # type: ignore[index]

    timeline.zoom(0.2, 0.65 * timeline.width())
    assert timeline.span_at(QPointF(0.65 * timeline.width(), 20))[2] == 2  # type: ignore[index]
    assert timeline.span_at(QPointF(0.2 * timeline.width(), 20)) is None
    QTest.mouseDClick(timeline, Qt.MouseButton.LeftButton, pos=QPoint(5, 5))
    assert timeline.span_at(QPointF(0.2 * timeline.width(), 20))[2] == 1  # type: ignore[index]


@IN_BOTH_THEMES
def test_the_timeline_is_painted_with_the_chosen_operator_in_the_accent(tab: OperatorsTab, palette: Palette) -> None:
    picture = tab.timeline.grab().toImage()
    scale = picture.devicePixelRatio()
    at = picture.pixelColor(round(0.45 * tab.timeline.width() * scale), round(28 * scale))

    assert at.name() == palette.accent


def test_a_later_profile_comes_to_the_front_and_the_earlier_can_be_chosen(tab: OperatorsTab) -> None:
    assert not tab.choice.isVisible()
    tab.refresh(run_with(note(), note(20, [row("aten::add", cpu_self_seconds=1.0)])))

    assert [tab.choice.itemText(place) for place in range(2)] == ["Steps 20 to 22", "Steps 2 to 4"]
    assert names(tab) == ["aten::add"]
    tab.choice.setCurrentIndex(1)
    assert names(tab)[0] == "aten::mm"


def test_a_note_without_operators_is_no_profile(tab: OperatorsTab) -> None:
    tab.refresh(run_with(Note(time_s=1.0, run_id=1, topic=Topic.OPERATORS, text="The run ended before.")))

    assert tab.empty_label.isVisible()


def test_the_trace_is_copied_and_what_goes_wrong_is_a_sentence(tab: OperatorsTab, tmp_path: Path) -> None:
    said: list[str] = []
    tab.reported.connect(said.append)
    trace = tmp_path / "run-step-2.trace.json.gz"
    trace.write_bytes(b"trace")
    assert not tab.export.isEnabled() and tab.export.toolTip() == "The disk was full."

    tab.recording = lambda: tmp_path / "run.gpudash"
    tab.refresh(run_with(note(), note(3, trace=str(trace), trace_problem=None)))
    assert tab.export.isEnabled() and tab.folder.isEnabled()
    tab.export_to(trace, tmp_path / "copy.json.gz")
    tab.export_to(trace, tmp_path)

    assert (tmp_path / "copy.json.gz").read_bytes() == b"trace"
    assert "ui.perfetto.dev" in said[0] and said[1] == f"{tmp_path} is a folder; name a file."


def test_switching_to_a_profile_whose_trace_is_there_offers_it_again(tab: OperatorsTab, tmp_path: Path) -> None:
    trace = tmp_path / "run-step-3.trace.json.gz"
    trace.write_bytes(b"trace")
    tab.refresh(run_with(note(2, trace=str(trace), trace_problem=None), note(3)))
    assert (tab.export.isEnabled(), tab.export.toolTip()) == (False, "The disk was full.")
    tab.choice.setCurrentIndex(1)
    assert (tab.export.isEnabled(), tab.export.toolTip(), tab.folder.toolTip()) == (True, EXPORT_TIP, FOLDER_TIP)


def test_an_export_that_fails_leaves_what_was_there(
    tab: OperatorsTab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, target = tmp_path / "a.trace.json.gz", tmp_path / "b.trace.json.gz"
    trace.write_bytes(b"trace")
    target.write_bytes(b"older")
    said: list[str] = []
    tab.reported.connect(said.append)

    def fill_the_disk(_source: Path, part: Path) -> None:
        part.write_bytes(b"tr")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpudash.ui.dashboard.tabs.operators_tab.copy_regular", fill_the_disk)
    tab.export_to(trace, target)
    assert target.read_bytes() == b"older" and len(list(tmp_path.iterdir())) == 2
    assert said == [f"{target} cannot be written (No space left on device); choose another place."]


def test_the_rows_are_copied_with_seconds_and_bytes_as_they_are(tab: OperatorsTab) -> None:
    tab.table.copy()

    head, first, *_rest = QGuiApplication.clipboard().text().splitlines()
    assert head.startswith("operator\tcalls\town CPU\ttotal CPU")
    assert first.split("\t")[:4] == ["aten::mm", "3", "0.03", "0.03"]


class Profiled(FakeSession):
    def profile(self, steps: int) -> None:
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        self.requested.append(("profile", steps))


def test_the_command_asks_how_many_steps_and_shows_the_tab(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Profiled()
    window = open_window(session)
    assert why_no_profile(window.workspace) == "No run is in progress."
    settle(window)
    offered = window.workspace.dashboard.tabs.operators.first
    assert (offered.isEnabled(), offered.toolTip()) == (False, f"{PROFILE_TIP}. No run is in progress.")
    session.start_run(MatmulSpec(), "cpu")
    monkeypatch.setattr(QInputDialog, "getInt", lambda *_arguments: (4, True))
    window.workspace.refresh()
    window.menus.refresh()
    window.menus.actions["run.profile"].trigger()

    assert session.requested[-1] == ("profile", 4)
    assert (
        window.workspace.dashboard.tabs.bar.tabText(window.workspace.dashboard.tabs.bar.currentIndex()) == "Operators"
    )


def test_a_refusal_is_shown_and_a_cancelled_question_asks_for_nothing(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Profiled()
    window = open_window(session)
    session.start_run(MatmulSpec(), "cpu")
    window.menus.refresh()
    said: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: said.append(box.text()))
    session.refusal = "Steps of this run are being profiled already."
    for answer in ((4, False), (4, True)):
        monkeypatch.setattr(QInputDialog, "getInt", lambda *_arguments, answer=answer: answer)
        window.menus.actions["run.profile"].trigger()

    assert said == ["Steps of this run are being profiled already."]
    assert "profile" not in [asked[0] for asked in session.requested]


def test_the_run_in_the_panel_is_copied_as_a_program(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("matmul")
    )
    window.menus.actions["edit.copy_python"].trigger()

    program = QGuiApplication.clipboard().text()
    compile(program, "copied.py", "exec")
    assert "torch.mm(" in program and len(program.splitlines()) <= 60


def test_your_own_program_is_no_workload_to_copy(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    window = open_window(FakeSession())
    said: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: said.append(box.text()))
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("watch")
    )
    window.menus.actions["edit.copy_python"].trigger()

    assert said == ["The panel does not contain a workload that can be shown as a program."]

"""A trace of torch.profiler in a tab: its operators, its memory, and why it is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from gpudash.drawing.scene import SceneArea, SceneDot, SceneFrame
from gpudash.memory.profiler_trace.profile import TraceProfile, read_profile
from gpudash.memory.profiler_trace.trace_file import TraceError
from gpudash.ui.colours import Palette
from gpudash.ui.snapshot.trace_document import TraceDocument
from gpudash.ui.snapshot.trace_plot import memory_scene
from tests.unit.memory.profiler_trace.traces import ON_A_GPU, document, operator, written


class FakeTrace:
    """Has the methods of `OpenedTrace`, and no process."""

    def __init__(self) -> None:
        self.path = Path("trace.json.gz")
        self.profile: TraceProfile | None = None
        self.refusal = ""
        self.progress = (0, 0)
        self.closings = 0

    def start(self) -> None:
        pass

    def poll(self) -> TraceProfile | None:
        if self.refusal:
            raise TraceError(self.refusal)
        return self.profile

    def close(self) -> bool:
        self.closings += 1
        return True


@pytest.fixture
def opened() -> FakeTrace:
    return FakeTrace()


@pytest.fixture
def shown(qtbot: QtBot, palette: Palette, opened: FakeTrace) -> TraceDocument:
    made = TraceDocument(opened, palette)  # type: ignore[arg-type]  # as much of a trace as is asked
    qtbot.addWidget(made)
    made.resize(900, 600)
    made.show()
    return made


def test_the_page_has_operators_timeline_and_memory(shown: TraceDocument, opened: FakeTrace, tmp_path: Path) -> None:
    opened.progress = (1, 2)
    shown.refresh()
    assert not shown.ready and shown.opening.label.text() == "0 of 1 kB"
    opened.profile = read_profile(written(tmp_path, document()))
    shown.refresh()
    page = shown.page
    assert shown.ready and page.plot.isVisible() and not page.no_memory.isVisible()
    assert page.table.operators.rows[0]["name"] == "aten::mm", "most time on the GPU"
    assert "900 B were allocated at most" in page.peak.text()
    assert not page.device.isVisible(), "there is one device"
    page.search.setText("relu")
    assert [row["name"] for row in page.table.operators.rows] == ["aten::relu"]
    shown.leave()
    assert len(page.table.operators.rows) > 1
    shown.copy_values()
    assert "aten::linear" in QGuiApplication.clipboard().text()


def test_a_trace_without_memory_says_how_to_record_it(shown: TraceDocument, opened: FakeTrace, tmp_path: Path) -> None:
    opened.profile = read_profile(written(tmp_path, document([operator("aten::add", 1, 2, 1)])))
    shown.refresh()
    assert shown.page.no_memory.isVisible() and not shown.page.plot.isVisible()
    assert "profile_memory=True" in shown.page.no_memory.text()


def test_a_file_that_is_refused_says_why_and_what_to_do(shown: TraceDocument, opened: FakeTrace) -> None:
    said: list[str] = []
    shown.said.connect(said.append)
    opened.refusal = "<b>trace</b> is damaged: copy it again."
    shown.refresh()
    shown.refresh()
    assert said == [opened.refusal] and shown.opening.label.text() == opened.refusal
    assert shown.opening.label.textFormat() == Qt.TextFormat.PlainText
    assert "export_chrome_trace" in shown.opening.advice.text()
    shown.close_document()
    assert opened.closings == 1


def test_the_curve_holds_every_value_until_the_next(tmp_path: Path) -> None:
    (device,) = read_profile(written(tmp_path, document(ON_A_GPU))).memory
    scene = memory_scene(device, 250e-6, SceneFrame())
    (area,) = (item for item in scene.items if isinstance(item, SceneArea))
    assert list(area.y[:4]) == [600, 600, 900, 900] and area.x[1] == area.x[2] and area.x[-1] == 250e-6
    (dot,) = (item for item in scene.items if isinstance(item, SceneDot))
    assert dot.value == 900 and dot.place == device.peak_s
    assert scene.across.ticks[-1][1].endswith(" ms") and scene.left.high > 1000, "what is reserved is in view"

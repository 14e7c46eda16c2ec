"""The line at the bottom, in more and less room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gpudash.devices.known_gpus import find
from gpudash.devices.names import simulated_gpu
from gpudash.session import Status
from gpudash.ui.dashboard.status_line import LATE_TEXT, StatusLine
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession

STATUS = Status(
    recording=Path("/somewhere/2026-11-21-101500-session.gpudash"),
    recording_bytes=3 * 1024**2,
    rate_hz=20.0,
    missed=2,
    own_cpu_ratio=0.004,
    driver="580.159",
    torch="torch 2.13.0",
)
LONG = "The driver's library and its kernel module differ in version (580.159 and 575.51); restart the machine."


@pytest.fixture
def line(qtbot: QtBot) -> StatusLine:
    made = StatusLine()
    qtbot.addWidget(made)
    made.resize(1256, 26)
    made.show()
    return made


def said(line: StatusLine) -> tuple[str, str]:
    return line._left.text(), line._right.text()


def test_it_says_what_is_recorded_how_fast_and_at_what_cost(line: StatusLine) -> None:
    line.show_status(STATUS, "", None, "")
    assert said(line) == (
        "● recording 2026-11-21-101500-session.gpudash  3 MiB   sampling 20 Hz · 0.4 % of one core",
        "NVML 580.159 · torch 2.13.0",
    )


@pytest.mark.parametrize("width", [960, 1100, 1256])
def test_in_less_room_it_says_less_and_never_half_a_word(line: StatusLine, width: int) -> None:
    line.resize(width, 26)
    line.show_status(replace(STATUS, driver=None), "", LONG, "")
    left, right = said(line)
    assert left.startswith("● recording")
    assert not left.endswith(("…", " ", "·"))
    assert left.count("●") == 1
    metrics = line._left.fontMetrics()
    assert metrics.horizontalAdvance(left) + metrics.horizontalAdvance(right) <= width - 40
    assert LONG.rstrip(".") in line._right.toolTip()


def test_simulated_gpus_are_said_in_place_of_why_there_is_no_other(line: StatusLine) -> None:
    status = replace(STATUS, driver=None)
    line.show_status(status, "", LONG, "", ["RTX 4060", "L4", "RTX 4060"])
    assert said(line)[1] == "simulating 2 × RTX 4060, L4 · torch 2.13.0"
    assert LONG in line._right.toolTip()
    line.show_status(status, "", LONG, "")
    assert "simulating" not in said(line)[1]


def test_the_window_says_which_card_of_the_command_line_is_simulated(open_window: OpenWindow) -> None:
    card = find("rtx4060")
    assert card is not None
    session = FakeSession([simulated_gpu(0, card)], gpu_problem="No NVIDIA card was found.").feed(2)
    window = open_window(session)
    right = said(window.workspace.dashboard.status_line)[1]
    assert "simulating RTX 4060" in right and "No NVIDIA card" not in right


def test_a_reason_for_no_gpu_is_whole_in_a_low_window(line: StatusLine) -> None:
    line.show_status(replace(STATUS, driver=None), "", LONG, "")
    assert said(line)[1] == f"{LONG.rstrip('.')} · torch 2.13.0"


def test_not_recording_is_said(line: StatusLine) -> None:
    line.show_status(replace(STATUS, recording=None), "", None, "PyTorch loading…")
    left, right = said(line)
    assert "not recording" in left and right.endswith("PyTorch loading…")


def test_a_passing_message_gives_way_again(line: StatusLine) -> None:
    line.show_status(STATUS, "", None, "")
    before = said(line)
    line.report("Copied 312 rows of values.")
    assert said(line)[0] == "Copied 312 rows of values."
    line._forget.timeout.emit()
    line._forget.stop()
    assert said(line) == before


def test_missed_readings_are_told_in_words_and_only_when_they_matter(qtbot: QtBot) -> None:
    now = [0.0]
    line = StatusLine(clock=lambda: now[0])
    qtbot.addWidget(line)
    line.resize(1600, 26)

    def after(seconds: float, missed: int) -> str:
        for _ in range(4):
            now[0] += seconds / 4
            line.show_status(replace(STATUS, missed=missed), "", None, "")
        return said(line)[0]

    assert LATE_TEXT not in after(10.0, 700), "many, but long ago"
    assert LATE_TEXT not in after(10.0, 710), "one of twenty"
    assert LATE_TEXT in after(10.0, 810), "every second one"
    assert "About every second reading of the last 10 s is missing" in line._left.toolTip()
    assert LATE_TEXT not in after(20.0, 812)
    assert "reading" not in line._left.toolTip(), "nothing is said of what does not matter"

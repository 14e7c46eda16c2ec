"""Words at one and a half and at twice their size: what is read stays whole, and code grows with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QSize
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QTabBar

from gpudash.telemetry.records import RunStarted
from gpudash.ui.widgets.text_size import SIZES
from gpudash.ui.widgets.theme import restyle
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import MIB
from tests.ui import test_explanation as explained
from tests.ui.asked_form import asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import FITS
from tests.ui.explanation import program
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.words import complaints, page_complaints
from tests.unit.clock import Clock
from tests.unit.telemetry.run_ends import RAN_OUT

SMALL, LARGE = QSize(1280, 800), QSize(1920, 1200)


def _ran_out(open_window: OpenWindow, size: QSize) -> tuple[explained.Session, MainWindow]:
    session = explained.Session()
    window = open_window(session, size=(size.width(), size.height()), theme="light")
    explained.failed(session)
    settle(window)
    return session, window


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize(("scale", "size"), [(1.0, SMALL), (1.5, SMALL), (2.0, LARGE)])
def test_the_figures_of_a_result_are_whole(open_window: OpenWindow, scale: float, size: QSize) -> None:
    _session, window = _ran_out(open_window, size)
    restyle(window, window.workspace.colours, scale)
    window.workspace.fit_panels()
    settle(window)
    page = window.workspace.dashboard.result
    values = [value for _name, value in page.figures]
    shown = [label for label in page.findChildren(QLabel) if label.isVisible() and label.text() in values]
    assert len(shown) == len(values) >= 3
    for label in shown:
        assert label.width() >= label.sizeHint().width(), label.text()


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", [1.0, 1.15, 1.3, 1.5])
@pytest.mark.parametrize("ending", ["finished", "out of memory"])
def test_a_result_over_the_plots_scrolls_and_cuts_no_word(
    open_window: OpenWindow, tmp_path: Path, scale: float, ending: str
) -> None:
    session = FakeSession([program.CARD]).feed(1)
    window = open_window(session, size=(1024, 708))
    restyle(window, window.workspace.colours, scale)
    window.workspace.fit_panels()
    script = program.script_in(tmp_path)
    spec = program.request_of(script).spec()
    session.apply(RunStarted(time_s=1.0, run_id=1, workload="watch", device="sim:0", spec=spec, simulated=True))
    program.run_of_steps(session, 1, 120, growth=4 * MIB)
    if ending == "finished":
        program.ended_well(session, 1, 120, 722 * MIB)
    else:
        found = program.explained(script, [program.change_in(script)])
        session.apply(replace(RAN_OUT, time_s=session.now_s, run_id=1, seconds=12.0, steps=120, explanation=found))
    settle(window)
    window.workspace.dashboard.show_result()
    settle(window)
    page = window.workspace.dashboard.result
    assert page.isVisible() and len(page.figures) >= 3
    assert page_complaints(page) == []
    for name, value in page.figures:
        shown = {label.text() for label in page.findChildren(QLabel) if label.isVisible()}
        assert {name, value} <= shown


@pytest.mark.usefixtures("usual_size")
def test_the_headline_the_source_and_the_stack_of_an_explanation_grow_with_other_words(open_window: OpenWindow) -> None:
    _session, window = _ran_out(open_window, LARGE)
    window.workspace.dashboard.explanation.show_newest()
    settle(window)
    page = window.workspace.dashboard.explanation.page
    parts = [page.header.headline, *page.findChildren(QPlainTextEdit)]
    before = [part.fontMetrics().height() for part in parts]
    restyle(window, window.workspace.colours, 2.0)
    settle(window)
    for part, height in zip(parts, before, strict=True):
        assert part.fontMetrics().height() >= 1.8 * height


def _running() -> FakeSession:
    session = FakeSession().feed(10)
    session.start()
    session.train(25)
    return session


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", SIZES)
def test_every_word_of_a_run_can_be_read_in_a_window_of_usual_size(open_window: OpenWindow, scale: float) -> None:
    window = open_window(_running(), size=(1280, 800))
    restyle(window, window.workspace.colours, scale)
    window.workspace.fit_panels()
    settle(window)
    # The tab bar has arrows; a title of a plot has its whole first word, and the rest in its tip.
    bar = window.workspace.dashboard.tabs.findChild(QTabBar)
    assert bar is not None and bar.usesScrollButtons()
    cut = [complaint for complaint in complaints(window) if not complaint.startswith("tab outside")]
    assert not [complaint for complaint in cut if complaint not in ("elided: 'MEMORY…'", "elided: 'LOSS…'")]


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", SIZES)
def test_every_word_of_the_first_screen_can_be_read_in_a_window_of_usual_size(
    open_window: OpenWindow, scale: float
) -> None:
    window = open_window(FakeSession().feed(5), size=(1280, 800), first_screen=True)
    restyle(window, window.workspace.colours, scale)
    window.workspace.fit_panels()
    settle(window)
    asking = ("elided: 'Choose a file…'", "elided: 'By its PID…'")
    assert not [complaint for complaint in complaints(window) if complaint not in asking]


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize(("scale", "size"), [(1.5, (1280, 800)), (2.0, (1920, 1200))])
def test_both_lines_of_a_prediction_are_whole_in_the_form(
    open_window: OpenWindow, clock: Clock, scale: float, size: tuple[int, int]
) -> None:
    session = FakeSession([gpu(0)]).feed(1)
    window = asked_window(open_window, session, clock, size)
    session.estimates.report(FITS, final=True)
    settle(window)
    restyle(window, window.workspace.colours, scale)
    settle(window)
    fit = window.workspace.dashboard.panel.fit
    (lines,) = [label for label in fit.head.findChildren(QLabel) if label.text() == fit.figures]
    assert "\n" in fit.figures and lines.height() >= lines.heightForWidth(lines.width())

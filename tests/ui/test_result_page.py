"""A run's result: in front of the plots at its end, dismissed with one key; its tab begins with the results."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QScrollArea, QWidget

from gpudash.memory.predicting.prediction import Prediction
from gpudash.session.predicting.remedies import SoFar
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.records import RunEnd, RunStarted
from gpudash.telemetry.results.outcome import run_figures, size_chart
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.dashboard.result_page import FiguresAside
from gpudash.ui.features.palette import _runs
from gpudash.ui.widgets.labels import WrappingLabel
from gpudash.ui.window.main_window import MainWindow
from tests.ui import test_explanation as explained
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import FITS
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.test_verdict_page import RESULT as VERDICT
from tests.ui.words import complaints

LINK = 31.5e9


def rate(
    source: str, target: str, memory: str, size: int, median: float | None, *, blocking: bool = True
) -> dict[str, Any]:
    row = {"from": source, "to": target, "memory": memory, "blocking": blocking, "block_bytes": size}
    return row | {"bytes_per_second_median": median, "bytes_per_second_iqr": 1e8, "reason": "not on this device"}


TRANSFER = {
    "rates": [
        rate("cpu", "cuda:0", "pinned", 4 << 20, 20e9),
        rate("cpu", "cuda:0", "pinned", 1 << 20, 12e9),
        rate("cpu", "cuda:0", "pinned", 1 << 20, 11e9, blocking=False),
        rate("cuda:0", "cpu", "pageable", 1 << 20, 6e9),
        rate("cpu", "cpu", "pinned", 1 << 20, None),
    ],
    "link_bytes_per_second": LINK,
}


def product(size: int, dtype: str, flops: float) -> dict[str, Any]:
    return {"flops_per_second": flops, "seconds_median": 1e-3, "seconds_iqr": 1e-5, "size": size, "dtype": dtype}


def ended(session: FakeSession, workload: str, result: Mapping[str, Any], **spec: Any) -> None:
    """A run of a second that found ``result``."""
    number = len(session.store.runs) + 1
    session.running = True
    session.apply(RunStarted(time_s=session.now_s, run_id=number, workload=workload, device="cuda:0", spec=spec))
    session.feed(1)
    session.apply(
        RunEnd(
            time_s=session.now_s, run_id=number, status="finished", seconds=1.0, steps=9, result=copy.deepcopy(result)
        )
    )
    session.running = False


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(5)


def test_a_transfer_s_chart_has_a_line_a_way_and_the_link_s_limit(session: FakeSession) -> None:
    ended(session, "transfer", TRANSFER)
    run = session.store.run
    assert run is not None
    chart = size_chart(run, session.store.runs)
    assert chart is not None and chart.limit == ("the link on paper", LINK)
    assert [(line.name, line.style) for line in chart.lines] == [
        ("cpu → cuda:0, pinned", "solid"),
        ("cpu → cuda:0, pinned, overlapped", "dot"),
        ("cuda:0 → cpu, pageable", "dash"),
    ]
    assert chart.lines[0].points == ((float(1 << 20), 12e9), (float(4 << 20), 20e9)), "from the smallest up"
    assert run_figures(run)[:2] == [("best cpu → cuda:0", "20.0 GB/s"), ("best cuda:0 → cpu", "6.00 GB/s")]


def test_copies_within_one_memory_are_told_by_their_median_for_no_link_bounds_the_best(session: FakeSession) -> None:
    figures = [10.5e9, 46.3e9, 3.42e9, 2.16e9, 1.0e9]
    rates = [{**TRANSFER["rates"][0], "to": "cpu", "from": "cpu", "bytes_per_second_median": rate} for rate in figures]
    ended(session, "transfer", {**TRANSFER, "rates": rates})
    run = session.store.run
    assert run is not None
    assert run_figures(run)[0] == ("median cpu → cpu", "3.42 GB/s")


def test_products_of_the_session_s_runs_are_points_by_type(session: FakeSession) -> None:
    for size, dtype, flops in ((512, "float32", 1e12), (2048, "bfloat16", 9e12), (1024, "float32", 3e12)):
        ended(session, "matmul", product(size, dtype, flops))
    runs = session.store.runs
    chart = size_chart(runs[-1], runs)
    assert chart is not None
    assert {line.name: [size for size, _ in line.points] for line in chart.lines} == {
        "float32 on cuda:0": [512, 1024],
        "bfloat16 on cuda:0": [2048],
    }
    second = size_chart(runs[1], runs)
    assert second is not None and [len(line.points) for line in second.lines] == [1, 1], "what came later is no part"
    assert size_chart(runs[0], runs) is None, "one size is no curve"


def test_training_tells_loss_accuracy_time_and_peak_first(session: FakeSession) -> None:
    session.start("cuda:0")
    session.train(5, device="cuda:0")
    session.end()
    assert session.store.run is not None
    names = [name for name, _value in run_figures(session.store.run)]
    assert names[:3] == ["final loss", "accuracy", "time"] and names[3].startswith("peak")


def test_the_peak_of_a_whole_process_is_not_called_the_run_s_and_its_prediction_says_what_it_is_of(
    session: FakeSession,
) -> None:
    session.start("cpu")
    session.train(5)
    session.end()
    assert session.store.run is not None
    assert [name for name, _value in run_figures(session.store.run) if "peak" in name] == ["peak of the process"]
    on_the_cpu = Prediction(replace(FITS, device="cpu", overhead_bytes=0))
    assert "Tensors only" in on_the_cpu.alone and not Prediction(FITS).alone


@pytest.mark.parametrize("workload", ["transfer", "matmul"])
@pytest.mark.parametrize(
    "result", [{}, {"rates": 3}, {"rates": [{"from": 1}]}, {"flops_per_second": "fast"}, {"flops_per_second": 1.0}]
)
def test_a_result_that_makes_no_sense_has_no_chart(session: FakeSession, workload: str, result: dict[str, Any]) -> None:
    ended(session, workload, result)
    assert session.store.run is not None
    assert size_chart(session.store.run, session.store.runs) is None
    assert ("time", "1.0 s") in run_figures(session.store.run)


RESULTS: dict[str, Mapping[str, Any]] = {
    "transfer": TRANSFER,
    "matmul": product(1024, "float32", 2e12),
    "comparison": VERDICT,
}


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
@pytest.mark.parametrize("workload", RESULTS)
def test_the_result_comes_in_front_at_the_end_and_goes_with_one_key(
    open_window: OpenWindow, session: FakeSession, workload: str, size: tuple[int, int]
) -> None:
    window = open_window(session, size=size)
    dashboard = window.workspace.dashboard
    ended(session, workload, RESULTS[workload], devices="cpu,cuda:0")
    settle(window)
    page = dashboard.result
    assert page.isVisible() and dashboard.plots.rect().contains(page.geometry())
    assert page.verdict.isVisible() == (workload == "comparison")
    assert page.chart.isVisible() == (workload == "transfer"), "one product is a figure and no curve"
    assert dashboard.plots.axis.visibleRegion().boundingRect() == dashboard.plots.axis.rect()
    assert not page.grab().isNull()
    QTest.keyClick(window.focusWidget(), Qt.Key.Key_Escape)
    settle(window)
    assert not page.isVisible()
    QTest.keyClick(window.focusWidget(), Qt.Key.Key_R)
    assert page.isVisible(), "R brings it back"
    page.closed.emit()
    QTest.keyClick(window.focusWidget(), Qt.Key.Key_R)
    assert page.isVisible(), "and after its button, too"


@pytest.mark.parametrize("field", ["width", "model"])
def test_the_key_takes_the_result_away_from_a_field_of_the_form_too(
    open_window: OpenWindow, session: FakeSession, field: str
) -> None:
    window = open_window(session)
    dashboard = window.workspace.dashboard
    ended(session, "matmul", RESULTS["matmul"])
    settle(window)
    assert dashboard.result.isVisible()
    control = dashboard.panel.form.control(field)
    control.setFocus()
    QTest.keyClick(control, Qt.Key.Key_Escape)
    assert not dashboard.result.isVisible()


@pytest.mark.parametrize("steps", [0, 5])
def test_a_run_that_was_stopped_leaves_the_plots_in_front(
    open_window: OpenWindow, session: FakeSession, steps: int
) -> None:
    window = open_window(session)
    session.start("cuda:0")
    session.train(steps, device="cuda:0")
    run = session.store.run
    assert run is not None
    session.end(RunEnd(time_s=session.now_s, run_id=run.run_id, status="cancelled", seconds=1.0, steps=2, result={}))
    settle(window)
    assert not window.workspace.dashboard.result.isVisible()
    window.menus.actions["view.result"].trigger()
    assert window.workspace.dashboard.result.isVisible(), "it can be asked for"


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_a_run_that_ran_out_of_memory_says_where_memory_stood_and_what_would_have_fitted(
    open_window: OpenWindow, size: tuple[int, int]
) -> None:
    session = explained.Session()
    window = open_window(session, size=size)
    explained.failed(session)
    settle(window)
    dashboard = window.workspace.dashboard
    page = dashboard.result
    assert page.isVisible() and not covered(dashboard), "no plot is hidden, least of all the memory's"
    assert page.accessibleDescription() == "SIMULATED · training batch 64 on sim:0, out of memory"
    assert page.figures[:2] == [("memory in use", "1.98 of 2.00 GiB"), ("asked for", "64 MiB")]
    assert "hidden = self.fc1(hidden)" in page.ending.text and "44 MiB short" in page.ending.text
    assert not [button for button in shown_buttons(page) if "batch" in button.text()], "it is still looked for"
    session.apply(explained.remedies(*explained.REMEDIES))
    settle(window)
    assert page.isVisible() and dashboard.plots.rect().contains(page.geometry()) and not covered(dashboard)
    fix = next(button for button in shown_buttons(page) if button.text().startswith("batch 24"))
    for button in shown_buttons(page.ending):
        assert page.rect().contains(QRect(button.mapTo(page, QPoint()), button.size())), button.text()
        assert button.sizeHint().width() <= button.width() and "…" not in button.text(), "it is read whole"
    fix.click()
    assert session.requested[-1] == ("start", "training", "sim:0")
    assert dashboard.panel.form.values()["batch"] == "24"


def test_a_form_that_asks_for_another_run_takes_away_how_the_last_one_ended(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session)
    explained.failed(session)
    settle(window)
    dashboard = window.workspace.dashboard
    assert dashboard.result.isVisible() and dashboard.banner.isVisible()
    assert "ut of memory" in dashboard.panel.progress.label.text()
    dashboard.panel.change_fields({"batch": 8})
    settle(window, 8)
    assert not dashboard.result.isVisible() and not dashboard.banner.isVisible()
    assert dashboard.panel.progress.label.text() == "Ready"
    explained.failed(session)
    settle(window, 8)
    assert dashboard.result.isVisible() and dashboard.banner.isVisible(), "the next one is shown again"


def test_the_card_beside_the_plots_has_room_for_what_a_search_says_from_the_beginning(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session, size=(1600, 900))
    explained.failed(session)
    settle(window, 8)
    page = window.workspace.dashboard.result
    (figures,) = [area for area in page.findChildren(QScrollArea) if area.accessibleName() == "Figures of the run"]
    assert figures.isVisible() and figures.verticalScrollBar().maximum() == 0
    before = page.height()
    session.remedies.so_far = SoFar(explained.CHANGES[:1], 3, predicted=True, seconds=12)
    settle(window, 8)
    assert page.height() == before and figures.verticalScrollBar().maximum() == 0
    assert any("Still searching: 3 tried" in label.text() for label in page.ending.findChildren(QLabel))


def test_a_word_of_code_that_is_wider_than_the_column_beside_the_plots_is_read_whole(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session, size=(1280, 800))
    explained.failed(session)
    edit = f"write kept.append({'torch.ones(' * 6}1024) at train.py:41"
    session.apply(explained.remedies(Remedy(edit, fits=True)))
    settle(window)
    ending = window.workspace.dashboard.result.ending
    told = next(label for label in ending.findChildren(WrappingLabel) if label.full_text.startswith(edit))
    assert told.isVisible() and told.text().replace("\n", "").replace(" ", "") == told.full_text.replace(" ", "")
    assert all(told.fontMetrics().horizontalAdvance(line) <= told.width() for line in told.text().split())


def test_what_lies_beside_the_plots_cuts_no_list_of_values_in_two(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session, size=(1280, 800))
    explained.failed(session)
    session.apply(explained.remedies(*explained.REMEDIES))
    settle(window)
    plots, page = window.workspace.dashboard.plots, window.workspace.dashboard.result
    values = plots.readout.geometry()
    written = values.adjusted(0, 0, 0, -plots.readout.free_height)
    assert not written.intersects(page.geometry()) or page.geometry().top() <= values.top()


def test_a_long_edit_that_would_have_fitted_is_read_whole(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session, size=(1280, 800))
    explained.failed(session)
    edit = "write losses.append(loss.item()) at /home/mia/project/train.py:41, so that the graph of a step ends with it"
    session.apply(explained.remedies(Remedy(f"{edit}: 0.31 GiB at the peak instead of 1.98 GiB", fits=True)))
    settle(window)
    page = window.workspace.dashboard.result
    told = next(label for label in page.findChildren(WrappingLabel) if label.full_text.startswith(edit))
    assert told.isVisible() and told.heightForWidth(told.width()) <= told.height() > told.fontMetrics().height() * 1.5
    assert page.rect().contains(QRect(told.mapTo(page, QPoint()), told.size()))


def test_the_explanation_is_a_click_away_from_the_result_of_an_out_of_memory(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session)
    explained.failed(session)
    settle(window)
    dashboard = window.workspace.dashboard
    next(button for button in shown_buttons(dashboard.result) if button.text() == "Explain").click()
    assert dashboard.explanation.open
    shown = []
    for _ in range(2):
        QTest.keyClick(window.focusWidget(), Qt.Key.Key_Escape)
        settle(window)
        shown.append((dashboard.explanation.open, dashboard.result.isVisible()))
    assert shown == [(False, True), (False, False)], "one thing with each press"
    QTest.keyClick(window.focusWidget(), Qt.Key.Key_R)
    assert dashboard.result.isVisible(), "R brings it back"


def test_the_explanation_is_left_by_esc_when_its_focus_went_elsewhere(open_window: OpenWindow) -> None:
    session = explained.Session()
    window = open_window(session)
    explained.failed(session)
    dashboard = window.workspace.dashboard
    dashboard.explanation.show_newest()
    window.setFocus()
    QTest.keyClick(window, Qt.Key.Key_Escape)
    assert not dashboard.explanation.open


def test_a_run_that_failed_says_why_and_what_to_do(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1280, 800))
    session.start("cuda:0")
    session.train(2, device="cuda:0")
    settle(window)
    session.end(session.failure())
    settle(window)
    page = window.workspace.dashboard.result
    assert page.isVisible() and not page.rows.isVisible(), "no empty table"
    assert page.ending.text.startswith("mat1 and mat2 shapes cannot be multiplied")
    assert page.ending.text.endswith("Give both matrices the same inner size.")
    assert [button.text() for button in shown_buttons(page.ending)] == [], "there is nothing to explain or to run"
    ended(session, "transfer", TRANSFER)
    settle(window)
    assert page.isVisible() and not page.ending.isVisible()


def shown_buttons(part: QWidget) -> list[QPushButton]:
    return [button for button in part.findChildren(QPushButton) if button.isVisible()]


def test_the_result_of_a_run_that_is_about_memory_leaves_the_plot_of_memory_in_front_and_is_low_when_asked_for(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session, size=(1280, 800))
    dashboard = window.workspace.dashboard
    ended(session, "transfer", TRANSFER)
    settle(window)
    assert dashboard.result.chart.isVisible()
    ended(session, "pressure", {"allocated_bytes": 1 << 30, "allocations": 8})
    settle(window)
    assert not dashboard.result.isVisible()
    dashboard.show_result()
    settle(window)
    assert dashboard.result.isVisible() and not covered(dashboard)


def covered(dashboard: Dashboard) -> list[str]:
    """The plots that the result hides something of."""
    page = QRect(dashboard.result.mapToGlobal(QPoint()), dashboard.result.size())
    canvases = ((plot, QRect(plot.canvas.mapToGlobal(QPoint()), plot.canvas.size())) for plot in dashboard.plots.plots)
    return [plot.spec.title for plot, place in canvases if page.intersects(place)]


@pytest.mark.parametrize("size", [(1280, 800), (1440, 960), (2560, 1440)])
def test_the_figures_of_a_training_lie_beside_the_plots_and_hide_none_of_them(
    open_window: OpenWindow, session: FakeSession, size: tuple[int, int]
) -> None:
    window = open_window(session, size=size)
    dashboard = window.workspace.dashboard
    session.start("cuda:0")
    session.train(5, device="cuda:0")
    run = session.store.run
    assert run is not None
    corpus = {"source": "Python's standard library, 3.11", "bytes": 1 << 20, "sha256": "d9b7a50b" * 8}
    result = {"steps_per_second": 3.0, "items_per_second": 99.0, "parameters": 826_433, "corpus": corpus}
    ending = RunEnd(time_s=session.now_s, run_id=run.run_id, status="finished", seconds=9.0, steps=5, result=result)
    session.end(ending)
    settle(window)
    page = dashboard.result
    assert page.isVisible() and dashboard.plots.rect().contains(page.geometry())
    assert not covered(dashboard), "nothing is hidden, least of all what is newest"
    words = [label.text() for label in page.findChildren(QLabel) if label.isVisible()]
    assert {"final loss", "time", "9.0 s", "parameters", "The rest is in the Steps tab."} <= set(words)
    assert not any("standard library" in text for text in words)
    assert [button.text() for button in shown_buttons(page)] == ["Esc"]
    dashboard.plots.show_readout(False)
    dashboard.show_result()
    settle(window)
    assert page.width() > dashboard.plots.width() / 2, "without that room it lies over the plots"
    assert not complaints(window)


def test_a_run_has_one_name_in_the_result_the_palette_and_the_library(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    ended(session, "pressure", {"allocated_bytes": 1 << 30}, cap=2 << 30)
    dashboard = window.workspace.dashboard
    dashboard.show_result()
    run = session.store.run
    assert run is not None
    assert dashboard.result.accessibleDescription() == "pressure cap 2.00 GiB on cuda:0, finished"
    session.titles[1] = "the steep one"
    dashboard.show_result()
    assert dashboard.result.accessibleDescription() == "the steep one, finished"
    assert "the steep one" in [entry.name for entry in _runs(window.workspace)]


def test_a_figure_beside_the_plots_is_told_once(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1920, 1080))
    ended(session, "matmul", product(2048, "bfloat16", 2e12))
    settle(window)
    result = window.workspace.dashboard.result
    told = [label.text() for label in result.findChildren(QLabel) if label.isVisible()]
    assert told.count("arithmetic rate") == 1
    assert result.width() > 236, "a wide window has room for longer names"


def test_a_long_value_beside_the_plots_leaves_the_other_names_their_line(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session, size=(1280, 800))
    predicted = {"class": 6, "probability": 0.97, "expected": 6}
    result = {"predictions": [predicted], "pretraining": 50, "steps_per_second": 3440.4, "items_per_second": 55_091.0}
    ended(session, "training", result)
    settle(window)
    page = window.workspace.dashboard.result
    seen = {label.text(): label for label in page.findChildren(QLabel) if label.isVisible()}
    assert {"class 6, 97 % sure", "3\u202f440"} <= set(seen), "no figure is written with an exponent"
    for name in ("time", "steps", "mean steps a second"):
        assert seen[name].height() < 2 * seen[name].fontMetrics().lineSpacing(), name
    assert not complaints(window)


@pytest.mark.parametrize(
    ("predicted", "figure"),
    [
        ({"prompt": "import ", "text": "<b>os</b>\nimport os"}, ("writes", "“<b>os</b>\\nim”")),
        ({"class": 3, "probability": 0.914, "expected": 3}, ("predicts", "class 3, 91 % sure")),
    ],
)
def test_what_a_model_predicts_is_shown_as_plain_text(
    open_window: OpenWindow, session: FakeSession, predicted: dict[str, Any], figure: tuple[str, str]
) -> None:
    window = open_window(session, size=(1920, 1080))
    ended(session, "training", {"predictions": [predicted], "pretraining": 50})
    settle(window)
    result = window.workspace.dashboard.result

    assert result.figures[0] == figure
    shown = next(label for label in result.findChildren(QLabel) if label.isVisible() and label.text() == figure[1])
    assert shown.textFormat() == Qt.TextFormat.PlainText
    assert not complaints(window)


def test_the_verdict_is_the_largest_text_of_the_window(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session, size=(1280, 800))
    ended(session, "comparison", VERDICT, devices="cpu,cuda:0")
    settle(window)
    verdict = window.workspace.dashboard.result.verdict
    assert verdict.headline.fontInfo().pointSizeF() > verdict.because.fontInfo().pointSizeF() * 1.8
    assert verdict.verticalScrollBar().maximum() == 0, "nothing of it is below the fold"


def test_in_a_large_window_a_verdict_leaves_plots_in_sight_and_a_chart_has_what_its_rows_leave(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session, size=(2560, 1440))
    dashboard = window.workspace.dashboard
    ended(session, "comparison", VERDICT, devices="cpu,cuda:0")
    settle(window)
    assert dashboard.result.verdict.verticalScrollBar().maximum() == 0
    assert dashboard.result.height() < dashboard.plots.height() / 2
    ended(session, "transfer", TRANSFER)
    settle(window)
    rows = dashboard.result.rows
    assert rows.height() == rows.height_of_all
    assert dashboard.result.chart.height() > 0.6 * dashboard.result.height()


def test_a_result_takes_no_focus_from_what_is_being_typed(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    field = window.workspace.dashboard.panel.form.control("steps")
    field.setFocus()
    ended(session, "transfer", TRANSFER)
    settle(window)
    assert window.workspace.dashboard.result.isVisible() and field.hasFocus()


def test_the_next_run_has_the_plots_to_itself(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    ended(session, "transfer", TRANSFER)
    settle(window)
    session.apply(RunStarted(time_s=session.now_s, run_id=9, workload="pressure", device="cuda:0", spec={}))
    settle(window)
    assert not window.workspace.dashboard.result.isVisible()


def rows_of_result(window: MainWindow) -> list[list[str]]:
    tabs = window.workspace.dashboard.tabs
    tabs.set_collapsed(False)
    tabs.bar.setCurrentIndex(next(place for place in range(tabs.bar.count()) if tabs.bar.tabText(place) == "Steps"))
    settle(window)
    return [list(row) for row in tabs.result.model.rows]


def test_the_table_of_results_begins_with_the_results_and_ends_with_what_was_run(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = open_window(session)
    assert rows_of_result(window) == [] and window.workspace.dashboard.tabs.result.isHidden()
    ended(session, "matmul", product(2048, "bfloat16", 2e12), size=2048, dtype="bfloat16")
    rows = rows_of_result(window)
    assert rows[0] == ["arithmetic rate", "2.00 TFLOP/s"]
    assert rows[-1] == ["run", "matmul size 2048, dtype bfloat16 on cuda:0"]
    assert len({row[0] for row in rows}) == len(rows)
    ended(session, "comparison", VERDICT, devices="cpu,cuda:0")
    assert rows_of_result(window)[0][0] == "verdict"


def test_a_name_that_is_wider_than_the_page_beside_the_plots_hides_no_figure(open_window: OpenWindow) -> None:
    session = FakeSession().feed(5)
    window = open_window(session, size=(1280, 800))
    script = "a_script_with_a_really_quite_long_name_for_training_a_model.py"
    session.watched("cpu", {"command": ["python", script]})
    session.feed(2)
    message = f"ZeroDivisionError: division by zero ({script}:1)."
    session.end(replace(session.failure(), message=message, remedy="Its traceback is in what it printed."))
    settle(window)
    page = window.workspace.dashboard.result
    assert page.isVisible() and page.ending.text.startswith(message)
    for label in page.findChildren(QLabel):
        if label.isVisible():
            place = QRect(label.mapTo(page, QPoint()), label.size())
            assert page.rect().contains(place), label.text()
            lines = label.text().split("\n")
            assert max(label.fontMetrics().horizontalAdvance(word) for word in lines[0].split(" ")) <= label.width()
    assert [value for name, value in page.figures if name == "time"]


@pytest.mark.parametrize("height", [100, 600])
def test_names_and_long_values_beside_the_plots_are_shown_whole(window: MainWindow, height: int) -> None:
    aside = FiguresAside()
    aside.setParent(window)
    figures = [("memory in use", "1.00 of 1.00 GiB"), ("asked for", "4 MiB, which needs a segment of 20 MiB")]
    aside.show_figures(figures, [("peak of the whole GPU", "0.88 of 1.00 GiB")], rest=False)
    aside.resize(232, height)
    aside.show()
    QApplication.processEvents()
    for shown in aside.findChildren(QLabel):
        least = shown.heightForWidth(shown.width()) if shown.wordWrap() else shown.sizeHint().height()
        assert shown.height() >= least and shown.width() >= shown.minimumSizeHint().width(), shown.text()
        assert shown.wordWrap() or shown.width() >= shown.sizeHint().width(), shown.text()

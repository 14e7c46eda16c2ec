"""A comparison in a tab: reading, laying runs over one another, tables, copying, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QFontMetrics, QGuiApplication, QMouseEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QStyleOptionComboBox, QStyleOptionViewItem, QWidget
from pytestqt.qtbot import QtBot

from gpudash.session.recordings.comparing.comparison_loader import CancelledError
from gpudash.session.recordings.comparing.run_labels import distinguished
from gpudash.telemetry.comparing import ComparedRun, Curve
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import WATCH
from gpudash.ui.colours import DARK, LIGHT, Palette, contrast
from gpudash.ui.plots.canvas import ZOOM_PER_NOTCH
from gpudash.ui.plots.overlay import PEN_STYLES
from gpudash.ui.recordings.compare.document import CompareDocument
from gpudash.ui.recordings.compare.plots import OverlayPlot, run_pen, run_row
from gpudash.ui.recordings.compare.tables import figure_colour
from gpudash.ui.recordings.compare.titles import comparison_title, short_title
from gpudash.ui.widgets.plain_text import plain_tip
from tests.unit.telemetry.comparing.made import MADE, Made

A = MADE.but(marks=(("epoch 2", 0.5),))
B = MADE.but(step_s=0.02, loss=0.4, marks=(("epoch 2", 1.5),), spec={"model": "mlp", "precision": "bf16"})

Open = Callable[..., CompareDocument]


@pytest.fixture
def open_runs(qtbot: QtBot) -> Iterator[Open]:
    """Opens documents over runs made by hand, read by a real thread."""
    opened: list[CompareDocument] = []

    def open_these(*mades: Made) -> CompareDocument:
        runs = {f"{letter}.gpudash": made.run(letter) for letter, made in zip("abcdefg", mades, strict=False)}
        load = lambda path, number, cancelled: runs[path.name]  # noqa: E731
        document = CompareDocument([Path(f"/runs/{name}") for name in runs], DARK, load)
        opened.append(document)
        qtbot.addWidget(document)
        document.resize(1280, 760)
        document.show()
        qtbot.waitUntil(lambda: _ready(document))
        QApplication.processEvents()
        document.refresh()
        return document

    yield open_these
    for document in opened:
        document.close_document()


def _ready(document: CompareDocument) -> bool:
    document.refresh()
    return document.comparison is not None


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("training on cpu", "transfer on sim:0"), "training on cpu vs transfer on sim:0"),
        (("training width 512 on sim:0", "training width 1024 on sim:0"), "training width 512 vs 1024 on sim:0"),
        (("training width 512 on sim:0", "training width 1024 on sim:0", "c"), "training width 512 vs 1024 +1"),
        (("training on sim:0", "training width 8 on sim:0"), "training default vs width 8 on sim:0"),
        (("training steps 9 on cpu", "training batch 32, steps 9 on cpu"), "training default vs batch 32"),
        (("training on sim:0, 12:03", "training on sim:0, 12:07"), "training on sim:0, 12:03 vs 12:07"),
        (("my long run of training on cuda:0 (a)", "my long run of training on cuda:0 (b)"), "my … cuda:0 (a) vs (b)"),
        (("training width 8 on cpu (day-1)", "training width 9 on cpu (day-2)"), "training width 8 vs 9 on cpu"),
        (
            ("training width 9 on cpu (2025-03-01-training)", "training width 9 on cpu (2025-03-02-training)"),
            "training width 9 on cpu ×2",
        ),
        (("one-very-long-name-that-has-no-words", "another-very-long-name"), "one-very-long-n… vs another-very-lo…"),
    ],
)
def test_a_tab_says_once_what_the_runs_names_have_in_common(names: tuple[str, ...], short: str) -> None:
    longest = 36
    assert short_title(names, longest) == short
    assert len(short) <= longest


def test_the_tab_is_named_for_both_and_reads_in_a_thread(open_runs: Open) -> None:
    document = open_runs(A, B)
    assert document.title == "a vs b"
    assert comparison_title(["a", "b#2", "c"]) == "a vs b#2 and 1 more"
    assert "gpudash-comparison" not in [thread.name for thread in threading.enumerate()]


def test_the_names_of_figures_are_whole_in_a_narrow_window_and_the_last_figures_are_scrolled_to(
    open_runs: Open,
) -> None:
    document = open_runs(A, B)
    for width in (1280, 1024, 900):
        document.resize(width, 700)
        QApplication.processEvents()
        view = document.figures.view
        assert view.columnWidth(0) >= view.sizeHintForColumn(0), width
        scroller = view.horizontalScrollBar()
        reached = view.horizontalHeader().length() - scroller.maximum()
        assert reached <= view.viewport().width() + 1, width


def test_figures_spell_the_sign_and_specs_begin_with_what_differs(open_runs: Open) -> None:
    document = open_runs(A, B)
    header = [column.title for column in document.figures.model.columns]
    assert "B minus A" in header
    rows = {row[0]: row for row in document.figures.model.rows}
    assert rows["throughput, median"][3:6] == ["−800 items/s", "0.50×", "less, worse"]
    assert rows["peak allocated"][5] == "same"
    assert list(document.specs.model.rows[0]) == ["precision", "differs", "fp32", "bf16"]
    assert document._right.width() <= document.width() / 3, "the plots have the rest"
    assert "precision (fp32 in A, bf16 in B)" in document.headline.text()


def test_every_column_of_the_figures_is_seen_at_1280_pixels(open_runs: Open) -> None:
    figures = open_runs(A, B).figures.view
    assert figures.horizontalScrollBar().maximum() == 0
    last = figures.model().columnCount() - 1
    right = figures.columnViewportPosition(last) + figures.columnWidth(last)
    assert right <= figures.viewport().width()
    title = max(figures.fontMetrics().horizontalAdvance(row[0]) for row in figures.model().rows)  # type: ignore[attr-defined]
    assert figures.columnWidth(0) > title


def test_a_run_against_itself_says_same_everywhere(open_runs: Open) -> None:
    document = open_runs(A, A)
    assert {row[5] for row in document.figures.model.rows} == {"same"}
    curve = document.overlay.difference.shown[0]
    assert len(curve.x) and set(curve.y.tolist()) == {0.0}


def test_swapping_flips_the_signs_and_nothing_else(open_runs: Open) -> None:
    document = open_runs(A, B)
    document.controls.offset.setValue(5)
    before = [list(row) for row in document.figures.model.rows]
    document.swap()
    after = [list(row) for row in document.figures.model.rows]
    flipped = str.maketrans("+−", "−+")
    assert [row[3] for row in after] == [row[3].translate(flipped) for row in before]
    assert [row[6] for row in after] == [row[6] for row in before]
    assert [(row[2], row[1]) for row in after] == [(row[1], row[2]) for row in before]
    assert document.controls.offset.value() == -5
    document.swap()
    assert [list(row) for row in document.figures.model.rows] == before


def test_runs_with_steps_lie_over_one_another_by_step_first(open_runs: Open) -> None:
    document = open_runs(A, B)
    assert document.controls.laying.alignment == "step"
    assert document.overlay.axis.range() == (0.0, 200.0)
    assert [plot.spec.title for plot in document.overlay.plots.values()] == ["LOSS", "THROUGHPUT", "MEMORY, ALLOCATED"]
    loss = document.overlay.difference.shown[0]
    assert loss.y.tolist() == pytest.approx([-0.1] * len(loss.y))


def test_runs_are_aligned_by_start_and_by_a_mark(open_runs: Open) -> None:
    document = open_runs(A, B)
    document.controls.choose("start")
    assert document.overlay.axis.range() == pytest.approx((0.0, 4.0))
    assert not document.controls.mark.isVisible()
    document.controls.choose("mark")
    assert document.controls.mark.currentText() == "epoch 2"
    assert document.overlay.axis.range()[0] == pytest.approx(-1.5)
    plain = open_runs(MADE, MADE)
    plain.controls.choose("mark")
    assert plain.controls.laying.alignment == "step"


def test_the_offset_moves_b_alone(open_runs: Open) -> None:
    document = open_runs(A, B)
    a, b = (curve.x[0] for curve in document.overlay._curves["loss"])
    document.controls.offset.setValue(10)
    moved = [curve.x[0] for curve in document.overlay._curves["loss"]]
    assert moved == [a, b + 10]


def test_dragging_a_plot_moves_b_and_shift_pans(open_runs: Open) -> None:
    document = open_runs(A, B)
    plot = document.overlay.plots["loss"]
    canvas, centre = plot.canvas.viewport(), plot.canvas.area.center().toPoint()
    _drag(canvas, centre, 60, Qt.KeyboardModifier.NoModifier)
    assert document.controls.offset.value() > 5
    low, offset = document.overlay.axis.range()[0], document.controls.offset.value()
    _drag(canvas, centre, 60, Qt.KeyboardModifier.ShiftModifier)
    assert document.controls.offset.value() == offset
    assert document.overlay.axis.range()[0] < low


def _drag(widget: QWidget, start: QPoint, pixels: int, modifier: Qt.KeyboardModifier) -> None:
    left, none = Qt.MouseButton.LeftButton, Qt.MouseButton.NoButton
    end = start + QPoint(pixels, 0)
    for kind, place, button, held in (
        (QEvent.Type.MouseButtonPress, start, left, left),
        (QEvent.Type.MouseMove, start + QPoint(pixels // 2, 0), none, left),
        (QEvent.Type.MouseMove, end, none, left),
        (QEvent.Type.MouseButtonRelease, end, left, none),
    ):
        whole = QPointF(widget.mapToGlobal(place))
        QApplication.sendEvent(widget, QMouseEvent(kind, QPointF(place), whole, button, held, modifier))


def test_the_wheel_zooms_at_the_pointer_and_a_double_click_shows_all(open_runs: Open) -> None:
    document = open_runs(A, B)
    plot = document.overlay.plots["loss"]
    _turn(plot, Qt.KeyboardModifier.NoModifier)
    low, high = document.overlay.axis.range()
    assert high - low == pytest.approx(200 * ZOOM_PER_NOTCH**2)
    assert (low + high) / 2 == pytest.approx(100, abs=2)
    QTest.mouseDClick(plot.canvas.viewport(), Qt.MouseButton.LeftButton, pos=plot.canvas.area.center().toPoint())
    assert document.overlay.axis.range() == (0.0, 200.0)


def test_the_wheel_with_ctrl_zooms_the_values_of_one_plot_until_a_double_click(open_runs: Open) -> None:
    document = open_runs(A, B)
    plot, other = document.overlay.plots["loss"], document.overlay.plots["throughput"]
    before = plot.y_range, other.y_range
    _turn(plot, Qt.KeyboardModifier.ControlModifier)
    assert document.overlay.refresh()
    assert plot.y_range[1] - plot.y_range[0] == pytest.approx((before[0][1] - before[0][0]) * ZOOM_PER_NOTCH**2)
    assert (other.y_range, document.overlay.axis.range()) == (before[1], (0.0, 200.0))
    QTest.mouseDClick(plot.canvas.viewport(), Qt.MouseButton.LeftButton, pos=plot.canvas.area.center().toPoint())
    document.refresh()
    assert (plot.y_range, other.y_range) == before


def _turn(plot: OverlayPlot, modifier: Qt.KeyboardModifier) -> None:
    """Turn the wheel two notches over the middle of a plot."""
    canvas, place = plot.canvas.viewport(), plot.canvas.area.center()
    wheel = QWheelEvent(
        place,
        QPointF(canvas.mapToGlobal(place.toPoint())),
        QPoint(),
        QPoint(0, 240),
        Qt.MouseButton.NoButton,
        modifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(canvas, wheel)


def test_the_cursor_tells_every_run_and_a_dash_where_there_is_none(open_runs: Open) -> None:
    document = open_runs(A, MADE.but(steps=100))
    document.overlay.axis.set_cursor(150.0)
    told = document.overlay.readout.text()
    assert told.startswith("step 150   loss: A 0.500, B -")
    document.overlay.axis.set_cursor(None)
    hint = document.overlay.readout
    assert hint.text() == "Point at a plot to read values · drag moves B · Shift+drag pans · wheel zooms"
    assert hint.heightForWidth(hint.width()) <= hint.height() == 2 * hint.fontMetrics().lineSpacing()


def test_runs_that_do_not_overlap_say_so(open_runs: Open) -> None:
    document = open_runs(A, B)
    document.controls.offset.setValue(1000)
    document.refresh()
    assert document.overlay.apart.text().startswith("A and B do not overlap:")


def test_the_difference_is_of_what_both_have_and_another_says_who_has_none(open_runs: Open) -> None:
    document = open_runs(MADE.but(loss=None), B)
    overlay = document.overlay
    assert overlay.quantity.findText("loss") == 0 and overlay.quantity.currentText() != "loss"
    assert overlay.apart.text() == ""
    overlay.quantity.setCurrentIndex(0)
    document.refresh()
    assert overlay.apart.text() == "A has no loss."


def test_what_runs_are_aligned_by_is_read_whole(open_runs: Open) -> None:
    alignment = open_runs(A, B).controls.alignment
    for row in range(alignment.count()):
        alignment.setCurrentIndex(row)
        option = QStyleOptionComboBox()
        alignment.initStyleOption(option)
        assert option.currentText == alignment.itemText(row)


def test_colours_are_grey_within_noise_and_stronger_with_size(open_runs: Open) -> None:
    palette = DARK
    found = {difference.name: difference for difference in open_runs(A, B).comparison.differences}  # type: ignore[union-attr]
    assert figure_colour(found["peak_allocated_bytes"], palette) == QColor(palette.muted)
    little = open_runs(A, MADE.but(step_s=0.011)).comparison
    assert little is not None
    slight = next(d for d in little.differences if d.name == "median_throughput")
    full = QColor(palette.critical).name()

    def distance(colour: QColor) -> int:
        other = QColor(full)
        return sum(abs(one - two) for one, two in zip(colour.getRgb(), other.getRgb(), strict=True))  # type: ignore[misc,call-overload]

    assert figure_colour(found["median_throughput"], palette).name() == full
    assert distance(figure_colour(slight, palette)) > 100


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_every_strength_of_colour_can_be_read(theme: Palette, qapp: QApplication) -> None:
    from gpudash.telemetry.comparing import compare

    for step_s in (0.0102, 0.0105, 0.012, 0.015, 0.02, 0.005):
        for difference in compare(MADE.run(), MADE.but(step_s=step_s).run("b")).differences:
            assert contrast(figure_colour(difference, theme).name(), theme.panel) >= 4.5


def test_three_runs_are_drawn_and_the_compared_one_is_chosen(open_runs: Open) -> None:
    document = open_runs(A, B, MADE.but(loss=0.9))
    assert document.controls.compared.isVisible()
    assert [len(curves) for curves in document.overlay._curves.values()] == [3, 3, 3]
    document.controls.compared.activated.emit(1)
    assert document.comparison is not None
    assert (document.comparison.a.label, document.comparison.b.label) == ("a", "c")
    assert [run.label for run in document.runs] == ["a", "c", "b"]
    assert document.overlay.difference.spec.title == "B MINUS A, LOSS"
    assert document.controls.compared.itemText(0) == "B: c"
    document.swap()
    assert [run.label for run in document.runs] == ["c", "a", "b"]


def test_rates_of_different_items_have_plots_of_their_own_and_different_programs_are_named_in_a_sentence(
    open_runs: Open,
) -> None:
    program = MADE.but(workload="watch", spec={"command": ["train.py"]}, step_s=2.0, steps=4)
    document = open_runs(A, program, B)
    plots = document.overlay.plots
    assert [plot.spec.unit_name for plot in plots.values() if plot.spec.unit == "number"] == ["items/s", "steps/s"]
    lengths = [[len(curve.x) for curve in plots[name].shown] for name in ("throughput", "throughput, steps")]
    assert [[bool(length) for length in each] for each in lengths] == [[True, False, True], [False, True, False]]
    said = document.headline.text()
    assert said.startswith("Different programs; only memory compares. B beside A: ")
    assert said.count("Different programs") == 1 and "seed" not in said
    assert document.figures.height() >= document.figures.height_of_all, "all figures are seen below the plots"


def test_what_was_asked_of_every_run_has_its_column(open_runs: Open) -> None:
    document = open_runs(A, B, MADE.but(spec={"model": "mlp", "precision": "fp16"}))
    assert [column.title for column in document.specs.model.columns] == ["settings and machine", "", "A", "B", "C"]
    assert list(document.specs.model.rows[0]) == ["precision", "differs", "fp32", "bf16", "fp16"]
    assert document.headline.text().startswith("The 3 runs differ in precision. B beside A: they differ in precision")


def test_runs_of_one_name_are_told_apart_by_when_they_began(open_runs: Open) -> None:
    day = 1_760_000_000.0
    runs = [replace(MADE.run("training on sim:0"), began_wall_s=day + minutes * 60) for minutes in (0, 4)]
    labels = [run.label for run in distinguished(runs, [Path("/r/a.gpudash"), Path("/r/b.gpudash")])]
    clocks = [f"{datetime.fromtimestamp(day + minutes * 60).astimezone():%H:%M}" for minutes in (0, 4)]
    assert labels == [f"training on sim:0, {clock}" for clock in clocks]
    assert comparison_title(labels) == f"{labels[0]} vs {labels[1]}"
    unknown = [replace(run, began_wall_s=None) for run in runs]
    assert [run.label for run in distinguished(unknown, [Path("/r/a.gpudash"), Path("/r/b.gpudash")])] == [
        "training on sim:0 (a)",
        "training on sim:0 (b)",
    ]


def test_a_run_says_how_it_ended_in_the_library_s_words_and_what_it_came_to() -> None:
    row = run_row(MADE.but(ending="cancelled").run())
    assert row.more.startswith("stopped · peak allocated ") and "loss" in row.more


def test_runs_without_curves_show_their_figures(open_runs: Open) -> None:
    nothing = MADE.but(steps=0, loss=None, allocated=None)
    document = open_runs(nothing, nothing)
    assert document.overlay.nothing.isVisible()
    assert not document.overlay.difference.isVisible()
    assert [row[0] for row in document.figures.model.rows] == ["whole run"]


def test_what_is_seen_can_be_taken(open_runs: Open) -> None:
    document = open_runs(A, B)
    said: list[str] = []
    document.said.connect(said.append)
    document.copy_values()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert lines[0].split("\t") == ["figure", "A", "B", "B minus A", "B over A", "verdict", "noise"]
    assert len(lines) == 1 + len(document.figures.model.rows)
    document.copy_picture()
    picture = QGuiApplication.clipboard().image()
    assert (picture.width(), picture.height()) == (1280, 760)
    assert said == ["Copied the figures.", "Copied the comparison as a picture."]


def test_a_theme_change_repaints_the_plots(open_runs: Open) -> None:
    document = open_runs(A, B)
    for theme in (LIGHT, DARK):
        document.set_palette(theme)
        document.refresh()
        assert theme.border in _colours(document.overlay.plots["loss"].canvas)


def _colours(widget: QWidget) -> set[str]:
    image = widget.grab().toImage()
    return {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}


def test_plots_say_in_words_what_they_show(open_runs: Open) -> None:
    document = open_runs(A, B)
    plot = document.overlay.plots["loss"]
    assert plot.accessibleName() == "LOSS"
    assert plot.accessibleDescription() == "Loss: A ends at 0.500, B ends at 0.400."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RecordingError("/runs/b.gpudash is not a recording: it is no SQLite file"), "is no SQLite file."),
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied."),
        (ValueError("odd"), "cannot be compared (ValueError: odd)."),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_a_way_out(qtbot: QtBot, error: Exception, words: str) -> None:
    def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
        if path.name == "a.gpudash":
            return A.run()
        raise error

    document = CompareDocument([Path("/runs/a.gpudash"), Path("/runs/b.gpudash")], DARK, load)
    qtbot.addWidget(document)
    document.show()

    def failed() -> bool:
        document.refresh()
        return document.close_button.isVisible()

    qtbot.waitUntil(failed)
    assert document.label.text().endswith(words)
    document.copy_values()
    document.swap()
    with qtbot.waitSignal(document.closed):
        document.close_button.click()


def test_closing_while_it_reads_leaves_no_thread(qtbot: QtBot) -> None:
    begun = threading.Event()

    def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
        begun.set()
        while not cancelled():
            threading.Event().wait(0.001)
        raise CancelledError

    document = CompareDocument([Path("/runs/a.gpudash"), Path("/runs/b.gpudash")], DARK, load)
    qtbot.addWidget(document)
    qtbot.waitUntil(begun.is_set)
    document.refresh()
    assert document.label.text() == "Reading a.gpudash…"
    document.close_document()
    assert "gpudash-comparison" not in [thread.name for thread in threading.enumerate()]


def test_paths_are_shown_by_what_distinguishes_them_and_are_whole_in_the_tooltip_and_in_a_copy(open_runs: Open) -> None:
    folders = [f"/home/anna/projects/vision/{name}" for name in ("main", "loader-in-two-threads")]
    commands = [["/usr/bin/python3", f"{folder}/train.py", "--lr", "0.1"] for folder in folders]
    document = open_runs(*(MADE.but(workload=WATCH, spec={"command": command}) for command in commands))
    table = document.specs
    row = next(place for place, cells in enumerate(table.model.rows) if cells[0] == "command")
    for column, command in ((2, commands[0]), (3, commands[1])):
        index = table.model.index(row, column)
        option = QStyleOptionViewItem()
        table.marks.initStyleOption(option, index)
        assert option.text == f"…/{Path(command[1]).parent.name}/train.py …"
        assert option.textElideMode is Qt.TextElideMode.ElideMiddle
        assert index.data(Qt.ItemDataRole.ToolTipRole) == plain_tip(" ".join(command))
        metrics = QFontMetrics(option.font)
        lines = table.view.rowHeight(row) // metrics.height()
        assert lines * table.view.columnWidth(column) > metrics.horizontalAdvance(option.text), "the row is high enough"
    table.copy()
    assert " ".join(commands[1]) in QGuiApplication.clipboard().text()


@pytest.mark.parametrize("count", [1, 7])
def test_too_few_or_too_many_are_refused(qapp: QApplication, count: int) -> None:
    with pytest.raises(ValueError, match=f"2 to 6 recordings; {count} were chosen"):
        CompareDocument([Path(f"{number}.gpudash") for number in range(count)], DARK)


def test_a_long_run_is_drawn_on_the_columns_there_are(open_runs: Open) -> None:
    long = MADE.but(steps=5_000)
    document = open_runs(long, long.but(loss=0.4))
    plot = document.overlay.plots["loss"]
    assert all(len(curve.x) < 6 * plot.columns for curve in plot.shown)
    assert np.isfinite(document.overlay.difference.shown[0].y).all()


def test_each_run_is_drawn_in_the_colour_and_style_of_its_letter(open_runs: Open) -> None:
    document = open_runs(*[MADE.but(loss=0.5 + place / 10) for place in range(6)])
    plot = document.overlay.plots["loss"]
    for place, spec in enumerate(reversed(plot.spec.curves)):
        pen = run_pen(place, DARK)
        assert (spec.name, DARK.curves[spec.colour]) == ("ABCDEF"[place], pen.color().name())
        assert PEN_STYLES[spec.style] == pen.style()


def test_the_cursor_is_drawn_in_all_plots_with_a_dot_on_every_run(open_runs: Open) -> None:
    document = open_runs(A, B)
    document.overlay.axis.set_cursor(100.0)
    assert document.overlay.refresh()
    for plot in (*document.overlay.plots.values(), document.overlay.difference):
        content = plot.canvas.overlay._content
        assert content.cursor_s == 100.0
        assert len(content.dots) == len(plot.shown)
    assert not document.overlay.refresh()


def test_the_axis_below_counts_what_the_runs_are_aligned_by(open_runs: Open) -> None:
    document = open_runs(A, B)
    assert [label.text for label in document.overlay.places.labels][-2:] == ["200", "steps"]
    document.controls.choose("start")
    document.refresh()
    assert document.overlay.places.labels[-1].text == "seconds from the start"


def test_an_axis_of_a_low_plot_has_two_ticks_or_more(open_runs: Open) -> None:
    plot = open_runs(A, B).overlay.difference
    for high in (0.00096, 0.0012, 3.1, 70.0):
        plot.show_curves([Curve(np.array([0.0, 1.0]), np.array([0.0, high]))])
        assert plot.y_range == (-1.1 * high, 1.1 * high)
        marks = plot._left_ticks().marks
        assert len(marks) >= 2 and len({text for _, text in marks}) == len(marks), high

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.telemetry.records import StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.reading import Row
from gpudash.ui.plots.readout import COLUMNS, Readout
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.theme import restyle
from tests.ui.plots.conftest import LOSS, Feed, refresh
from tests.unit.clock import Clock

RAMP = PlotSpec(
    "ramp", "RAMP", (CurveSpec(("run", "throughput", None), "ramp", "number", "cpu", unit_name="items/s"),), "number"
)


@pytest.fixture
def ramp(stack: PlotStack, store: Store) -> PlotStack:
    """A ramp of slope 2 with a sample every 10 ms for 100 s, far more than pixels."""
    for i in range(10_001):
        store.apply(StepFinished(time_s=i * 0.01, step=i, steps=10_000, seconds=0.01, throughput=i * 0.02))
    stack.set_plots([RAMP])
    stack.view.set_window(100.0)
    refresh(stack)
    return stack


def test_a_selected_ramp_gives_exact_figures_from_raw_samples(ramp: PlotStack, view: TimeView) -> None:
    view.select(60.0, 80.0)
    refresh(ramp)
    assert ramp.strip.open
    assert ramp.strip.card.cells() == [
        ["ramp", "120 items/s", "160 items/s", "40.0 items/s", "120 items/s", "140 items/s", "160 items/s"]
    ]
    assert ramp.strip.chip == "1:00.0 to 1:20.0 ×", "as the axis has them"
    assert ramp.strip.text == "20.0 s selected"


def test_without_a_selection_the_strip_describes_the_visible_window_and_says_so(
    ramp: PlotStack, view: TimeView
) -> None:
    view.show(50.0, 100.0)
    ramp.strip.set_open(True)
    refresh(ramp)
    assert ramp.strip.text.startswith("Visible window, 50.0 s")
    assert ramp.strip.chip == ""
    assert ramp.strip.card.cells()[0][1:3] == ["100 items/s", "200 items/s"]


def test_the_chip_clears_the_selection(ramp: PlotStack, view: TimeView, qtbot: QtBot) -> None:
    view.select(60.0, 80.0)
    refresh(ramp)
    qtbot.mouseClick(ramp.strip._chip, Qt.MouseButton.LeftButton)
    assert view.selection is None
    refresh(ramp)
    assert ramp.strip.chip == ""


def test_a_hidden_curve_has_no_row_in_the_strip(drawn: PlotStack, view: TimeView) -> None:
    view.select(12.0, 15.0)
    refresh(drawn)
    before = [row[0] for row in drawn.strip.card.cells()]
    drawn.plots[1].legend.toggle("CPU")
    refresh(drawn)
    assert [row[0] for row in drawn.strip.card.cells()] == [name for name in before if name != "CPU"]


def test_a_range_without_samples_shows_dashes_and_not_zeros(drawn: PlotStack, view: TimeView) -> None:
    view.select(30.0, 31.0)
    refresh(drawn)
    assert {cell for row in drawn.strip.card.cells() for cell in row[1:]} == {"-"}


def test_figures_of_a_moving_window_are_not_worked_out_at_every_frame(
    drawn: PlotStack, feed: Feed, clock: Clock
) -> None:
    drawn.strip.set_open(True)
    refresh(drawn)
    before = drawn.strip.card.cells()
    feed.ticks(10)
    drawn.refresh()
    assert drawn.strip.card.cells() == before
    clock.now_s += 1.0
    feed.ticks(1)
    drawn.refresh()
    assert drawn.strip.card.cells() != before


def test_the_readout_shows_raw_and_smoothed(drawn: PlotStack, view: TimeView) -> None:
    drawn.set_smoothing(0.6)
    view.set_cursor(15.0, pinned=True)
    refresh(drawn)
    text = dict(drawn.readout.rows())["loss"]
    assert text.startswith("0.250 (smoothed 0.2") and text.endswith(")")


def test_the_readout_shows_a_dash_before_the_first_and_past_the_last_sample(drawn: PlotStack, view: TimeView) -> None:
    for time_s in (-3.0, 40.0):
        view.set_cursor(time_s, pinned=True)
        refresh(drawn)
        assert {text for _, text in drawn.readout.rows()} == {"-"}


def test_a_lost_gpu_reads_as_a_dash(stack: PlotStack, feed: Feed, view: TimeView) -> None:
    feed.ticks(10)
    feed.ticks(5, lost=True)
    view.set_cursor(1.2, pinned=True)
    refresh(stack)
    rows = dict(stack.readout.rows())
    assert rows["GPU"] == rows["other processes"] == "-"
    assert rows["CPU"] == "25 %"


def test_without_a_cursor_the_readout_shows_now(drawn: PlotStack) -> None:
    assert drawn.readout.title == "now"
    assert dict(drawn.readout.rows())["accuracy"] == "100 %"


def test_the_readout_can_be_heard(drawn: PlotStack) -> None:
    assert drawn.readout.accessibleName() == "Values at the cursor"
    assert "accuracy 100 %" in drawn.readout.accessibleDescription()


def right_ends(readout: Readout) -> set[int]:
    """Where the lines end that reach into the right half, in pixels."""
    image = readout.grab().toImage()
    ground = image.pixelColor(1, 1)
    found, end = set(), 0
    for y in range(image.height()):
        inked = (x for x in range(image.width() - 1, image.width() // 2, -1) if image.pixelColor(x, y) != ground)
        reached = next(inked, 0)
        if end and not reached:
            found.add(end)
        end = max(end, reached) if reached else 0
    return found


def test_what_is_predicted_and_what_is_read_end_at_one_edge(qtbot: QtBot) -> None:
    readout = Readout(DARK)
    qtbot.addWidget(readout)
    readout.resize(readout.width(), 300)
    weights, total = (CurveSpec(("gpu", name, "a"), name, "bytes", "weights") for name in ("weights", "all"))
    predicted = [Row(weights, 1.0, None, "8.88"), Row(total, 1.0, None, "8.88", "", "sum")]
    predicted.append(Row(total, 3.0, None, "3.88", "", "rest"))
    cpu = CurveSpec(("host", "cpu", None), "CPU", "ratio", "cpu")
    readout.show_rows(None, 1.0, [(RAMP, predicted), (RAMP, [Row(cpu, 1.0, None)])])
    ends = right_ends(readout)
    assert ends and max(ends) - min(ends) <= 2, ends


def test_a_curve_of_one_plot_has_one_row(drawn: PlotStack) -> None:
    drawn.set_plots([LOSS])
    refresh(drawn)
    assert [name for name, _ in drawn.readout.rows()] == ["loss", "accuracy"]


def places(stack: PlotStack) -> list[object]:
    """Where everything is that the pointer may be on."""
    return [
        *((plot.mapTo(stack, plot.rect().topLeft()), plot.size()) for plot in stack.plots),
        *((part.pos(), part.size()) for part in (stack.axis, stack.readout, stack.strip)),
    ]


def test_nothing_moves_as_the_statistics_open_and_close(drawn: PlotStack, view: TimeView) -> None:
    before = places(drawn)
    view.select(12.0, 15.0)
    refresh(drawn)
    card = drawn.strip.card
    assert card.isVisible() and drawn.rect().contains(card.geometry())
    assert not card.geometry().intersects(drawn.axis.geometry()) and not card.geometry().intersects(
        drawn.strip.geometry()
    )
    assert places(drawn) == before
    drawn.clear_selection()
    refresh(drawn)
    assert not card.isVisible() and view.selection is None
    assert places(drawn) == before


@pytest.mark.parametrize(("selected", "side"), [((12.0, 13.0), "right"), ((18.5, 19.9), "left")])
def test_statistics_lie_where_they_hide_least_and_go_where_they_are_dragged(
    drawn: PlotStack, view: TimeView, qtbot: QtBot, selected: tuple[float, float], side: str
) -> None:
    drawn.resize(1500, 700)
    refresh(drawn)
    view.show(10.0, 20.0)
    refresh(drawn)
    view.select(*selected)
    refresh(drawn)
    card, stage = drawn.strip.card, drawn._scroll.geometry()
    assert card.width() < stage.width() and card.height() <= stage.height() / 2
    if side == "right":
        assert card.geometry().right() > drawn.readout.geometry().left(), "most of it beside the plots"
    canvas, geometry = drawn.plots[0].canvas, drawn.plots[0].geometry_now
    assert geometry is not None
    middle = canvas.mapTo(drawn, QPoint(round(geometry.x_of(sum(selected) / 2)), 0)).x()
    assert not card.geometry().left() <= middle <= card.geometry().right(), "the range is seen"
    before = card.pos()
    grip = card._title
    qtbot.mousePress(card, Qt.MouseButton.LeftButton, pos=grip.pos() + QPoint(4, 4))
    qtbot.mouseMove(card, grip.pos() + QPoint(-60, -50))
    qtbot.mouseRelease(card, Qt.MouseButton.LeftButton, pos=grip.pos() + QPoint(-60, -50))
    moved = card.pos()
    assert moved != before and drawn.rect().contains(card.geometry())
    drawn.clear_selection()
    view.select(*selected)
    refresh(drawn)
    assert card.isVisible() and card.pos() == moved, "it stays there"
    drawn.reset_layout()
    drawn.clear_selection()
    view.select(*selected)
    refresh(drawn)
    assert card.pos() == before


def test_statistics_of_the_visible_window_close_like_those_of_a_range(drawn: PlotStack) -> None:
    drawn.strip.set_open(True)
    refresh(drawn)
    assert drawn.strip.card.isVisible()
    drawn.clear_selection()
    assert not drawn.strip.open and not drawn.strip.card.isVisible()


def test_in_a_wide_window_the_statistics_are_as_wide_as_their_figures_and_lie_beside_the_range(
    drawn: PlotStack, view: TimeView
) -> None:
    drawn.resize(2200, 900)
    refresh(drawn)
    for begin, end in ((0.05, 0.2), (0.8, 0.95)):
        low, high = view.range()
        view.select(low + begin * (high - low), low + end * (high - low))
        refresh(drawn)
        geometry, card = drawn.plots[0].geometry_now, drawn.strip.card.geometry()
        assert geometry is not None and view.selection is not None
        edges = [drawn.plots[0].canvas.mapTo(drawn, QPoint(round(geometry.x_of(t)), 0)).x() for t in view.selection]
        assert card.width() == drawn.strip.card.whole_width < drawn.width() / 2
        assert card.right() < edges[0] or card.left() > edges[1], "the range is in sight"
        drawn.clear_selection()
        refresh(drawn)


def test_where_statistics_have_little_room_names_are_cut_and_no_figure_and_no_row(
    drawn: PlotStack, view: TimeView, qapp: QApplication
) -> None:
    drawn.strip.set_open(True)
    refresh(drawn)
    card = drawn.strip.card
    table = card._table
    low = table.rowHeight(0)
    try:
        restyle(drawn, DARK, 1.5)
        drawn.resize(790, 420)
        qapp.processEvents()
        refresh(drawn)
        assert card.width() < card.whole_width, "there is too little room"
        for column in range(1, len(COLUMNS)):
            assert table.columnWidth(column) >= table.sizeHintForColumn(column), COLUMNS[column]
        assert table.viewport().height() % table.rowHeight(0) <= 4
    finally:
        restyle(drawn, DARK, 1.0)
    drawn.resize(1500, 700)
    qapp.processEvents()
    refresh(drawn)
    assert table.rowHeight(0) == low and table.columnWidth(0) >= table.sizeHintForColumn(0)

import csv
import math
from pathlib import Path

import pytest
from PySide6.QtGui import QColor, QGuiApplication, QImage

from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.reading import ALL_SAMPLES
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.units import GIB
from tests.ui.plots.conftest import Feed, refresh


def _parsed(text: str) -> tuple[list[str], list[list[str]]]:
    header, *rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    return header, rows


def test_copied_values_are_the_store_s_raw_samples(drawn: PlotStack, view: TimeView, store: Store) -> None:
    view.select(12.0, 15.0)
    drawn.set_smoothing(0.9)
    header, rows = _parsed(drawn.selection_text())
    assert header == [
        "time (s)",
        "other processes (bytes)",
        "free (bytes)",
        "GPU (ratio)",
        "CPU (ratio)",
        "loss (nats)",
        "accuracy (ratio)",
    ]
    series = store.series("run", "loss")
    assert series is not None
    times, values = series.window(11.95, 15.05, ALL_SAMPLES)
    inside = (times >= 12.0) & (times <= 15.0)
    assert [float(row[0]) for row in rows] == times[inside].tolist()
    assert [float(row[5]) for row in rows] == values[inside].tolist()
    assert rows[0][1] == str(round(12.0 * 0.1 * GIB))


def test_copied_values_leave_out_hidden_curves(drawn: PlotStack) -> None:
    drawn.plots[1].legend.toggle("GPU")
    assert _parsed(drawn.selection_text(drawn.plots[1]))[0] == ["time (s)", "CPU (ratio)"]


def test_a_gap_is_copied_as_nan_and_no_sample_as_an_empty_field(stack: PlotStack, feed: Feed, store: Store) -> None:
    feed.ticks(5)
    feed.ticks(1, lost=True)
    store.apply(Sample(0.55, "host", None, {"cpu_utilisation": 0.9}))
    refresh(stack)
    _, rows = _parsed(stack.selection_text(stack.plots[1]))
    assert [math.isnan(float(row[1])) for row in rows[:-1]] == [False] * 5 + [True]
    assert rows[-1] == ["0.55", "", "0.9"]


def test_without_a_selection_the_visible_window_is_copied(drawn: PlotStack, view: TimeView) -> None:
    _, rows = _parsed(drawn.selection_text())
    assert float(rows[0][0]) == pytest.approx(10.0) and float(rows[-1][0]) == 20.0


def test_an_exported_range_is_read_back_as_it_was(drawn: PlotStack, view: TimeView, tmp_path: Path) -> None:
    view.select(12.0, 15.0)
    path = tmp_path / "range.csv"
    count = drawn.save_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert ["\t".join(row) for row in rows] == drawn.selection_text().splitlines()
    assert count == len(rows) - 1 == 31
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["range.csv"]


def test_an_export_that_cannot_be_written_leaves_what_was_there(drawn: PlotStack, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        drawn.save_csv(tmp_path / "absent" / "range.csv")
    failed: list[str] = []
    drawn.failed.connect(failed.append)
    menu = PlotMenu(drawn, lambda *_: str(tmp_path / "absent" / "range.csv")).build(drawn.plots[0])
    next(action for action in menu.actions() if action.text().startswith("Export")).trigger()
    assert len(failed) == 1 and failed[0].endswith("choose another folder.")


def test_leaving_the_dialog_writes_nothing(drawn: PlotStack, tmp_path: Path) -> None:
    told: list[str] = []
    drawn.reported.connect(told.append)
    menu = PlotMenu(drawn, lambda *_: "").build(drawn.plots[0])
    for action in menu.actions():
        if action.text().startswith(("Export", "Save")):
            action.trigger()
    assert told == []


def test_the_menu_saves_a_picture_of_its_plot(drawn: PlotStack, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    menu = PlotMenu(drawn, lambda *_: str(path)).build(drawn.plots[1])
    next(action for action in menu.actions() if action.text().startswith("Save picture")).trigger()
    picture = QImage(str(path))
    assert picture.width() >= drawn.plots[1].width() and picture.height() < 2 * drawn.plots[1].height()


def test_copying_puts_text_and_picture_on_the_clipboard(drawn: PlotStack) -> None:
    menu = PlotMenu(drawn).build(drawn.plots[1])
    actions = {action.text(): action for action in menu.actions()}
    actions["Copy values"].trigger()
    assert QGuiApplication.clipboard().text() == drawn.selection_text(drawn.plots[1])
    actions["Copy graph as image"].trigger()
    assert not QGuiApplication.clipboard().image().isNull()


@pytest.mark.parametrize("palette", [None, LIGHT], ids=["the theme in force", "print"])
def test_a_picture_has_the_ground_of_its_theme_and_says_what_it_shows(drawn: PlotStack, palette: object) -> None:
    drawn.caption = lambda: ("training, transformer", "cuda:0 RTX 4090")
    picture = drawn.picture(palette=palette)
    assert picture.pixelColor(3, 3) == QColor((palette or DARK).panel)
    assert picture.text("Title") == "training, transformer, cuda:0 RTX 4090 · 0:10 to 0:20 of the session (10 s)"
    words = {picture.pixelColor(x, y).name() for x in range(12, 200) for y in range(8, 40)}
    assert len(words) > 10


def test_a_picture_for_print_leaves_the_window_as_it_was(drawn: PlotStack) -> None:
    before = drawn.grab().toImage()
    drawn.picture(drawn.plots[0], palette=LIGHT)
    refresh(drawn)
    assert drawn.styleSheet() == ""
    assert drawn.grab().toImage() == before


def test_a_picture_that_cannot_be_written_says_so(drawn: PlotStack, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not be written"):
        drawn.save_picture(tmp_path / "absent" / "plots.png")


def test_the_readings_of_a_lost_gpu_stay_a_gap_in_the_copy(stack: PlotStack, feed: Feed) -> None:
    feed.ticks(3)
    feed.ticks(2, lost=True)
    refresh(stack)
    _, rows = _parsed(stack.selection_text(stack.plots[0]))
    assert [row[1] for row in rows[3:]] == ["nan", "nan"]

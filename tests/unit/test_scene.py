"""A scene as SVG: places and values become pixels, gaps stay gaps, and a text stays a text."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest

from gpudash.drawing.scene import (
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneBand,
    SceneCurve,
    SceneFrame,
    SceneLevel,
    SceneMark,
    SceneNote,
)
from gpudash.drawing.svg import svg

NAN = float("nan")
EVIL = "<script>alert(1)</script>\"'&\x1b"
FRAME = SceneFrame(width=120, height=70, left=10, right=10, top=10, bottom=10)
"""Its plot area is 100 pixels wide and 50 high."""


def painted(items: Sequence[Item], description: str = "", right: SceneAxis | None = None) -> ElementTree.Element:
    left = SceneAxis(0, 10, ((5, "five"),))
    return ElementTree.fromstring(svg(PlotScene(description, SceneAxis(0, 100), left, items, right, FRAME)))


def curve(x: list[float], y: list[float], *, right: bool = False) -> SceneCurve:
    return SceneCurve(np.array(x), np.array(y), "line", right)


@pytest.mark.parametrize(
    ("x", "y", "path"),
    [
        ([0, 100], [0, 10], "M10,60 110,10"),
        ([0, 50, 100], [0, NAN, 10], "M10,60 h.1M110,10 h.1"),
        ([-50, 150], [-5, 99], "M10,60 110,10"),
        ([0, 1, 2], [NAN, NAN, NAN], ""),
    ],
)
def test_a_curve_is_a_path_that_breaks_at_gaps_and_ends_at_the_plot_area(
    x: list[float], y: list[float], path: str
) -> None:
    (line,) = painted([curve(x, y)]).findall("path")
    assert line.get("d") == path


def test_a_curve_of_the_right_axis_is_drawn_against_it() -> None:
    root = painted([curve([0, 100], [1, 1], right=True)], right=SceneAxis(0, 1, ((1, "100 %"),)))
    assert root.find("path").get("d") == "M10,10 110,10"  # type: ignore[union-attr]
    assert [text.text for text in root.iter("text")] == ["five", "100 %"]


def test_an_area_goes_down_to_zero_at_every_gap() -> None:
    area = SceneArea(np.array([0.0, 50.0, 100.0]), np.array([10.0, NAN, 5.0]), "fill")
    assert painted([area]).find("path").get("d") == "M10,60 10,10 10,60ZM110,60 110,35 110,60Z"  # type: ignore[union-attr]


def test_levels_marks_bands_and_notes_are_where_their_values_are() -> None:
    root = painted(
        [SceneLevel(10, "top"), SceneMark(50, "mark"), SceneBand(0, 25, "phase"), SceneNote(100, 0, "end", down=5)]
    )
    found = {element.get("class"): element for element in root.iter() if element.get("class")}
    assert (found["top"].get("y1"), found["mark"].get("x1"), found["phase"].get("width")) == ("10", "60", "25")
    note = next(text for text in root.iter("text") if text.text == "end")
    assert (note.get("x"), note.get("y")) == ("110", "65")


def test_a_foreign_text_is_text_wherever_it_stands() -> None:
    root = painted([SceneMark(1, "mark", EVIL), SceneBand(0, 1, "band", EVIL), SceneNote(0, 0, EVIL)], description=EVIL)
    shown = EVIL.replace("\x1b", "\\x1b")
    assert {element.tag for element in root.iter()} == {"svg", "line", "rect", "text", "title"}
    assert [element.text for element in root.iter("title")] == [shown, shown]
    assert root.get("aria-label") == shown

"""Paints a scene as SVG, whose classes are the kinds of the scene's items; the page has the colours of each."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from markupsafe import Markup

from gpudash.drawing.scene import (
    Floats,
    Item,
    PlotScene,
    SceneArea,
    SceneAxis,
    SceneBand,
    SceneCurve,
    SceneDot,
    SceneLevel,
    SceneMark,
    SceneNote,
    SceneRibbons,
    outline,
    pieces,
)
from gpudash.system.foreign_text import visible

TICK_GAP_PX = 6
"""Between an axis and the labels of its ticks."""

BASELINE_PX = 4
"""From the middle of a line of text down to its baseline."""

BELOW_PX = 17
"""From the plot area down to the baseline of the labels below it."""


def svg(scene: PlotScene) -> Markup:
    """The drawing as an element of a page."""
    frame = scene.frame
    root = Element(
        "svg",
        {
            "viewBox": f"0 0 {_px(frame.width)} {_px(frame.height)}",
            "role": "img",
            "aria-label": visible(scene.description),
        },
    )
    _paint_axes(root, scene)
    for item in scene.items:
        _paint(root, scene, item)
    return Markup(tostring(root, encoding="unicode"))  # it has escaped every text


def _paint_axes(root: Element, scene: PlotScene) -> None:
    frame = scene.frame
    for value, label in scene.left.ticks:
        # Lines of the grid are painted first and lie below everything.
        _paint(root, scene, SceneLevel(value, "grid"))
        _text(root, frame.left - TICK_GAP_PX, float(scene.y(value)) + BASELINE_PX, label, anchor="end")
    for place, label in scene.across.ticks:
        _text(root, float(scene.x(place)), frame.height - frame.bottom + BELOW_PX, label, anchor="middle")
    for value, label in () if scene.right is None else scene.right.ticks:
        middle = float(scene.y(value, scene.right))
        _text(root, frame.width - frame.right + TICK_GAP_PX, middle + BASELINE_PX, label)


def _paint(root: Element, scene: PlotScene, item: Item) -> None:
    frame = scene.frame
    top, floor = _px(frame.top), _px(frame.height - frame.bottom)
    match item:
        case SceneCurve():
            SubElement(root, "path", {"class": item.kind, "d": _line(scene, item)})
        case SceneArea():
            SubElement(root, "path", {"class": item.kind, "d": _outline(scene, item)})
        case SceneBand():
            left, right = float(scene.x(item.start)), float(scene.x(item.end))
            # Half a pixel at least, so that a short stretch does not vanish.
            place = {"x": _px(left), "y": top, "width": _px(max(0.5, right - left))}
            height = _px(frame.height - frame.bottom - frame.top)
            _titled(SubElement(root, "rect", {"class": item.kind, **place, "height": height}), item.title)
        case SceneLevel():
            y = _px(float(scene.y(item.value)))
            ends = {"x1": _px(frame.left), "x2": _px(frame.width - frame.right), "y1": y, "y2": y}
            SubElement(root, "line", {"class": item.kind, **ends})
        case SceneMark():
            x = _px(float(scene.x(item.place)))
            ends = {"x1": x, "x2": x, "y1": top, "y2": floor}
            _titled(SubElement(root, "line", {"class": item.kind, **ends}), item.title)
        case SceneDot():
            at = {"cx": _px(float(scene.x(item.place))), "cy": _px(float(scene.y(item.value)))}
            SubElement(root, "circle", {"class": item.kind, **at, "r": _px(item.radius)})
        case SceneRibbons():
            low = np.zeros(len(item.x) - 1)
            for high, kind, title in zip(item.tops, item.kinds, item.titles, strict=True):
                shapes = outline(item.x, low, high)
                if shapes:
                    path = "".join(f"M{_points(scene.x(x), scene.y(y))}Z" for x, y in shapes)
                    _titled(SubElement(root, "path", {"class": kind, "d": path}), title)
                low = high
        case SceneNote():
            across, down = float(scene.x(item.place)) + item.right, float(scene.y(item.value)) + item.down
            _text(root, across, down, item.text, anchor=item.anchor, kind=item.kind)


def _line(scene: PlotScene, curve: SceneCurve) -> str:
    """A path that is broken at gaps; a single point is a dot."""
    axis = _axis(scene, curve)
    found = []
    for x, y in pieces(curve.x, curve.y):
        points = _points(scene.x(x), scene.y(y, axis))
        # A line of no length is not painted by every browser.
        found.append(f"M{points} h.1" if len(x) == 1 else f"M{points}")
    return "".join(found)


def _outline(scene: PlotScene, area: SceneArea) -> str:
    """A closed path for each piece: from zero up to its first point, along all of them, and down to zero."""
    axis = _axis(scene, area)
    zero = _px(float(scene.y(0.0, axis)))
    found = []
    for x, y in pieces(area.x, area.y):
        across = scene.x(x)
        first, last = _px(float(across[0])), _px(float(across[-1]))
        found.append(f"M{first},{zero} {_points(across, scene.y(y, axis))} {last},{zero}Z")
    return "".join(found)


def _axis(scene: PlotScene, item: SceneCurve | SceneArea) -> SceneAxis:
    if item.right and scene.right is not None:
        return scene.right
    return scene.left


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{_px(across)},{_px(down)}" for across, down in zip(x.tolist(), y.tolist(), strict=True))


def _text(root: Element, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> None:
    of_kind = {}
    if kind:
        of_kind = {"class": kind}
    if anchor == "start":
        anchored = {}
    else:
        anchored = {"text-anchor": anchor}
    SubElement(root, "text", {**of_kind, "x": _px(x), "y": _px(y), **anchored}).text = visible(text)


def _titled(element: Element, title: str) -> None:
    if title:
        SubElement(element, "title").text = visible(title)


def _px(value: float) -> str:
    """Pixels to a tenth, as short as they can be written."""
    return f"{value:.1f}".removesuffix(".0")

"""Qt's SVG for programs that know only the basics of SVG.

Qt draws a curve in the units of its data, under a matrix, with a stroke that does not scale with it
(``vector-effect``); office programs and ImageMagick scale the stroke too. Here curves get the coordinates of the
picture, and are cut at the edges of their plot, since Qt's own reader ignores clip paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

Point = tuple[float, float]

Area = tuple[float, float, float, float]
"""Left, top, right and bottom."""

_GROUP = re.compile(r'(<g [^>]*?transform="matrix\()([^)]*)(\)"[^>]*>)(.*?)(</g>)', re.DOTALL)
_EFFECT = re.compile(r' vector-effect="[^"]*"')
_SHAPE = re.compile(r"<(path|polyline|polygon) [^>]*?/>")
_POINTS = re.compile(r' (points|d)="([^"]*)"')
_PAIR = re.compile(r"([^\s,MLZ]+)[,\s]+([^\s,MLZ]+)")
_OTHER = re.compile(r"<(?:text|rect|circle|ellipse|image|use)\b")
_STRAIGHT = re.compile(r"[-+.,eMLZ\d\s]*")


def flattened(svg: str, within: Area | None = None) -> str:
    """A piece of Qt's SVG without ``vector-effect``.

    Args:
        svg: elements in groups that are not nested, as `QSvgGenerator` writes them.
        within: cuts the curves at this rectangle.
    """
    return _EFFECT.sub("", _GROUP.sub(lambda group: _flat_group(group, within), svg))


def is_straight(svg: str) -> bool:
    """Whether everything drawn consists of straight lines, which `flattened` cuts; ImageMagick draws nothing in a group
    with a clip path."""
    straight = all(_STRAIGHT.fullmatch(found[2]) for found in _POINTS.finditer(svg))
    return straight and not _OTHER.search(svg)


def _flat_group(group: re.Match[str], within: Area | None) -> str:
    opening, numbers, opened, content, closing = group.groups()
    a, b, c, d, e, f = map(float, numbers.split(","))
    if not content.strip():
        return ""
    # Text and curved paths keep their matrix; Qt writes them in the units of the picture.
    if not _SHAPE.search(content) or not is_straight(content):
        return group.group()

    def placed(x: float, y: float) -> Point:
        return a * x + c * y + e, b * x + d * y + f

    flat = _SHAPE.sub(lambda shape: _flat_shape(shape, placed, 'fill="none"' in opening + opened, within), content)
    return f"{opening}1,0,0,1,0,0{opened}{flat}{closing}"


def _flat_shape(
    shape: re.Match[str], placed: Callable[[float, float], Point], is_line: bool, within: Area | None
) -> str:
    """A shape in the coordinates of the picture; "" if nothing of it is in the area."""
    found = _POINTS.search(shape.group())
    if found is None:
        return shape.group()
    runs = [[placed(float(x), float(y)) for x, y in _PAIR.findall(run)] for run in found[2].split("M")]
    closed = shape[1] == "polygon" or not (is_line or shape[1] == "polyline")
    ends = " Z" if closed or "Z" in found[2] else ""
    if within is not None and closed:
        runs = [_cut_area(run, within) for run in runs]
    elif within is not None:
        runs = [part for run in runs for part in _cut_line(run, within)]
    path = " ".join("M" + " L".join(f"{x:.6g},{y:.6g}" for x, y in run) + ends for run in runs if run)
    if not path:
        return ""
    start, end = found.span()
    attributes = f'{shape.group()[:start]} d="{path}"{shape.group()[end:]}'
    return attributes.replace(f"<{shape[1]}", "<path", 1)


def _cut_line(points: Sequence[Point], area: Area) -> Iterator[list[Point]]:
    """The parts of a line in ``area`` (Liang and Barsky, 1984)."""
    part: list[Point] = []
    for begin, end in pairwise(points):
        entry, exit_ = _inside(begin, end, area)
        if entry > exit_:
            continue
        first, last = _between(begin, end, entry), _between(begin, end, exit_)
        if not part or part[-1] != first:
            if part:
                yield part
            part = [first]
        part.append(last)
    if part:
        yield part


def _inside(begin: Point, end: Point, area: Area) -> tuple[float, float]:
    """The shares of a segment at which it enters and leaves ``area``; the first is the greater if it misses it."""
    entry, exit_ = 0.0, 1.0
    for axis in (0, 1):
        way = end[axis] - begin[axis]
        low, high = area[axis] - begin[axis], area[axis + 2] - begin[axis]
        if way == 0:
            if low > 0 or high < 0:
                return 1.0, 0.0
            continue
        near, far = sorted((low / way, high / way))
        entry, exit_ = max(entry, near), min(exit_, far)
    return entry, exit_


def _between(begin: Point, end: Point, share: float) -> Point:
    if share == 1.0:
        return end
    return begin[0] + share * (end[0] - begin[0]), begin[1] + share * (end[1] - begin[1])


def _cut_area(points: list[Point], area: Area) -> list[Point]:
    """The part of a polygon in ``area``, one edge of it after the other (Sutherland and Hodgman, 1974)."""
    for axis, edge, sign in ((0, area[0], 1), (0, area[2], -1), (1, area[1], 1), (1, area[3], -1)):
        kept: list[Point] = []
        for place, end in enumerate(points):
            begin = points[place - 1]
            ahead, behind = sign * (end[axis] - edge), sign * (begin[axis] - edge)
            if (ahead >= 0) != (behind >= 0):
                kept.append(_between(begin, end, behind / (behind - ahead)))
            if ahead >= 0:
                kept.append(end)
        points = kept
    return points

"""Lays out a call tree in rectangles, as an icicle or a treemap. Anything narrower than a pixel is skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpudash.memory.frames import Frame, is_library
from gpudash.memory.snapshot.history.groups import Node
from gpudash.memory.snapshot.history.model import Stack
from gpudash.memory.snapshot.history.phases import NO_STACK
from gpudash.telemetry.explanation import short
from gpudash.units import summed_bytes


@dataclass(frozen=True, slots=True)
class TreeBranch:
    """A branch that is not a frame: blocks without a stack, or the root of the whole tree."""

    name: str
    file: str
    line: int
    bytes: int
    count: int
    children: tuple[Branch, ...] = ()
    number: int = -1


Branch: TypeAlias = Node | TreeBranch
"""A frame and everything allocated below it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A branch and its rectangle.

    Attributes:
        path: frames from the outermost to this one, without the root.
        depth: depth below the branch that was laid out.
    """

    branch: Branch
    path: tuple[tuple[str, int, str], ...]
    depth: int
    left: float
    top: float
    width: float
    height: float

    def holds(self, x: float, y: float) -> bool:
        """Whether the box contains the point."""
        return self.left <= x < self.left + self.width and self.top <= y < self.top + self.height


def frame_of(branch: Branch) -> tuple[str, int, str]:
    """The branch's frame as (file, line, name)."""
    return branch.file, branch.line, branch.name


def whole(root: Branch, without: Mapping[str, tuple[int, int]]) -> Branch:
    """The root of a tree, with added branches for blocks that have no stack.

    Args:
        root: the tree of the blocks with a stack.
        without: category → bytes and number of blocks without a Python stack.
    """
    outside = [
        TreeBranch(stackless(category), "", 0, own, blocks) for category, (own, blocks) in without.items() if own
    ]
    children = sorted([*root.children, *outside], key=lambda branch: -branch.bytes)
    return TreeBranch("all", "", 0, root.bytes, root.count, tuple(children))


def stackless(category: str) -> str:
    """The label of blocks without a stack; only their category may be known."""
    if category == NO_STACK:
        return category
    return f"{category}, {NO_STACK}"


def own_code(stack: Stack) -> Stack:
    """The stack's frames outside of libraries; if there are none, its innermost Python frame."""
    own = tuple(frame for frame in stack if not is_library(Frame(*frame)))
    return own or tuple(frame for frame in stack if frame[0].endswith(".py"))[:1]


def beneath(root: Branch, path: Sequence[tuple[str, int, str]]) -> Branch | None:
    """The branch at the end of a path; ``None`` if there is none."""
    for frame in path:
        found = next((child for child in root.children if frame_of(child) == frame), None)
        if found is None:
            return None
        root = found
    return root


def icicle(
    root: Branch, width: float, row: float, *, above: tuple[tuple[str, int, str], ...] = (), least: float = 1.0
) -> list[Box]:
    """Rows from the outermost frame down; each frame's width is its share of the bytes.

    Args:
        root: the branch that fills the first row.
        width: total width in pixels.
        row: height of a row in pixels.
        above: path of `root`.
        least: minimum width in pixels; narrower frames are skipped with their callees.
    """
    boxes = []
    stack = [(root, above, 0, 0.0, width)]
    while stack:
        branch, path, depth, left, wide = stack.pop()
        boxes.append(Box(branch, path, depth, left, depth * row, wide, row))
        if not branch.bytes:
            continue
        for child in branch.children:
            share = wide * child.bytes / branch.bytes
            if share >= least:
                stack.append((child, (*path, frame_of(child)), depth + 1, left, share))
            left += share
    return boxes


def treemap(
    root: Branch,
    width: float,
    height: float,
    *,
    above: tuple[tuple[str, int, str], ...] = (),
    head: float = 16.0,
    least: float = 3.0,
) -> list[Box]:
    """Nested rectangles, each headed by a frame's name (Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000).

    Frames that were called from a single line and account for nearly all of its memory are merged into one.

    Args:
        root: the branch that fills the whole area.
        width, height: in pixels.
        above: path of `root`.
        head: height of a name, for boxes with room for one.
        least: minimum side in pixels; smaller boxes are skipped.
    """
    boxes: list[Box] = []
    stack: list[tuple[Branch, tuple[tuple[str, int, str], ...], int, float, float, float, float]] = [
        (root, above, 0, 0.0, 0.0, width, height)
    ]
    while stack:
        branch, path, depth, left, top, wide, high = stack.pop()
        while len(branch.children) == 1 and branch.children[0].bytes >= branch.bytes * 0.98:
            branch = branch.children[0]
            path = (*path, frame_of(branch))
        boxes.append(Box(branch, path, depth, left, top, wide, high))
        if not branch.children or not branch.bytes or wide < 4 * least or high < 4 * least:
            continue
        edge = 2.0
        heading = edge
        if high >= 2.5 * head and wide >= 3 * head:
            heading = head
        room = (left + edge, top + heading, wide - 2 * edge, high - heading - edge)
        if room[2] < least or room[3] < least:
            continue
        room = (room[0], room[1], room[2], room[3] * summed_bytes(branch.children) / branch.bytes)
        for child, place in _squares(branch.children, room, least):
            stack.append((child, (*path, frame_of(child)), depth + 1, *place))
    return boxes


Room = tuple[float, float, float, float]


def _squares(children: Sequence[Branch], room: Room, least: float) -> Iterator[tuple[Branch, Room]]:
    """The children in rows along the shorter side of the free area, each row as square as possible."""
    ordered = sorted((child for child in children if child.bytes > 0), key=lambda child: -child.bytes)
    left, top, wide, high = room
    total = summed_bytes(ordered)
    if not total:
        return
    scale = wide * high / total
    at = 0
    while at < len(ordered) and wide >= least and high >= least:
        side = min(wide, high)
        end = _row_end(ordered, at, side, scale)
        area = summed_bytes(ordered[at:end]) * scale
        thick = area / side
        along = 0.0
        for child in ordered[at:end]:
            long = child.bytes * scale / thick
            if wide >= high:
                place = (left, top + along, thick, long)
            else:
                place = (left + along, top, long, thick)
            if place[2] >= least and place[3] >= least:
                yield child, place
            along += long
        if wide >= high:
            left, wide = left + thick, wide - thick
        else:
            top, high = top + thick, high - thick
        at = end


def _row_end(ordered: Sequence[Branch], at: int, side: float, scale: float) -> int:
    """The end of the row that starts at ``at``: another child would make its worst rectangle less square."""
    area, worst, end = 0.0, float("inf"), at
    largest = ordered[at].bytes * scale
    while end < len(ordered):
        size = ordered[end].bytes * scale
        area += size
        thick = area / side
        now = max(largest / thick**2, thick**2 / size)
        if now > worst:
            return end
        worst, end = now, end + 1
    return end


def branch_text(branch: Branch) -> str:
    """A frame's short name: "train.py:41 step"."""
    if not branch.file:
        return branch.name
    return f"{short(branch.file)}:{branch.line} {branch.name}"

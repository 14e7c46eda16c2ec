"""Sums of blocks: by call site, and as the call tree of live memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.frames import Frame as HeldFrame
from gpudash.memory.frames import is_installed, is_library
from gpudash.memory.snapshot.history.model import Frame, Stack, is_python
from gpudash.telemetry.explanation import NO_STACK, site_name

Ints = NDArray[np.int64]


class Sites:
    """The program's lines that stacks come from: for each stack the innermost line of the program's own code, else of
    a library.

    Attributes:
        frames: file, line and function of each site; the last one is for blocks without a stack.
        of_stack: site of each stack, followed by that of blocks without a stack.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        number_of: dict[tuple[str, int], int] = {}
        self.frames: list[tuple[str, int, str]] = []
        of_stack: list[int] = []
        flat: list[int] = []
        counts: list[int] = []
        kept: dict[tuple[str, int, str], int | None] = {}
        for stack in stacks:
            # A dict as an ordered set: a recursive function counts once for its line.
            lines: dict[int, None] = {}
            for frame in stack:
                if frame not in kept:
                    # Frames recur in thousands of stacks: check each once.
                    if is_library(HeldFrame(*frame)):
                        kept[frame] = None
                    else:
                        kept[frame] = self._number(frame, number_of)
                number = kept[frame]
                if number is not None:
                    lines[number] = None
            own = next((number for number in lines if not is_installed(HeldFrame(*self.frames[number]))), None)
            if own is None:
                own = next(iter(lines), None)
            if own is None and (inner := next(filter(is_python, stack), None)):
                own = self._number(inner, number_of)
                lines = {own: None}
            of_stack.append(-1 if own is None else own)
            flat += lines
            counts.append(len(lines))
        without = len(self.frames)
        self.frames.append(("", 0, NO_STACK))
        self.of_stack: Ints = np.array([*(without if site < 0 else site for site in of_stack), without], np.int64)
        self._flat: Ints = np.array(flat, np.int64)
        self._counts: Ints = np.array(counts, np.int64)

    def _number(self, frame: tuple[str, int, str], number_of: dict[tuple[str, int], int]) -> int:
        found = number_of.setdefault(frame[:2], len(self.frames))
        if found == len(self.frames):
            self.frames.append(frame)
        return found

    def totals(self, stack: Ints, size: Ints) -> Ints:
        """Bytes by site, of all blocks with its line anywhere in their stack.

        Args:
            stack: stack of each block, -1 for none.
            size: size of each block in bytes.
        """
        sites = len(self.frames)
        own = _sums(self.of_stack[stack], size, sites)
        # Each stack adds its bytes to all of its lines; blocks without a stack are in the last bin, which is dropped.
        by_stack = _sums(stack, size, len(self._counts) + 1, wrap=True)[:-1]
        return np.maximum(_sums(self._flat, np.repeat(by_stack, self._counts), sites), own)

    def name(self, site: int) -> str:
        """A site's short name: "train.py:41 step"."""
        return site_name(*self.frames[site])


def _sums(key: Ints, size: Ints, kinds: int, wrap: bool = False) -> Ints:
    """Sums of bytes by key; exact, since no sum reaches 2**53."""
    # Negative keys count from the end, so -1, for no stack, is the last bin.
    places = key
    if wrap:
        places = key % kinds
    return np.bincount(places, weights=size, minlength=kinds).astype(np.int64)


ROOT = 0


class Paths:
    """All stacks of a snapshot as paths in one tree of frames, without C++ frames.

    Attributes:
        frames: frame of each node, ``None`` for the root.
        parent: parent of each node; its number is smaller than its children's.
        depth: depth of each node, 0 for the root.
        leaf: node at which each stack ends, followed by the root, for blocks without a stack.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        frames: list[Frame | None] = [None]
        parent, depth, leaf = [ROOT], [0], []
        # A prefix tree, outermost frame first; children are created after their parent, so their numbers are higher.
        child_of: dict[tuple[int, Frame], int] = {}
        for stack in stacks:
            node = ROOT
            for frame in filter(is_python, reversed(stack)):
                found = child_of.get((node, frame))
                if found is None:
                    found = child_of[node, frame] = len(frames)
                    frames.append(frame)
                    parent.append(node)
                    depth.append(depth[node] + 1)
                node = found
            leaf.append(node)
        self.frames = frames
        self.parent: Ints = np.array(parent, np.int64)
        self.depth: Ints = np.array(depth, np.int64)
        self.leaf: Ints = np.array([*leaf, ROOT], np.int64)
        # Nodes by depth: sums are computed upwards, one level at a time.
        order = np.argsort(self.depth, kind="stable")
        self._levels = np.split(order, np.flatnonzero(np.diff(self.depth[order])) + 1)

    def totals(self, own: Ints) -> Ints:
        """The sum of each node and all below it, from the nodes' own values."""
        total = own.copy()
        for level in reversed(self._levels[1:]):
            total += np.bincount(self.parent[level], weights=total[level], minlength=len(total)).astype(np.int64)
        return total


class _Figures:
    """Bytes and counts of every node for a set of blocks, and the children that have any."""

    def __init__(self, paths: Paths, own_bytes: Ints, own_count: Ints) -> None:
        self.paths = paths
        self.own = own_bytes
        self.bytes = paths.totals(own_bytes)
        self.count = paths.totals(own_count)
        live = np.flatnonzero(self.count[1:] > 0) + 1
        # Children of a parent are adjacent, the largest first: `children` returns a slice.
        self._order = live[np.lexsort((-self.bytes[live], paths.parent[live]))]
        parents = paths.parent[self._order]
        begins = np.flatnonzero(np.diff(parents, prepend=-1))
        ends = np.append(begins, len(parents))[1:]
        self._places = dict(
            zip(parents[begins].tolist(), zip(begins.tolist(), ends.tolist(), strict=True), strict=True)
        )

    def children(self, node: int) -> list[int]:
        begin, end = self._places.get(node, (0, 0))
        found: list[int] = self._order[begin:end].tolist()
        return found


class Node:
    """A call, and the live memory allocated in it and in the calls below it; sizes in bytes.

    Attributes:
        number: number of the node, the same at every moment.
        file, line, name: position of the frame; "" and 0 for the root.
        bytes, count: size and number of the blocks.
        own: bytes allocated by this line itself.
    """

    def __init__(self, figures: _Figures, number: int) -> None:
        self._figures = figures
        self.number = number
        frame = figures.paths.frames[number]
        self.file, self.line, self.name = frame or ("", 0, "")
        self.bytes = int(figures.bytes[number])
        self.count = int(figures.count[number])
        self.own = int(figures.own[number])

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """The calls made by this one, the largest first."""
        return tuple(Node(self._figures, child) for child in self._figures.children(self.number))


def tree(paths: Paths, stack: Ints, size: Ints) -> Node:
    """The root of the call tree of some blocks.

    Args:
        paths: paths of all stacks.
        stack: stack of each block, -1 for none.
        size: size of each block in bytes.
    """
    leaf = paths.leaf[stack]
    nodes = len(paths.frames)
    own = np.bincount(leaf, weights=size, minlength=nodes).astype(np.int64)
    return Node(_Figures(paths, own, np.bincount(leaf, minlength=nodes)), ROOT)

"""The call tree of what is alive: bytes by stack, outermost call at the root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.model import Frame, Stack, is_python

Ints = NDArray[np.int64]

ROOT = 0


class Paths:
    """All stacks of a snapshot as paths in one tree of frames; C++ frames are left out.

    Attributes:
        frames: of each node, ``None`` for the root.
        parent: of each node; a parent's number is below its children's.
        depth: of each node, 0 for the root.
        leaf: node at which each stack ends, and behind them the root, for what has no stack.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        frames: list[Frame | None] = [None]
        parent, depth, leaf = [ROOT], [0], []
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
        order = np.argsort(self.depth, kind="stable")
        self._levels = np.split(order, np.flatnonzero(np.diff(self.depth[order])) + 1)

    def totals(self, own: Ints) -> Ints:
        """What each node and all below it have, from what each has itself."""
        total = own.copy()
        for level in reversed(self._levels[1:]):
            total += np.bincount(self.parent[level], weights=total[level], minlength=len(total)).astype(np.int64)
        return total


class _Figures:
    """Bytes and counts of every node for one set of blocks, and the children that have any."""

    def __init__(self, paths: Paths, own_bytes: Ints, own_count: Ints) -> None:
        self.paths = paths
        self.own = own_bytes
        self.bytes = paths.totals(own_bytes)
        self.count = paths.totals(own_count)
        live = np.flatnonzero(self.count[1:] > 0) + 1
        # of each parent the largest first
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
    """A call, and what is alive of what was allocated in it and in what it called; sizes in bytes.

    Attributes:
        number: of the node among the paths, the same at every moment.
        file, line, name: of the frame; "" and 0 for the root.
        bytes, count: of the blocks.
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
        """What it called, the largest first."""
        return tuple(Node(self._figures, child) for child in self._figures.children(self.number))


def tree(paths: Paths, stack: Ints, size: Ints) -> Node:
    """The root of the call tree of blocks.

    Args:
        paths: of all stacks.
        stack: of each block, -1 without one.
        size: of each block, bytes.
    """
    leaf = paths.leaf[stack]
    nodes = len(paths.frames)
    own = np.bincount(leaf, weights=size, minlength=nodes).astype(np.int64)
    return Node(_Figures(paths, own, np.bincount(leaf, minlength=nodes)), ROOT)

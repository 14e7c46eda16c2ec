"""Shapes of a program's tensors at a few of its steps, and which of its variables grows as a line's requests do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpudash.memory.snapshot.history.history import History

Shape = tuple[int, ...]


class SeenTensor(NamedTuple):
    """A tensor in a variable of a running function.

    Attributes:
        time_us: microseconds since 1970.
        file, function: the function.
        name: variable, with the key or the place in a collection.
        shape: its shape.
        bytes, stored_bytes: size of its elements, and of the storage that it may share.
    """

    time_us: int
    file: str
    function: str
    name: str
    shape: Shape
    bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class GrowingVariable:
    """A variable whose tensor becomes larger.

    Attributes:
        file, function, name: as in `SeenTensor`.
        seen: its tensor by step, the oldest first.
    """

    file: str
    function: str
    name: str
    seen: Mapping[int, SeenTensor]

    @property
    def first(self) -> Shape:
        """The oldest shape."""
        return self.seen[min(self.seen)].shape

    @property
    def last(self) -> Shape:
        """The newest shape."""
        return self.seen[max(self.seen)].shape

    @property
    def dimensions(self) -> list[int]:
        """The dimensions that grow."""
        return [place for place, (before, now) in enumerate(zip(self.first, self.last, strict=True)) if before < now]

    def with_requests(self, sizes: Mapping[int, int]) -> GrowingVariable | None:
        """The same in the steps of a line's requests, if the tensor has their bytes in all of these; else ``None``.

        Args:
            sizes: bytes of the line's largest request by step.
        """
        seen = {step: one for step, one in self.seen.items() if step in sizes}
        if max(sizes) not in seen or not _grows([one.shape for one in seen.values()]):
            return None
        if any(sizes[step] not in (one.bytes, one.stored_bytes) for step, one in seen.items()):
            return None
        return replace(self, seen=seen)

    @property
    def variable(self) -> str:
        """The variable alone."""
        return self.name.partition("[")[0]

    @property
    def is_in_dictionary(self) -> bool:
        """Whether the tensor is an element of a dictionary."""
        return "['" in self.name

    def limited(self, share: Fraction) -> Shape | None:
        """The shape with a part of the newest one's bytes, if the dimensions that grow are equal; else ``None``."""
        places = self.dimensions
        if any(len({shape[place] for place in places}) > 1 for shape in (self.first, self.last)):
            return None
        before = self.last[places[0]]
        length = round(before * share ** (1 / len(places)))
        if length ** len(places) != share * before ** len(places):
            return None
        return tuple(length if place in places else old for place, old in enumerate(self.last))


def growing_variables(history: History, seen: Sequence[SeenTensor]) -> list[GrowingVariable]:
    """Variables whose tensors never become smaller, and become larger; in the order in which they were seen last."""
    times = np.array([one.time_us for one in seen], np.int64)
    steps = history.step_of(np.searchsorted(history.time_us, times) - 1).tolist()
    found: dict[tuple[str, str, str], dict[int, SeenTensor]] = {}
    for one, step in zip(seen, steps, strict=True):
        found.setdefault(one[1:4], {})[step] = one
    newest = max(times.tolist(), default=0)
    last = dict.fromkeys(one[1:4] for one in seen if one.time_us == newest)
    return [GrowingVariable(*key, found[key]) for key in last if _grows([one.shape for one in found[key].values()])]


def _grows(shapes: Sequence[Shape]) -> bool:
    """Whether shapes of one rank become larger, and no dimension ever becomes smaller."""
    if len(set(map(len, shapes))) != 1 or shapes[0] == shapes[-1]:
        return False
    pairs = pairwise(shapes)
    return all(size <= larger for before, now in pairs for size, larger in zip(before, now, strict=True))

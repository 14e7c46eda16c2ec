"""What the names of a notebook hold of a GPU, and what keeps memory alive that no name of the user's has."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from gpudash.session.api.memory import require_gpu
from gpudash.system.foreign_text import visible
from gpudash.units import format_bytes, format_count

MOST_OBJECTS = 200_000
"""Objects that are followed from one name; a container of more is counted as far as that."""

_NEARLY_ALL = 0.98

_OUTPUT = re.compile(r"_+|_\d+")

_PASSED = (ModuleType, FrameType, type)
"""What leads to everything else: not followed."""

CLEARED = "%reset -f out"
"""IPython's magic that forgets its output history, and ``_``, ``__`` and ``___`` with it."""


@dataclass(frozen=True)
class MemoryHolder:
    """A name that holds memory.

    Attributes:
        name: of the variable, or what else holds it.
        bytes: of the GPU's memory, those of names above left out.
        tensors: how many have it.
        what: the kind of object.
        freed_by: the line that lets go of it; "" for the user's own names.
    """

    name: str
    bytes: int
    tensors: int
    what: str
    freed_by: str = ""


@dataclass(frozen=True)
class HeldMemory:
    """What holds a GPU's memory, the largest first. Sizes in bytes.

    Attributes:
        holders: names, and behind them what else keeps tensors alive.
        allocated_bytes: of tensors, as the allocator counts them.
    """

    holders: tuple[MemoryHolder, ...]
    allocated_bytes: int

    def __str__(self) -> str:
        rows = [holder_cells(holder) for holder in self.holders]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([self.headline, *lines])

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """The sum, in a sentence."""
        named = sum(holder.bytes for holder in self.holders)
        held = f"Tensors hold {format_bytes(self.allocated_bytes)}; {format_bytes(named)} of it by these names"
        if named >= _NEARLY_ALL * self.allocated_bytes:
            return f"{held}."
        return f"{held}, the rest by none: graphs that wait for a backward pass, or what libraries keep."

    def to_dict(self) -> dict[str, Any]:
        """As mappings, lists, numbers and text."""
        return {"allocated_bytes": self.allocated_bytes, "holders": [vars(holder) for holder in self.holders]}

    def to_html(self) -> str:
        """The same as a part of a page of HTML, which a notebook shows."""
        from gpudash.drawing.page import ParagraphBlock, TableBlock, fragment

        columns = (("name", False), ("holds", True), ("what", False), ("freed by", False))
        rows = [holder_cells(holder) for holder in self.holders]
        return fragment([ParagraphBlock(self.headline, "cause"), TableBlock(columns, rows)])

    _repr_html_ = to_html


def held_by(names: Mapping[str, Any]) -> HeldMemory:
    """What each name holds.

    Args:
        names: of a notebook (``get_ipython().user_ns``), or ``globals()``.

    Raises:
        NothingKnownError: when this process has no GPU.
    """
    require_gpu()
    seen: set[int] = set()
    own = [(name, value) for name, value in names.items() if not (name.startswith("_") or name in ("In", "Out"))]
    holders = [found for name, value in own if (found := _holder(name, value, seen)) is not None]
    history = {name: value for name, value in names.items() if name == "Out" or _OUTPUT.fullmatch(name)}
    output = _holder("Out[…], _", history, seen, CLEARED)
    error = _holder("the last traceback", list(_last_locals()), seen, _FORGET)
    kept = [found for found in (output, error) if found is not None]
    ordered = (*sorted(holders, key=lambda found: -found.bytes), *kept)
    return HeldMemory(ordered, _allocated())


_FORGET = "import sys; sys.last_exc = sys.last_value = sys.last_traceback = None"


def _holder(name: str, value: object, seen: set[int], freed_by: str = "") -> MemoryHolder | None:
    """What is reached from a value and was not before; ``None`` for nothing."""
    size = count = 0
    for tensor in _tensors(value):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        size += storage.nbytes()
        count += 1
    if not size:
        return None
    return MemoryHolder(name, size, count, type(value).__name__, freed_by)


def _tensors(value: object) -> Iterator[Any]:
    """The tensors on a GPU that are reached from a value."""
    import torch

    known = {id(value)}
    waiting = [value]
    while waiting and len(known) < MOST_OBJECTS:
        found = waiting.pop()
        if isinstance(found, torch.Tensor) and found.device.type != "cpu" and found.device.type != "meta":
            yield found
        for inner in _referents(found):
            if id(inner) not in known and not isinstance(inner, _PASSED):
                known.add(id(inner))
                waiting.append(inner)


def _referents(value: object) -> Iterable[object]:
    """What an object keeps alive of its own: a function its closure, and not the module that it stands in."""
    if isinstance(value, _PASSED):
        return ()
    if isinstance(value, FunctionType):
        return value.__closure__ or ()
    # a tensor has its gradient in C++, where the garbage collector sees nothing; of one that is no leaf torch warns
    if getattr(type(value), "__torch_function__", None) is not None and getattr(value, "is_leaf", False):
        return (*gc.get_referents(value), getattr(value, "grad", None))
    return gc.get_referents(value)


def _last_locals() -> Iterator[Mapping[str, Any]]:
    """Local variables that the newest error keeps alive."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    traceback: TracebackType | None = getattr(error, "__traceback__", None)
    while traceback is not None:
        # the notebook's own names are those of its cells, and stand above
        if traceback.tb_frame.f_locals is not traceback.tb_frame.f_globals:
            yield dict(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next


def _allocated() -> int:
    import torch

    from gpudash.agent.memory import simulating

    backend = simulating.backend()
    if backend is not None:
        return sum(int(backend.module.memory_allocated(card.index)) for card in backend.cards)
    return sum(torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count()))


def holder_cells(holder: MemoryHolder) -> tuple[str, str, str, str]:
    """A holder as a row of a table; a class may be called anything, so that nothing in its name is hidden."""
    many = "" if holder.tensors == 1 else f", {format_count(holder.tensors)} tensors"
    return (
        visible(holder.name, keep=""),
        format_bytes(holder.bytes),
        visible(f"{holder.what}{many}", keep=""),
        holder.freed_by,
    )

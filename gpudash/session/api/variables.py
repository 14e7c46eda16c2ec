"""How much GPU memory the names of a notebook hold, and what else keeps memory alive."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from gpudash.memory.explaining.explanation_text import in_columns
from gpudash.session.api.memory import require_gpu
from gpudash.system.foreign_text import visible
from gpudash.units import format_bytes, format_count, summed_bytes

MOST_OBJECTS = 200_000
"""How many objects are followed from one name; a larger container is counted up to there."""

_NEARLY_ALL = 0.98

_OUTPUT = re.compile(r"_+|_\d+")

_PASSED = (ModuleType, FrameType, type)
"""Types that lead to everything else: not followed."""

CLEARED = "%reset -f out"
"""IPython's magic that clears its output history, including ``_``, ``__`` and ``___``."""


@dataclass(frozen=True)
class MemoryHolder:
    """A name that holds memory.

    Attributes:
        name: the variable, or what else holds it.
        bytes: of the GPU's memory, without those of names listed above.
        tensors: number of tensors.
        what: the kind of object.
        freed_by: the line that releases it; "" for the user's own names.
    """

    name: str
    bytes: int
    tensors: int
    what: str
    freed_by: str = ""


@dataclass(frozen=True)
class HeldMemory:
    """What holds a GPU's memory, largest first. Sizes in bytes.

    Attributes:
        holders: names, followed by what else keeps tensors alive.
        allocated_bytes: held by tensors, as counted by the allocator.
    """

    holders: tuple[MemoryHolder, ...]
    allocated_bytes: int

    def __str__(self) -> str:
        return "\n".join([self.headline, *in_columns(list(map(holder_cells, self.holders)))])

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """The total, in a sentence."""
        named = summed_bytes(self.holders)
        held = f"Tensors hold {format_bytes(self.allocated_bytes)}; {format_bytes(named)} of it by these names"
        if named >= _NEARLY_ALL * self.allocated_bytes:
            return f"{held}."
        return f"{held}, the rest by none: graphs that wait for a backward pass, or what libraries keep."

    def to_dict(self) -> dict[str, Any]:
        """The holders as dicts, lists, numbers and text."""
        return {"allocated_bytes": self.allocated_bytes, "holders": list(map(vars, self.holders))}

    def to_html(self) -> str:
        """The holders as an HTML fragment, which a notebook displays."""
        from gpudash.drawing.page import ParagraphBlock, TableBlock, fragment

        columns = (("name", False), ("holds", True), ("what", False), ("freed by", False))
        rows = list(map(holder_cells, self.holders))
        return fragment([ParagraphBlock(self.headline, "cause"), TableBlock(columns, rows)])

    _repr_html_ = to_html


def held_by(names: Mapping[str, Any]) -> HeldMemory:
    """Find what each name holds.

    Args:
        names: a notebook's (``get_ipython().user_ns``), or ``globals()``.

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
    """What is reached from a value and was not reached before; ``None`` if nothing."""
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
    """The GPU tensors reached from a value."""
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
    """What an object itself keeps alive: for a function its closure, but not the module that defines it."""
    if isinstance(value, _PASSED):
        return ()
    if isinstance(value, FunctionType):
        return value.__closure__ or ()
    # a tensor holds its gradient in C++, where the garbage collector does not look; for a non-leaf torch warns
    if getattr(type(value), "__torch_function__", None) is not None and getattr(value, "is_leaf", False):
        return (*gc.get_referents(value), getattr(value, "grad", None))
    return gc.get_referents(value)


def _last_locals() -> Iterator[Mapping[str, Any]]:
    """The local variables that the newest error keeps alive."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    traceback: TracebackType | None = getattr(error, "__traceback__", None)
    while traceback is not None:
        # frames of the notebook itself have its own names, which are listed above
        if traceback.tb_frame.f_locals is not traceback.tb_frame.f_globals:
            yield dict(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next


def _allocated() -> int:
    import torch

    from gpudash.agent.memory import simulating

    backend = simulating.backend()
    if backend is not None:
        return sum(int(backend.module.memory_allocated(card.index)) for card in backend.cards)
    return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))


def holder_cells(holder: MemoryHolder) -> tuple[str, str, str, str]:
    """A holder as a table row; a class may have any name, so control characters in it are shown."""
    many = "" if holder.tensors == 1 else f", {format_count(holder.tensors)} tensors"
    return (
        visible(holder.name, keep=""),
        format_bytes(holder.bytes),
        visible(f"{holder.what}{many}", keep=""),
        holder.freed_by,
    )

"""What a dry run does where code asks for numbers, of which it has none."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from gpudash.simulator.device.storage import lacks_numbers

READS = "The code reads a number out of a tensor (as int(x) or a slice up to x does)"
DECIDES = "The code decides by a number of a tensor (as an if on a tensor or on .item() does)"
TAKES_OUT = "The code needs the numbers in a tensor (as .tolist(), .numpy() or computing with it on the CPU does)"
COPIES = "The code copies numbers from the device into a tensor that lies on the CPU (as buffer.copy_(x) does)"
MASKS = "The code picks elements by the numbers in a tensor (as x[x > 0] does)"
DEPENDS = "The code calls {name}, whose result cannot be known without the numbers in a tensor"

PICKING = frozenset(("index", "index_put", "index_put_", "masked_select", "nonzero"))

BY_MASKS = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
"""Those of them that take positions in place of a mask."""

SCALER = str(Path(torch.amp.__file__).parent / "grad_scaler.py")
SAVER = str(Path(torch.autograd.graph.__file__))
OWN = str(Path(__file__).parents[1])

_LACK = re.compile(r"\b[Mm]eta (tensor|device)|\bdevice meta\b|\bmeta\b.*\bsame device\b|with unallocated storage")
"""What torch says of a tensor that has no numbers: of one on its device ``meta``, or over no bytes."""


class DataDependentError(RuntimeError):
    """A dry run met code that needs the numbers in a tensor, which it does not have."""


def of_operation(name: str) -> DataDependentError:
    """The refusal of the operation ``name``, without its namespace, that cannot do with sizes."""
    if name == "_local_scalar_dense":
        return DataDependentError(f"{READS}.")
    shown = name.strip("_").rstrip("0123456789")
    return DataDependentError(f"{MASKS if name in PICKING else DEPENDS.format(name=shown)}.")


ANSWER = "_sim_answer"
"""Attribute of the storage of a truth that has an ordinary outcome: whether it is true."""

_ASKED = {"any": False, "all": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}

_TURNING = ("logical_not", "bitwise_not")
_JOINING = ("logical_and", "bitwise_and", "mul", "logical_or", "bitwise_or")

QUESTIONS = frozenset((*_ASKED, "eq", "ne", *_TURNING, *_JOINING))
"""Operations whose truths have an ordinary outcome, or may have."""


def note_answer(name: str, args: Sequence[Any], result: torch.Tensor) -> None:
    """Remember what ``result`` is in a run as it should be, when that can be told.

    Args:
        name: of the operation, without its namespace.
        args: what it was given.
        result: its truths.
    """
    answer = _ASKED.get(name)
    if name in ("eq", "ne"):
        itself, other = args[0] is args[1], args[1]
        if itself or (isinstance(other, float) and math.isinf(other)):
            answer = (name == "eq") is itself  # a number equals itself unless it is NaN
    elif name in _TURNING:
        before = answer_to(args[0])
        answer = None if before is None else not before
    elif name in _JOINING:
        left, right = map(answer_to, args[:2])
        if left is not None and right is not None:
            answer = (left or right) if name.endswith("or") else (left and right)
    if answer is not None:
        setattr(result.untyped_storage(), ANSWER, answer)


def answer_to(tensor: Any) -> bool | None:
    """The ordinary outcome that a tensor of truths has; ``None`` where it has none."""
    return getattr(tensor.untyped_storage(), ANSWER, None) if isinstance(tensor, torch.Tensor) else None


def explains(error: BaseException) -> bool:
    """Whether torch raised ``error`` because a tensor has no numbers."""
    return isinstance(error, (RuntimeError, TypeError)) and _LACK.search(str(error)) is not None


def for_scaler() -> float | None:
    """The answer to `torch.amp.GradScaler`, if it is what reads a number; ``None`` for everyone else.

    It asks whether a gradient was infinite, and is told that none was, and for its factor, which nothing has changed.
    """
    frame = _caller()
    if frame is None or frame.f_code.co_filename != SCALER:
        return None
    if frame.f_code.co_name == "get_scale":
        return float(getattr(frame.f_locals.get("self"), "_init_scale", 1.0))
    return 0.0


def only_keeps() -> bool:
    """Whether the copy into memory of the CPU is one that torch makes of an activation, to copy it back unread."""
    frame = _caller()
    return frame is not None and frame.f_code.co_filename == SAVER


def _caller() -> FrameType | None:
    """The innermost frame that is not the simulator's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame


def described(tensor: torch.Tensor) -> str:
    """What printing a tensor without numbers shows, after torch's way for its device ``meta``."""
    parts = ["...", f"device='{tensor.device}'", f"size={tuple(tensor.shape)}"]
    if tensor.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool):
        parts.append(f"dtype={tensor.dtype}")
    return f"{'Parameter containing: ' if isinstance(tensor, torch.nn.Parameter) else ''}tensor({', '.join(parts)})"


def show_sizes_only(device: str) -> None:
    """Let tensors of ``device``, and those of the CPU that nobody has computed, be printed without their numbers."""
    printing: Any = torch._tensor_str
    original = printing._str

    def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> Any:
        lacking = self.device.type == device or (self.device.type == "cpu" and lacks_numbers(self))
        if lacking and tensor_contents is None:
            return described(self)
        return original(self, tensor_contents=tensor_contents)

    printing._str = shown

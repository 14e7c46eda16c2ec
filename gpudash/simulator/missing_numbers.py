"""What a dry run does where code asks for numbers, of which it has none."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

READS = "The code reads a number out of a tensor (as .item() or an if on a tensor does)"
TAKES_OUT = "The code needs the numbers in a tensor (as .tolist(), .numpy() or computing with it on the CPU does)"
COPIES = "The code copies numbers from the device into a tensor that lies on the CPU (as buffer.copy_(x) does)"
MASKS = "The code picks elements by the numbers in a tensor (as x[x > 0] does)"
DEPENDS = "The code calls {name}, whose result cannot be told without the numbers in a tensor"

PICKING = frozenset(("index", "index_put", "index_put_", "masked_select", "nonzero"))

SCALER = str(Path(torch.amp.__file__).parent / "grad_scaler.py")
SAVER = str(Path(torch.autograd.graph.__file__))
OWN = str(Path(__file__).parent)

_LACK = re.compile(r"\b[Mm]eta (tensor|device)|\bdevice meta\b|\bmeta\b.*\bsame device\b|with unallocated storage")
"""What torch says of a tensor that has no numbers: of one on its device ``meta``, or over no bytes."""


class DataDependentError(RuntimeError):
    """A dry run met code that needs the numbers in a tensor, which it does not have."""


def of_operation(name: str) -> DataDependentError:
    """The refusal of the operation ``name``, without its namespace, that cannot do with sizes."""
    shown = name.strip("_").rstrip("0123456789")
    return DataDependentError(f"{MASKS if name in PICKING else DEPENDS.format(name=shown)}.")


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
    """Let tensors of ``device`` be printed without their numbers."""
    printing: Any = torch._tensor_str
    original = printing._str

    def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> Any:
        if self.device.type == device and tensor_contents is None:
            return described(self)
        return original(self, tensor_contents=tensor_contents)

    printing._str = shown

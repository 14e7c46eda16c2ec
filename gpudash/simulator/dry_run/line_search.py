"""L-BFGS in a dry run: it decides by numbers at every turn, and is followed to the last iteration that it may take."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import torch

SEARCHES = "L-BFGS goes on to its last iteration, and a line search takes the first length that it tries"

_FILE = sys.modules[torch.optim.LBFGS.__module__].__file__

_losses = itertools.count(1)


def is_search(frame: FrameType | None) -> bool:
    """Whether ``frame`` is of torch's L-BFGS."""
    return frame is not None and frame.f_code.co_filename == _FILE


def outcome(name: str, other: Any) -> bool | None:
    """The outcome of a comparison that L-BFGS makes (torch/optim/lbfgs.py); ``None`` where there is none to be assumed.

    Args:
        name: of the operation, whose left side is a tensor.
        other: its right side.
    """
    if name == "le":
        return isinstance(other, torch.Tensor)  # flat enough for Wolfe's condition, but not below a tolerance
    if name == "gt":
        return not isinstance(other, torch.Tensor) and other > 0  # the curvature; but a direction goes down
    # the loss does fall, and the first length is not cut
    if name == "lt":
        return False
    return None


def falling_loss() -> float:
    """A loss that is smaller than each before by more than any tolerance."""
    return -float(next(_losses))

"""L-BFGS in a dry run. Every iteration depends on numbers; it is followed up to the maximum number of iterations."""

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
    """Whether ``frame`` belongs to torch's L-BFGS."""
    return frame is not None and frame.f_code.co_filename == _FILE


def outcome(name: str, other: Any) -> bool | None:
    """The assumed result of a comparison in L-BFGS (torch/optim/lbfgs.py); ``None`` if nothing is assumed.

    Args:
        name: of the operation, which has a tensor on its left side.
        other: its right side.
    """
    if name == "le":
        return isinstance(other, torch.Tensor)  # flat enough for the Wolfe condition, but not below a tolerance
    if name == "gt":
        return not isinstance(other, torch.Tensor) and other > 0  # the curvature is positive; but a direction goes down
    # the loss does fall, and the first step length is not reduced
    if name == "lt":
        return False
    return None


def falling_loss() -> float:
    """A loss that falls below each previous one by more than any tolerance."""
    return -float(next(_losses))

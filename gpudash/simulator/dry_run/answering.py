"""Lets a dry run's device stand in for CUDA, for code that uses "cuda" or selects a GPU by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.as_cuda import answering, notices
from gpudash.simulator.as_cuda.devices import CUDA
from gpudash.simulator.dry_run.dry_run import DryRun, ReportedCard
from gpudash.simulator.dry_run.own_code import Followed, assume, follow, load
from gpudash.simulator.refusal import AS_CUDA, GIVEN_OR_AS_CUDA, CannotPredictError

VISIBLE, NONE_VISIBLE = "CUDA_VISIBLE_DEVICES", "-1"


def follow_named(
    name: str, dry: DryRun, *, steps: int, architecture: Architecture, as_cuda: ReportedCard | None = None
) -> Followed:
    """Load a function and follow it, as `load` and `follow` do.

    Args:
        as_cuda: the GPU that the code sees as ``cuda``; ``None`` if it is given ``sim:0``.

    Raises:
        CannotPredictError: as for `load` and `follow`, and if a GPU of this computer is in use.
    """
    if as_cuda is not None:
        with answering_for_cuda(dry, architecture, as_cuda) as device:
            return follow(load(name), dry, steps=steps, architecture=architecture, device=device)
    try:
        return follow(load(name), dry, steps=steps, architecture=architecture)
    except CannotPredictError as error:
        if error.kind == "left_the_device":
            error.remedy = GIVEN_OR_AS_CUDA
        elif notices.misses_cuda(str(error)):
            error.remedy = AS_CUDA
        raise


@contextmanager
def answering_for_cuda(dry: DryRun, architecture: Architecture, card: ReportedCard) -> Iterator[torch.device]:
    """Make the dry run's device the one that code calls ``cuda``, from before its import until it has been followed.

    From here on, this computer's GPUs are hidden from the process, so that nothing runs on them.

    Args:
        dry: of this process.
        architecture: of the GPU.
        card: the card that code sees.

    Yields:
        ``cuda:0``.

    Raises:
        CannotPredictError: code that ran here before has already used a GPU of this computer.
    """
    # Before any of the code is imported: CUDA reads the variable once, when it starts.
    os.environ[VISIBLE] = NONE_VISIBLE
    dry.reported_card = card
    # A card must exist before CUDA's functions are replaced: code queries it while being imported.
    dry.put_cards((architecture,))
    notices.emitted.clear()
    try:
        answering.answer_for_cuda(dry.backend)
    except RuntimeError as error:
        raise CannotPredictError("as_cuda", str(error), "") from error
    notices.listeners.append(_assume)
    try:
        yield torch.device(CUDA, 0)
    finally:
        notices.listeners.remove(_assume)
        answering.end()
        dry.reported_card = None


def _assume(sentence: str) -> None:
    """Note a difference from a GPU at the code's call."""
    assume(sentence.rstrip("."), within_torch=True)

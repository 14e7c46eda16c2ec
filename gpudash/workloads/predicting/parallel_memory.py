"""The training workload as one rank of several takes part in it, in a dry run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.ranks import NoRanksError, emulate_storages, first_rank_of, replicated
from gpudash.specs import TrainingSpec


@contextmanager
def one_of(spec: TrainingSpec, dry: DryRun) -> Iterator[Callable[[nn.Module], nn.Module]]:
    """This process as the first rank of several; its collectives leave their outputs as they are.

    The first rank has the largest shards: ``torch.chunk`` gives what does not divide to the first ones.

    Yields:
        what makes of a model on the simulated device the one that this rank trains.

    Raises:
        NoRanksError: when this torch has no ranks, or none that can do without their peers.
    """
    with first_rank_of(spec.world_size), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of models that return views
        yield lambda model: _spread(model, spec, dry)


def _spread(model: nn.Module, spec: TrainingSpec, dry: DryRun) -> nn.Module:
    """``model`` as the first rank trains it: gradients are shared with the last of a step's passes only."""
    from gpudash.workloads.programs.parallel.rank_training import reduce_gradients, shared

    if spec.parallel == "ddp":
        spread = replicated(model, dry.backend.engine)
    else:
        try:
            emulate_storages(dry.backend.engine)
        except (ImportError, AttributeError):
            raise NoRanksError(f"PyTorch {torch.__version__} has no FSDP2 that can be followed.") from None
        spread = shared(model, spec, torch.device(DEVICE, 0))
    passes = itertools.count(1)

    def begins(_model: nn.Module, _inputs: Any) -> None:
        reduce_gradients(spread, next(passes) % spec.micro_batches == 0)

    if spec.micro_batches > 1:
        spread.register_forward_pre_hook(begins, prepend=True)
    return spread

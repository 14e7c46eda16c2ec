"""One rank of several in a dry run: torch's own DDP and FSDP2, under a process group that talks to nobody.

What the ranks take beside a run on one device - gradient buckets, shards, gathers - is thereby what torch itself asks
of the allocator, and not a formula about it.

DDP's reducer, written in C++, makes its buckets as in a real run: at construction with a first one of 1 MiB, and again
after the first step in the order in which gradients came (torch/csrc/distributed/c10d/reducer.cpp).

FSDP2's own code makes the shards, gathers a group of parameters before its forward and backward pass, frees them
behind it, and scatters the gradients; all that is missing on the simulated device are storages that let go of their
bytes and take them again, which is how FSDP2 frees and gathers parameters.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.memory.allocator.trace import GRADIENTS
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.ranks import NoRanksError, emulate_storages, first_rank_of
from gpudash.simulator.operations.operations import Engine
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


VERIFY = "_verify_param_shape_across_processes"


def replicated(model: nn.Module, engine: Engine) -> nn.Module:
    """``model`` in DistributedDataParallel with torch's defaults; what it broadcasts at its start included."""
    from torch.nn.parallel import distributed

    class Replica(distributed.DistributedDataParallel):
        """The first rank's: it broadcasts how the buckets are rebuilt, and reads that again from its device."""

        def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
            engine.echoes = True
            try:
                return super()._pre_forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
            finally:
                engine.echoes = False

    # Shapes are compared across the ranks by numbers, which a dry run has not; the comparison takes some bytes.
    verify = getattr(distributed, VERIFY)
    setattr(distributed, VERIFY, lambda *_args, **_kwargs: None)
    try:
        wrapped = Replica(model)
    finally:
        setattr(distributed, VERIFY, verify)
    ranks: Any = torch.distributed
    ranks._register_comm_hook(wrapped.reducer, engine, _reduced)  # noqa: SLF001 - DDP's own insists on annotations
    return wrapped


def _reduced(engine: Engine, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What the reducer's own all-reduce does to memory: nothing, since it works in the bucket.

    The process group of a dry run returns no result, which the reducer would miss.
    """
    buffer: torch.Tensor = bucket.buffer()
    block = engine.storages.block(buffer.untyped_storage())
    if block is not None:
        block.card.label(block.address, GRADIENTS)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done

"""DistributedDataParallel in a dry run.

The reducer, written in C++, makes its buckets as in a real run: at construction with a first one of 1 MiB, and anew
after the first step in the order in which gradients came (torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpudash.memory.allocator.trace import GRADIENTS
from gpudash.simulator.operations import Engine

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

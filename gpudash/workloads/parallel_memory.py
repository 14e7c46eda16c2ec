"""One rank of several in a dry run: torch's own DDP and FSDP2, under a process group that talks to nobody.

What the ranks take beside a run on one device - gradient buckets, shards, gathers - is thereby what torch itself asks
of the allocator, and not a formula about it.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.simulator.dry_run import DryRun
from gpudash.simulator.storage import DEVICE
from gpudash.specs import TrainingSpec
from gpudash.workloads.ddp_memory import replicated
from gpudash.workloads.fsdp_memory import emulate_storages

BACKEND = "gpudash_dry"
"""Name of the process group's backend: torch's fake one, which knows no device that Python registers."""


class NoRanksError(Exception):
    """This torch has no ranks that could be followed; one sentence."""


@contextmanager
def one_of(spec: TrainingSpec, dry: DryRun) -> Iterator[Callable[[nn.Module], nn.Module]]:
    """This process as the first rank of several; its collectives leave their outputs as they are.

    The first rank has the largest shards: ``torch.chunk`` gives what does not divide to the first ones.

    Yields:
        what makes of a model on the simulated device the one that this rank trains.

    Raises:
        NoRanksError: when this torch has no ranks, or none that can do without their peers.
    """
    import torch.distributed as distributed

    if not distributed.is_available():
        raise NoRanksError("This PyTorch was built without torch.distributed, so it has no ranks.")
    try:
        from torch.testing._internal.distributed import fake_pg

        store, _ = fake_pg.FakeStore(), fake_pg._create_fake_pg  # noqa: SLF001 - torch's own maker
    except (ImportError, AttributeError):
        raise NoRanksError(f"PyTorch {torch.__version__} has no ranks that can be followed without peers.") from None
    if BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _group, extended_api=True, devices=["cpu", DEVICE])
    hook = sys.excepthook  # torch puts "[rank0]" before every line from here on
    distributed.init_process_group(BACKEND, store=store, rank=0, world_size=spec.world_size)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of models that return views
            yield lambda model: _spread(model, spec, dry)
    finally:
        distributed.destroy_process_group()
        sys.excepthook = hook


def _spread(model: nn.Module, spec: TrainingSpec, dry: DryRun) -> nn.Module:
    """``model`` as the first rank trains it: gradients are shared with the last of a step's passes only."""
    from gpudash.workloads.parallel.wrapping import reduce_gradients, shared

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


def _group(common: Any, options: Any) -> Any:
    from torch.testing._internal.distributed import fake_pg

    return fake_pg._create_fake_pg(common, options)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch's own maker

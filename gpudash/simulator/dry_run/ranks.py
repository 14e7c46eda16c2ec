"""One of several ranks in a dry run: torch's own DDP, FSDP2 and FSDP1, with a process group that has no peers.

So what ranks need beyond a run on one device - gradient buckets, shards, gathers - is what torch itself requests from
the allocator, not a formula for it.

DDP's C++ reducer creates its buckets as in a real run: at construction with a first one of 1 MiB, and again after the
first step, in the order in which gradients arrived (torch/csrc/distributed/c10d/reducer.cpp).

FSDP2's own code creates the shards, gathers a group of parameters before its forward and backward pass, frees them
afterwards, and scatters the gradients. The simulated device only lacks storages that free their bytes and allocate
them again, which is how FSDP2 frees and gathers parameters. FSDP1 does the same with flat parameters.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpudash.memory.allocator.trace import GRADIENTS, WEIGHTS
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.operations.operations import Engine
from gpudash.simulator.replacing import Replacements

BACKEND = "gpudash_dry"
"""Name of the process group's backend: torch's fake one, which does not know devices registered from Python."""


class NoRanksError(Exception):
    """This torch has no ranks that can be followed; one sentence."""


@contextmanager
def first_rank_of(count: int) -> Iterator[None]:
    """Run this process as the first of ``count`` ranks; collectives leave their outputs unchanged.

    The first rank has the largest shards: ``torch.chunk`` gives the remainder to the first ones.

    Raises:
        NoRanksError: this torch has no ranks, or none that work without their peers.
    """
    import torch.distributed as distributed

    # Checked first: the imports below fail in a build without it.
    if not distributed.is_available():
        raise NoRanksError("This PyTorch was built without torch.distributed, so it has no ranks.")
    try:
        from torch.testing._internal.distributed import fake_pg

        store, _ = fake_pg.FakeStore(), fake_pg._create_fake_pg
    except (ImportError, AttributeError):
        raise NoRanksError(f"PyTorch {torch.__version__} has no ranks that can be followed without peers.") from None
    register_backend()
    hook = sys.excepthook  # torch prefixes every line with "[rank0]" from here on
    distributed.init_process_group(BACKEND, store=store, rank=0, world_size=count)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # raised for models that return views
            yield
    finally:
        distributed.destroy_process_group()
        sys.excepthook = hook


def register_backend() -> None:
    """Register the backend `BACKEND` with torch."""
    import torch.distributed as distributed

    if BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _group, extended_api=True, devices=["cpu", DEVICE])


def _group(common: Any, options: Any) -> Any:
    from torch.testing._internal.distributed import fake_pg

    return fake_pg._create_fake_pg(common, options)  # type: ignore[no-untyped-call]  # torch's own maker


COLLECTIVES = {
    "all_reduce": 1,
    "all_gather_into_tensor": 2,
    "all_gather_single": 2,
    "reduce_scatter_tensor": 2,
    "reduce_scatter_single": 2,
}
"""Collectives that exchange gradients and shards → how many of them transfer as much as an all-reduce, which is a
scatter and a gather."""


def note_exchanges(engine: Engine) -> None:
    """Make the engine record the tensors of the simulated device that ranks exchange; once per process.

    DistributedDataParallel's own all-reduce goes through `bucket_reduced`.
    """
    ranks: Any = torch.distributed
    for name, parts in COLLECTIVES.items():
        original = getattr(ranks, name, None)
        if original is not None and not hasattr(original, _NOTED):
            setattr(ranks, name, _noting(engine, original, parts))


_NOTED = "_sim_noted"


def _noting(engine: Engine, original: Any, parts: int) -> Any:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        sizes = [one.numel() * one.element_size() for one in given if one.device.type == DEVICE]
        # of the whole and a rank's part, count the whole
        engine.note_exchange(max(sizes, default=0) // parts)
        return original(*args, **kwargs)

    setattr(collective, _NOTED, True)
    return collective


_emulated = False


def emulate_storages(engine: Engine) -> None:
    """Let FSDP2 free and allocate the bytes of parameters on the simulated device; once per process."""
    global _emulated
    note_exchanges(engine)
    if _emulated:
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    def gathered(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        for tensor in self.all_gather_outputs:
            if tensor.device.type == DEVICE:
                _label(engine, tensor)

    make = _fsdp_param.FSDPParam.init_all_gather_outputs
    replaced = [
        (module, name, emulated(engine, getattr(module, name)))
        # Both modules import `alloc_storage` by name, so it is replaced in both.
        for module, name, emulated in (
            (_fsdp_param, "alloc_storage", _taking),
            (_fsdp_param_group, "alloc_storage", _taking),
            (_fsdp_param, "free_storage", _freeing),
        )
    ]
    for module, name, function in replaced:  # all of them, or none if this torch lacks one
        setattr(module, name, function)
    _emulated = True
    _fsdp_param.FSDPParam.init_all_gather_outputs = gathered  # type: ignore[method-assign]  # as emulated


_flat_emulated = False


def emulate_flat_storages(engine: Engine) -> None:
    """Let FSDP1 free and allocate the bytes of flat parameters on the simulated device; once per process.

    Raises:
        AttributeError, ImportError: this torch has no FSDP1 with these functions.
    """
    global _flat_emulated
    note_exchanges(engine)
    if _flat_emulated:
        return
    from torch.distributed.fsdp import _flat_param
    from torch.storage import TypedStorage

    storages = engine.storages
    flat: Any = _flat_param
    typed: Any = TypedStorage
    take, free, has_size = flat._alloc_storage, flat._free_storage, flat._same_storage_size
    resize = typed._resize_

    def has(tensor: torch.Tensor, count: int) -> bool:
        # A released storage still reports its size.
        if storages.has_released(tensor.untyped_storage()):
            return count == 0
        return bool(has_size(tensor, count))

    def resized(self: Any, size: int) -> Any:
        # `FlatParamHandle.shard` frees the whole before it allocates its shard.
        storage = self._untyped_storage
        if storage.device.type != DEVICE or size:
            return resize(self, size)
        storages.release(storage)
        return None

    flat._alloc_storage = _taking(engine, take)
    flat._free_storage = _freeing(engine, free)
    flat._same_storage_size = has
    typed._resize_ = resized
    _flat_emulated = True


def _taking(engine: Engine, original: Callable[..., None]) -> Callable[..., None]:
    """``original``, which allocates the bytes of a tensor, on the simulated device as well."""

    def take(tensor: torch.Tensor, *size: torch.Size) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type != DEVICE:
            original(tensor, *size)
        elif engine.storages.take_again(storage, engine.card(storage.device.index)):
            _label(engine, tensor)

    return take


def _freeing(engine: Engine, original: Callable[..., None]) -> Callable[..., None]:
    """``original``, which frees the bytes of a tensor, on the simulated device as well."""

    def free(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type == DEVICE:
            engine.storages.release(storage)
        else:
            original(tensor)

    return free


def _label(engine: Engine, tensor: torch.Tensor) -> None:
    block = engine.storages.block(tensor.untyped_storage())
    if block is not None:
        block.card.label(block.address, WEIGHTS)


VERIFY = "_verify_param_shape_across_processes"


def replicated(model: nn.Module, engine: Engine) -> nn.Module:
    """``model`` in DistributedDataParallel with torch's defaults, including its initial broadcasts."""
    from torch.nn.parallel import distributed

    class Replica(distributed.DistributedDataParallel):
        """The first rank's replica: it broadcasts how the buckets are rebuilt, and reads that back from its device."""

        def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
            engine.echoes = True
            try:
                return super()._pre_forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
            finally:
                engine.echoes = False

    # DDP compares shapes across the ranks by numbers, which a dry run lacks; the comparison takes some bytes. Replaced
    # during construction only.
    with Replacements() as replaced:
        replaced.put(distributed, VERIFY, lambda *_args, **_kwargs: None)
        wrapped = Replica(model)
    ranks: Any = torch.distributed
    # A hook in place of the all-reduce: the reducer waits for a future with the bucket.
    ranks._register_comm_hook(wrapped.reducer, engine, bucket_reduced)
    return wrapped


def bucket_reduced(engine: Engine, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Replace the reducer's all-reduce, which allocates nothing because it works in the bucket.

    The process group of a dry run returns no result, but the reducer needs one.
    """
    buffer: torch.Tensor = bucket.buffer()
    engine.note_exchange(buffer.numel() * buffer.element_size())
    block = engine.storages.block(buffer.untyped_storage())
    if block is not None:
        block.card.label(block.address, GRADIENTS)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done

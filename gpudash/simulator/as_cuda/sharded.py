"""Tensors sharded over a mesh of ranks (``DTensor``): FSDP2's parameters, and those of tensor parallelism.

torch computes the sizes of each operation on fake tensors on the mesh's device, which it calls ``cuda``, and draws
random numbers for shards by advancing CUDA's generator. The simulation uses the simulated device for the former, and
for the latter the CPU's generator, which has no such offset.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpudash.simulator.as_cuda.mode import with_mode
from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements


def install(replaced: Replacements) -> None:
    """Set up sharded tensors when the first mesh is created, because importing them takes a second."""
    from torch.distributed import device_mesh

    shards: list[Any] = []

    def with_shards(make: Callable[..., None]) -> Callable[..., None]:
        @hands_on
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            if not shards:
                shards.append(replaced)
                _install_for_shards(replaced)
            make(self, *args, **kwargs)

        return made

    replaced.wrap(device_mesh.DeviceMesh, "__init__", with_shards)


def _install_for_shards(replaced: Replacements) -> None:
    try:
        from torch.distributed.tensor import DTensor, _op_schema
        from torch.distributed.tensor._random import OffsetBasedRNGTracker
    except ImportError:  # an older torch, whose sharded tensors are in other modules
        return
    # called within torch's functions, where modes are disabled and "cuda" would mean CUDA
    replaced.wrap(_op_schema, "_rebuild_tensor_from_dtensor_meta", with_mode)
    replaced.wrap(DTensor, "from_local", lambda make: staticmethod(with_mode(make)))
    replaced.wrap(OffsetBasedRNGTracker, "__init__", _without_syncing)
    replaced.put(OffsetBasedRNGTracker, "_distribute_region", _drawn_by_the_cpu)


def _without_syncing(make: Callable[..., None]) -> Callable[..., None]:
    """Skip syncing the random state: ranks start with the same seed anyway, and comparing takes numbers, which a dry
    run lacks."""

    def made(self: Any, device_mesh: Any, *_args: Any, **_kwargs: Any) -> None:
        make(self, device_mesh, run_state_sync=False)

    return made


@contextmanager
def _drawn_by_the_cpu(_tracker: Any, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
    """Ranks that hold different shards draw different numbers, those with the same shard draw the same."""
    drawing = generator or torch.default_generator
    shard = [
        place
        for place, placement in zip(spec.mesh.get_coordinate() or (), spec.placements)
        if not placement.is_replicate()
    ]
    state = zlib.crc32(bytes(drawing.get_state().tolist()))
    drawing.manual_seed(zlib.crc32(repr(shard).encode(), state))
    try:
        yield
    finally:
        drawing.manual_seed(state)  # equal again on all ranks, and another state than before

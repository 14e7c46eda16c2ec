"""The ranks of a program in a dry run: each is a process of its own and does not wait for the others.

Their collectives allocate as usual, but leave their outputs unchanged, because there are no numbers to exchange.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.as_cuda.parallel import owners_of
from gpudash.simulator.dry_run.own_code import assume
from gpudash.simulator.dry_run.ranks import (
    BACKEND,
    VERIFY,
    bucket_reduced,
    emulate_storages,
    note_exchanges,
    register_backend,
)
from gpudash.simulator.dry_run.refusals import place_of
from gpudash.simulator.operations.operations import Engine

NOBODY = "the ranks exchange nothing, since there are no numbers; objects that are gathered are this rank's own"

FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

known: dict[str, Any] = {}
"""``rank`` and ``world_size`` of this process, once it has joined its process group, even after it left."""

MISSED = "What rank {rank} sends at {where} had not come: a rank is predicted without the others."

missed: list[str] = ["A rank is predicted without what the others send."]
"""Sentences on what this rank should have received, since later code may need it. The first is about the numbers,
which no rank has."""

WhenImported = Callable[[str, Callable[[Any], None]], None]


def without_peers(engine: Engine, when_imported: WhenImported) -> None:
    """Let the process groups of this program work without their peers from now on.

    Args:
        engine: of the cards.
        when_imported: calls a function with a module once that is imported.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    note_exchanges(engine)
    groups = distributed.distributed_c10d
    begin = groups.init_process_group
    new = groups.new_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        from torch.testing._internal.distributed import fake_pg

        rank = _of_rank(kwargs.get("rank", args[4] if len(args) > 4 else -1), "RANK")
        count = _of_rank(kwargs.get("world_size", args[3] if len(args) > 3 else -1), "WORLD_SIZE")
        if rank is None or count is None:
            return begin(*args, **kwargs)  # which reports what is missing
        register_backend()
        assume(NOBODY)
        known.update(rank=rank, world_size=count)
        return begin(BACKEND, store=fake_pg.FakeStore(), rank=rank, world_size=count)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return new(*args, **{**kwargs, "backend": BACKEND})

    made = (init_process_group, new_group, all_gather_object, gather_object, broadcast_object_list)
    for function in made:
        for owner in owners_of(function.__name__):
            setattr(owner, function.__name__, function)
    when_imported("torch.nn.parallel.distributed", lambda module: _replicate(module, engine))
    when_imported(FSDP, lambda _module: emulate_storages(engine))


def all_gather_object(object_list: list[Any], obj: Any, *_args: Any, **_kwargs: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_args: Any, **_kwargs: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def broadcast_object_list(
    object_list: list[Any],  # noqa: ARG001 - passed by name, as in torch
    src: int | None = None,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    """Do nothing, so that each rank keeps its own objects."""
    sender = src or 0
    if known.get("rank") != sender:
        where = place_of(sys._getframe(1), within_torch=True) or "its start"
        missed.append(MISSED.format(rank=sender, where=where))


def are_missed() -> bool:
    """Whether this is one of several ranks, so that code may fail because the others are missing."""
    return int(known.get("world_size", 1)) > 1


def _of_rank(given: Any, variable: str) -> int | None:
    """A number as passed, or as set in the environment by a launcher."""
    if given in (-1, None):
        value = os.environ.get(variable)
    else:
        value = given
    if value is None:
        return None
    return int(value)


def _replicate(module: Any, engine: Engine) -> None:
    """Let DistributedDataParallel work without numbers: it compares shapes and broadcasts how it rebuilds buckets."""
    setattr(module, VERIFY, lambda *_args, **_kwargs: None)
    kind: Any = module.DistributedDataParallel
    prepare = kind._pre_forward

    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not vars(self).get("_comm_hooks") and not vars(self).get("_gpudash_reduces"):
            self._gpudash_reduces = True
            torch.distributed._register_comm_hook(self.reducer, engine, bucket_reduced)  # type: ignore[attr-defined]
        engine.echoes = True
        try:
            return prepare(self, *inputs, **kwargs)
        finally:
            engine.echoes = False

    kind._pre_forward = _pre_forward

"""What a rank's tensors take at their peak: as a dry run predicts it, or as real ranks on the CPU count it.

python -m tests.unit.workloads.rank_memory predict SPECS
python -m tests.unit.workloads.rank_memory count SPECS RANK WORLD_SIZE FILE
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpudash.memory.allocator.trace import WORKSPACE, Trace
from gpudash.specs import TrainingSpec
from gpudash.workloads.programs.batches import Batch, data, micro_batches
from gpudash.workloads.programs.parallel.rank_training import reduce_gradients, shared
from gpudash.workloads.programs.training import model_of
from gpudash.workloads.programs.training_step import TrainingStep, optimizer_of
from gpudash.workloads.running.context import Context

STEPS = 3

LOOKS, PAUSE_S = 20, 0.001
"""How often and with what pause it is looked again before bytes count: Gloo's threads let go of tensors a bit late."""

NEAR = 0.7
"""Part of the most that was there in earlier steps from which on it is looked again in the last one."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations have made and that live still.

    Attributes:
        most: at any time, with what Gloo's threads had not let go of yet.
        looks_above: bytes above which it is looked again, and counted.
        peak: the most that was counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = self.peak = 0
        self.looks_above = float("inf")
        self._made: dict[int, tuple[Any, bool]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._see((args, kwargs), made=False)
        found = func(*args, **(kwargs or {}))
        self._see(found, made=True)
        now = self._bytes()
        self.most = max(self.most, now)
        if now > max(self.peak, self.looks_above):
            for _ in range(LOOKS):
                time.sleep(PAUSE_S)
                now = min(now, self._bytes())
            self.peak = max(self.peak, now)
        return found

    def _see(self, tensors: Any, *, made: bool) -> None:
        for tensor in tree_iter(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
                key = id(storage)
                if key not in self._made:
                    self._made[key] = weakref.ref(storage, lambda _gone, key=key: self._made.pop(key, None)), made

    def _bytes(self) -> int:
        living = [look() for look, made in list(self._made.values()) if made]
        return sum(storage.nbytes() for storage in living if storage is not None)


def counted(spec: TrainingSpec) -> int:
    """The peak of this process, one of the ranks of ``spec``."""
    context = Context(torch.device("cpu"), run_id=0, emit=lambda _event: None, clock=lambda: 0.0)
    own = spec.rank_spec
    source = data(own, context)
    torch.manual_seed(spec.seed)
    with LiveBytes() as live:
        model = shared(model_of(own, source.outputs, context), spec, context.device)
        optimizer = optimizer_of(own, model)
        for group in optimizer.param_groups:
            group["foreach"] = True  # as on a GPU, whose memory the dry run predicts
        step = TrainingStep(own, model, optimizer, context.device)
        for number in range(STEPS):
            if number == STEPS - 1:
                live.looks_above = NEAR * live.most
            step(_passes(model, list(micro_batches(source.batch(number), own.batch))))
    return live.peak


def _passes(model: nn.Module, batches: list[Batch]) -> Iterator[Batch]:
    for part, batch in enumerate(batches, 1):
        reduce_gradients(model, part == len(batches))
        yield batch


def predicted(trace: Trace) -> int:
    """The most that the tensors of a trace take together; the CPU has no cuBLAS and no allocator's rounding."""
    peak = now = 0
    for event in trace.events:
        block = abs(event) - 1
        if trace.categories[block] != WORKSPACE:
            now += trace.sizes[block] if event > 0 else -trace.sizes[block]
            peak = max(peak, now)
    return peak


def predict(specs: list[TrainingSpec]) -> list[int]:
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.workloads.predicting.dry_run import trace_of

    dry = DryRun()
    return [predicted(trace_of(spec, dry)) for spec in specs]


def count(specs: list[TrainingSpec], rank: int, world_size: int, file: str) -> list[int]:
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    try:
        return [counted(spec) for spec in specs]
    finally:
        distributed.destroy_process_group()


def main(asked: str, folder: str) -> None:
    """Every process is a fork of this one, which has imported torch and started no thread."""
    import torch.distributed.fsdp

    torch.set_num_threads(1)
    ranks = [[TrainingSpec.model_validate(values) for values in specs] for specs in json.loads(asked)]
    found = []
    context = multiprocessing.get_context("fork")
    for specs in ranks:
        size = specs[0].world_size
        with context.Pool(size + 1) as pool:
            file = f"{folder}/{size}"
            counts = [pool.apply_async(count, (specs, rank, size, file)) for rank in range(size)]
            found.append({"predicted": pool.apply(predict, (specs,)), "counted": [one.get() for one in counts]})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

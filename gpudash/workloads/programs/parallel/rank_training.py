"""One rank's training: its slice of every batch, the same steps as the other ranks', and what it reports of each.

At the end it is checked whether all ranks have the same parameters, bit for bit.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import distributed, nn

from gpudash.specs import TrainingSpec
from gpudash.workloads.programs.batches import Batch, Batches, data, epoch_order, micro_batches, placed
from gpudash.workloads.programs.parallel.rank_failure import memory_facts
from gpudash.workloads.programs.parallel.rank_link import LEAVING, EndsHere, Link
from gpudash.workloads.programs.parallel.rank_timing import times_of
from gpudash.workloads.programs.parallel.wrapping import reduce_gradients, shared
from gpudash.workloads.programs.training import deterministic, model_of, read_numbers
from gpudash.workloads.programs.training_step import TrainingStep, optimizer_of
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import WorkloadError

RECENT = 20
"""Newest steps whose computing the slowed rank is slowed down by."""


class RankTraining:
    """A training as one rank takes part in it.

    Args:
        spec: of the run on all devices.
        context: of this rank.
        link: to the run.
    """

    def __init__(self, spec: TrainingSpec, context: Context, link: Link) -> None:
        self._spec = spec.rank_spec
        self._joined = spec.joined_spec
        self._context = context
        self._link = link
        self._share = spec.slow_rank if link.rank == link.world_size - 1 else 0.0
        self._source: Batches = data(self._joined, context)
        model = model_of(self._spec, self._source.outputs, context).to(context.device)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model = shared(model, spec, context.device)
        self._optimizer = optimizer_of(self._spec, self._model)
        self._take_step = TrainingStep(self._spec, self._model, self._optimizer, context.device, self)
        self._times = times_of(self._model, context.device, link)
        self._reduces = False
        self._resident: dict[int, Batch] | None = {} if spec.batches == "resident" else None
        self._computed: deque[float] = deque(maxlen=RECENT)
        self._slowed_s = 0.0
        self._row: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What the result says of the data and the model."""
        return {**self._source.facts, "item": self._source.item, "parameters": self._parameters}

    def train(self) -> dict[str, Any]:
        """Train to the last step, or to where the run is ended.

        Returns:
            ``steps``, and when it was the last one ``digest`` of the parameters and the largest ``difference``.

        Raises:
            WorkloadError: when the loss is not finite and the spec says to stop.
        """
        context, step, whole = self._context, 0, True
        memory = memory_facts(str(context.device))
        self._link.tell("ready", items=self._source.items, facts=self.facts, memory=memory)
        context.begin_steps()
        self._ended_s = time.perf_counter()
        with deterministic(self._spec.deterministic):
            try:
                for index in self._order():
                    self._link.begin_step(step + 1)
                    step += 1
                    self._step(index, step)
            except EndsHere:
                whole = False
        if self._times.late:
            self._times.begin()
            self._tell_row(self._times.take())
        self._link.phase = LEAVING
        context.flush()
        if not whole:
            return {"steps": step}
        digest, difference = agree(self._model)
        return {"steps": step, "digest": digest, "difference": difference}

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """`Observer`: a stage of the step; the one that shares gradients is where ranks wait for each other."""
        if name == "backward" and self._reduces:
            return self._reducing()
        return self._context.stage(name)

    def check_cancelled(self) -> None:
        """`Observer`: ranks leave between two steps only."""

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """`Observer`: nothing is asked for; the guard looks at the device as a whole."""

    def _order(self) -> Iterator[int]:
        left = self._spec.steps
        for epoch in range(1, self._spec.passes + 1):
            order = epoch_order(self._joined, epoch)[:left]
            left -= len(order)
            yield from order

    def _step(self, index: int, step: int) -> None:
        if self._link.free_cache.is_set():
            self._link.free_cache.clear()
            self._context.free_cache()
        self._times.begin()
        self._slowed_s = 0.0
        loss, right = self._take_step(self._batches(index))
        read_loss, count = read_numbers(loss, right)
        accuracy = count / (self._source.items // self._link.world_size)
        starved_s = self._times.starved_s()
        now = time.perf_counter()
        seconds, self._ended_s = now - self._ended_s, now
        blocked = self._times.take()
        if self._times.late:
            self._tell_row(blocked)
        self._row = {"step": step, "time_s": self._link.clock(), "step_s": seconds, "loss": read_loss}
        self._row |= {"accuracy": accuracy, "starved_s": starved_s}
        if not self._times.late:
            self._tell_row(blocked)
        self._context.step(step, self._spec.steps, loss=read_loss, accuracy=accuracy)
        if not math.isfinite(read_loss) and self._spec.on_nan == "stop":
            self._not_finite(read_loss, step)

    def _tell_row(self, blocked_s: float | None) -> None:
        row, self._row = self._row, None
        if row is None:
            return
        starved_s = row.pop("starved_s")
        compute_s = None if blocked_s is None else max(0.0, row["step_s"] - blocked_s - starved_s)
        if compute_s is not None:
            self._computed.append(compute_s - self._slowed_s)
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else str(row["loss"])
        self._link.tell("step", **row, compute_s=compute_s, blocked_s=blocked_s)

    def _batches(self, index: int) -> Iterator[Batch]:
        """This rank's micro-batches on its device; gradients are shared with the last of them."""
        context = self._context
        parts = list(micro_batches(self._slice(index), self._spec.batch))
        for number, part in enumerate(parts):
            self._reduces = number == len(parts) - 1
            reduce_gradients(self._model, self._reduces)
            inputs, targets = placed("batch", part, context.device, context)
            yield inputs, targets
            if self._spec.batches == "pingpong":
                placed("batch back", (inputs, targets), torch.device("cpu"), context)

    def _slice(self, index: int) -> Batch:
        if self._resident is not None and index in self._resident:
            return self._resident[index]
        inputs, targets = self._source.batch(index)
        rows = len(inputs) // self._link.world_size
        own = slice(self._link.rank * rows, (self._link.rank + 1) * rows)
        if self._resident is None:
            return inputs[own], targets[own]
        device = self._context.device
        self._resident[index] = inputs[own].to(device), targets[own].to(device)
        return self._resident[index]

    @contextmanager
    def _reducing(self) -> Iterator[None]:
        if self._share and self._computed:
            self._slow_down()
        with self._context.stage("backward"):
            yield
        self._times.backward_ended()

    def _slow_down(self) -> None:
        """Compute longer by the asked share of what this rank has lately computed a step."""
        device = self._context.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = self._share * statistics.median(self._computed)
        until = time.thread_time() + seconds
        weights = torch.ones(64, 64)
        while time.thread_time() < until:
            torch.mm(weights, weights)
        self._slowed_s = seconds

    def _not_finite(self, loss: float, step: int) -> None:
        what = "NaN" if math.isnan(loss) else "infinite"
        raise WorkloadError(
            "nan",
            f"The loss is {what} at step {step}.",
            "Lower --learning-rate or choose fp32; --on-nan continue goes on all the same.",
        )


def parameters_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Each parameter whole, one at a time: where ranks hold shards, they gather it, and so all have to ask."""
    for parameter in model.parameters():
        found = parameter.detach()
        gather = getattr(found, "full_tensor", None)
        yield found if gather is None else gather()


def digest(model: nn.Module) -> str:
    """SHA-256 of all parameters' bytes, in their order, in hexadecimal."""
    sum_ = hashlib.sha256()
    for parameter in parameters_of(model):
        held = parameter.cpu().contiguous()
        if held.nbytes:
            sum_.update((ctypes.c_char * held.nbytes).from_address(held.data_ptr()))
    return sum_.hexdigest()


def largest_difference(model: nn.Module) -> float:
    """The largest difference of any weight from rank 0's, over all ranks; every rank has to ask."""
    largest = torch.zeros((), dtype=torch.float64)
    for parameter in parameters_of(model):
        first = parameter.clone()
        distributed.broadcast(first, 0)
        here = (parameter.double() - first.double()).abs().max() if parameter.numel() else largest
        largest = torch.maximum(largest, here.cpu())
    shared = largest.to(next(parameters_of(model)).device)
    distributed.all_reduce(shared, op=distributed.ReduceOp.MAX)
    return float(shared)


def agree(model: nn.Module) -> tuple[str, float]:
    """This rank's digest, and the largest difference between any two ranks' weights and rank 0's: 0 when all agree."""
    own = digest(model)
    all_digests: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(all_digests, own)
    return own, 0.0 if len(set(all_digests)) == 1 else largest_difference(model)

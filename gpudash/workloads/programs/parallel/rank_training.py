"""One rank's training: its slice of every batch, in step with the other ranks, and its reports on each step.

At the end it checks that all ranks have the same parameters, bit for bit. The model is a whole copy on each rank
(DistributedDataParallel) or a shard (FSDP2).

It measures how long a rank computes in a step, and how long it is blocked in collectives, communicating or waiting for
others. DistributedDataParallel starts to reduce a bucket of gradients when its last gradient is ready, and continues
computing. After the last bucket starts, nothing is left to compute until the backward pass returns: that is the
blocked time, and the rest of the step is computing. FSDP2 waits inside the forward and backward pass, in torch's own
wait for each collective, which is timed on the CPU. Time in which a rank was ready to compute on the CPU, but other
programs had the cores, counts as neither.
had the cores, is neither.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gpudash.simulator.operations.collectives import spent
from gpudash.specs import TrainingSpec
from gpudash.system.processes import waited_seconds
from gpudash.workloads.programs.batches import Batch, Batches, data, epoch_order, micro_batches, placed
from gpudash.workloads.programs.parallel.rank_link import COLLECTIVE, COMPUTING, LEAVING, EndsHere, Link, memory_facts
from gpudash.workloads.programs.training import NAN_REMEDY, deterministic, loss_text, model_of, read_numbers
from gpudash.workloads.programs.training_step import TrainingStep, optimizer_of
from gpudash.workloads.running.accelerators import synchronize
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import WorkloadError

RECENT = 20
"""How many recent steps determine by how much the slowed rank is slowed down."""


class RankTraining:
    """A training from the view of one rank.

    Args:
        spec: of the run on all devices.
        context: of this rank.
        link: connects it to the run.
    """

    def __init__(self, spec: TrainingSpec, context: Context, link: Link) -> None:
        self._spec = spec.rank_spec
        self._joined = spec.joined_spec
        self._context = context
        self._link = link
        if link.rank == link.world_size - 1:
            self._share = spec.slow_rank
        else:
            self._share = 0.0
        self._source: Batches = data(self._joined, context)
        # Weights are initialised on the CPU and then moved: all ranks draw the same numbers, whatever their GPUs.
        model = model_of(self._spec, self._source.outputs, context).to(context.device)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model = shared(model, spec, context.device)
        # After `shared`: FSDP2 replaces the parameters, and an optimizer of the old ones would train nothing.
        self._optimizer = optimizer_of(self._spec, self._model)
        self._take_step = TrainingStep(self._spec, self._model, self._optimizer, context.device, self)
        self._times = _times_of(self._model, context.device, link)
        self._reduces = False
        if spec.batches == "resident":
            self._resident: dict[int, Batch] | None = {}
        else:
            self._resident = None
        self._computed: deque[float] = deque(maxlen=RECENT)
        self._slowed_s = 0.0
        self._row: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What the result reports about the data and the model."""
        return {**self._source.facts, "item": self._source.item, "parameters": self._parameters}

    def train(self) -> dict[str, Any]:
        """Train to the last step, or to where the run is ended.

        Returns:
            ``steps``, and after the last one the ``digest`` of the parameters and the largest ``difference``.

        Raises:
            WorkloadError: the loss is not finite and the spec says to stop.
        """
        context = self._context
        step = 0
        whole = True
        memory = memory_facts(str(context.device))
        self._link.report("ready", items=self._source.items, facts=self.facts, memory=memory)
        context.begin_steps()
        self._ended_s = time.perf_counter()
        with deterministic(self._spec.deterministic):
            try:
                # The seed determines the same order for every rank, without communication.
                for index in self._order():
                    self._link.begin_step(step + 1)
                    step += 1
                    self._step(index, step)
            except EndsHere:
                whole = False
        # if times come a step late, those of the last step are still missing
        # One more start makes the last step the previous one.
        if self._times.late:
            self._times.begin()
            self._report_row(self._times.take())
        self._link.phase = LEAVING
        context.flush()
        if not whole:
            return {"steps": step}
        digest, difference = _agree(self._model)
        return {"steps": step, "digest": digest, "difference": difference}

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """`Observer`: a stage of the step; ranks wait for each other in the one that reduces gradients."""
        # Only the last micro-batch's backward pass reduces gradients (`_batches`).
        if name == "backward" and self._reduces:
            return self._reducing()
        return self._context.stage(name)

    def check_cancelled(self) -> None:
        """`Observer`: ranks leave between two steps only."""

    def about_to_allocate(self, size: int, memory: str | None = None) -> None:
        """`Observer`: nothing is requested; the guard checks the device as a whole."""

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
        # Reading the numbers waits for the GPU, so the step's time ends here.
        read_loss, count = read_numbers(loss, right)
        accuracy = count / (self._source.items // self._link.world_size)
        starved_s = self._times.starved_s()
        now = time.perf_counter()
        seconds = now - self._ended_s
        self._ended_s = now
        blocked = self._times.take()
        # the times are those of the previous step, whose row has waited for them; this step's row waits too
        if self._times.late:
            self._report_row(blocked)
        self._row = {"step": step, "time_s": self._link.clock(), "step_s": seconds, "loss": read_loss}
        self._row |= {"accuracy": accuracy, "starved_s": starved_s}
        if not self._times.late:
            self._report_row(blocked)
        self._context.step(step, self._spec.steps, loss=read_loss, accuracy=accuracy)
        if not math.isfinite(read_loss) and self._spec.on_nan == "stop":
            raise WorkloadError("nan", f"{loss_text(read_loss, step)}.", NAN_REMEDY)

    def _report_row(self, blocked_s: float | None) -> None:
        row = self._row
        self._row = None
        if row is None:
            return
        starved_s = row.pop("starved_s")
        compute_s = None
        if blocked_s is not None:
            compute_s = max(0.0, row["step_s"] - blocked_s - starved_s)
        if compute_s is not None:
            # Without the intentional delay: otherwise each step would be slowed by the previous delay.
            self._computed.append(compute_s - self._slowed_s)
        if not math.isfinite(row["loss"]):
            # JSON cannot represent it
            row["loss"] = str(row["loss"])
        self._link.report("step", **row, compute_s=compute_s, blocked_s=blocked_s)

    def _batches(self, index: int) -> Iterator[Batch]:
        """This rank's micro-batches on its device; gradients are reduced with the last of them."""
        context = self._context
        parts = list(micro_batches(self._slice(index), self._spec.batch))
        for number, part in enumerate(parts):
            self._reduces = number == len(parts) - 1
            # Set before the forward pass: there both wrappers decide whether the backward pass reduces.
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
        """Compute longer, by the requested fraction of this rank's recent computing time per step."""
        device = self._context.device
        # Pending GPU work must not count as delay.
        synchronize(device)
        seconds = self._share * statistics.median(self._computed)
        # in processor time of the thread: a rank that waits for a core is not computing
        until = time.thread_time() + seconds
        weights = torch.ones(64, 64)
        while time.thread_time() < until:
            torch.mm(weights, weights)
        self._slowed_s = seconds


def _parameters_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Each parameter whole, one at a time. Ranks with shards gather it, so all of them must take part."""
    for parameter in model.parameters():
        found = parameter.detach()
        # torch's DTensor, which FSDP2 makes of every parameter
        gather = getattr(found, "full_tensor", None)
        if gather is None:
            yield found
        else:
            yield gather()


def digest(model: nn.Module) -> str:
    """SHA-256 of all parameters' bytes, in their order, in hexadecimal."""
    # One after the other: the whole parameters of all shards would need the memory that sharding saves.
    sum_ = hashlib.sha256()
    for parameter in _parameters_of(model):
        # Bytes rather than values: -0.0 and NaN are compared as bits.
        held = parameter.cpu().contiguous()
        if held.nbytes:
            sum_.update((ctypes.c_char * held.nbytes).from_address(held.data_ptr()))
    return sum_.hexdigest()


def _largest_difference(model: nn.Module) -> float:
    """The largest difference of any weight from rank 0's, over all ranks; every rank must call it."""
    largest = torch.zeros((), dtype=torch.float64)
    for parameter in _parameters_of(model):
        first = parameter.clone()
        distributed.broadcast(first, 0)
        here = largest
        if parameter.numel():
            here = (parameter.double() - first.double()).abs().max()
        largest = torch.maximum(largest, here.cpu())
    everywhere = largest.to(next(_parameters_of(model)).device)
    distributed.all_reduce(everywhere, op=distributed.ReduceOp.MAX)
    return float(everywhere)


def _agree(model: nn.Module) -> tuple[str, float]:
    """This rank's digest, and the largest difference of any rank's weights from rank 0's: 0 if all agree."""
    own = digest(model)
    all_digests: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(all_digests, own)
    # every rank sees the same digests, so either all compute the difference or none
    if len(set(all_digests)) == 1:
        return own, 0.0
    # Only if digests differ: it transfers the whole model.
    return own, _largest_difference(model)


def shared(model: nn.Module, spec: TrainingSpec, device: torch.device) -> nn.Module:
    """``model``, which is on ``device``, as one of its ranks; its weights are those of rank 0.

    Raises:
        WorkloadError: this torch has no FSDP2.
    """
    if spec.parallel == "ddp":
        devices = None
        if device.type == "cuda":
            devices = [device]
        return DistributedDataParallel(model, device_ids=devices)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        message = f"torch {torch.__version__} has no FSDP2 (torch.distributed.fsdp.fully_shard)."
        raise WorkloadError("fsdp", message, "Install torch 2.6 or newer, or choose --parallel ddp.") from error
    with torch.no_grad():
        # DistributedDataParallel broadcasts by itself; FSDP2 only shards what each rank has
        for weights in model.parameters():
            distributed.broadcast(weights, 0)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    # inner ones first: the rest belongs to the shard of the whole model
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def reduce_gradients(model: nn.Module, reduce: bool) -> None:
    """Set whether the next forward and backward pass reduces gradients over the ranks or only accumulates them.

    Works like `DistributedDataParallel.no_sync`, for both wrappers: call it before the forward pass.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = reduce
        return
    sharded: Any = model
    sharded.set_requires_gradient_sync(reduce)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The units that are gathered: each block of a transformer or CNN, each layer with weights in an MLP."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleList):
        return list(blocks)
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


class _CollectiveTimes:
    """Measures how long the latest step was blocked.

    Args:
        link: notified when the rank starts and stops waiting.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def begin(self) -> None:
        """Start a step."""

    def backward_ended(self) -> None:
        """The backward pass that reduces the gradients has returned."""

    def take(self) -> float | None:
        """Blocked seconds of the latest step, or if `late` of the previous one; ``None`` if unknown."""
        return None

    def starved_s(self) -> float:
        """Seconds of this step, outside of collectives, in which the rank waited for a core; 0 if unknown."""
        return 0.0

    @property
    def late(self) -> bool:
        """Whether `take` returns the previous step's time."""
        return False


class _BucketTimes(_CollectiveTimes):
    """DistributedDataParallel on the CPU, timed by the clock."""

    def __init__(self, link: Link, model: DistributedDataParallel) -> None:
        super().__init__(link)
        self._handed_s: float | None = None
        self._blocked_s: float | None = None
        self._began_starved_s = self._handed_starved_s = self._left_starved_s = 0.0
        model.register_comm_hook(None, lambda _state, bucket: self._reduce(bucket))

    def begin(self) -> None:
        # The thread's counter at the start: earlier waits for cores are not part of this step.
        self._handed_s = self._blocked_s = None
        self._began_starved_s = self._handed_starved_s = self._left_starved_s = waited_seconds()

    def backward_ended(self) -> None:
        if self._handed_s is not None:
            self._blocked_s = time.perf_counter() - self._handed_s
            self._left_starved_s = waited_seconds()
        self._link.phase = COMPUTING

    def take(self) -> float | None:
        return self._blocked_s

    def starved_s(self) -> float:
        # before the last bucket started, and after the backward pass: the time in between belongs to the collective
        return waited_seconds() - self._left_starved_s + self._handed_starved_s - self._began_starved_s

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        # Until the last bucket the backward pass still computes, whatever is being transferred.
        if bucket.is_last():
            self._link.phase = COLLECTIVE
        self._handed_starved_s = waited_seconds()  # before the clock: the time in between counts as computing
        self._handed_s = time.perf_counter()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # it takes None for the default group


class _CudaBucketTimes(_CollectiveTimes):
    """DistributedDataParallel on a GPU, timed by CUDA events that are read a step later, when they have completed."""

    def __init__(self, link: Link, model: DistributedDataParallel) -> None:
        super().__init__(link)
        self._handed: Any = None
        self._pending: tuple[Any, Any] | None = None
        self._before: tuple[Any, Any] | None = None
        model.register_comm_hook(None, lambda _state, bucket: self._reduce(bucket))

    @property
    def late(self) -> bool:
        return True

    def begin(self) -> None:
        # What the last step recorded is read in this one, when the GPU has passed it.
        self._before = self._pending
        self._pending = None
        self._handed = None

    def backward_ended(self) -> None:
        if self._handed is not None:
            ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            ended.record()
            self._pending = self._handed, ended
        self._link.phase = COMPUTING

    def take(self) -> float | None:
        if self._before is None:
            return None
        handed, ended = self._before
        ended.synchronize()
        seconds: float = handed.elapsed_time(ended) / 1e3
        return seconds

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._link.phase = COLLECTIVE
        self._handed = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._handed.record()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]


class _WaitTimes(_CollectiveTimes):
    """FSDP2 on the CPU: the time inside torch's own wait for collectives."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._blocked_s = self._began_starved_s = self._starved_waiting_s = 0.0
        work: Any = distributed.Work
        # The class's own method: FSDP2 waits inside torch, where there is no hook.
        work.wait = self._timed(work.wait)

    def begin(self) -> None:
        self._blocked_s = self._starved_waiting_s = 0.0
        self._began_starved_s = waited_seconds()

    def take(self) -> float | None:
        return self._blocked_s

    def starved_s(self) -> float:
        return waited_seconds() - self._began_starved_s - self._starved_waiting_s

    def _timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            before = self._link.phase
            self._link.phase = COLLECTIVE
            starved = waited_seconds()
            began = time.perf_counter()
            try:
                return wait(*arguments, **more)
            finally:
                self._blocked_s += time.perf_counter() - began
                # Waiting for a core inside a collective counts as the collective's, and is subtracted in `starved_s`.
                self._starved_waiting_s += waited_seconds() - starved
                self._link.phase = before

        return timed


class _SimulatedTimes(_CollectiveTimes):
    """A simulated GPU, whose collectives are complete when their call returns: the time inside them.

    The backward pass runs in a thread of its own, so waits for a core are unknown.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._before_s = 0.0
        link.communicates = lambda: spent.inside > 0

    def begin(self) -> None:
        self._before_s = spent.seconds

    def take(self) -> float | None:
        return spent.seconds - self._before_s


def _times_of(model: nn.Module, device: torch.device, link: Link) -> _CollectiveTimes:
    """The object that times the collectives of ``model``.

    With FSDP2 on a GPU nothing does, because it waits on other streams than the computing ones.
    """
    if device.type == "sim":
        return _SimulatedTimes(link)
    if isinstance(model, DistributedDataParallel):
        if device.type == "cpu":
            return _BucketTimes(link, model)
        return _CudaBucketTimes(link, model)
    if device.type == "cpu":
        return _WaitTimes(link)
    return _CollectiveTimes(link)

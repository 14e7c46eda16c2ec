"""The method on this computer's own processor, where everything can be measured: ``python -m tests.speed.cpu``.

The CPU is the card: its peaks are measured once, by one operation of each class at some sizes, and the time of a step
is worked out from what the dry run wrote down, as on a GPU: arithmetic or memory, whichever is longer, for each
operation, and the host's time for starting it. Here the host waits for each operation, so that both add up. Then the
same step is taken. One thread and its processor time, since the computer may be busy, and medians of several on both
sides.

Nothing of the models is in the peaks. What is asked is whether the work is complete and the method right, not whether
the constants of GPUs are.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import Build, follow
from gpudash.specs import Spec
from gpudash.speed.work import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    EMBEDDING,
    GROUPED,
    NORMALISATION,
    OPTIMIZER,
    PRODUCT,
    REDUCTION,
    Operation,
    StepWork,
)
from gpudash.workloads.predicting.dry_run import trace_of
from gpudash.workloads.predicting.host_speed import LAUNCH_S, measure_host_speed
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run import resolve
from gpudash.workloads.running.run_errors import Cancelled

clock = time.thread_time
"""Processor time: what other programs take of a busy computer is none of the step's."""

LEAST_S = 0.02
"""Seconds that one measurement of a peak takes at least."""

COLD, MOST_COPIES = 16 * 2**20, 256
"""Bytes that the tensors of one measurement take together, and how many they are at most."""

KEPT = 8
"""Results of a measurement that are there at once."""

STEPS = 8
LONGEST_S = 4.0
"""Steps that are taken of a model, and seconds after which no other is."""

ROWS = 1024
WIDTHS = (8, 32, 64, 128, 256, 512, 1024)
"""Of the linear layers whose products are measured."""

KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB)
"""Bytes that an operation of a class reads and writes, for its curve."""


def usual(call: Callable[[], object]) -> float:
    """Seconds of a call, the median of several: as a step, which is never taken at the computer's quietest."""
    call()
    spent: list[float] = []
    kept: list[object] = []
    until = clock() + LEAST_S
    while len(spent) < KEPT or clock() < until:
        # results of a step stay for its backward pass: each takes pages that the system has to give anew
        if len(kept) == KEPT:
            kept.clear()
        began = clock()
        kept.append(call())
        spent.append(clock() - began)
    return statistics.median(spent)


def in_turn(make: Callable[[], Any], size: int) -> Callable[[], Any]:
    """One after another of as many as no cache of a core holds, of ``size`` bytes each: as tensors of a step come."""
    made = [make() for _ in range(max(1, min(MOST_COPIES, COLD // max(size, 1))))]
    return itertools.cycle(made).__next__


@dataclass(frozen=True)
class Curve:
    """Seconds by a size, straight between what was measured where both are logarithms, without the smallest's call."""

    sizes: Sequence[float]
    seconds: Sequence[float]

    @classmethod
    def of(cls, measured: dict[float, float]) -> Curve:
        """Of seconds by size; what starting a call takes is the host's and no part of it."""
        start = min(measured.values())
        kept = {size: max(seconds - start, 1e-8) for size, seconds in sorted(measured.items())}
        sizes = list(kept)
        # the smallest call has nothing left: of it the rate of the next is taken
        kept[sizes[0]] = kept[sizes[1]] * sizes[0] / sizes[1]
        return cls(sizes, list(kept.values()))

    def at(self, size: float) -> float:
        """Seconds of ``size``; beyond the ends by the rate there."""
        if size <= self.sizes[0]:
            return self.seconds[0] * size / self.sizes[0]
        if size >= self.sizes[-1]:
            return self.seconds[-1] * size / self.sizes[-1]
        place = next(number for number, known in enumerate(self.sizes) if known >= size)
        low, high = self.sizes[place - 1], self.sizes[place]
        share = log(size / low) / log(high / low)
        before, after = self.seconds[place - 1], self.seconds[place]
        return float(before * (after / before) ** share)


class Processor:
    """This CPU's peaks by class, by the bytes that an operation moves or by its FLOPs."""

    def __init__(self) -> None:
        self.moving = {
            name: Curve.of({moved: usual(call) for call, moved in map(make, SIZES)}) for name, make in MOVING.items()
        }
        self.multiplying = {
            name: Curve.of({flops: usual(call) for flops, call in calls()}) for name, calls in MULTIPLYING.items()
        }

        elements = {size: torch.nn.Parameter(torch.rand(size)) for size in (4, 2**12, 2**15, 2**18, 2**21)}
        self.optimizing = Curve.of({size * ADAMW_BYTES: usual(_adamw(one)) for size, one in elements.items()})

    def seconds(self, operation: Operation) -> float:
        """Of the kernel alone."""
        moved = operation.read_bytes + operation.written_bytes
        if operation.kind == OPTIMIZER and operation.shape:
            each = moved / operation.shape[0] * ADAMW_BYTES / ADAMW_OPERATION_BYTES
            return moved / each * self.optimizing.at(each)
        curve = self.multiplying.get(_product(operation))
        if curve is None:
            return self.moving[_class(operation)].at(moved)
        if operation.kind == PRODUCT:
            # by the least of its sizes, as a tile is filled or not
            width = min(operation.shape[1:])
            products = 1 + (_product(operation) == "product")
            rate = products * 2.0 * ROWS * width**2 / curve.at(width)
            arithmetic = operation.flops / rate
        else:
            arithmetic = curve.at(operation.flops)
        return max(arithmetic, self.moving["read"].at(moved))


Sized = Callable[[int], tuple[Callable[[], object], int]]
"""Makes, of bytes that are to be moved, a call and the bytes that it does move."""

Multiplying = Callable[[], Iterator[tuple[float, Callable[[], object]]]]
"""Makes calls, each with its FLOPs or its width."""


def _rows(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    width = 64
    if size >= MIB:
        width = 512
    return torch.rand(max(1, size // 4 // width), width, dtype=dtype)


ADAMW_BYTES = 84
ADAMW_OPERATION_BYTES = 84 / 8
"""That AdamW reads and writes of a float32 weight, in all and in one of its operations over all weights; which a CPU
does weight by weight, with temporaries."""


def _adamw(weight: nn.Parameter) -> Callable[[], object]:
    weight.grad = torch.rand_like(weight)
    optimizer: Any = torch.optim.AdamW([weight])
    following = in_turn(lambda: torch.empty(0), 2**12)

    def step() -> object:
        optimizer.step()
        return following()

    return step


def _one(function: Callable[[torch.Tensor], Any], passes: float = 2) -> Sized:
    """An operation on one tensor, which moves as many bytes as ``passes`` of it."""

    def make(size: int) -> tuple[Callable[[], object], int]:
        given = _rows(int(size / passes))
        following = in_turn(given.clone, given.nbytes)
        return lambda: function(following()), int(passes * given.nbytes)

    return make


def _images(size: int) -> torch.Tensor:
    return torch.rand(max(1, size // 4 // (16 * 16 * 16)), 16, 16, 16)


def _imaged(function: Callable[[torch.Tensor], Any], passes: float = 2) -> Sized:
    def make(size: int) -> tuple[Callable[[], object], int]:
        given = _images(int(size / passes))
        following = in_turn(given.clone, given.nbytes)
        return lambda: function(following()), int(passes * given.nbytes)

    return make


def _normalised(tensor: torch.Tensor) -> Any:
    return torch.native_layer_norm(tensor, tensor.shape[-1:], None, None, 1e-5)


def _denormalised(tensor: torch.Tensor) -> Any:
    row = tensor.new_ones(tensor.shape[0], 1)
    width = tensor.shape[-1:]
    weight = tensor.new_ones(width)
    return torch.ops.aten.native_layer_norm_backward(
        tensor, tensor, width, row, row, weight, weight, [True, True, True]
    )


def _batch_normalised(images: torch.Tensor) -> Any:
    ones = torch.ones(images.shape[1])
    return torch.native_batch_norm(images, ones, ones, ones.clone(), ones.clone(), True, 0.1, 1e-5)


def _batch_denormalised(images: torch.Tensor) -> Any:
    ones = torch.ones(images.shape[1])
    return torch.ops.aten.native_batch_norm_backward(
        images, images, ones, ones, ones, ones, ones, True, 1e-5, [True, True, True]
    )


def _softmax_back(tensor: torch.Tensor) -> Any:
    return torch.ops.aten._softmax_backward_data(tensor, tensor, -1, torch.float32)


MOVING: dict[str, Sized] = {
    "read": _one(lambda one: one.sum(), 1),
    "elementwise": _one(lambda one: one + one, 3),
    "function": _one(lambda one: torch.exp(one)),
    "gelu": _one(lambda one: functional.gelu(one)),
    "gelu_backward": _one(lambda one: torch.ops.aten.gelu_backward(one, one), 3),
    "tanh": _one(lambda one: torch.tanh(one)),
    "pow": _one(lambda one: one**3),
    "random": _one(lambda one: torch.native_dropout(one, 0.1, True), 2.25),
    "fill": _one(lambda one: one.fill_(1.0), 1),
    "copy": _one(lambda one: one.clone()),
    "turned": _one(lambda one: one.t().contiguous()),
    "reduction": _one(lambda one: one.sum(0), 1),
    "softmax": _one(lambda one: torch.softmax(one, -1)),
    "softmax_backward": _one(_softmax_back, 3),
    "log_softmax": _one(lambda one: torch.log_softmax(one, -1)),
    "layer_norm": _one(_normalised),
    "layer_norm_backward": _one(_denormalised, 3),
    "batch_norm": _imaged(_batch_normalised),
    "batch_norm_backward": _imaged(_batch_denormalised, 3),
    "pool": _imaged(lambda one: functional.max_pool2d(one, 2, return_indices=True), 1.75),
    "gather": _one(lambda one: one[torch.arange(len(one))]),
}
"""One operation of each class that memory bounds, by the bytes that it is to move: what calls it, and what it moves."""

FUNCTIONS = {
    "gelu": "gelu",
    "gelu_backward": "gelu_backward",
    "tanh": "tanh",
    "pow": "pow",
    "native_dropout": "random",
    "bernoulli_": "random",
    "zero_": "fill",
    "fill_": "fill",
    "_log_softmax": "log_softmax",
    **dict.fromkeys(("exp", "log", "sigmoid", "silu", "silu_backward", "erf", "sin", "cos", "rsqrt"), "function"),
}
"""Operations whose arithmetic counts on a CPU → the class that was measured."""

BY_KIND = {COPY: "turned", EMBEDDING: "gather", REDUCTION: "reduction"}


def _class(operation: Operation) -> str:
    name = operation.name
    back = ""
    if name.endswith("_backward") or "backward" in name:
        back = "_backward"
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if "pool" in name:
        return "pool"
    if operation.kind == NORMALISATION:
        known = ("softmax", "batch_norm")
        return next((kind for kind in known if kind in name), "layer_norm") + back
    if name in ("copy_", "clone") and operation.read_bytes != operation.written_bytes:
        return "copy"
    return BY_KIND.get(operation.kind, "elementwise")


def _products(dtype: torch.dtype, multiply: Callable[[torch.Tensor, torch.Tensor], object]) -> Multiplying:
    """A product of a linear layer's step, by its width."""

    def calls() -> Iterator[tuple[float, Callable[[], object]]]:
        for width in WIDTHS:
            one = torch.rand(ROWS, width).to(dtype)
            weight = torch.rand(width, width).to(dtype)
            given = in_turn(one.clone, one.nbytes)
            weights = in_turn(weight.clone, weight.nbytes)
            yield float(width), partial(_on_others, multiply, given, weights)

    return calls


def _on_others(multiply: Any, given: Callable[[], Any], weights: Callable[[], Any]) -> object:
    made: object = multiply(given(), weights())
    return made


def _forward(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(rows, weight, weight[0])


def _backward(rows: torch.Tensor, weight: torch.Tensor) -> object:
    """Half of both gradients, which are two products."""
    return rows @ weight, rows.t() @ rows


def _images_through(kernel: int, *, groups: bool = False, back: bool = False) -> Multiplying:
    def calls() -> Iterator[tuple[float, Callable[[], object]]]:
        for batch, channels, side in ((1, 2, 4), (2, 16, 16), (4, 32, 16), (8, 64, 16), (16, 128, 16)):
            given = torch.rand(batch, channels, side, side)
            width = channels
            if groups:
                width = 1
            weight = torch.rand(channels, width, kernel, kernel)
            apart = channels // width
            flops = 2.0 * given.numel() * width * kernel**2
            how = (None, [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], apart)
            if back:
                mask = [True, True, False]
                yield 2 * flops, partial(torch.ops.aten.convolution_backward, given, given, weight, *how, mask)
            else:
                yield flops, partial(torch.ops.aten.convolution, given, weight, *how)

    return calls


def _attending(*, back: bool = False) -> Multiplying:
    def calls() -> Iterator[tuple[float, Callable[[], object]]]:
        for batch, length in ((1, 4), (4, 64), (4, 128), (4, 256), (4, 512)):
            given = torch.rand(batch, length, 4, 32, requires_grad=back).transpose(1, 2)
            flops = 4.0 * batch * 4 * length**2 * 32
            made = functional.scaled_dot_product_attention(given, given, given)
            if back:
                learned = partial(torch.autograd.grad, made, given, torch.ones_like(made), retain_graph=True)
                yield 2.5 * flops, learned
            else:
                yield flops, partial(functional.scaled_dot_product_attention, given, given, given)

    return calls


MULTIPLYING: dict[str, Multiplying] = {
    "linear": _products(torch.float32, _forward),
    "product": _products(torch.float32, _backward),
    "convolution": _images_through(3),
    "convolution backward": _images_through(3, back=True),
    "depthwise": _images_through(3, groups=True),
    "depthwise backward": _images_through(3, groups=True, back=True),
    "attention": _attending(),
    "attention backward": _attending(back=True),
}
"""One operation of each class that multiplies, by its FLOPs; products by the width of a layer of `ROWS` rows."""


def _product(operation: Operation) -> str:
    """The class of one that multiplies; "" of others."""
    back = ""
    if "backward" in operation.name:
        back = " backward"
    if operation.kind == PRODUCT:
        if operation.name == "addmm":
            return "linear"
        return "product"
    if operation.kind in (CONVOLUTION, GROUPED):
        return f"convolution{back}"
    if operation.kind == DEPTHWISE:
        return f"depthwise{back}"
    if operation.kind == ATTENTION:
        return f"attention{back}"
    return ""


@dataclass(frozen=True)
class Host:
    """Seconds to start an operation, and for each tensor of one that goes over many."""

    operation_s: float
    backward_operation_s: float
    tensor_s: float

    @classmethod
    def measured(cls, dry: DryRun) -> Host:
        """By the block of a transformer, and by an optimizer of many tiny tensors."""
        found = measure_host_speed(dry)
        tensors = 64
        weights = [nn.Parameter(torch.ones(4)) for _ in range(tensors)]
        for weight in weights:
            weight.grad = torch.ones(4)
        optimizer = torch.optim.AdamW(weights)
        # operations of AdamW that go over all tensors: as a dry run writes them down
        operations = 8
        tensor_s = usual(optimizer.step) / operations / tensors
        return cls(found.operation_s - LAUNCH_S, found.backward_operation_s - LAUNCH_S, tensor_s)

    def seconds(self, operation: Operation) -> float:
        """For one."""
        if operation.kind == OPTIMIZER and operation.shape:
            return operation.shape[0] * self.tensor_s
        if operation.phase == "backward":
            return self.backward_operation_s
        return self.operation_s


def predicted(work: StepWork, processor: Processor, host: Host) -> float:
    """Seconds of a step."""
    kernels = sum(count * processor.seconds(operation) for operation, count in work.operations.items())
    starts = sum(count * host.seconds(operation) for operation, count in work.operations.items())
    return kernels + starts


def taken(build: Build) -> float:
    """Seconds of a step on the CPU, the median of several."""
    step = build(torch.device("cpu"))
    for _ in range(2):
        step()
    spent: list[float] = []
    until = clock() + LONGEST_S
    while len(spent) < STEPS and clock() < until:
        began = clock()
        step()
        spent.append(clock() - began)
    return statistics.median(spent)


class _Timing(Context):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), run_id=0, emit=lambda _event: None, clock=time.monotonic)
        self.spent: list[float] = []
        self._last = 0.0

    def progress(self, step: int, steps: int) -> None:
        now = clock()
        if step > 2:
            self.spent.append(now - self._last)
        self._last = clock()
        if step >= 2 * STEPS:
            raise Cancelled

    def use_threads(self, threads: int) -> None:
        pass


def taken_by_workload(spec: Spec) -> float:
    """Seconds of a step of a built-in workload on the CPU."""
    context = _Timing()
    workload = resolve(spec)
    with contextlib.suppress(Cancelled):
        workload(spec, context)
    return statistics.median(context.spent)


def main() -> int:
    """Print predicted and taken of every step, and how far they lie apart."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from tests.speed.cpu_models import MODELS, WORKLOADS

    dry = DryRun()
    processor = Processor()
    host = Host.measured(dry)
    print(f"host: {host.operation_s * 1e6:.1f} µs an operation, {host.backward_operation_s * 1e6:.1f} µs backward")
    errors: list[float] = []
    for name, spec in WORKLOADS.items():
        work = trace_of(spec, dry).work
        errors += _report(name, work, processor, host, partial(taken_by_workload, spec))
    for name, build in MODELS.items():
        torch.manual_seed(0)
        work = follow(build, dry, steps=3).trace.work
        errors += _report(name, work, processor, host, partial(taken, build))
    print(f"{len(errors)} steps: median error {statistics.median(errors):.1%}, largest {max(errors):.0%}")
    return 0


def _report(
    name: str, work: StepWork | None, processor: Processor, host: Host, take: Callable[[], float]
) -> Iterator[float]:
    if work is None:
        print(f"{name:34} no step was followed")
        return
    expected = predicted(work, processor, host)
    found = take()
    ratio = expected / found
    operations = sum(work.operations.values())
    print(f"{name:34} predicted {expected * 1e3:8.2f} ms  took {found * 1e3:8.2f} ms  {ratio:5.2f}  {operations:5}")
    sys.stdout.flush()
    yield abs(ratio - 1)


if __name__ == "__main__":
    sys.exit(main())

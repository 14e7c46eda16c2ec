"""The workspaces of cuDNN's convolutions: from cuDNN itself if it may be queried, else from known rules.

In both cases the unknown part is recorded for the trace.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gpudash.memory.allocator.trace import ConvolutionScratch
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.convolutions.cudnn_client import CudnnClient, may_ask
from gpudash.simulator.operations.scripts import EMPTY_CACHE, HALVES, Arguments, Script

FORWARD, OF_INPUT, OF_WEIGHT = "forward", "of_input", "of_weight"

DTYPES = (torch.float32, torch.float64, *HALVES)

CONVERSION_BYTES = 16
"""Bytes cuDNN allocates for itself, besides what it converts."""

FEWEST_PIXELS = 256
"""A float32 result with at least so many pixels is written in its final layout; a smaller one is converted."""

WITH_CLUSTERS = {FORWARD: 0.05, OF_INPUT: 0.05, OF_WEIGHT: 0.17}
"""By how much an H100 exceeded what cuDNN reports without a GPU, at most, for kernels with clusters of thread blocks:
5.0 % in a forward pass, 16.7 % for a weight's gradient (35 workspaces, tests/gpu/recorded)."""

BEYOND_OPERANDS = 64 * 2**20
"""Added to `OPERANDS_MOST` times input, weight and result, this is assumed to be the most that a convolution
allocates. Of 14,327 different ones that cuDNN 9.20 was queried about for cards of 7.5 to 12.0, 20 take more
(resources/guide/fit.md)."""

OPERANDS_MOST = 2
"""How many copies of input, weight and result are assumed to exist at once, at most."""

OPERANDS_MOST_PLAIN = 5
"""The same in float32 on cards other than 8.x and 9.x, where cuDNN uses Winograd and Fourier algorithms."""


class Scratch:
    """What is known about the convolutions of the run that is being recorded."""

    def __init__(self) -> None:
        self._cards: dict[tuple[int, int], CudnnClient] = {}
        self.begin()

    def begin(self) -> None:
        """Reset before another run."""
        self._version = ""
        self._problem = ""
        self._unknown = 0
        self._timed: set[str] = set()

    def found(self) -> ConvolutionScratch:
        """What was recorded since `begin`."""
        return ConvolutionScratch(self._version, self._unknown, self._problem)

    def close(self) -> None:
        """End the processes that query cuDNN."""
        for card in self._cards.values():
            card.close()
        self._cards.clear()

    def ask(self, question: dict[str, Any], capability: tuple[int, int]) -> Script | None:
        """What cuDNN reports that it allocates; ``None`` if it does not answer.

        With ``benchmark``, torch times all plans of a new convolution in a workspace for the largest, and then empties
        its cache (``run_single_conv``, aten/src/ATen/native/cudnn/Conv_v8.cpp: "clear cached blocks as benchmark
        incurs significant memory consumption"). Its table of the fastest plans is per process.
        """
        if not may_ask():
            return None
        card = self._cards.setdefault(capability, CudnnClient(capability))
        answer = card.ask(question)
        self._problem = self._problem or card.problem
        if answer is None:
            return None
        self._version = card.version
        if answer.clusters:
            self.note_unknown(int(answer.workspace * WITH_CLUSTERS[question["part"]]))
        # A plan other than the first may win; it allocates no more than the benchmark did.
        self.note_unknown(max(0, answer.tried - answer.workspace))
        # In a script, 0 marks where the results are allocated.
        taken = tuple(filter(None, (answer.workspace,)))
        key = f"{capability} {question}"
        if not question["benchmark"] or key in self._timed:
            return taken
        self._timed.add(key)
        if not answer.tried:
            return (EMPTY_CACHE, *taken)
        return (answer.tried, -1, EMPTY_CACHE, *taken)

    def note_unknown(self, size: int) -> None:
        """Record that a convolution may allocate ``size`` bytes more, freed before the next one."""
        self._unknown = max(self._unknown, size)


scratch = Scratch()
"""Of this process, which records one run at a time."""

atexit.register(scratch.close)


def workspace(given: Arguments, part: str, layout: torch.memory_format, architecture: Architecture) -> Script:
    """What cuDNN allocates for itself, in bytes, after results and copies are allocated.

    Args:
        given: arguments of the convolution, or of its backward pass.
        part: which of the three computations it is.
        layout: memory format of input, weight and result.
    """
    values = given["input"]
    weight = given["weight"]
    if not architecture.cudnn_converts:
        return ()
    if values.dtype not in DTYPES or weight.dtype != values.dtype or not values.numel():
        return ()
    large = given.get("grad_output")
    if large is not None:
        made = list(large.shape)
    else:
        made = [values.shape[0], *_result_sizes(given)]
    answer = scratch.ask(question_of(given, part, made, layout), architecture.capability)
    if answer is not None:
        return answer
    converted = _conversions(given, part, made, layout, architecture) or ()
    operands = values.numel() + weight.numel() + math.prod(made)
    times = OPERANDS_MOST
    if values.dtype not in HALVES and architecture.capability[0] not in (8, 9):
        times = OPERANDS_MOST_PLAIN
    most = times * operands * values.dtype.itemsize + BEYOND_OPERANDS
    scratch.note_unknown(most - sum(converted))
    return converted


def question_of(given: Arguments, part: str, made: Sequence[int], layout: torch.memory_format) -> dict[str, Any]:
    """The question to cuDNN: x, w and y are the convolution's operands in cuDNN's terms."""
    x = list(given["input"].shape)
    y = list(made)
    w = list(given["weight"].shape)
    axes = len(w) - 2
    # one number applies to all axes
    stride, padding, dilation = (
        [*given[name], *[given[name][-1]] * axes][:axes] for name in ("stride", "padding", "dilation")
    )
    if given["transposed"]:
        # It is the gradient of a plain convolution, whose input is its result (``cudnn_convolution_transpose``,
        # ConvShared.cpp).
        x, y = y, x
        part = {FORWARD: OF_INPUT, OF_INPUT: FORWARD}.get(part, part)
    if axes == 1:
        # torch views it as a convolution of images of height 1 (``view1d_as_2d``, Convolution.cpp).
        x, w, y = ([*sizes[:2], 1, *sizes[2:]] for sizes in (x, w, y))
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    return {
        "part": part,
        "dtype": str(given["input"].dtype).removeprefix("torch."),
        "x": x,
        "w": w,
        "y": y,
        "last": layout != torch.contiguous_format,
        "padding": list(map(int, padding)),
        "stride": list(map(int, stride)),
        "dilation": list(map(int, dilation)),
        "benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": bool(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
        "tf32": bool(torch._C._get_cudnn_allow_tf32()),
    }


def _conversions(
    given: Arguments, part: str, made: Sequence[int], layout: torch.memory_format, architecture: Architecture
) -> Script | None:
    """Buffers of a convolution on Hopper with channels first: its kernels need them last, so cuDNN converts.

    cuDNN holds input, weight and result once each with channels last. The rule was derived from fifteen convolutions
    on an H100 with cuDNN 9.19 (tests/gpu/recorded), and gives 25 of their 35 workspaces to within 147 bytes. It does
    not include the partial sums for the gradient of a weight, up to 8 MiB.

    Args:
        part, layout: as for `workspace`.
        made: sizes of the result.

    Returns:
        ``None`` if nothing is known.
    """
    values = given["input"]
    weight = given["weight"]
    dtype = values.dtype
    is_half = dtype in HALVES
    if architecture.capability != (9, 0) or int(given["groups"]) != 1 or layout != torch.contiguous_format:
        return None
    if not is_half and (dtype != torch.float32 or not torch._C._get_cudnn_allow_tf32()):
        return None
    kernel = list(weight.shape[2:])
    stride = list(given["stride"])
    # a transposed convolution is the gradient of a plain one: `small` is the input of that gradient, `large` its
    # result
    small: Sequence[int] = values.shape
    large = made
    forward_part = FORWARD
    if given["transposed"]:
        small = made
        large = values.shape
        forward_part = OF_INPUT
    by_forward_kernel = part == forward_part
    whole = 4
    if is_half:
        whole = 8
    channels = -(-small[1] // whole) * whole
    if all(size == 1 for size in kernel) or (by_forward_kernel and kernel == stride):
        return ()
    if channels != small[1] and (is_half or not (by_forward_kernel or part == OF_WEIGHT)):
        return ()
    pixels = math.prod(large[2:])
    of_result = small[0] * large[1] * pixels
    if by_forward_kernel and not is_half and len(kernel) < 3 and pixels >= FEWEST_PIXELS:
        of_result = 0
    of_input = small[0] * channels * math.prod(small[2:])
    of_weight = large[1] * channels * math.prod(kernel)
    return ((of_input + of_result + of_weight) * dtype.itemsize + CONVERSION_BYTES,)


def _result_sizes(given: Arguments) -> Iterator[int]:
    """Channels and pixels of a convolution's result."""
    weight = given["weight"]
    if not given["transposed"]:
        yield weight.shape[0]
        for size, kernel, stride, padding, dilation in _along_each(given):
            yield (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        return
    yield weight.shape[1] * int(given["groups"])
    axes = zip(given["output_padding"], _along_each(given), strict=False)
    for more, (size, kernel, stride, padding, dilation) in axes:
        yield (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1


def _along_each(given: Arguments) -> Iterator[tuple[int, ...]]:
    """Size, kernel, stride, padding and dilation along each axis; one number applies to all."""
    sizes = given["input"].shape[2:]
    kernels = given["weight"].shape[2:]
    # repeat the last number once per axis: `zip` stops at the sizes
    many = ([*given[name], *[given[name][-1]] * len(sizes)] for name in ("stride", "padding", "dilation"))
    return zip(sizes, kernels, *many, strict=False)

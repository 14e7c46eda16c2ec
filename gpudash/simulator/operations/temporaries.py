"""What CUDA's kernels allocate besides their results, and when they free it.

Kernels for other devices need none of it. The sources are those of torch 2.13 under aten/src/ATen/native/cuda; sizes
that CUB's algorithms choose are those that CUB reports for each architecture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.convolutions import workspaces
from gpudash.simulator.convolutions.backends import layout_of_convolution
from gpudash.simulator.operations import batch_norm
from gpudash.simulator.operations.reductions import Kernel, launch_script
from gpudash.simulator.operations.scripts import (
    HALVES,
    PLAIN,
    RESULT,
    Arguments,
    Script,
    Writer,
    accumulating_bytes,
    after_blocks,
    bytes_of,
    copied_bytes,
)


def writer_of(name: str) -> Writer | None:
    """The function that returns the script of operation ``name`` for its arguments; ``None`` if there is no script."""
    return WRITERS.get(name)


def _dims(tensor: torch.Tensor, dim: Any) -> list[int]:
    """The dimensions that the argument of a reduction stands for, not negative; all for ``None``."""
    if dim is None:
        return list(range(tensor.dim()))
    wanted = dim
    if isinstance(dim, int):
        wanted = [dim]
    # an empty list stands for all of them too; a tensor without dimensions accepts 0 and -1
    return [axis % max(1, tensor.dim()) for axis in wanted] or list(range(tensor.dim()))


def _reduction(kernel_of: Callable[[torch.dtype], Kernel]) -> Writer:
    """A reduction with ``kernel_of`` the dtype that is read.

    Dtypes that cannot be read directly are converted first, such as booleans and integers to be summed.
    """

    def written(given: Arguments, architecture: Architecture) -> Script:
        tensor = given["self"]
        if not tensor.numel():
            return PLAIN
        dims = _dims(tensor, given.get("dim"))
        result = given.get("dtype") or _sum_dtype(tensor.dtype)
        read = tensor.dtype
        # if half precision accumulates in float32, the kernel converts while reading (ReduceSumProdKernel.cu)
        if read != result and not (read in HALVES and result == torch.float32):
            read = result
        kernel = kernel_of(read)._replace(result_bytes=result.itemsize)
        if kernel.partial_bytes > kernel.result_bytes and read == result:
            kernel = kernel._replace(adds_up_in_result=read not in HALVES)
        if not tensor.dim():
            return PLAIN
        if read == tensor.dtype:
            return (RESULT, *_of(tensor, dims, kernel, architecture))
        converted = torch.empty_like(tensor, dtype=read, device="meta")
        launches = launch_script(converted.shape, converted.stride(), 0, dims, kernel, architecture, behind=1)
        return (RESULT, tensor.numel() * read.itemsize, *launches)

    return written


def _of(tensor: torch.Tensor, dims: Sequence[int], kernel: Kernel, architecture: Architecture) -> Script:
    return launch_script(tensor.shape, tensor.stride(), int(tensor.storage_offset()), dims, kernel, architecture)


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    return torch.int64


def _summing(read: torch.dtype) -> Kernel:
    vector = 4
    if read in HALVES:
        vector = 8
    return Kernel(read.itemsize, accumulating_bytes(read), read.itemsize, vector=vector)


def _multiplying(read: torch.dtype) -> Kernel:
    return Kernel(read.itemsize, accumulating_bytes(read), read.itemsize)


def _compared(partial: Callable[[torch.dtype], int], whole: bool = False) -> Writer:
    """A reduction that only compares elements.

    Args:
        partial: bytes of a partial result of a dtype.
        whole: whether the kernel supports contiguous tensors only, and copies others.
    """

    def written(given: Arguments, architecture: Architecture) -> Script:
        tensor = given["self"]
        if not tensor.numel() or not tensor.dim():
            return PLAIN
        kernel = Kernel(tensor.dtype.itemsize, partial(tensor.dtype), tensor.dtype.itemsize)
        dims = _dims(tensor, given.get("dim"))
        if whole and not tensor.is_contiguous():
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            launches = launch_script(made.shape, made.stride(), 0, dims, kernel, architecture, behind=1)
            return (RESULT, tensor.numel() * tensor.dtype.itemsize, *launches)
        return (RESULT, *_of(tensor, dims, kernel, architecture))

    return written


def _spread(given: Arguments, architecture: Architecture) -> Script:
    """Variance: a mean, a sum of squares and two counts of 4 bytes each, or 8 for doubles (`WelfordData`)."""
    tensor = given["self"]
    if not tensor.numel() or not tensor.dim():
        return PLAIN
    partial = 16
    if tensor.dtype == torch.float64:
        partial = 32
    kernel = Kernel(tensor.dtype.itemsize, partial, tensor.dtype.itemsize, vector=2)
    return (RESULT, *_of(tensor, _dims(tensor, given.get("dim")), kernel, architecture))


def _pair(_dtype: torch.dtype) -> int:
    """A value and its index."""
    return 16


def _plain(_given: Arguments, _architecture: Architecture) -> Script:
    return PLAIN


def _in_order(*behind: str, first: str | None = None, as_images: bool = False, inner: Writer = _plain) -> Writer:
    """A kernel that reads contiguous tensors only, and copies others, such as a transposed tensor.

    Args:
        behind: arguments that are copied after the results are allocated.
        first: the one that is copied before.
        as_images: whether channels may be last, in all arguments as in ``self`` or the only one.
        inner: what the kernel does after the copies; its results come first.
    """

    def written(given: Arguments, architecture: Architecture) -> Script:
        if "self" in given:
            leading = given["self"]
        else:
            leading = given[first or behind[0]]
        layout = torch.contiguous_format
        if as_images and _has_channels_last(leading):
            layout = torch.channels_last
        before: list[int] = []
        if first is not None:
            before = copied_bytes([given[first]], layout)
        later = copied_bytes([given[name] for name in behind], layout)
        return (*before, RESULT, *later, *after_blocks(len(before) + len(later), inner(given, architecture)[1:]))

    return written


def _has_channels_last(tensor: torch.Tensor) -> bool:
    in_order = tensor.is_contiguous()
    return tensor.dim() == 4 and not in_order and tensor.is_contiguous(memory_format=torch.channels_last)


def _softmax_backward(given: Arguments, _architecture: Architecture) -> Script:
    """The product of the gradient and the result (SoftMax.cu, `softmax_backward_cuda_out`), then both are treated as
    for `_log_softmax_backward_data`."""
    grad, result = given["grad_output"], given["output"]
    # with tensors without numbers, so that torch itself determines the layout of the product
    one = torch.empty_strided(grad.shape, grad.stride(), dtype=grad.dtype, device="meta")
    other = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
    product = one * other
    return (RESULT, bytes_of(product), *copied_bytes((product, result), torch.contiguous_format))


def _loss(given: Arguments, architecture: Architecture) -> Script:
    """An elementwise loss that is then reduced (Loss.cpp); the result's own storage is as large, see `Engine`."""
    values = given["self"]
    target = given["target"]
    if given.get("reduction", MEAN) == NONE:
        return PLAIN
    sizes = torch.broadcast_shapes(values.shape, target.shape)  # type: ignore[no-untyped-call]
    dtype = torch.promote_types(values.dtype, target.dtype)
    count = math.prod(sizes)
    launches: Script = ()
    if count:
        launches = launch_script((count,), (1,), 0, (0,), _summing(dtype), architecture, behind=1)
    return (RESULT, count * dtype.itemsize, *launches)


def _loss_behind(given: Arguments, architecture: Architecture) -> Script:
    """The same if the result is allocated after it."""
    result, *rest = _loss(given, architecture)
    if rest:
        return (rest[0], result, *rest[1:])
    return PLAIN


def _binary_cross_entropy(given: Arguments, architecture: Architecture) -> Script:
    """The same if the result's storage is what is reduced, and the reduced loss is copied into it (Loss.cu)."""
    result, *rest = _loss(given, architecture)
    if rest:
        return (result, given["self"].dtype.itemsize, *rest[1:])
    return PLAIN


NONE, MEAN = 0, 1
"""torch's numbers of a loss's reduction (aten/src/ATen/core/Reduction.h)."""


def _embedding_backward(given: Arguments, architecture: Architecture) -> Script:
    """The copies of tensors that are not dense come first (`embedding_dense_backward_cuda`)."""
    both = (given["indices"], given["grad_output"])
    copies = [one.numel() * one.dtype.itemsize for one in both if not one.is_contiguous()]
    return (*copies, *after_blocks(len(copies), _embedding_sums(given, architecture)))


def _embedding_sums(given: Arguments, architecture: Architecture) -> Script:
    """A few indices are summed at once, more are sorted first (Embedding.cu)."""
    if given["indices"].numel() <= MOST_UNSORTED_EMBEDDINGS and not given.get("scale_grad_by_freq"):
        return PLAIN
    return _sums_of_rows(given["grad_output"], given["indices"], int(given["num_weights"]), architecture)


def _bag_backward(given: Arguments, architecture: Architecture) -> Script:
    """A contiguous gradient; then as for embeddings, except for the maximum of a bag (EmbeddingBag.cu)."""
    copies = copied_bytes([given["grad"]], torch.contiguous_format)
    if int(given["mode"]) == LARGEST_OF_BAG:
        return (*copies, RESULT)
    script = _sums_of_rows(given["grad"], given["indices"], int(given["num_weights"]), architecture)
    return (*copies, *after_blocks(len(copies), script))


LARGEST_OF_BAG = 2
"""torch's number of the mode (EmbeddingBag.h)."""


def _sums_of_rows(grad: torch.Tensor, indices: torch.Tensor, weights: int, architecture: Architecture) -> Script:
    """Rows of a gradient, sorted by their indices and summed in parts (EmbeddingBackwardKernel.cu)."""
    count = indices.numel()
    width = grad.shape[-1]
    each = indices.dtype.itemsize
    listed = count * each
    # a row of the weights is a segment; the kernel sums at most ten rows at a time (NROWS_PER_THREAD), which limits
    # the number of parts
    segments = min(count, weights)
    partial = count // 10 + segments
    return (
        *(listed, listed, listed, _radix_sort(count, each, weights.bit_length(), architecture, each), -4, -3),
        RESULT,
        *(listed, 8, listed, _unique(count, architecture), -8, -7),
        *(segments * each, segments * each, _scan(segments), -11, 8),
        *(partial * each, partial * width * accumulating_bytes(grad.dtype)),
        *(-14, -13, -12, -10, -9, -6, -5),
    )


MOST_UNSORTED_EMBEDDINGS = 3072


def _radix_sort(count: int, key: int, bits: int, architecture: Architecture, value: int = 8) -> int:
    """CUB's DeviceRadixSort: histograms, tile states, and buffers for swapping.

    Before Hopper, keys of one and two bytes are counted by all blocks that a card runs at once (`ONESWEEP`,
    cub/device/dispatch/tuning/tuning_radix_sort.cuh).

    Args:
        key: bytes of a key.
        bits: how many bits of a key are compared.
        value: bytes that are moved with each key; 0 for keys alone.
    """
    if count <= 2304:
        return 1
    keys = _aligned(count * key)
    values = _aligned(count * value)
    is_old = architecture.capability < (9, 0)
    if is_old and key < 4:
        blocks = architecture.multiprocessors * architecture.threads_per_multiprocessor // 256
        return 255 + _aligned(4 * (blocks * 5 * 128 * key + 11_264)) + keys + values
    tiles = _TILES
    if is_old:
        tiles = _TILES_BEFORE_HOPPER
    tile = 2816
    if architecture.capability >= (8, 0):
        tile = tiles.get((key, value), tiles[key, 8])
    # eight bits per pass; a single pass needs no swapping
    passes = -(-bits // 8)
    size = 511 + passes * 2048 + _aligned(-(-count // tile) * 1024)
    if passes > 1:
        size += keys + values
    return size


_TILES = {(1, 8): 3456, (2, 8): 5632, (4, 4): 6528, (4, 8): 5376, (8, 0): 5760, (8, 8): 4608}
"""Bytes of key and value → how many of them CUB sorts in one block, as it reports to torch 2.13."""

_TILES_BEFORE_HOPPER = {(4, 4): 6528, (4, 8): 3072, (8, 0): 3840, (8, 8): 3840}


def _unique(count: int, architecture: Architecture) -> int:
    """CUB's DeviceSelect::UniqueByKey."""
    tile = 4992
    if architecture.capability < (9, 0):
        tile = 1344
    return 255 + _aligned(768 + 16 * -(-count // tile))


def _scan(count: int) -> int:
    """CUB's DeviceScan of items of 8 bytes."""
    return 255 + _aligned(768 + 16 * -(-count // 896))


def _aligned(size: int) -> int:
    return -(-size // 256) * 256


def _group_norm(given: Arguments, _architecture: Architecture) -> Script:
    """Scale and shift of each channel, and statistics in float32 (group_norm_kernel.cu)."""
    values = given["input"]
    count = int(given["N"])
    channels = int(given["C"])
    groups = int(given["group"])
    script: list[int] = [RESULT]
    if values.dtype in HALVES:
        script += [count * groups * 4] * 2
    if given.get("weight") is not None and int(given["HxW"]) > 1:
        script += [count * channels * 4] * 2
    return tuple(script)


def _group_norm_backward(given: Arguments, _architecture: Architecture) -> Script:
    count = int(given["N"])
    channels = int(given["C"])
    groups = int(given["group"])
    of_channels = count * channels * 4
    of_groups = count * groups * 4
    script = [RESULT, of_channels, of_channels]
    if not given["output_mask"][0]:
        return tuple(script)
    script += [of_groups, of_groups]
    if given.get("weight") is not None and int(given["HxW"]) > 1:
        return (*script, of_channels, -4, -3, -5)
    return tuple(script)


def _layer_norm_backward(given: Arguments, architecture: Architecture) -> Script:
    """For many short rows, partial sums for the weights, which are then reduced (layer_norm_kernel.cu)."""
    values = given["input"]
    mask = given["output_mask"]
    width = math.prod(given["normalized_shape"])
    rows = values.numel() // max(1, width)
    wanted = sum(map(bool, mask[1:]))
    if rows <= 64 * 1024 or width // 32 >= architecture.multiprocessors // 2 or not wanted:
        return PLAIN
    shared = min(-(-rows // 32), 32_768 * 32 // width)
    kernel = _summing(values.dtype)
    script: list[int] = [RESULT, *[shared * width * values.dtype.itemsize] * wanted]
    # the partial sums of weight and bias are allocated together; then each is reduced to a result, and they are freed
    taken = wanted
    for _ in range(wanted):
        launches = launch_script((shared, width), (width, 1), 0, (0,), kernel, architecture, behind=taken + 1)
        script += [width * values.dtype.itemsize, *launches, -(taken + 1)]
        taken += 1 + sum(step > 0 for step in launches)
    return tuple(script)


def _convolution(given: Arguments, architecture: Architecture) -> Script:
    """Tensors that do not have cuDNN's layout are copied: the input before the result, the weight after it
    (cudnn/ConvShared.cpp); then comes cuDNN's workspace."""
    values, weight = given["input"], given["weight"]
    layout = layout_of_convolution(values, weight)
    inputs = copied_bytes([values], layout)
    work = workspaces.workspace(given, workspaces.FORWARD, layout, architecture)
    copies = [*inputs, *copied_bytes([weight], layout)]
    return (*inputs, RESULT, *copies[len(inputs) :], *after_blocks(len(copies), work))


def _convolution_backward(given: Arguments, architecture: Architecture) -> Script:
    """The gradient of the input or that of the weight; `operations.kernels` requests one at a time.

    Tensors that do not have cuDNN's layout are copied: after allocating the gradient of the input, and before that of
    the weight (cudnn/ConvShared.cpp). cuDNN's workspace comes last.
    """
    grad = given["grad_output"]
    values = given["input"]
    weight = given["weight"]
    before: list[int] = []
    behind: list[int] = []
    if given["output_mask"][0]:
        part = workspaces.OF_INPUT
        layout = layout_of_convolution(grad, weight)
        behind = copied_bytes((weight, grad), layout)
    else:
        part = workspaces.OF_WEIGHT
        layout = layout_of_convolution(values, grad)
        if given["transposed"]:
            read = (values, grad)
        else:
            read = (grad, values)
        before = copied_bytes(read, layout)
    work = workspaces.workspace(given, part, layout, architecture)
    return (*before, RESULT, *behind, *after_blocks(len(before) + len(behind), work))


def _foreach_norm(given: Arguments, _architecture: Architecture) -> Script:
    """A partial norm for each chunk of 65536 elements (ForeachReduceOp.cu)."""
    tensors = given["self"]
    dtype = tensors[0].dtype
    chunks = max(-(-tensor.numel() // 65_536) for tensor in tensors)
    return (len(tensors) * max(1, chunks) * accumulating_bytes(dtype), RESULT)


def _sorting(given: Arguments, architecture: Architecture) -> Script:
    """Indices to sort along with the values, and CUB's buffers for both (Sort.cpp, SortStable.cu, Sort.cu)."""
    values = given["self"]
    if not values.dim() or not values.numel():
        return PLAIN
    dim = int(given.get("dim", -1))
    sorted_ = values.shape[dim]
    count = values.numel()
    if sorted_ <= MOST_SORTED_IN_PLACE:
        return (RESULT, sorted_ * 8)
    size = bytes_of(values)
    copies = []
    # CUB sorts contiguous data: otherwise values are copied, and sorted values and indices copied back
    if values.stride(dim) != 1 or not torch.ops.aten.is_non_overlapping_and_dense(values):
        copies = [size, size, count * 8]
    return (RESULT, *copies, *_segments_sorted(sorted_, count, values.dtype.itemsize, architecture, len(copies)))


def _segments_sorted(sorted_: int, count: int, key: int, architecture: Architecture, behind: int) -> Script:
    """Sort ``sorted_`` segments of ``count`` values: one by one, all at once and then by segment, or many per launch.

    Args:
        key: bytes of a value.
        behind: how many blocks are allocated already.
    """
    segments = count // sorted_
    if segments == 1 or sorted_ >= FEWEST_SORTED_ALONE:
        return (sorted_ * 8, _radix_sort(sorted_, key, key * 8, architecture))
    if segments >= FEWEST_SEGMENTS:
        return (count * 8, _aligned(count * 8) + _aligned(count * key) + 255)
    by_segment = _radix_sort(count, 8, (segments - 1).bit_length(), architecture, 0)
    return (
        *(count * 8, count * 8, count * key, _radix_sort(count, key, key * 8, architecture)),
        *(-(behind + 4), -(behind + 3), by_segment),
    )


def _median(given: Arguments, architecture: Architecture) -> Script:
    """All values sorted, without keeping their indices, and whether the last one is NaN (Sorting.cpp)."""
    values = given["self"]
    if not values.numel():
        return PLAIN
    _result, *taken = _sorting({"self": torch.empty(values.numel(), dtype=values.dtype, device="meta")}, architecture)
    steps = after_blocks(2, tuple(taken))
    held = 2 + sum(step > 0 for step in steps)
    # what sorting has not freed is freed when it returns, the last one first
    kept = [place for place in range(held, 1, -1) if -place not in steps]
    return (bytes_of(values), values.numel() * 8, *steps, *(-place for place in kept), 1, RESULT)


MOST_SORTED_IN_PLACE = 4096
FEWEST_SORTED_ALONE = 1_000_000
FEWEST_SEGMENTS = 128


def _shuffling(given: Arguments, architecture: Architecture) -> Script:
    """A random key per number, with enough bits to make duplicates rare, and buffers to sort by it (Randperm.cu)."""
    count = int(given["n"])
    each = given["out"].dtype.itemsize
    if count < 2:
        return PLAIN
    # torch's formula: the probability of two equal keys is at most 0.1 (Randperm.cu)
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9)))))
    key = 8
    if bits <= 32:
        key = 4
    return (8, -1, count * each, count * key, count * key, _radix_sort(count, key, bits, architecture, each), RESULT)


def _drawing(given: Arguments, _architecture: Architecture) -> Script:
    """A random number for each probability; with replacement, also their sums and sorted copies (Distributions.cpp,
    MultinomialKernel.cu)."""
    chances = bytes_of(given["self"])
    if given.get("replacement", False) and int(given["num_samples"]) > 1:
        return (RESULT, chances, chances, chances)
    return (RESULT, chances)


def _rolling(given: Arguments, _architecture: Architecture) -> Script:
    """A contiguous copy, and the result of rolling all dimensions but the last (TensorTransformations.cpp, .cu)."""
    tensor = given["self"]
    dims = given.get("dims") or ()
    if not tensor.numel():
        return PLAIN
    copies = copied_bytes([tensor], torch.contiguous_format)
    between = [bytes_of(tensor)] * (len(dims) - 1)
    if copies and between:
        return (*copies, between[0], -1, *between[1:], RESULT)
    return (*copies, *between, RESULT)


def _pixels_in_columns(given: Arguments, _architecture: Architecture) -> Script:
    """A contiguous copy of the images (Im2Col.cu)."""
    return (*copied_bytes([given["self"]], torch.contiguous_format), bytes_of(given["self"]), RESULT)


def _overwriting(given: Arguments, _architecture: Architecture) -> Script:
    """A copy of the spectrum, which cuFFT overwrites (SpectralOps.cpp, `_fft_c2r_cufft`)."""
    return (RESULT, bytes_of(given["self"]))


def _logarithms_of_sums(given: Arguments, _architecture: Architecture) -> Script:
    """The maximum of each sum, whether it is infinite, and the rest of each value (ReduceOps.cpp)."""
    values = given["self"]
    if not values.numel():
        return PLAIN
    reduced = _dims(values, given.get("dim"))
    kept = math.prod(size for axis, size in enumerate(values.shape) if axis not in reduced)
    largest = kept * values.dtype.itemsize
    return (largest, largest, kept, -3, -2, bytes_of(values), RESULT)


def _means_by_index(given: Arguments, _architecture: Architecture) -> Script:
    """How many values go to each index, counted in their dtype (TensorAdvancedIndexing.cpp, `scatter_reduce_two`)."""
    if given["reduce"] != "mean":
        return PLAIN
    return (RESULT, bytes_of(given["self"]), bytes_of(given["src"]), -2, given["self"].numel())


def _filled_in_order(given: Arguments, _architecture: Architecture) -> Script:
    """The target of each source value: a running count of the mask (IndexKernel.cu, `launch_masked_scatter`)."""
    target = given["self"]
    mask = given["mask"]
    copies = []
    if mask.shape != target.shape or not mask.is_contiguous():
        copies = [target.numel()]
    in_order = copied_bytes([given["source"]], torch.contiguous_format)
    return (RESULT, *copies, target.numel() * 8, _scan(target.numel()), *in_order)


def _alignments(given: Arguments, _architecture: Architecture) -> Script:
    """Both lengths of each sequence and where its labels start (LossCTC.cu)."""
    lengths = given["log_probs"].shape[1] * 8
    return (lengths, lengths, lengths, RESULT)


def _alignments_backward(given: Arguments, _architecture: Architecture) -> Script:
    """The same, the sums from the end, and for large inputs the blanks' share (LossCTC.cu,
    `ctc_loss_backward_gpu`)."""
    chances = given["log_probs"]
    forward = given["log_alpha"]
    steps, count, labels = chances.shape
    lengths = count * 8
    each = chances.dtype.itemsize
    script = (lengths, lengths, lengths, bytes_of(forward), RESULT)
    if 2 * steps + 24 * count // 10 + 2 * labels // 10 <= LARGEST_AT_ONCE:
        return script
    of_blanks = count * steps * (forward.shape[2] // 2 + 1) * each
    of_steps = count * steps * each
    return (*script, of_blanks, of_steps, of_steps, count * steps, -8, -7, of_blanks, of_steps)


LARGEST_AT_ONCE = 450


def _product(first: str, second: str) -> Writer:
    """A matrix product whose factors must have contiguous rows or columns; others are copied
    (`prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`, Blas.cpp).

    Args:
        first, second: names of its factors.
    """

    def written(given: Arguments, _architecture: Architecture) -> Script:
        copies = [bytes_of(one) for one in (given[first], given[second]) if _is_scattered(one)]
        if copies:
            return (RESULT, *copies)
        return PLAIN

    return written


def _wide(product: str) -> tuple[str, str]:
    """The overloads of a product whose result has another dtype than its factors."""
    return f"{product}.dtype", f"{product}.dtype_out"


def _is_scattered(factor: torch.Tensor) -> bool:
    """Whether cuBLAS can read a matrix, or a batch, neither by rows nor by columns; it can always read a vector."""
    if factor.dim() < 2:
        return False
    *_, rows, columns = factor.shape
    *_, by_row, by_column = factor.stride()
    if (by_column == 1 and by_row >= max(1, columns)) or (by_row == 1 and by_column >= max(1, rows)):
        return False
    return factor.dim() > 2 or not torch.ops.aten.is_non_overlapping_and_dense(factor)


def _products_of_three(given: Arguments, _architecture: Architecture) -> Script:
    """A product of two factors, then its product with the third, one index at a time (Linear.cpp, `_trilinear`)."""
    factors = [given["i1"], given["i2"], given["i3"]]
    expanded = [given["expand1"], given["expand2"], given["expand3"]]
    unrolled = int(given.get("unroll_dim", 1))
    summed = set(given["sumdim"])
    shapes: list[list[int]] = []
    for factor, added in zip(factors, expanded, strict=True):
        shape = list(factor.shape)
        for axis in sorted(added):
            shape.insert(axis, 1)
        shape[unrolled] = 1
        shapes.append(shape)
    axes = range(len(shapes[0]))
    by_third = set(expanded[2])
    of_two: list[int] = []
    of_three: list[int] = []
    for axis in axes:
        # a summed dimension that the third factor lacks is summed with the first product
        size = 1
        if axis not in summed or axis not in by_third:
            size = max(shapes[0][axis], shapes[1][axis])
        of_two.append(size)
        if axis in summed:
            of_three.append(1)
        else:
            of_three.append(max(size, shapes[2][axis]))
    each = factors[0].dtype.itemsize
    return (RESULT, math.prod(of_two) * each, math.prod(of_three) * each)


def _index_put(given: Arguments, architecture: Architecture) -> Script:
    """Accumulating sorts the indices first (Indexing.cu, `index_put_with_sort_kernel`)."""
    indexed = [(axis, one) for axis, one in enumerate(given["indices"]) if one is not None]
    if not given.get("accumulate") or len(indexed) != 1:
        return PLAIN
    axis, index = indexed[0]
    if index.dtype == torch.bool or not index.numel():
        return PLAIN
    count = index.numel()
    listed = count * 8
    rows = max(1, given["self"].shape[axis])
    bits = rows.bit_length()
    return (listed, listed, -2, listed, listed, listed, _radix_sort(count, 8, bits, architecture), -6, RESULT)


def _scalar_base(_given: Arguments, _architecture: Architecture) -> Script:
    """The base of a power, on the device."""
    return (RESULT, 8)


IN_ORDER_BACKWARD = (
    "_upsample_bilinear2d_aa_backward",
    "_upsample_nearest_exact1d_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "avg_pool3d_backward",
    "fractional_max_pool2d_backward",
    "max_pool3d_with_indices_backward",
    "reflection_pad1d_backward",
    "upsample_linear1d_backward",
    "upsample_nearest1d_backward",
    "upsample_trilinear3d_backward",
)
"""Backward passes that need a contiguous gradient of their result."""

WRITERS: dict[str, Writer] = {
    "sum": _reduction(_summing),
    "sum.dim_IntList": _reduction(_summing),
    "sum.IntList_out": _reduction(_summing),
    "nansum": _reduction(_multiplying),
    "mean": _reduction(_summing),
    "mean.dim": _reduction(_summing),
    "prod": _reduction(_multiplying),
    "prod.dim_int": _reduction(_multiplying),
    "linalg_vector_norm": _reduction(_multiplying),
    "norm.Scalar": _reduction(_multiplying),
    "norm.ScalarOpt_dim": _reduction(_multiplying),
    "norm.ScalarOpt_dtype": _reduction(_multiplying),
    "norm.ScalarOpt_dim_dtype": _reduction(_multiplying),
    "max": _compared(lambda dtype: dtype.itemsize, whole=True),
    "min": _compared(lambda dtype: dtype.itemsize, whole=True),
    "amax": _compared(lambda dtype: dtype.itemsize),
    "amin": _compared(lambda dtype: dtype.itemsize),
    "aminmax": _compared(lambda dtype: 2 * dtype.itemsize),
    "max.dim": _compared(_pair),
    "min.dim": _compared(_pair),
    "argmax": _compared(_pair),
    "argmin": _compared(_pair),
    "any": _compared(lambda _dtype: 1),
    "any.dim": _compared(lambda _dtype: 1),
    "any.dims": _compared(lambda _dtype: 1),
    "all": _compared(lambda _dtype: 1),
    "all.dim": _compared(lambda _dtype: 1),
    "all.dims": _compared(lambda _dtype: 1),
    "var.correction": _spread,
    "std.correction": _spread,
    "var_mean.correction": _spread,
    "std_mean.correction": _spread,
    "mse_loss": _loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "smooth_l1_loss": _loss,
    "huber_loss": _loss_behind,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_softmax": _in_order("self"),
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _in_order("self"),
    "_log_softmax_backward_data": _in_order("grad_output", "output"),
    "nll_loss_forward": _in_order("self"),
    "native_batch_norm": batch_norm.forward,
    "native_batch_norm_backward": batch_norm.backward,
    "avg_pool2d": _in_order("self", as_images=True),
    "avg_pool2d_backward": _in_order("self", "grad_output", as_images=True),
    "max_pool2d_with_indices": _in_order("self", as_images=True),
    "max_pool2d_with_indices_backward": _in_order("grad_output", as_images=True),
    "_adaptive_avg_pool2d": _in_order(first="self", as_images=True),
    "_adaptive_avg_pool2d_backward": _in_order("grad_output", as_images=True),
    "upsample_nearest2d": _in_order("self", as_images=True),
    "upsample_nearest2d_backward": _in_order("grad_output", as_images=True),
    "upsample_bilinear2d_backward": _in_order("grad_output", as_images=True),
    "upsample_bicubic2d_backward": _in_order("grad_output"),
    "embedding_dense_backward": _embedding_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _in_order(first="input"),
    "native_layer_norm_backward": _in_order("grad_out", first="input", inner=_layer_norm_backward),
    "_fused_rms_norm": _in_order(first="input"),
    "_fused_rms_norm_backward": _in_order("grad_out", first="input", inner=_layer_norm_backward),
    "_foreach_norm.Scalar": _foreach_norm,
    "sort.stable": _sorting,
    "median": _median,
    "_index_put_impl_": _index_put,
    "pow.Scalar": _scalar_base,
    "roll": _rolling,
    "_embedding_bag_backward": _bag_backward,
    "_ctc_loss": _alignments,
    "_ctc_loss.Tensor": _alignments,
    "_ctc_loss_backward": _alignments_backward,
    "_ctc_loss_backward.Tensor": _alignments_backward,
    "_fft_c2r": _overwriting,
    "im2col": _pixels_in_columns,
    "logsumexp.out": _logarithms_of_sums,
    "masked_scatter_": _filled_in_order,
    "scatter_reduce.two": _means_by_index,
    "scatter_reduce_.two": _means_by_index,
    "multinomial": _drawing,
    "randperm.out": _shuffling,
    "randperm.generator_out": _shuffling,
    "_trilinear": _products_of_three,
    **dict.fromkeys(IN_ORDER_BACKWARD, _in_order("grad_output")),
    **dict.fromkeys(("mm", "mm.out", *_wide("mm"), "bmm", "bmm.out", *_wide("bmm")), _product("self", "mat2")),
    **dict.fromkeys(("addmm", "addmm.out", "addmm_", "_addmm_activation", *_wide("addmm")), _product("mat1", "mat2")),
    **dict.fromkeys(("baddbmm", "baddbmm.out", "baddbmm_", *_wide("baddbmm")), _product("batch1", "batch2")),
    **dict.fromkeys(("addmv", "addmv.out", "addmv_"), _product("mat", "vec")),
}
"""Operation, with its overload → the function that returns its script."""

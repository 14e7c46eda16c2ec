"""What CUDA's reductions allocate: a buffer and semaphores if several blocks of threads share an output.

The launch rules are those of torch's aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`, `gpu_reduce_kernel`);
dimensions are first ordered and merged as in aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.operations.scripts import Script

MOST_THREADS = 512
WARP = 32
FEWEST_VALUES, MOST_VALUES = 16, 256
"""Values per thread if an output is split among blocks of threads (``min_`` and ``max_values_per_thread``)."""

LARGEST_INDEX = 2**31 - 1


class Kernel(NamedTuple):
    """The template parameters of a kernel.

    Attributes:
        value_bytes: of an element read (``scalar_t``).
        partial_bytes: of an intermediate result (``arg_t``).
        result_bytes: of an element written.
        vector: elements that a thread loads at once along the reduced dimension (``input_vec_size``).
        adds_up_in_result: whether partial results can be stored in the result (``can_accumulate_in_output``).
    """

    value_bytes: int
    partial_bytes: int
    result_bytes: int
    vector: int = 4
    adds_up_in_result: bool = True


@dataclass
class Loop:
    """The `TensorIterator` of a reduction: fastest dimensions first, and of all the reduced ones first.

    Attributes:
        shape: elements.
        result: strides of the result in bytes; 0 in a reduced dimension.
        read: strides of the input, in bytes.
        offset: bytes from an aligned address to the first element read.
    """

    shape: list[int]
    result: list[int]
    read: list[int]
    offset: int = 0

    @property
    def reduced(self) -> int:
        """Number of reduced dimensions."""
        return self.result.count(0)

    @property
    def outputs(self) -> int:
        """Number of results."""
        return math.prod(length for length, stride in zip(self.shape, self.result) if stride)


def launch_script(
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dims: Sequence[int],
    kernel: Kernel,
    architecture: Architecture,
    behind: int = 0,
) -> Script:
    """The script of a reduction's launches.

    Args:
        shape, stride, offset, dims, kernel: as for `loop`.
        behind: how many blocks the kernel itself has allocated before.
    """
    return _launch_script(tuple(shape), tuple(stride), offset, tuple(dims), kernel, architecture, behind)


@functools.lru_cache(4096)
def _launch_script(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dims: tuple[int, ...],
    kernel: Kernel,
    architecture: Architecture,
    behind: int,
) -> Script:
    # a script is a list of requests in bytes; a negative number frees the n-th block
    script: list[int] = []
    taken = behind
    for sizes in scratch(loop(shape, stride, offset, dims, kernel), kernel, architecture):
        script += sizes
        taken += len(sizes)
        # a launch with two blocks frees both before the next starts, the second one first
        if len(sizes) > 1:
            script += [-taken, -(taken - 1)]
    return tuple(script)


def loop(shape: Sequence[int], stride: Sequence[int], offset: int, dims: Sequence[int], kernel: Kernel) -> Loop:
    """The loop over a tensor with a contiguous result.

    Args:
        shape, stride, offset: of the tensor, in elements.
        dims: the reduced dimensions, not negative.
        kernel: for the sizes of elements.
    """
    # the result as allocated: contiguous over the remaining dimensions, and stride 0 in the others
    strides = [0] * len(shape)
    following = kernel.result_bytes
    for axis in range(len(shape) - 1, -1, -1):
        if axis not in dims:
            strides[axis] = following
            following *= shape[axis]
    made = Loop(list(shape), strides, [step * kernel.value_bytes for step in stride], offset * kernel.value_bytes)
    return _joined(_ordered(made))


def _ordered(made: Loop) -> Loop:
    """``reorder_dimensions``: reduced dimensions first, then by strides."""
    # an insertion sort, as in TensorIterator: the comparison is not transitive, so the algorithm matters
    order = list(range(len(made.shape) - 1, -1, -1))
    for place in range(1, len(order)):
        moving = place
        for other in range(place - 1, -1, -1):
            verdict = _should_swap(made, order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    shape, result, read = ([values[axis] for axis in order] for values in (made.shape, made.result, made.read))
    return Loop(shape, result, read, made.offset)


def _should_swap(made: Loop, first: int, second: int) -> int:
    for strides in (made.result, made.read):
        one = strides[first]
        other = strides[second]
        if strides is made.result and (one == 0) != (other == 0):
            if other == 0:
                return 1
            return -1
        # broadcast in one of the two: this operand decides nothing, the next one may
        if one == 0 or other == 0:
            continue
        if one != other:
            if one < other:
                return -1
            return 1
        # equal strides: the larger dimension goes further out
        if made.shape[first] > made.shape[second]:
            return 1
    return 0


def _joined(made: Loop) -> Loop:
    """``coalesce_dimensions``: merge neighbouring dimensions that are contiguous."""
    shape = made.shape
    result = made.result
    read = made.read
    if len(shape) <= 1:
        return made
    last = 0
    for axis in range(1, len(shape)):
        single = shape[last] == 1 or shape[axis] == 1
        behind = all(shape[last] * strides[last] == strides[axis] for strides in (result, read))
        if single or behind:
            # the stride of a dimension with one element is meaningless: use the other's
            if shape[last] == 1:
                result[last], read[last] = result[axis], read[axis]
            shape[last] *= shape[axis]
        else:
            last += 1
            if last != axis:
                shape[last], result[last], read[last] = shape[axis], result[axis], read[axis]
    return Loop(shape[: last + 1], result[: last + 1], read[: last + 1], made.offset)


def scratch(made: Loop, kernel: Kernel, architecture: Architecture) -> Iterator[tuple[int, ...]]:
    """Bytes of the blocks that each launch allocates and frees: of its buffer and of its semaphores.

    If a reduction is split because its offsets do not fit 32 bits, the first item may be a single size: a buffer that
    lives through all launches.
    """
    parts = list(_parts(made))
    if len(parts) > 1 and not kernel.adds_up_in_result and kernel.partial_bytes > kernel.result_bytes:
        yield (made.outputs * kernel.partial_bytes,)
    for part in parts:
        taken = _of_launch(part, kernel, architecture)
        if taken is not None:
            yield taken


def _parts(made: Loop) -> Iterator[Loop]:
    """``with_32bit_indexing``: halve the longest dimension until offsets fit 32 bits."""
    extents = [max(abs(strides[axis]) for strides in (made.result, made.read)) for axis in range(len(made.shape))]
    ends = [
        1 + sum((length - 1) * step for length, step in zip(made.shape, strides))
        for strides in (made.result, made.read)
    ]
    if math.prod(made.shape) <= LARGEST_INDEX and max(ends) <= LARGEST_INDEX:
        yield made
        return
    # the dimension that spans the most memory is split, not the one with the most elements
    spans = [(length - 1) * extent for length, extent in zip(made.shape, extents)]
    axis = spans.index(max(spans))
    half = made.shape[axis] // 2
    for size, begin in ((half, 0), (made.shape[axis] - half, half)):
        shape = [*made.shape[:axis], size, *made.shape[axis + 1 :]]
        yield from _parts(Loop(shape, made.result, made.read, made.offset + begin * made.read[axis]))


def _of_launch(made: Loop, kernel: Kernel, architecture: Architecture) -> tuple[int, int] | None:
    """``setReduceConfig``: bytes of the buffer and of the semaphores; ``None`` if each output has one block."""
    outputs = made.outputs
    inputs = math.prod(made.shape) // outputs
    reduced = made.reduced
    axes = len(made.shape)
    # the block's x dimension follows the contiguous dimension of memory, whether it is reduced or not
    along_fastest = True
    fastest = kernel.value_bytes
    wide = 1
    high = 1
    if axes:
        along_fastest = reduced == axes or made.read[0] < made.read[reduced]
        if along_fastest:
            wide = inputs
            high = outputs
            fastest = made.read[0]
        else:
            wide = outputs
            high = inputs
            fastest = made.read[reduced]
    vector = 1
    if fastest == kernel.value_bytes:
        if along_fastest and wide >= 128 and reduced == 1:
            wide //= kernel.vector
        elif not along_fastest:
            vector = _output_vector(made, kernel)
            wide //= vector
    threads = MOST_THREADS // vector
    most_wide, most_high = (min(_power_of_2(length), threads) for length in (wide, high))
    # `set_block_dimension`: first one warp wide, then as high as there are threads, then as wide as those allow
    width = min(most_wide, WARP)
    height = min(most_high, threads // width)
    width = min(most_wide, threads // height)
    step_in = 1
    step_out = 1
    if along_fastest:
        step_in = width
    else:
        step_out = width
    if _divided(inputs, step_in) < min(height * 16, MOST_VALUES):
        return None  # each output has at most one row of threads
    # the block's y dimension splits the inputs of one output as well
    step_in *= height
    blocks = architecture.multiprocessors * (architecture.threads_per_multiprocessor // (width * height))
    grid = _divided(outputs // vector, step_out)
    values = _divided(inputs, step_in)
    if values < MOST_VALUES or grid > blocks:
        return None
    # as many blocks per output as fill the card with at least 16, and at most 256, values per thread
    sharing = max(min(_divided(blocks, grid), _divided(values, FEWEST_VALUES)), _divided(values, MOST_VALUES))
    if sharing <= 1:
        return None
    # a partial result per block of an output; if x runs along outputs, one for each of its threads
    size = kernel.partial_bytes * outputs * sharing
    if not along_fastest:
        size *= width * vector
    return size, 4 * grid


def _output_vector(made: Loop, kernel: Kernel) -> int:
    """``get_output_vec_size``: outputs that a thread processes at once."""
    vector = 4
    reduced = made.reduced
    # every start address of a thread must be aligned to that many elements
    numbers = [made.offset // kernel.value_bytes, made.shape[reduced]]
    numbers += [stride // kernel.value_bytes for axis, stride in enumerate(made.read) if axis != reduced]
    for number in numbers:
        while number % vector:
            vector //= 2
    return vector


def _divided(number: int, by: int) -> int:
    return -(-number // by)


def _power_of_2(number: int) -> int:
    """The largest power of 2 up to ``number``."""
    return 1 << (max(1, number).bit_length() - 1)

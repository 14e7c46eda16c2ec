"""How long kernels take on a card, one value per operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.card_performance import CardPerformance
from gpudash.speed.columns import DTYPES, HALF, RATES, Floats, WorkColumns, kind_index
from gpudash.speed.constants import Constants
from gpudash.speed.work import ATTENTION, CONVOLUTION, DEPTHWISE, GROUPED, PRODUCT, RECURRENT

_FLOAT32 = DTYPES.index("float32")
_TF32 = DTYPES.index("tf32")


@dataclass(frozen=True)
class KernelTimes:
    """Device time of each operation in seconds, counted once: what each of its parts would take alone."""

    arithmetic: Floats
    memory: Floats
    launches: Floats
    overlap: float

    @property
    def together(self) -> Floats:
        """The time with all parts."""
        p = self.overlap
        both: Floats = (self.arithmetic**p + self.memory**p) ** (1 / p)
        return both + self.launches


def kernel_times(columns: WorkColumns, card: CardPerformance, constants: Constants) -> KernelTimes:
    """The times of all operations, in order."""
    c = constants
    share = np.array([getattr(c, name) for name in RATES])[columns.rate]
    moved = columns.bytes.copy()
    arithmetic = np.zeros_like(moved)
    peaks = tensor_peak(card, c)
    peak = peaks[columns.dtype]
    kinds = columns.kind
    # Convolutions in fp32 use TF32 where a card has it, products do not (torch.backends.cudnn.allow_tf32 is True,
    # torch.backends.cuda.matmul.allow_tf32 False).
    convolved = np.isin(kinds, list(map(kind_index, (CONVOLUTION, GROUPED))))
    peak = np.where(convolved & (columns.dtype == _FLOAT32), peaks[_TF32], peak)
    # Only tensor cores need channels last.
    turned = ~columns.channels_last & (peak > card.flops["float32"])

    product = kinds == kind_index(PRODUCT)
    if product.any():
        batch, m, n, k = columns.shape[product, :4].T
        half = np.isin(columns.dtype[product], HALF)
        unaligned = half & ((n % 8 > 0) | (k % 8 > 0)) & (n > 1)
        seconds = _tiled(batch, m, n, k, peak[product] * c.product, card, c)
        arithmetic[product] = seconds * np.where(unaligned, c.unaligned, 1.0)

    convolution = kinds == kind_index(CONVOLUTION)
    if convolution.any():
        _convolutions(columns, convolution, peak, turned, card, c, arithmetic, moved)

    grouped = kinds == kind_index(GROUPED)
    if grouped.any():
        _, channels, _, groups, _, _ = columns.shape[grouped].T
        width = channels / groups
        rate = c.grouped * width / (width + c.grouped_width)
        last = columns.channels_last[grouped]
        rate = rate * np.where(last, c.grouped_channels_last, 1.0)
        rate = rate * np.where(columns.backward[grouped], c.backward_convolution, 1.0)
        arithmetic[grouped] = columns.flops[grouped] / (peak[grouped] * rate)
        moved[grouped] *= 1 + np.where(turned[grouped], c.turned, 0.0)

    depthwise = kinds == kind_index(DEPTHWISE)
    if depthwise.any():
        last = columns.channels_last[depthwise]
        rate = np.where(last, c.depthwise_channels_last, c.depthwise)
        rate = rate * np.where(columns.backward[depthwise], c.backward_depthwise, 1.0)
        # On CUDA cores, whatever the dtype: channels share nothing that tensor cores could use.
        wide = np.where(last, c.depthwise_wide_channels_last, c.depthwise_wide)
        rate = rate / np.where(columns.shape[depthwise, 4] > 25, wide, 1.0)
        arithmetic[depthwise] = columns.flops[depthwise] / (card.flops["float32"] * rate)
        share[depthwise] = np.where(last, c.depthwise_bandwidth_channels_last, c.depthwise_bandwidth)

    attention = kinds == kind_index(ATTENTION)
    if attention.any():
        arithmetic[attention] = _attention(columns, attention, peak, card, c)

    recurrent = kinds == kind_index(RECURRENT)
    if recurrent.any():
        arithmetic[recurrent] = _recurrent(columns, recurrent, peak, card, c)

    resized = (columns.rate == RATES.index("resize")) & (columns.shape[:, 0] > 1)
    if resized.any():
        # One thread per output position loops over all images and channels (UpSampleBilinear2d.cu).
        planes, positions = columns.shape[resized, :2].T
        rounds = np.ceil(positions / (card.multiprocessors * 1024))
        arithmetic[resized] = np.maximum(arithmetic[resized], planes * rounds * c.plane)

    # Data that fits into the cache and was just written is not read from memory: less so the more of the cache it
    # takes.
    memory = _reading_s(moved, columns.bytes, card, c) / share
    return KernelTimes(arithmetic, memory, columns.launches * c.launch, c.overlap)


def _reading_s(moved: Floats, size: Floats, card: CardPerformance, c: Constants) -> Floats:
    """Seconds to move bytes at full bandwidth, when ``size`` bytes may still be in the cache."""
    found = 1 / (1 + (size / (c.l2 * card.l2_bytes)) ** c.l2_fall)
    seconds: Floats = moved / card.bytes_per_s * (1 - found * (1 - 1 / c.l2_rate))
    return seconds


def tensor_peak(card: CardPerformance, c: Constants) -> Floats:
    """FLOPs per second of products, by `DTYPES`, that the card sustains within its power."""
    # Torch's default is "highest": products in fp32 do not use TF32.
    fp32 = card.flops["float32"]
    half = card.flops.get("float16", fp32)
    brain = card.flops.get("bfloat16", fp32)
    kept = _kept(card, c)
    tf32 = card.flops.get("tf32", fp32)
    return np.array([fp32, max(half * kept, fp32), max(brain * kept, fp32), max(tf32 * kept, fp32), fp32 / 32])


_BASE_W = 0.2
"""Share of the board's power for fans, memory and leakage."""


def _kept(card: CardPerformance, c: Constants) -> float:
    """Share of the tensor cores' peak that data supply and the board's power allow.

    The energy of a FLOP on tensor cores depends on the chip's process: about 1.8 pJ at 12 nm (without bfloat16: Volta,
    Turing), 1.3 pJ at 8 nm (GA10x, with little L2), 1.05 pJ at 7 nm (A100, with a low clock), 0.75 pJ at 5 nm, and
    0.45 pJ on Blackwell's data-centre cards (with HBM3e). Not fitted: chosen to match cards known for it (L4 at less
    than two thirds of its peak, T4 at less than half, A10 and H100 at three quarters, A100 unaffected).
    """
    half = card.flops.get("float16", card.flops["float32"])
    if "bfloat16" not in card.flops:
        joule = 1.8e-12
    elif card.l2_bytes < 128 * 1024 * card.multiprocessors:
        joule = 1.3e-12
    elif card.clock_hz < 1.5e9:
        joule = 1.05e-12
    elif card.bytes_per_s > 6e12:
        joule = 0.45e-12
    else:
        joule = 0.75e-12
    fed = 1.0
    if half > 3 * card.flops["float32"]:
        fed = c.full_rate
    return min(card.power_w * (1 - _BASE_W) / (half * joule), fed)


_TILES = ((256, 128, "large_tile"), (128, 128, ""), (64, 64, "small_tile"))


def _tiled(batch: Floats, m: Floats, n: Floats, k: Floats, rate: Floats, card: CardPerformance, c: Constants) -> Floats:
    """Seconds of products whose tiles are distributed over multiprocessors in waves, with the best of a few tiles."""
    multiprocessors = card.multiprocessors
    best = np.full_like(m, np.inf)
    for rows, columns, name in _TILES:
        factor = getattr(c, name) if name else 1.0
        # In both orientations: the transpose of a product is equally good.
        for tile_m, tile_n in {(rows, columns), (columns, rows)}:
            tiles = batch * np.ceil(m / tile_m) * np.ceil(n / tile_n)
            # If there are few tiles and k is long, it is split along k, so that every multiprocessor gets one.
            split = np.clip(np.floor(multiprocessors / tiles), 1, np.maximum(np.floor(k / 512), 1))
            waves = tiles * split / multiprocessors
            waves = np.maximum(waves + c.wave * (np.ceil(waves) - waves), 1)
            flops = waves * multiprocessors * 2.0 * tile_m * tile_n * (k / split + c.depth)
            best = np.minimum(best, flops / (rate * factor))
    return best


def _convolutions(
    columns: WorkColumns,
    mask: NDArray[np.bool_],
    peak: Floats,
    turned: NDArray[np.bool_],
    card: CardPerformance,
    c: Constants,
    arithmetic: Floats,
    moved: Floats,
) -> None:
    """Treated as products: positions by output channels, over input channels and kernel elements."""
    batch, channels_in, channels_out, _, kernel, positions = columns.shape[mask].T
    last = columns.channels_last[mask]
    pointwise = kernel == 1
    rate = peak[mask] * np.where(pointwise, c.pointwise, c.convolution) * np.where(last, c.channels_last, 1.0)
    one = np.ones_like(batch)
    # Tensor cores read channels in groups of eight.
    padded = np.ceil(channels_in / 8) * 8
    forward_s = _tiled(one, batch * positions, channels_out, padded * kernel, rate, card, c)
    arithmetic[mask] = forward_s
    backward = columns.backward[mask]
    if backward.any():
        rate = rate * c.backward_convolution
        by_input = _tiled(one, batch * positions, padded, channels_out * kernel, rate, card, c)
        by_weight = _tiled(one, channels_out, padded * kernel, batch * positions, rate, card, c)
        ideal = 2.0 * batch * positions * channels_in * channels_out * kernel
        # The first layer of a model has no gradient by its input: half of the FLOPs then indicate a single product.
        both = columns.flops[mask] > 1.5 * ideal
        arithmetic[mask] = np.where(backward, by_weight + np.where(both, by_input, 0.0), forward_s)
    moved[mask] *= 1 + np.where(turned[mask], np.where(pointwise, c.turned_pointwise, c.turned), 0.0)


def _attention(
    columns: WorkColumns, mask: NDArray[np.bool_], peak: Floats, card: CardPerformance, c: Constants
) -> Floats:
    """Blocks of 128 queries process keys in blocks of 64; the products run beside exponentials on other units."""
    batch, heads, queries, keys, width = columns.shape[mask, :5].T
    blocks = batch * heads * np.ceil(queries / 128)
    waves = blocks / card.multiprocessors
    waves = np.maximum(waves + c.wave * (np.ceil(waves) - waves), 1)
    scores = waves * card.multiprocessors * 128 * np.ceil(keys / 64) * 64
    padded = np.ceil(width / 32) * 32
    share = np.where(columns.masked[mask], c.attention_masked, c.attention)
    backward = columns.backward[mask]
    share = share * np.where(backward, c.backward_attention, 1.0)
    # Forward two products of 2 FLOPs per score and column, backward five: the scores are computed again.
    products = np.where(backward, 2.5, 1.0) * 4 * scores * padded / (peak[mask] * share)
    seconds: Floats = products + scores * c.exponential / (card.multiprocessors * card.clock_hz)
    return seconds


def _recurrent(
    columns: WorkColumns, mask: NDArray[np.bool_], peak: Floats, card: CardPerformance, c: Constants
) -> Floats:
    """Products of all steps at once for the input, then step by step for the hidden state; each step waits for the one
    before and reads its matrix again."""
    layers, steps, batch, rows, inputs, hidden = columns.shape[mask].T
    backward = columns.backward[mask]
    rate = peak[mask] * c.product
    one = np.ones_like(batch)
    tokens = steps * batch
    by_input_s = _tiled(one, tokens, rows, inputs, rate, card, c)
    by_weight_s = _tiled(one, rows, inputs + hidden, tokens, rate, card, c)
    step_s = np.where(
        backward, _tiled(one, batch, hidden, rows, rate, card, c), _tiled(one, batch, rows, hidden, rate, card, c)
    )
    element = np.where(np.isin(columns.dtype[mask], HALF), 2.0, 4.0)
    matrix = rows * hidden * element
    # A step's product is as small as its batch: reading the matrix takes longer than the multiplication.
    step_s = np.maximum(step_s, _reading_s(matrix, matrix, card, c) / c.product_bandwidth)
    seconds: Floats = layers * (by_input_s + steps * step_s + np.where(backward, by_weight_s, 0.0))
    return seconds

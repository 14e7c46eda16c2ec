"""How much kernels get out of a card: every constant of the time model, with its meaning.

The values are in ``constants.toml``, with their sources. Those under ``[fitted]`` are fitted to measured steps by
``python -m tests.speed fit``; those under ``[known]`` have no data in the fit and follow what is published about
PyTorch's kernels and the cards; those under ``[spread]`` say how far predictions were off.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from gpudash.devices.card_performance import CARD_PERFORMANCE

FILE = Path(__file__).with_name("constants.toml")


@dataclass(frozen=True)
class Constants:
    """Shares are relative to the data sheet's figure, times in seconds.

    Attributes:
        product: share of the peak that a matrix product reaches with tiles of 128 × 128.
        large_tile, small_tile: of tiles of 256 × 128 and of 64 × 64, relative to these.
        wave: how much of a last wave that is not full is lost: 0 nothing, 1 all of it.
        depth: cost of the start and end of a tile, in elements of k.
        unaligned: factor on a half-precision product whose n or k is not a multiple of 8.
        product_bandwidth: share of the bandwidth in products and convolutions.
        convolution, pointwise: like ``product``, for convolutions over several positions and over one.
        turned, turned_pointwise: how often the input and output of a convolution are moved once more if they are not
            channels last, because tensor cores need that.
        channels_last: factor on a convolution's share of the peak if they are.
        grouped, grouped_width: share of the peak of grouped convolutions, and the channels per group at which they
            reach half of it.
        grouped_channels_last: factor on that share.
        depthwise, depthwise_channels_last: share of fp32's peak (no tensor cores) of depthwise convolutions.
        depthwise_bandwidth, depthwise_bandwidth_channels_last: their share of the bandwidth.
        attention, attention_masked: share of the peak of fused attention without and with a mask.
        exponential: cycles of a multiprocessor for one score of attention, beside its products.
        l2, l2_fall, l2_rate: share of the L2 cache of which half is still found after being written, how steeply that
            falls with the bytes, and how many times faster it is than memory.
        depthwise_wide, depthwise_wide_channels_last: factor on the time of depthwise convolutions with more than 25
            elements, for which PyTorch has no specialised kernel.
        plane: of one image and channel in a bilinear resize, where each thread loops over all of them.
        launch: of a kernel, on the device.
        start: of a step, before its first and after its last kernel.
        overlap: exponent p of (a^p + b^p)^(1/p), which combines a kernel's arithmetic and memory time.
        elementwise, cast, copy, batch_norm, layer_norm, softmax, reduction, pool, resize, gather: shares of the
            bandwidth, by what a kernel does; likewise normalisation_training, optimizer, sort and unknown.
        backward_convolution, backward_depthwise, backward_attention: factors on those shares for gradients.
        synchronisation: how long the device is idle after the host has waited for it.
        link: share of the link's rate that copies from pinned memory reach.
        pageable: bytes per second of copies from other memory.
        copy_start: of one copy.
        peer: share of the rate between cards that an NCCL ring reaches.
        hop: from one rank to the next.
        full_rate: limit on the share of the tensor cores' peak for a card that accumulates in fp32 at the full rate.
        graph: time for the host to launch a CUDA graph.
    """

    product: float
    large_tile: float
    small_tile: float
    wave: float
    depth: float
    unaligned: float
    product_bandwidth: float
    convolution: float
    pointwise: float
    turned: float
    turned_pointwise: float
    channels_last: float
    grouped: float
    grouped_width: float
    grouped_channels_last: float
    depthwise: float
    depthwise_channels_last: float
    depthwise_bandwidth: float
    depthwise_bandwidth_channels_last: float
    attention: float
    attention_masked: float
    exponential: float
    l2: float
    l2_rate: float
    l2_fall: float
    depthwise_wide: float
    depthwise_wide_channels_last: float
    plane: float
    launch: float
    start: float
    overlap: float
    elementwise: float
    cast: float
    copy: float
    batch_norm: float
    layer_norm: float
    softmax: float
    reduction: float
    pool: float
    resize: float
    gather: float
    backward_convolution: float
    backward_depthwise: float
    backward_attention: float
    normalisation_training: float
    optimizer: float
    sort: float
    unknown: float
    synchronisation: float
    link: float
    pageable: float
    copy_start: float
    peer: float
    hop: float
    graph: float
    full_rate: float


@dataclass(frozen=True)
class Spread:
    """Natural logarithms of measured over predicted time, for nine of ten steps.

    Attributes:
        low, high: for steps of architectures that the fit had not seen, on cards that it had.
        unseen_family: additional, from the blind tables, for families that the fit had not seen.
        unseen_faster, unseen_slower: additional, for a card that the fit had not seen: most are slower than predicted.
        guessed_card: additional, if figures of the card are guesses.
        kinds: additional, for a step that consists entirely of this kind.
        training: additional, for a step that is all backward pass.
        host, usual_host: additional, for a step that is all host time, with a measured host and with the default one.
        slower_host, slowest_host: by what factor the host may be slower in these two cases.
        copies: additional, for a step that is all copies and exchanges.
        seen: multiprocessors and bandwidth of the cards in the fit.
        source: of all constants.
    """

    low: float
    high: float
    unseen_family: float
    unseen_faster: float
    unseen_slower: float
    guessed_card: float
    kinds: dict[str, float]
    training: float
    host: float
    usual_host: float
    slower_host: float
    slowest_host: float
    copies: float
    seen: tuple[tuple[int, float], ...]
    source: str


@cache
def constants() -> Constants:
    """The constants used for predictions."""
    document = _document()
    values = {**document["fitted"], **document["known"]}
    return Constants(**{field.name: float(values[field.name]) for field in fields(Constants)})


@cache
def spread() -> Spread:
    """How far predictions may be off."""
    document = _document()
    seen = tuple(
        (CARD_PERFORMANCE[card].multiprocessors, CARD_PERFORMANCE[card].bytes_per_s) for card in document["cards"]
    )
    return Spread(source=document["source"], seen=seen, **document["spread"])


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))

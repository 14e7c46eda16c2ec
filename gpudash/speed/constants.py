"""What kernels get out of a card: every constant of the model of time, with its meaning.

The values lie in ``constants.toml``, which says what they come from. Those under ``[fitted]`` are fitted by
``python -m tests.speed fit`` to measured steps; those under ``[known]`` have no data in the fit and are set from what
is published of PyTorch's kernels and of the cards; those under ``[spread]`` say how far predictions were off.
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
    """Shares are of the data sheet's figure, times in seconds.

    Attributes:
        product: share of the peak that a matrix product's tiles of 128 × 128 get.
        large_tile, small_tile: of those of 256 × 128 and of 64 × 64, relative to them.
        wave: how much of the last wave that is not full is lost: 0 nothing, 1 all of it.
        depth: elements of k that the beginning and end of a tile cost.
        unaligned: factor on a product in half precision whose n or k is no multiple of 8.
        product_bandwidth: share of the bandwidth in products and convolutions.
        convolution, pointwise: as ``product``, of convolutions of several positions and of one.
        turned, turned_pointwise: how often what a convolution reads and writes is moved once more where it is not
            channels last, for tensor cores want it so.
        channels_last: factor on a convolution's share of the peak where it is.
        grouped, grouped_width: share of the peak of grouped convolutions, and the channels a group at which they get
            half of it.
        grouped_channels_last: factor on that share.
        depthwise, depthwise_channels_last: share of fp32's peak (no tensor cores) of depthwise convolutions.
        depthwise_bandwidth, depthwise_bandwidth_channels_last: their share of the bandwidth.
        attention, attention_masked: share of the peak of fused attention without and with a mask.
        exponential: cycles of a multiprocessor for one score of attention, beside its products.
        l2, l2_fall, l2_rate: share of the second-level cache of which half is found again that was just written, how
            steeply that falls with the bytes, and how many times faster than memory it is.
        depthwise_wide, depthwise_wide_channels_last: factor on the time of depthwise convolutions of more than 25
            elements, for which PyTorch has no kernel of their own.
        plane: of one image and channel of a bilinear resize, whose threads each go over all of them.
        launch: of a kernel, on the device.
        start: of a step, before its first and after its last kernel.
        overlap: exponent p of (a^p + b^p)^(1/p), which joins arithmetic and memory of a kernel.
        elementwise, cast, copy, batch_norm, layer_norm, softmax, reduction, pool, resize, gather: shares of the
            bandwidth, by what a kernel does; so too normalisation_training, optimizer, sort and unknown.
        backward_convolution, backward_depthwise, backward_attention: factors on those shares for gradients.
        synchronisation: that the device is idle after the host waited for it.
        link: share of the link's rate that copies of pinned memory get.
        pageable: bytes a second of copies of other memory.
        copy_start: of one copy.
        peer: share of the rate between cards that a ring of NCCL gets.
        hop: from one rank to the next.
        full_rate: the most of tensor cores' peak that a card gets which sums in fp32 at the full rate.
        graph: for the host to start a CUDA graph.
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
    """Natural logarithms of taken over predicted, in nine of ten steps.

    Attributes:
        low, high: of steps of architectures that the fit had not seen, on cards that it had.
        unseen_family: further, as the blind tables showed of families that the fit had not seen.
        unseen_faster, unseen_slower: further, on a card that it had not: most are slower than the rules say.
        guessed_card: further, where figures of the card are guesses.
        kinds: further, for a step that is all of this kind.
        training: further, for a step that is all backward.
        host, usual_host: further, for a step that is all the host's, where its speed was measured and where it is that
            of a usual computer.
        slower_host, slowest_host: by how many times slower the host may be in these two cases.
        copies: further, for a step that is all copies and exchanges.
        seen: multiprocessors and bandwidth of the cards of the fit.
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
    """Those that predictions are made with."""
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

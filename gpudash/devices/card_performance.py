"""Performance of a card: arithmetic, bandwidth, links, power. Only the standard library, for Python 3.9.

Peaks are dense (no structured sparsity) at the boost clock. For tensor cores they are with fp32 accumulation, which
torch requests from cuBLAS and cuDNN: GeForce cards since Turing run that at half the rate of fp16 accumulation,
workstation and data centre cards with the same chips at the full rate. Under load a card sustains less, limited by
power and kernels: that is the job of `gpudash.speed`, not of this table.

A figure without its own source in `CardPerformance.source` (mainly the L2 cache, which data sheets often omit) is from
NVIDIA's architecture white paper for the chip, reduced to the enabled parts.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpudash.devices.known_gpus import KNOWN_GPUS, find

TERA = 1e12
GIGA = 1e9
MIB = 2**20

LANE_BYTES_PER_SECOND = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""Bytes per second in each direction, by PCI Express generation: a transfer is one bit; 8 of 10 bits are data, from
the third generation on 128 of 130, in the sixth 242 of 256 (PCI-SIG)."""

_LANES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class CardPerformance:
    """Figures of a card's data sheet. Rates are per second.

    Attributes:
        flops: dense peak by kind of arithmetic: "float32", "tf32", "float16", "bfloat16" and "float8"; all but the
            first on tensor cores with fp32 accumulation, as torch requests. Kinds that the card lacks are missing.
        bytes_per_s: bandwidth of its memory.
        l2_bytes: size of its L2 cache.
        multiprocessors: number of multiprocessors.
        clock_hz: the boost clock.
        link_bytes_per_s: rate of its link to the host, in each direction.
        peer_bytes_per_s: rate of its links to other cards of its kind, in each direction; that to the host if it has
            none.
        power_w: power of the board.
        source: source of the figures, the data sheet.
        guessed: names of figures that are estimated from cards of the same architecture.
    """

    flops: Mapping[str, float]
    bytes_per_s: float
    l2_bytes: int
    multiprocessors: int
    clock_hz: float
    link_bytes_per_s: float
    peer_bytes_per_s: float
    power_w: float
    source: str
    guessed: tuple[str, ...] = ()

    @property
    def derived(self) -> bool:
        """Whether any figure is estimated, so that results are less certain."""
        return bool(self.guessed)


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Bytes per second of a PCI Express link in each direction.

    Raises:
        ValueError: for an unknown generation or width.
    """
    if generation not in LANE_BYTES_PER_SECOND or lanes not in _LANES:
        raise ValueError(f"no card has a PCIe link of generation {generation} with {lanes} lanes")
    return LANE_BYTES_PER_SECOND[generation] * lanes


_KINDS = ("float32", "tf32", "float16", "bfloat16", "float8")


def _known_cards() -> dict[str, CardPerformance]:
    """The table next to this module, in the units of data sheets; NVLink counts each direction.

    Laptop manufacturers may configure less power, and with it a lower clock. Pascal has no tensor cores: P100 runs
    fp16 at twice the rate, but with fp16 accumulation; with fp32 accumulation, as torch requests, it has fp32's rate.
    """
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return {row["key"]: _card(row) for row in csv.DictReader(file)}


def _card(row: Mapping[str, str]) -> CardPerformance:
    link_bytes_per_s = pcie_bytes_per_s(int(row["pcie_generation"]), int(row["pcie_lanes"]))
    tflops = {kind: row[f"{kind}_tflops"] for kind in _KINDS}
    return CardPerformance(
        flops={kind: float(rate) * TERA for kind, rate in tflops.items() if rate},
        bytes_per_s=float(row["memory_gb_per_s"]) * GIGA,
        l2_bytes=int(float(row["l2_mib"]) * MIB),
        multiprocessors=int(row["multiprocessors"]),
        clock_hz=float(row["clock_mhz"]) * 1e6,
        link_bytes_per_s=link_bytes_per_s,
        peer_bytes_per_s=float(row["nvlink_gb_per_s"] or 0) * GIGA or link_bytes_per_s,
        power_w=float(row["power_w"]),
        source=row["source"],
    )


CARD_PERFORMANCE: Mapping[str, CardPerformance] = _known_cards()
"""Figures by `gpudash.devices.known_gpus.KnownGpu.key`."""


def performance_of(card: str, own: Mapping[str, CardPerformance] | None = None) -> CardPerformance | None:
    """The figures of a card; ``None`` if no card has that name.

    Args:
        card: a key, a name, or the driver's product name: "h100", "RTX 4090", "NVIDIA GeForce RTX 3060".
        own: the user's own cards by name, which take precedence.
    """
    for name, performance in (own or {}).items():
        if name.casefold() == card.casefold():
            return performance
    known = find(card)
    if known is None:
        return None
    return CARD_PERFORMANCE.get(known.key)


def performance_in_machine(
    product: str,
    capability: tuple[int, int] | None = None,
    multiprocessors: int | None = None,
    pcie: tuple[int, int] | None = None,
    own: Mapping[str, CardPerformance] | None = None,
) -> CardPerformance | None:
    """The figures of a card in this machine, by its driver's data; ``None`` for an unknown architecture.

    Args:
        product: the driver's product name.
        capability: compute capability.
        multiprocessors: number of multiprocessors; for a MIG instance the instance's, whose name is in no data sheet.
        pcie: generation and lanes of its link in this machine, which may be less than the card supports.
        own: the user's own cards by name, which take precedence.
    """
    card = performance_of(product, own)
    if card is None and capability is not None and multiprocessors:
        card = guessed_performance(product, capability, multiprocessors)
    if card is None or pcie is None or pcie[0] not in LANE_BYTES_PER_SECOND or pcie[1] not in _LANES:
        return card
    link = pcie_bytes_per_s(*pcie)
    peer = card.peer_bytes_per_s
    # Cards without a link of their own communicate over the one to the host.
    if peer == card.link_bytes_per_s:
        peer = link
    sure = tuple(name for name in card.guessed if name != "link_bytes_per_s")
    return replace(card, link_bytes_per_s=link, peer_bytes_per_s=peer, guessed=sure)


_GUESSED = ("flops", "bytes_per_s", "l2_bytes", "clock_hz", "link_bytes_per_s", "peer_bytes_per_s", "power_w")


def guessed_performance(
    product: str, capability: tuple[int, int], multiprocessors: int, clock_hz: float | None = None
) -> CardPerformance | None:
    """Estimated figures for a card without a data sheet, from the nearest one of its architecture; ``None`` without
    one.

    The reference is the card with the nearest number of multiprocessors. Arithmetic is scaled by multiprocessors and
    clock, the chip's other figures (bandwidth, L2 cache, power) by multiprocessors; links are unchanged.

    Args:
        product: the driver's product name, for the text of the source.
        capability: compute capability, (major, minor).
        multiprocessors: number of multiprocessors.
        clock_hz: highest clock by its driver; the reference card's if unknown.
    """
    alike = [gpu for gpu in KNOWN_GPUS if gpu.capability == capability and gpu.key in CARD_PERFORMANCE]
    if not alike or multiprocessors < 1:
        return None
    # By ratio, the natural scale for sizes: 24 is nearer to 34 than to 16.
    lender = min(
        alike, key=lambda gpu: max(gpu.multiprocessors, multiprocessors) / min(gpu.multiprocessors, multiprocessors)
    )
    lent = CARD_PERFORMANCE[lender.key]
    size = multiprocessors / lent.multiprocessors
    clock = clock_hz or lent.clock_hz
    return replace(
        lent,
        flops={kind: rate * size * clock / lent.clock_hz for kind, rate in lent.flops.items()},
        bytes_per_s=lent.bytes_per_s * size,
        l2_bytes=int(lent.l2_bytes * size),
        multiprocessors=multiprocessors,
        clock_hz=clock,
        power_w=lent.power_w * size,
        source=f"{product} has no data sheet here: guessed from {lender.name} of the same architecture, by size",
        guessed=tuple(name for name in _GUESSED if name != "clock_hz" or clock_hz is None),
    )

"""What a card can do: arithmetic, bandwidth, links, power. Standard library alone, Python 3.9.

Peaks are dense (no structured sparsity) and at the boost clock. On tensor cores they are those with sums in fp32, which
is what torch asks of cuBLAS and cuDNN: GeForce cards since Turing do those at half the rate of sums in fp16, the
workstations' and data centres' cards at the full one, on the very same chips. What a card keeps up under load lies
below, by its power and by the kernels: that is for `gpudash.speed` to say, not for this table.

A figure without its own source in `CardPerformance.source` (the second-level cache above all, which data sheets often
leave out) is that of NVIDIA's architecture white paper of the same chip, cut to the parts that are on.
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
"""Each way, by generation of PCI Express: transfers of one bit, of which 8 in 10 are data, since the third 128 in 130,
in the sixth 242 in 256 (PCI-SIG)."""

_LANES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class CardPerformance:
    """What the data sheet of a card says. Rates a second.

    Attributes:
        flops: peak by kind of arithmetic, dense: "float32", "tf32", "float16", "bfloat16" and "float8"; all but the
            first on tensor cores with sums in fp32, as torch asks for. A kind that the card does not have is missing.
        bytes_per_s: of its memory.
        l2_bytes: of its second-level cache.
        multiprocessors: how many.
        clock_hz: the boost clock.
        link_bytes_per_s: of its link to the host, each way.
        peer_bytes_per_s: of its links to other cards of its kind, each way; that to the host where it has none.
        power_w: of the board.
        source: the data sheet.
        guessed: attributes of no data sheet, worked out from cards of the same architecture.
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
        """Whether any of it is a guess, so that what follows from it is less sure."""
        return bool(self.guessed)


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Bytes a second that a link of PCI Express carries each way.

    Raises:
        ValueError: for a generation or a width that no card has.
    """
    if generation not in LANE_BYTES_PER_SECOND or lanes not in _LANES:
        raise ValueError(f"no card has a PCIe link of generation {generation} with {lanes} lanes")
    return LANE_BYTES_PER_SECOND[generation] * lanes


_KINDS = ("float32", "tf32", "float16", "bfloat16", "float8")


def _known_cards() -> dict[str, CardPerformance]:
    """The table beside this module, in the units of data sheets; NVLink counts each way.

    Of laptops a maker may set less power than is said there, and with it a lower clock. Pascal has no tensor cores:
    P100's cores do fp16 at twice the rate, but with sums in fp16; with those in fp32, as torch asks for, it is fp32's.
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
"""By `gpudash.devices.known_gpus.KnownGpu.key`."""


def performance_of(card: str, own: Mapping[str, CardPerformance] | None = None) -> CardPerformance | None:
    """What the card can do that is meant; ``None`` when none is known by that name.

    Args:
        card: a key, a name, or the product as a driver has it: "h100", "RTX 4090", "NVIDIA GeForce RTX 3060".
        own: cards of the user's, by name, which come first.
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
    """What a card that is there can do, by what its driver says of it; ``None`` for one of no known architecture.

    Args:
        product: its name as the driver has it.
        capability: compute capability.
        multiprocessors: how many it has; of a MIG instance those of the instance, whose name no data sheet has.
        pcie: generation and lanes of its link in this machine, which may be less than the card's own.
        own: cards of the user's, by name, which come first.
    """
    card = performance_of(product, own)
    if card is None and capability is not None and multiprocessors:
        card = guessed_performance(product, capability, multiprocessors)
    if card is None or pcie is None or pcie[0] not in LANE_BYTES_PER_SECOND or pcie[1] not in _LANES:
        return card
    link = pcie_bytes_per_s(*pcie)
    peer = card.peer_bytes_per_s
    # Where cards have no link of their own they exchange over that to the host.
    if peer == card.link_bytes_per_s:
        peer = link
    sure = tuple(name for name in card.guessed if name != "link_bytes_per_s")
    return replace(card, link_bytes_per_s=link, peer_bytes_per_s=peer, guessed=sure)


_GUESSED = ("flops", "bytes_per_s", "l2_bytes", "clock_hz", "link_bytes_per_s", "peer_bytes_per_s", "power_w")


def guessed_performance(
    product: str, capability: tuple[int, int], multiprocessors: int, clock_hz: float | None = None
) -> CardPerformance | None:
    """What a card of no data sheet may be able to do, from the nearest of its architecture; ``None`` when none is.

    The nearest by multiprocessors lends everything. Arithmetic goes by multiprocessors and clock, all else of the chip
    (bandwidth, second-level cache, power) by multiprocessors; links stay.

    Args:
        product: its name as the driver has it, for the sentence of the source.
        capability: compute capability, (major, minor).
        multiprocessors: how many it has.
        clock_hz: the highest that its driver says; of the card that lends where it is not known.
    """
    alike = [gpu for gpu in KNOWN_GPUS if gpu.capability == capability and gpu.key in CARD_PERFORMANCE]
    if not alike or multiprocessors < 1:
        return None
    # By ratio, as the sizes of cards go: 24 is nearer to 34 than to 16.
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

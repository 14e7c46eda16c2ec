"""What a card can do: arithmetic, bandwidth, links, power. Standard library alone, Python 3.9.

Peaks are dense (no structured sparsity) and at the boost clock. On tensor cores they are those with sums in fp32, which
is what torch asks of cuBLAS and cuDNN: GeForce cards since Turing do those at half the rate of sums in fp16, the
workstations' and data centres' cards at the full one, on the very same chips. What a card keeps up under load lies
below, by its power and by the kernels: that is for `gpudash.speed` to say, not for this table.

A figure without its own source in `CardPerformance.source` (the second-level cache above all, which data sheets often
leave out) is that of NVIDIA's architecture white paper of the same chip, cut to the parts that are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpudash.devices.known_gpus import KNOWN_GPUS, find

TERA = 1e12
GIGA = 1e9
MIB = 2**20

_LANE_BYTES_PER_S = {
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
    if generation not in _LANE_BYTES_PER_S or lanes not in _LANES:
        raise ValueError(f"no card has a PCIe link of generation {generation} with {lanes} lanes")
    return _LANE_BYTES_PER_S[generation] * lanes


def _card(
    source: str,
    *,
    tflops: Mapping[str, float],
    gb_per_s: float,
    l2_mib: float,
    multiprocessors: int,
    mhz: float,
    pcie: tuple[int, int],
    watts: float,
    nvlink_gb_per_s: float = 0,
) -> CardPerformance:
    """A card in the units of data sheets; ``pcie`` is generation and lanes, NVLink counts each way."""
    link_bytes_per_s = pcie_bytes_per_s(*pcie)
    return CardPerformance(
        flops={kind: rate * TERA for kind, rate in tflops.items()},
        bytes_per_s=gb_per_s * GIGA,
        l2_bytes=int(l2_mib * MIB),
        multiprocessors=multiprocessors,
        clock_hz=mhz * 1e6,
        link_bytes_per_s=link_bytes_per_s,
        peer_bytes_per_s=nvlink_gb_per_s * GIGA or link_bytes_per_s,
        power_w=watts,
        source=source,
    )


def _tensor(float32: float, tf32: float, half: float) -> dict[str, float]:
    """Of Ampere, whose tensor cores do both formats of 16 bits at one rate."""
    return {"float32": float32, "tf32": tf32, "float16": half, "bfloat16": half}


def _tensor8(float32: float, tf32: float, half: float) -> dict[str, float]:
    """Of Ada, Hopper and Blackwell, which do 8 bits at twice that rate (tables of the same white papers)."""
    return {**_tensor(float32, tf32, half), "float8": 2 * half}


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture white paper 1.04, table 2 and appendix A"
_A100 = "NVIDIA A100 Tensor Core GPU Architecture white paper 1.0, table 4"
_ADA = "NVIDIA Ada GPU Architecture white paper 2.02, appendix A"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture white paper 2.1, table 9"
_GEFORCE_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture white paper 1.1, appendix A"
_PRO_BLACKWELL = "NVIDIA RTX Blackwell PRO GPU Architecture white paper 1.0, appendix A"
_TURING = "NVIDIA Turing GPU Architecture white paper, appendices A and B"
_VOLTA = "NVIDIA Tesla V100 GPU Architecture white paper 1.1, table 1"
_LAPTOP = (
    "NVIDIA's comparison of GeForce laptops (cores, the highest boost clock and power that a maker may set); peaks are "
    "those of the desktop's chip by cores and clock, L2 is that of the chip and not confirmed"
)


def _laptop(name: str) -> str:
    return f"{name}: {_LAPTOP}"


# Laptops: a maker may set less power than is said here, and with it a lower clock.
CARD_PERFORMANCE: Mapping[str, CardPerformance] = {
    "b200": _card(
        "NVIDIA HGX B200 data sheet (dense is half of what it says with sparsity); clock and L2 as drivers report them",
        tflops=_tensor8(75, 1125, 2250),
        gb_per_s=7700,
        l2_mib=126,
        multiprocessors=148,
        mhz=1965,
        pcie=(5, 16),
        nvlink_gb_per_s=900,
        watts=1000,
    ),
    "h200": _card(
        f"NVIDIA H200 data sheet; {_HOPPER}; L2 as drivers report it",
        tflops=_tensor8(66.9, 494.7, 989.4),
        gb_per_s=4800,
        l2_mib=60,
        multiprocessors=132,
        mhz=1980,
        pcie=(5, 16),
        nvlink_gb_per_s=450,
        watts=700,
    ),
    "h100": _card(
        _HOPPER,
        tflops=_tensor8(66.9, 494.7, 989.4),
        gb_per_s=3352,
        l2_mib=50,
        multiprocessors=132,
        mhz=1980,
        pcie=(5, 16),
        nvlink_gb_per_s=450,
        watts=700,
    ),
    "h100-pcie": _card(
        _HOPPER,
        tflops=_tensor8(51.2, 378, 756),
        gb_per_s=2039,
        l2_mib=50,
        multiprocessors=114,
        mhz=1755,
        pcie=(5, 16),
        nvlink_gb_per_s=300,
        watts=350,
    ),
    "a100-80gb": _card(
        f"NVIDIA A100 80GB data sheet; {_A100}",
        tflops=_tensor(19.5, 156, 312),
        gb_per_s=2039,
        l2_mib=40,
        multiprocessors=108,
        mhz=1410,
        pcie=(4, 16),
        nvlink_gb_per_s=300,
        watts=400,
    ),
    "a100-40gb": _card(
        _A100,
        tflops=_tensor(19.5, 156, 312),
        gb_per_s=1555,
        l2_mib=40,
        multiprocessors=108,
        mhz=1410,
        pcie=(4, 16),
        nvlink_gb_per_s=300,
        watts=400,
    ),
    "l40s": _card(
        "NVIDIA L40S data sheet",
        tflops=_tensor8(91.6, 183, 362),
        gb_per_s=864,
        l2_mib=96,
        multiprocessors=142,
        mhz=2520,
        pcie=(4, 16),
        watts=350,
    ),
    "l40": _card(
        "NVIDIA L40 data sheet",
        tflops=_tensor8(90.5, 90.5, 181),
        gb_per_s=864,
        l2_mib=96,
        multiprocessors=142,
        mhz=2490,
        pcie=(4, 16),
        watts=300,
    ),
    "l4": _card(
        "NVIDIA L4 data sheet (dense is half of what it says with sparsity)",
        tflops=_tensor8(30.3, 60.5, 121),
        gb_per_s=300,
        l2_mib=48,
        multiprocessors=58,
        mhz=2040,
        pcie=(4, 16),
        watts=72,
    ),
    "a10": _card(
        "NVIDIA A10 data sheet",
        tflops=_tensor(31.2, 62.5, 125),
        gb_per_s=600,
        l2_mib=6,
        multiprocessors=72,
        mhz=1695,
        pcie=(4, 16),
        watts=150,
    ),
    "a10g": _card(
        "NVIDIA A10G data sheet of Amazon Web Services",
        tflops=_tensor(35, 35, 70),
        gb_per_s=600,
        l2_mib=6,
        multiprocessors=80,
        mhz=1710,
        pcie=(4, 16),
        watts=300,
    ),
    "a6000": _card(
        "NVIDIA Ampere GA102 GPU Architecture white paper 2.1, table 10; NVIDIA RTX A6000 data sheet",
        tflops=_tensor(38.7, 77.4, 154.8),
        gb_per_s=768,
        l2_mib=6,
        multiprocessors=84,
        mhz=1800,
        pcie=(4, 16),
        nvlink_gb_per_s=56.25,
        watts=300,
    ),
    "rtx6000-ada": _card(
        "NVIDIA RTX 6000 Ada Generation data sheet; NVIDIA Ada GPU Architecture white paper 2.02 (full AD102)",
        tflops=_tensor8(91.1, 182.1, 364.2),
        gb_per_s=960,
        l2_mib=96,
        multiprocessors=142,
        mhz=2505,
        pcie=(4, 16),
        watts=300,
    ),
    "rtx-pro-6000": _card(
        _PRO_BLACKWELL,
        tflops=_tensor8(126.0, 251.9, 503.8),
        gb_per_s=1792,
        l2_mib=128,
        multiprocessors=188,
        mhz=2617,
        pcie=(5, 16),
        watts=600,
    ),
    "rtx-pro-6000-maxq": _card(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition data sheet (110 TFLOPS, 3511 AI TOPS, of which the "
        "others follow)",
        tflops=_tensor8(109.7, 219.4, 438.9),
        gb_per_s=1792,
        l2_mib=128,
        multiprocessors=188,
        mhz=2280,
        pcie=(5, 16),
        watts=300,
    ),
    "t4": _card(
        f"NVIDIA T4 data sheet; {_TURING}",
        tflops={"float32": 8.1, "float16": 65},
        gb_per_s=320,
        l2_mib=4,
        multiprocessors=40,
        mhz=1590,
        pcie=(3, 16),
        watts=70,
    ),
    "v100-16gb": _card(
        _VOLTA,
        tflops={"float32": 15.7, "float16": 125},
        gb_per_s=900,
        l2_mib=6,
        multiprocessors=80,
        mhz=1530,
        pcie=(3, 16),
        nvlink_gb_per_s=150,
        watts=300,
    ),
    "v100-32gb": _card(
        f"{_VOLTA}; NVIDIA V100 data sheet",
        tflops={"float32": 15.7, "float16": 125},
        gb_per_s=900,
        l2_mib=6,
        multiprocessors=80,
        mhz=1530,
        pcie=(3, 16),
        nvlink_gb_per_s=150,
        watts=300,
    ),
    # Pascal has no tensor cores. P100's cores do fp16 at twice the rate (18.7), but with sums in fp16; with those in
    # fp32, as torch asks for, it is fp32's.
    "p100": _card(
        "NVIDIA Tesla P100 PCIe data sheet; NVIDIA Tesla P100 white paper 1.1, table 1",
        tflops={"float32": 9.3},
        gb_per_s=732,
        l2_mib=4,
        multiprocessors=56,
        mhz=1303,
        pcie=(3, 16),
        watts=250,
    ),
    "rtx5090": _card(
        _GEFORCE_BLACKWELL,
        tflops=_tensor8(104.8, 104.8, 209.5),
        gb_per_s=1792,
        l2_mib=96,
        multiprocessors=170,
        mhz=2407,
        pcie=(5, 16),
        watts=575,
    ),
    "rtx5080": _card(
        _GEFORCE_BLACKWELL,
        tflops=_tensor8(56.3, 56.3, 112.6),
        gb_per_s=960,
        l2_mib=64,
        multiprocessors=84,
        mhz=2617,
        pcie=(5, 16),
        watts=360,
    ),
    "rtx5070ti": _card(
        _GEFORCE_BLACKWELL,
        tflops=_tensor8(43.9, 43.9, 87.9),
        gb_per_s=896,
        l2_mib=48,
        multiprocessors=70,
        mhz=2452,
        pcie=(5, 16),
        watts=300,
    ),
    "rtx4090": _card(
        _ADA,
        tflops=_tensor8(82.6, 82.6, 165.2),
        gb_per_s=1008,
        l2_mib=72,
        multiprocessors=128,
        mhz=2520,
        pcie=(4, 16),
        watts=450,
    ),
    "rtx4080": _card(
        _ADA,
        tflops=_tensor8(48.7, 48.7, 97.5),
        gb_per_s=716.8,
        l2_mib=64,
        multiprocessors=76,
        mhz=2505,
        pcie=(4, 16),
        watts=320,
    ),
    "rtx4070ti": _card(
        _ADA,
        tflops=_tensor8(40.1, 40.1, 80.2),
        gb_per_s=504,
        l2_mib=48,
        multiprocessors=60,
        mhz=2610,
        pcie=(4, 16),
        watts=285,
    ),
    "rtx4070": _card(
        "NVIDIA's comparison of GeForce cards (RTX 4070); peaks by cores and clock as in the Ada white paper",
        tflops=_tensor8(29.1, 29.1, 58.3),
        gb_per_s=504,
        l2_mib=36,
        multiprocessors=46,
        mhz=2475,
        pcie=(4, 16),
        watts=200,
    ),
    "rtx4060ti-16gb": _card(
        "NVIDIA's comparison of GeForce cards (RTX 4060 Ti 16 GB); peaks by cores and clock as in the Ada white paper",
        tflops=_tensor8(22.1, 22.1, 44.1),
        gb_per_s=288,
        l2_mib=32,
        multiprocessors=34,
        mhz=2535,
        pcie=(4, 8),
        watts=165,
    ),
    "rtx4060": _card(
        "NVIDIA's comparison of GeForce cards (RTX 4060); peaks by cores and clock as in the Ada white paper",
        tflops=_tensor8(15.1, 15.1, 30.2),
        gb_per_s=272,
        l2_mib=24,
        multiprocessors=24,
        mhz=2460,
        pcie=(4, 8),
        watts=115,
    ),
    "rtx3090": _card(
        _GA102,
        tflops=_tensor(35.6, 35.6, 71.2),
        gb_per_s=936,
        l2_mib=6,
        multiprocessors=82,
        mhz=1695,
        pcie=(4, 16),
        nvlink_gb_per_s=56.25,
        watts=350,
    ),
    "rtx3080": _card(
        _GA102.replace("table 9", "table 2 and appendix A"),
        tflops=_tensor(29.8, 29.8, 59.5),
        gb_per_s=760,
        l2_mib=5,
        multiprocessors=68,
        mhz=1710,
        pcie=(4, 16),
        watts=320,
    ),
    "rtx3070": _card(
        _GA102.replace("table 9", "appendix A"),
        tflops=_tensor(20.3, 20.3, 40.6),
        gb_per_s=448,
        l2_mib=4,
        multiprocessors=46,
        mhz=1725,
        pcie=(4, 16),
        watts=220,
    ),
    "rtx3060": _card(
        "NVIDIA's comparison of GeForce cards (RTX 3060 12 GB); peaks by cores and clock as in the GA102 white paper; "
        "L2 as drivers report it",
        tflops=_tensor(12.7, 12.7, 25.5),
        gb_per_s=360,
        l2_mib=2.25,
        multiprocessors=28,
        mhz=1777,
        pcie=(4, 16),
        watts=170,
    ),
    "rtx2080ti": _card(
        f"{_TURING} (reference card)",
        tflops={"float32": 13.4, "float16": 53.8},
        gb_per_s=616,
        l2_mib=5.5,
        multiprocessors=68,
        mhz=1545,
        pcie=(3, 16),
        nvlink_gb_per_s=50,
        watts=250,
    ),
    "gtx1080ti": _card(
        "NVIDIA's page of GeForce GTX 1080 Ti; peaks by cores and clock",
        tflops={"float32": 11.3},
        gb_per_s=484,
        l2_mib=2.75,
        multiprocessors=28,
        mhz=1582,
        pcie=(3, 16),
        watts=250,
    ),
    "rtx4090-laptop": _card(
        _laptop("RTX 4090 Laptop"),
        tflops=_tensor8(39.7, 39.7, 79.4),
        gb_per_s=576,
        l2_mib=64,
        multiprocessors=76,
        mhz=2040,
        pcie=(4, 16),
        watts=150,
    ),
    "rtx4070-laptop": _card(
        _laptop("RTX 4070 Laptop"),
        tflops=_tensor8(20.0, 20.0, 40.1),
        gb_per_s=256,
        l2_mib=32,
        multiprocessors=36,
        mhz=2175,
        pcie=(4, 8),
        watts=115,
    ),
    "rtx4060-laptop": _card(
        _laptop("RTX 4060 Laptop"),
        tflops=_tensor8(14.6, 14.6, 29.1),
        gb_per_s=256,
        l2_mib=32,
        multiprocessors=24,
        mhz=2370,
        pcie=(4, 8),
        watts=115,
    ),
    "rtx3080-laptop": _card(
        _laptop("RTX 3080 Laptop"),
        tflops=_tensor(21.0, 21.0, 42.0),
        gb_per_s=448,
        l2_mib=4,
        multiprocessors=48,
        mhz=1710,
        pcie=(4, 16),
        watts=150,
    ),
    "rtx3070-laptop": _card(
        _laptop("RTX 3070 Laptop"),
        tflops=_tensor(16.6, 16.6, 33.2),
        gb_per_s=448,
        l2_mib=4,
        multiprocessors=40,
        mhz=1620,
        pcie=(4, 16),
        watts=125,
    ),
    "rtx3060-laptop": _card(
        _laptop("RTX 3060 Laptop"),
        tflops=_tensor(13.1, 13.1, 26.2),
        gb_per_s=336,
        l2_mib=3,
        multiprocessors=30,
        mhz=1703,
        pcie=(4, 16),
        watts=115,
    ),
    "rtx3050-laptop": _card(
        _laptop("RTX 3050 Laptop").replace("that of the chip and not confirmed", "as drivers report it"),
        tflops=_tensor(7.1, 7.1, 14.3),
        gb_per_s=192,
        l2_mib=1.5,
        multiprocessors=16,
        mhz=1740,
        pcie=(4, 8),
        watts=80,
    ),
}
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
    if card is None or pcie is None or pcie[0] not in _LANE_BYTES_PER_S or pcie[1] not in _LANES:
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

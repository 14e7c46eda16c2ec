"""What a card can do: arithmetic, bandwidth, links, power. Standard library alone, Python 3.9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CardPerformance:
    """What the data sheet of a card says. Rates a second.

    Attributes:
        flops: peak by kind of arithmetic, dense: "float32", "tf32", "float16" and "bfloat16"; the last three on tensor
            cores with sums in fp32, as torch asks for. A kind that the card does not have is missing.
        bytes_per_s: of its memory.
        l2_bytes: of its second-level cache.
        multiprocessors: how many.
        clock_hz: the boost clock.
        link_bytes_per_s: of its link to the host, each way.
        peer_bytes_per_s: of its links to other cards of its kind, each way; that to the host where it has none.
        power_w: of the board.
        source: the data sheet.
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


CARD_PERFORMANCE: Mapping[str, CardPerformance] = {
    "rtx4090": CardPerformance(
        flops={"float32": 82.6e12, "tf32": 82.6e12, "float16": 165.2e12, "bfloat16": 165.2e12},
        bytes_per_s=1008e9,
        l2_bytes=72 * 2**20,
        multiprocessors=128,
        clock_hz=2.52e9,
        link_bytes_per_s=32e9,
        peer_bytes_per_s=32e9,
        power_w=450,
        source="NVIDIA Ada GPU Architecture whitepaper 2.02, appendix A",
    ),
    "rtx3090": CardPerformance(
        flops={"float32": 35.6e12, "tf32": 35.6e12, "float16": 71.2e12, "bfloat16": 71.2e12},
        bytes_per_s=936e9,
        l2_bytes=6 * 2**20,
        multiprocessors=82,
        clock_hz=1.695e9,
        link_bytes_per_s=32e9,
        peer_bytes_per_s=56e9,
        power_w=350,
        source="NVIDIA Ampere GA102 GPU Architecture whitepaper, table 9",
    ),
}
"""By `gpudash.devices.known_gpus.KnownGpu.key`."""

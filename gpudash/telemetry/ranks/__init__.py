"""The ranks of a data-parallel run: their steps joined, and who is slower or fuller than the others."""

from gpudash.telemetry.ranks.findings import Finding, Findings, findings
from gpudash.telemetry.ranks.imbalance import Imbalance
from gpudash.telemetry.ranks.ranks import Ranks
from gpudash.telemetry.ranks.straggler import Straggler
from gpudash.telemetry.ranks.told import JoinedStep, RankMemory, RankStep

__all__ = [
    "Finding",
    "Findings",
    "Imbalance",
    "JoinedStep",
    "RankMemory",
    "RankStep",
    "Ranks",
    "Straggler",
    "findings",
]

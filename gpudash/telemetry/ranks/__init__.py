"""The ranks of a data-parallel run: joins their steps, and finds ranks that are slower or fuller than the others."""

from gpudash.telemetry.ranks.ranks import Finding, JoinedStep, RankFindings, RankMemory, Ranks, RankStep, findings
from gpudash.telemetry.ranks.straggler import Imbalance, Straggler

__all__ = [
    "Finding",
    "Imbalance",
    "JoinedStep",
    "RankFindings",
    "RankMemory",
    "RankStep",
    "Ranks",
    "Straggler",
    "findings",
]

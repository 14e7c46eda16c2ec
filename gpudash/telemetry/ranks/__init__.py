"""The ranks of a data-parallel run: their steps joined, and who is slower or fuller than the others."""

from gpudash.telemetry.ranks.findings import Finding, RankFindings, findings
from gpudash.telemetry.ranks.imbalance import Imbalance
from gpudash.telemetry.ranks.rank_records import JoinedStep, RankMemory, RankStep
from gpudash.telemetry.ranks.ranks import Ranks
from gpudash.telemetry.ranks.straggler import Straggler

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

"""Comparison of two or more runs: figures with their noise, specs, curves. Reads no files."""

from gpudash.telemetry.comparing.comparison import MOST_RUNS, Comparison, Field, compare
from gpudash.telemetry.comparing.curves import ComparedRun, Curve, RunMark, StepColumns
from gpudash.telemetry.comparing.figures import FigureDifference, Judgement, Verdict

__all__ = [
    "MOST_RUNS",
    "ComparedRun",
    "Comparison",
    "Curve",
    "Field",
    "FigureDifference",
    "Judgement",
    "RunMark",
    "StepColumns",
    "Verdict",
    "compare",
]

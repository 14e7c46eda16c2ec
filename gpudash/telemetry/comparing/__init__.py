"""Two or more runs beside one another: figures with their noise, specs, curves. Pure: it reads no file."""

from gpudash.telemetry.comparing.comparison import Comparison, FieldPair, compare
from gpudash.telemetry.comparing.curves import Curve
from gpudash.telemetry.comparing.differences import Difference, Judgement, Verdict
from gpudash.telemetry.comparing.run import ComparedRun, RunMark, Steps

__all__ = [
    "ComparedRun",
    "Comparison",
    "Curve",
    "Difference",
    "FieldPair",
    "Judgement",
    "RunMark",
    "Steps",
    "Verdict",
    "compare",
]

"""Two or more runs beside one another: figures with their noise, specs, curves. Pure: it reads no file."""

from gpudash.telemetry.comparing.comparison import Comparison, FieldPair, compare
from gpudash.telemetry.comparing.curves import Curve
from gpudash.telemetry.comparing.differences import FigureDifference, Judgement, Verdict
from gpudash.telemetry.comparing.run import ComparedRun, RunMark, StepColumns

__all__ = [
    "ComparedRun",
    "Comparison",
    "Curve",
    "FieldPair",
    "FigureDifference",
    "Judgement",
    "RunMark",
    "StepColumns",
    "Verdict",
    "compare",
]

"""Two or more runs beside one another: figures with their noise, specs, curves. Pure: it reads no file."""

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

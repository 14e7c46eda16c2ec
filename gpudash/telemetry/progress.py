"""How long a run still takes."""

from __future__ import annotations

from gpudash.telemetry.runs import RunView

MIN_STEPS = 2
"""Steps before a time left is told: the first carries the warm-up."""


def seconds_left(run: RunView, now_s: float) -> float | None:
    """Seconds until the last step at the mean pace so far; ``None`` before it can be told and after the end."""
    if not run.running or run.step < MIN_STEPS or run.steps <= run.step:
        return None
    return (now_s - run.began_s) / run.step * (run.steps - run.step)

"""A run's figures as JSON, so that a long recording's runs are known without reading every step again."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gpudash.telemetry.records import StageFinished, event_from_json, plain
from gpudash.telemetry.runs import MemoryPeaks, MetricView, RunView, StageView

NEWEST_STAGES = 200
"""Executions of stages that a digest carries one by one, the newest; their sums are of all."""


def digest(run: RunView) -> str:
    """The figures of ``run`` that come from steps, stages and readings; what other events tell is not in it."""
    stage_events = list(run.stage_events)[-NEWEST_STAGES:]
    return json.dumps(
        plain(
            {
                "step": run.step,
                "steps": run.steps,
                "stepped_s": run.stepped_s,
                "pace_s": run.pace_s,
                "stages": {name: stage.digest() for name, stage in run.stages.items()},
                "metrics": {name: metric.digest() for name, metric in run.metrics.items()},
                "memory": dataclasses.asdict(run.memory),
                "stage_events": [event.to_json() for event in stage_events],
            }
        ),
        separators=(",", ":"),
    )


def restore(run: RunView, text: str) -> None:
    """Give ``run`` the figures that `digest` wrote; together with its other events its `summary` is equal.

    Raises:
        ValueError: when the text is no digest of a run; then ``run`` stays as it was.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        stages = {name: StageView.of(stage) for name, stage in data["stages"].items()}
        metrics = {name: MetricView.of(metric) for name, metric in data["metrics"].items()}
        names = {field.name for field in dataclasses.fields(MemoryPeaks)}
        memory = MemoryPeaks(**{name: value for name, value in data["memory"].items() if name in names})
        events = [event for event in map(event_from_json, data["stage_events"]) if isinstance(event, StageFinished)]
        step, steps, stepped_s, pace_s = int(data["step"]), int(data["steps"]), data["stepped_s"], data.get("pace_s")
        if not all(isinstance(value, int | None) for value in dataclasses.astuple(memory)):
            raise ValueError("a peak is no number of bytes")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a run's digest ({error})") from None
    run.stages, run.metrics, run.memory = stages, metrics, memory
    run.step, run.steps, run.stepped_s, run.pace_s = step, steps, stepped_s, pace_s
    run.stage_events.clear()
    run.stage_events.extend(events)

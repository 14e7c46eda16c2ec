"""A rank that is slower by a known share is named with it; equal ranks name none."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpudash.specs import TrainingSpec, build
from gpudash.telemetry.records import Note
from tests.end_to_end.test_parallel import run_on_several

STEPS: dict[str, Any] = {"model": "mlp", "width": 512, "depth": 3, "batch": 64, "steps": 250, "optimizer": "sgd"}

TOLERANCE = 0.12
"""Of the share, absolute: two processes on one machine are never quite equal."""

CALM = 1.5
"""Load per core up to which the ranks have the cores nearly for themselves."""


def outcome_of(**values: Any) -> tuple[Any, list[Note]]:
    """The result of a run on two CPUs, and the notes that named a straggler."""
    spec = build(TrainingSpec, {**STEPS, "devices": "cpu,cpu", **values})
    assert isinstance(spec, TrainingSpec)
    ending, told = run_on_several(spec)
    return ending.result, [event for event in told if isinstance(event, Note) and event.topic == "straggler"]


def test_a_rank_slowed_by_a_fifth_is_named_with_that_figure() -> None:
    result, notes = outcome_of(slow_rank=0.2)

    computing = [row["compute_seconds_median"] for row in result["ranks"]]
    assert computing[1] / computing[0] - 1 == pytest.approx(0.2, abs=TOLERANCE)
    if os.getloadavg()[0] > CALM * (os.cpu_count() or 1):  # where others have the cores too, naming nobody is right
        assert result["straggler"] is None or result["straggler"]["rank"] == 1
        return
    assert result["straggler"]["rank"] == 1
    assert result["straggler"]["slower"] == pytest.approx(0.2, abs=TOLERANCE)
    assert notes and "Rank 1" in notes[-1].text


def test_equal_ranks_name_no_straggler() -> None:
    result, notes = outcome_of()

    assert result["straggler"] is None and not notes

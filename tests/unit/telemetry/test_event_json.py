"""Events as JSON: read again as they were, and refused where a field cannot be what it says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gpudash.telemetry.records import EpochFinished, Marker, Output, StageFinished, event_from_json

EPOCH = EpochFinished(
    time_s=1.0, run_id=2, epoch=3, device="cpu", loss=math.inf, accuracy=0.5, seconds=1, observation="nan"
)


@pytest.mark.parametrize(
    "event",
    [
        EPOCH,
        Marker(time_s=0.0, label="inf"),
        Output(time_s=1.0, stream="stdout", lines=["nan", ""]),
        StageFinished(time_s=1.0, name="a", seconds=0.1, shape=[1, 2], is_cuda=True, first_values=[0.5]),
    ],
)
def test_an_event_is_read_again_as_it_was(event: Any) -> None:
    assert event_from_json(event.to_json()) == event


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_s", "soon"),
        ("time_s", None),
        ("run_id", "two"),
        ("run_id", [2]),
        ("epoch", {}),
        ("device", 0),
        ("loss", None),
        ("loss", [1.0]),
        ("observation", None),
    ],
)
def test_an_event_with_a_field_of_another_type_is_refused(field: str, value: object) -> None:
    data = {**json.loads(EPOCH.to_json()), field: value}
    with pytest.raises(ValueError, match=f"impossible EpochFinished event: {field} is "):
        event_from_json(json.dumps(data))


def test_an_event_without_a_field_it_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="incomplete Marker event"):
        event_from_json('{"kind": "Marker", "time_s": 1.0}')

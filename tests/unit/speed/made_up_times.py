"""Predicted times that nothing predicted."""

from __future__ import annotations

from typing import Any

from gpudash.speed.work import CONVOLUTION, ELEMENTWISE, StepTime

_USUAL = StepTime(
    median_s=0.31,
    low_s=0.26,
    high_s=0.38,
    bound="compute",
    by_kind={CONVOLUTION: 0.21, ELEMENTWISE: 0.09},
    host_s=0.02,
    device_s=0.30,
    copy_s=0.01,
    communication_s=0.0,
    unknown=0,
    unknown_s=0.0,
    items=64,
    unit="images",
)


def made_up_time(**differs: Any) -> StepTime:
    """A step of 0.31 s with 64 images, but for what differs."""
    fields = {name: getattr(_USUAL, name) for name in _USUAL.__dataclass_fields__}
    return StepTime(**{**fields, **differs})

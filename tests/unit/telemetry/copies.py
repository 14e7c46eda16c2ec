"""Copies between devices as records; tests replace what they are about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpudash.telemetry.records import Transfer

COPIED = Transfer(
    time_s=0.0,
    run_id=1,
    from_device="cpu",
    to_device="cuda:0",
    memory="pinned",
    blocking=True,
    bytes=0,
    seconds=0.0,
)


def copied(time_s: float, size: int, seconds: float, **facts: Any) -> Transfer:
    """A copy from pinned memory to ``cuda:0`` in run 1, but for ``facts``; ``size`` in bytes."""
    return replace(COPIED, time_s=time_s, bytes=size, seconds=seconds, **facts)

"""Ends of runs; tests replace what they are about."""

from __future__ import annotations

from dataclasses import replace

from gpudash.telemetry.records import RunEnd

RAN_OUT = RunEnd(
    status="out_of_memory",
    time_s=1.0,
    run_id=1,
    error="sim",
    message="Full.",
    remedy="",
    seconds=1.0,
    steps=3,
)

FAILED = replace(RAN_OUT, status="failed", error="ValueError", message="no")

"""The spec of the memory ramp."""

from __future__ import annotations

from typing import ClassVar, Literal

from gpudash.specs.base import Bytes, Presets, Spec, field
from gpudash.units import GIB, MIB


class PressureSpec(Spec):
    """Fill memory by a pattern until a cap."""

    name = "pressure"
    title = "Memory pressure"
    summary = "Fills memory step by step up to a cap, so that the warnings and the guard can be seen."
    run = "gpudash.workloads.pressure:run"
    presets: ClassVar[Presets] = {
        "Gentle": {},
        "Fast": {"step": 256 * MIB, "rate": 8.0},
        "1 GiB": {"cap": GIB},
    }

    pattern: Literal["ramp"] = field("ramp", "How memory grows", words={"ramp": "ramp: steady steps"})
    step: Bytes = field(64 * MIB, "Bytes of each allocation", unit="bytes", ge=1024, le=64 * GIB)
    rate: float = field(4.0, "Allocations a second", unit="/s", gt=0, le=1000)
    hold: float = field(2.0, "Time the full level is held", unit="s", ge=0, le=86400)
    cap: Bytes | None = field(
        None,
        "Bytes to reach; empty: the warning level and 5 % more, never above 80 % of what is free",
        unit="bytes",
        ge=1024,
        le=1024 * GIB,
    )

"""The spec of the memory pressure."""

from __future__ import annotations

from typing import ClassVar, Literal

from gpudash.specs.base import Bytes, Presets, Spec, field
from gpudash.units import GIB, MIB

TAKES_THE_MACHINE_DOWN = (
    "on the CPU that would take the whole machine down; use --device sim:0, or a CUDA device with --memory-cap"
)


class PressureSpec(Spec):
    """Fill memory by a pattern until a cap, or until it runs out."""

    name = "pressure"
    title = "Memory pressure"
    summary = "Fills memory by a pattern, up to a cap or until it runs out, so that warnings and guard can be seen."
    run = "gpudash.workloads.programs.pressure:run"
    presets: ClassVar[Presets] = {
        "Gentle": {},
        "Leak": {"pattern": "leak"},
        "Fragmentation": {"pattern": "fragmentation"},
    }

    pattern: Literal["ramp", "leak", "sawtooth", "fragmentation", "spike"] = field(
        "ramp",
        "How memory grows",
        labels={
            "ramp": "ramp: steady steps",
            "leak": "leak: losses kept with their graphs",
            "sawtooth": "sawtooth: up, and back to nothing",
            "fragmentation": "fragmentation: holes that no request fits",
            "spike": "spike: flat, then one short allocation",
        },
    )
    until: Literal["cap", "oom"] = field(
        "cap",
        "Where it ends: at the cap, or when memory runs out (teeth and spikes then double in size)",
        labels={"cap": "the cap is reached", "oom": "memory runs out"},
    )
    step: Bytes = field(
        64 * MIB,
        "Bytes of each allocation; leak: what a training step loses, fragmentation: a buffer of at least 10 MiB, of "
        "which a part is kept, spike: the flat level",
        unit="bytes",
        ge=1024,
        le=64 * GIB,
    )
    rate: float = field(
        4.0,
        "Allocations a second; leak: training steps, spike: one over the time that a spike lasts",
        unit="/s",
        gt=0,
        le=1000,
    )
    hold: float = field(
        2.0,
        "Time the full level is held; sawtooth: at the top of each tooth, spike: the flat level before and after it",
        unit="s",
        when={"until": ("cap",)},
        ge=0,
        le=86400,
    )
    cap: Bytes | None = field(
        None,
        "Bytes to reach; empty: the warning level and 5 % more (a spike: most of what is free), never above 80 % of "
        "what is free",
        unit="bytes",
        when={"until": ("cap",)},
        ge=1024,
        le=1024 * GIB,
    )

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        if device == "cpu":
            return {("until", "oom"): TAKES_THE_MACHINE_DOWN}
        return {}


def fills_memory(spec: Spec) -> bool:
    """Whether a run is designed to end out of memory, so that remedies make no sense."""
    return isinstance(spec, PressureSpec) and spec.until == "oom"

"""The spec of the comparison of two devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationError, model_validator

from gpudash.devices.known_gpus import KnownGpu, find
from gpudash.specs.base import Presets, Spec, field
from gpudash.specs.invalid import invalid_fields

NOT_COMPARED = {
    "comparison": "a comparison cannot be compared with itself; name the workload to run on both devices",
    "pressure": "memory pressure is paced by a clock, so its time says nothing of a device; run it alone",
    "transfer": "a transfer is already measured between the CPU and a device; run it alone on the device",
}
"""Workload → why its times on two devices do not compare the devices."""

SIMULATED_SPEED = (
    "{device} is simulated: its arithmetic is done on the CPU, so its speed is no GPU's and is not compared; "
    "name a card in its place, as in cpu,rtx4090: the CPU is measured and the card predicted"
)

ONE_MEASURED = "{card} is predicted, beside a CPU that is measured; write cpu,{card}"

PREDICTED_CARDS = ("rtx3060", "rtx4090", "l4", "a100-80gb", "h100")
"""Cards offered next to a CPU; other known ones can be given by name."""

PREDICTED_CARD = "rtx4090"
"""The default card if there is no GPU."""

_DEVICE = re.compile(r"cpu|(cuda|sim):\d{1,3}")

COMMON = ("seed", "threads")
"""Fields that the comparison shares with its workload."""


class ComparisonSpec(Spec):
    """Run one workload on two devices in alternation and say which is faster."""

    name = "comparison"
    title = "Comparison"
    summary = "Runs a workload on two devices in alternation: is the GPU worth it, and if not, why."
    run = "gpudash.workloads.programs.comparing.comparison:run"
    undisturbed = True
    presets: ClassVar[Presets] = {
        "Training": {},
        "Products": {"workload": "matmul", "fields": {"size": 2048}},
        "Small": {"fields": {"model": "mlp", "batch": 8}},
    }

    workload: str = field("training", "What runs on both devices; its own fields apply as well")
    devices: str = field(
        "cpu,cuda:0",
        "The two devices, A,B: the figure is how many times as fast B is as A; cpu,rtx4090: the CPU is measured, and a "
        "card that is not here predicted",
    )
    confidence: float = field(0.99, "Confidence of the interval around the speedup", more="measuring", ge=0.5, le=0.999)
    half_width: float = field(
        0.02,
        "Half the interval's width at which measuring ends: 0.02 is 2 % of the ratio",
        more="measuring",
        ge=0.001,
        le=0.5,
    )
    repetitions: int = field(200, "The most repetitions on each device", more="measuring", ge=16, le=10_000)
    limit: float = field(60.0, "The longest that repetitions go on", unit="s", ge=1, le=86400)
    fields: dict[str, Any] = field({}, "Fields of the workload that differ from its defaults")

    @model_validator(mode="after")
    def _can_be_compared(self) -> ComparisonSpec:
        chosen = spec_of(self.workload)
        for name in self.measured:
            if name.startswith("sim"):
                raise ValueError(f"devices: {SIMULATED_SPEED.format(device=name)}")
        stray = [name for name in self.fields if name in COMMON]
        if stray:
            raise ValueError(f"{stray[0]}: {self.fields[stray[0]]!r}: give it to the comparison, for both devices")
        try:
            one = chosen.model_validate({**self.fields, "seed": self.seed, "threads": self.threads})
        except ValidationError as error:
            raise ValueError("; ".join(invalid_fields(error).values())) from None
        if getattr(one, "devices", ""):
            raise ValueError("fields: a run on several devices is not compared with another; run it with gpudash run")
        moved = getattr(one, "move_at_epoch", 0)
        if moved:
            raise ValueError(f"move_at_epoch: {moved}: a run that moves says nothing of either device; leave it 0")
        return self

    @property
    def pair(self) -> tuple[str, str]:
        """The two devices.

        Raises:
            ValueError: one sentence, if `devices` does not name two devices.
        """
        names = tuple(part.strip() for part in self.devices.split(","))
        wrong = next((name for name in names if not _DEVICE.fullmatch(name) and find(name) is None), None)
        if wrong is not None:
            raise ValueError(f"devices: {wrong!r} is not a device; write cpu,cuda:0, or a card as in cpu,rtx4090")
        if len(names) != 2:
            raise ValueError(f"devices: {self.devices!r}: two are compared, not {len(names)}; write cpu,cuda:0")
        return names[0], names[1]

    @property
    def card(self) -> KnownGpu | None:
        """The card that is predicted and compared with the measured CPU; ``None`` if both devices are measured.

        Raises:
            ValueError: one sentence, if it is not paired with a CPU; otherwise as in `pair`.
        """
        pair = self.pair
        cards = [card for name in pair if not _DEVICE.fullmatch(name) and (card := find(name)) is not None]
        if cards and "cpu" not in pair:
            raise ValueError(f"devices: {ONE_MEASURED.format(card=cards[0].key)}")
        return next(iter(cards), None)

    @property
    def measured(self) -> tuple[str, ...]:
        """The devices on which the workload runs."""
        if self.card is not None:
            return ("cpu",)
        return self.pair

    @property
    def chosen(self) -> Spec:
        """The spec of the workload, as it runs on each device."""
        return spec_of(self.workload).model_validate({**self.fields, "seed": self.seed, "threads": self.threads})

    @property
    def own_device(self) -> str | None:
        gpus = [name for name in self.measured if name != "cpu"]
        if not gpus:
            return "cpu"
        return gpus[-1]

    @property
    def predicted(self) -> Spec:
        return self.chosen

    def problems(self, device: str) -> list[str]:
        found = super().problems(device)
        measured = self.measured
        if device not in measured:
            found.append(f"--device {device}: a comparison runs on {' and '.join(measured)}; leave --device out")
        for name in dict.fromkeys(measured):
            found += [problem for problem in self.chosen.problems(name) if problem not in found]
        return found

    def cautions(self, device: str) -> list[str]:
        found = [caution for name in dict.fromkeys(self.measured) for caution in self.chosen.cautions(name)]
        return list(dict.fromkeys(found))


def spec_of(workload: str) -> type[Spec]:
    """The spec class of a workload that can be compared.

    Raises:
        ValueError: one sentence, if there is no such workload, or its times do not compare devices.
    """
    from gpudash.specs import workloads  # imported late: the registry includes this class

    if workload in NOT_COMPARED:
        raise ValueError(f"workload: {workload!r}: {NOT_COMPARED[workload]}")
    there = workloads()
    if workload not in there:
        raise ValueError(f"workload: {workload!r}: choose one of {', '.join(compared(there))}")
    return there[workload]


def compared(there: Mapping[str, type[Spec]]) -> list[str]:
    """The names of the workloads that can be compared."""
    return [name for name in there if name not in NOT_COMPARED]

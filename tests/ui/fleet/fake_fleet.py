"""A fleet that no server tells of: generated GPUs with warnings, stale and simulated ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Literal

from gpudash.session.fleet.fleet import TRYING
from gpudash.session.fleet.overview import AnyFleet, fleet_warning
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.records import Warning
from gpudash.units import GIB, format_percent

NOW_S = 1_700_000_000.0
"""The fake's own time, seconds since the epoch."""

ADDRESS = "http://prometheus.example:9090"

PRODUCTS = (("NVIDIA H100 80GB HBM3", 80 * GIB), ("NVIDIA A100-SXM4-40GB", 40 * GIB), ("NVIDIA L4", 24 * GIB))


def gpu(
    host: str = "node-01",
    index: int | None = 0,
    *,
    full: float | None = 0.5,
    total: int = 80 * GIB,
    product: str = "NVIDIA H100 80GB HBM3",
    utilisation: float | None = 0.9,
    exporter: Literal["gpudash", "dcgm", "nvidia_gpu_exporter"] = "dcgm",
    stale: bool = False,
    simulated: bool = False,
    run: str = "",
    temperature_c: float | None = 61.0,
) -> FleetGpu:
    """One GPU, so full."""
    told = {
        "used_bytes": None if full is None else round(full * total),
        "total_bytes": total,
        "gpu_utilisation": utilisation,
        "power_w": 420.0,
        "temperature_c": temperature_c,
    }
    return FleetGpu(
        key=f"{host}/{index}",
        host=host,
        index=index,
        uuid=f"GPU-{host}-{index}",
        product=product,
        values={name: value for name, value in told.items() if value is not None},
        exporter=exporter,
        seen_s=NOW_S - (95.0 if stale else 0.6),
        stale=stale,
        simulated=simulated,
        run=run,
    )


def generated(machines: int = 64, gpus: int = 8, seed: int = 7) -> tuple[FleetGpu, ...]:
    """So many machines with so many GPUs each, fullest first; a few stale, simulated, or without a figure."""
    dice = random.Random(seed)
    found = []
    for machine in range(machines):
        product, total = PRODUCTS[machine % len(PRODUCTS)]
        for index in range(gpus):
            odd = dice.random()
            found.append(
                gpu(
                    f"gpu-node-{machine + 1:03d}",
                    index,
                    full=None if odd < 0.01 else dice.betavariate(2.2, 1.6),
                    total=total,
                    product="Simulated GPU" if 0.01 <= odd < 0.03 else product,
                    utilisation=dice.random(),
                    exporter=("gpudash", "dcgm", "nvidia_gpu_exporter")[machine % 3],  # type: ignore[arg-type]
                    stale=0.03 <= odd < 0.06,
                    simulated=0.01 <= odd < 0.03,
                    run="training" if machine % 3 == 0 else "",
                    temperature_c=35 + 50 * dice.random(),
                )
            )
    return by_fullness(found)


def by_fullness(gpus: list[FleetGpu]) -> tuple[FleetGpu, ...]:
    """As a fleet tells them."""
    return tuple(sorted(gpus, key=lambda found: -1.0 if found.fullness is None else found.fullness, reverse=True))


def warnings_of(gpus: tuple[FleetGpu, ...]) -> tuple[Warning, ...]:
    """A warning from 92 %, a critical one from 97 %, and one of every stale GPU."""
    found = []
    for told in gpus:
        full = told.fullness or 0.0
        name = f"{told.host} GPU {told.index}"
        if full >= 0.92:
            level: Literal["warning", "critical"] = "critical" if full >= 0.97 else "warning"
            found.append(fleet_warning(f"{name} is {format_percent(full)} full.", level, told.key))
        if told.stale:
            found.append(fleet_warning(f"{name} has told nothing for 95 s.", key=told.key))
    return tuple(sorted(found, key=lambda warning: warning.level != "critical"))


class FakeFleet(AnyFleet):
    """What the overview needs of a fleet; `report` is a poll.

    Attributes:
        problem: what is wrong with it.
        clock: seconds since the epoch.
        closings: how often it was closed.
    """

    address = ADDRESS
    asking = f"Asking {ADDRESS} which GPUs it knows…"
    trying = TRYING
    problem: str | None = None

    def __init__(self, gpus: tuple[FleetGpu, ...] = (), problem: str | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.closings = 0
        self.clock: Callable[[], float] = lambda: NOW_S
        if gpus:
            self.report(gpus)

    def report(self, gpus: tuple[FleetGpu, ...], warnings: tuple[Warning, ...] | None = None) -> None:
        """Another answer has come."""
        self._show(gpus, warnings_of(gpus) if warnings is None else warnings)

    def change(self, key: str, full: float) -> None:
        """One GPU is so full from now on."""
        told = {found.key: found for found in self.gpus()}
        values = {**told[key].values, "used_bytes": round(full * (told[key].total_bytes or 0))}
        told[key] = dataclasses.replace(told[key], values=values)
        self.report(by_fullness([*told.values()]))

    def now_s(self) -> float:
        return self.clock()

    def close(self) -> bool:
        self.closings += 1
        return True

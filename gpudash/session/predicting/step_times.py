"""How long the steps of a predicted run take, on its own device and on the cards that are asked about beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpudash.devices import card_performance
from gpudash.devices.card_performance import CardPerformance
from gpudash.devices.known_gpus import SIMULATED_PREFIX, find
from gpudash.speed.prediction import predict
from gpudash.speed.work import HostSpeed, Operation, StepTime, StepWork

NOT_KNOWN = "how fast it is cannot be said of a size alone; name the card, such as rtx4090"
"""Of a card that is a size and nothing else."""

NO_DATA_SHEET = "how fast it is is not known here"
"""Of one that has a name."""


def performance_of(product: str) -> CardPerformance | None:
    """What a device can do, simulated or not; ``None`` where that is not known.

    Args:
        product: as its driver has it.
    """
    return card_performance.performance_of(product.removeprefix(SIMULATED_PREFIX))


def reason_for(product: str) -> str:
    """Why nothing is said of the speed of a device."""
    if find(product.removeprefix(SIMULATED_PREFIX)) is None:
        return NOT_KNOWN
    return NO_DATA_SHEET


def times_on(work: StepWork | None, products: Mapping[str, str], host: HostSpeed | None = None) -> dict[str, StepTime]:
    """The predicted time of a step on each device of which it is known what it can do.

    Args:
        work: of the step; ``None`` where it was not written down.
        products: key of a device → what it is.
        host: what this computer adds; a usual one unless given.
    """
    if work is None or not work.operations:
        return {}
    found = {}
    for key, product in products.items():
        performance = performance_of(product)
        if performance is not None:
            found[key] = predict(work, performance, host or HostSpeed())
    return found


def stage_seconds(work: StepWork | None, product: str, host: HostSpeed | None = None) -> dict[str, float]:
    """How much of a step's predicted time is in the stages of each name; empty where that is not known.

    What runs side by side in a step (host, device, copies) is told of each stage as if it were alone, and then brought
    to the time of the whole.
    """
    performance = performance_of(product)
    if work is None or performance is None:
        return {}
    by_stage: defaultdict[str, dict[Operation, int]] = defaultdict(dict)
    for operation, count in work.operations.items():
        by_stage[operation.phase][operation] = count
    speed = host or HostSpeed()
    alone = {
        name: predict(StepWork(operations, work.items, work.unit), performance, speed).median_s
        for name, operations in by_stage.items()
    }
    whole = predict(work, performance, speed).median_s if alone else 0.0
    together = sum(alone.values())
    if not together:
        return {}
    return {name: seconds / together * whole for name, seconds in alone.items()}

"""How long the steps of a predicted run take, on its own device and on the cards that are asked about beside it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping

from gpudash.devices.card_performance import CardPerformance, performance_in_machine, performance_of
from gpudash.devices.known_gpus import SIMULATED_PREFIX, find
from gpudash.devices.names import kind_of
from gpudash.memory.predicting.estimate import Target
from gpudash.speed.prediction import predict
from gpudash.speed.work import Operation, StepTime, StepWork
from gpudash.system.own_cards import own_cards
from gpudash.workloads.predicting.host_speed import known_host_speed

logger = logging.getLogger(__name__)

NOT_KNOWN = "how fast it is cannot be said of a size alone; name the card, such as rtx4090"
"""Of a card that is a size and nothing else."""

NO_DATA_SHEET = "how fast it is is not known here"
"""Of one that has a name."""


def performance_on(target: Target) -> CardPerformance | None:
    """What a device can do; ``None`` where that is not known.

    Of a GPU in this machine the link is its own, and one of no data sheet is guessed from its architecture; that of a
    simulated one may be nobody's.
    """
    own = _own_performance()
    if kind_of(target.device) != "cuda":
        return performance_of(target.product.removeprefix(SIMULATED_PREFIX).strip(), own)
    design = target.architecture
    return performance_in_machine(target.product, design.capability, design.multiprocessors, target.pcie, own)


def reason_for(product: str) -> str:
    """Why nothing is said of the speed of a device."""
    if find(product.removeprefix(SIMULATED_PREFIX)) is None:
        return NOT_KNOWN
    return NO_DATA_SHEET


def times_on(
    work: StepWork | None, targets: Mapping[str, Target], rooms: Mapping[str, float | None] | None = None
) -> dict[str, StepTime]:
    """The predicted time of a step on each device of which it is known what it can do.

    Args:
        work: of the step; ``None`` where it was not written down.
        targets: the devices.
        rooms: how many times larger a batch fits each, as of `gpudash.speed.prediction.predict`.
    """
    if work is None or not work.operations:
        return {}
    host = known_host_speed()
    found = {}
    for key, target in targets.items():
        performance = performance_on(target)
        if performance is not None:
            found[key] = predict(work, performance, host, (rooms or {}).get(key))
    return found


def stage_seconds(work: StepWork | None, target: Target) -> dict[str, float]:
    """How much of a step's predicted time is in the stages of each name; empty where that is not known.

    What runs side by side in a step (host, device, copies) is told of each stage as if it were alone, and then brought
    to the time of the whole.
    """
    whole = times_on(work, {"": target}).get("")
    if work is None or whole is None:
        return {}
    by_stage: defaultdict[str, dict[Operation, int]] = defaultdict(dict)
    for operation, count in work.operations.items():
        by_stage[operation.phase][operation] = count
    alone = {
        name: times_on(StepWork(operations, work.items, work.unit), {"": target})[""].median_s
        for name, operations in by_stage.items()
    }
    together = sum(alone.values())
    if not together:
        return {}
    return {name: seconds / together * whole.median_s for name, seconds in alone.items()}


def _own_performance() -> Mapping[str, CardPerformance]:
    try:
        return own_cards().performance
    except ValueError as error:
        # The commands that ask for such a card say so themselves.
        logger.warning("The cards of one's own are left out: %s", error)
        return {}

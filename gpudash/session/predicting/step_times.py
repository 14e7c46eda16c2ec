"""Predicted step times of a run, on its own device and on the other cards of the request."""

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
"""Reason for a card that is given by size alone."""

NO_DATA_SHEET = "how fast it is is not known here"
"""Reason for a card with a name but no data sheet."""


def performance_on(target: Target) -> CardPerformance | None:
    """The performance of a device; ``None`` if unknown.

    For a GPU of this machine the PCIe link is the real one, and without a data sheet its figures are guessed from the
    architecture. The performance of a simulated GPU may be unknown.
    """
    own = _own_performance()
    if kind_of(target.device) != "cuda":
        return performance_of(target.product.removeprefix(SIMULATED_PREFIX).strip(), own)
    design = target.architecture
    return performance_in_machine(target.product, design.capability, design.multiprocessors, target.pcie, own)


def reason_for(product: str) -> str:
    """Why there is no step time for a device."""
    if find(product.removeprefix(SIMULATED_PREFIX)) is None:
        return NOT_KNOWN
    return NO_DATA_SHEET


def times_on(
    work: StepWork | None, targets: Mapping[str, Target], rooms: Mapping[str, float | None] | None = None
) -> dict[str, StepTime]:
    """The predicted step time on each device of known performance.

    Args:
        work: work of the step; ``None`` if it was not recorded.
        targets: the devices.
        rooms: how many times larger a batch fits each device, as in `gpudash.speed.prediction.predict`.
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
    """A step's predicted time by the name of its stage; empty if unknown.

    Host, device and copies overlap in a step. Each stage is therefore predicted alone, and the results are scaled to
    the time of the whole step.
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
        # The commands that use such a card report the error themselves.
        logger.warning("The cards of one's own are left out: %s", error)
        return {}

"""From the work of a step to its time on a card."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpudash.devices.card_performance import CardPerformance
from gpudash.speed.work import UNKNOWN, HostSpeed, Operation, StepTime, StepWork

Floats = NDArray[np.float64]

_PEAK_SHARE = 0.5
_BANDWIDTH_SHARE = 0.82
_LAUNCH_S = 1.7e-6


def joined(device_s: Floats, host_s: Floats) -> Floats:
    """The longer of both, and a little more where they are close: each waits for the other at times."""
    both: Floats = (device_s**8 + host_s**8) ** (1 / 8)
    return both


def predict(work: StepWork, card: CardPerformance, host: HostSpeed) -> StepTime:
    """How long a step takes on ``card``."""
    by_kind: defaultdict[str, float] = defaultdict(float)
    host_s = 0.0
    for operation, count in work.operations.items():
        by_kind[operation.kind] += count * _kernel_s(operation, card)
        per_operation_s = host.operation_s
        if operation.phase == "backward":
            per_operation_s = host.backward_operation_s
        host_s += count * per_operation_s
    device_s = sum(by_kind.values())
    copy_s = (work.copied_in_bytes + work.copied_out_bytes) / card.link_bytes_per_s
    median_s = max(device_s + copy_s, host_s)
    bound = "compute"
    if host_s > device_s:
        bound = "launches"
    return StepTime(
        median_s=median_s,
        low_s=median_s / 1.4,
        high_s=median_s * 1.4,
        bound=bound,
        by_kind=dict(by_kind),
        host_s=host_s,
        device_s=device_s,
        copy_s=copy_s,
        communication_s=0.0,
        unknown=sum(count for operation, count in work.operations.items() if operation.kind == UNKNOWN),
        unknown_s=by_kind.get(UNKNOWN, 0.0),
        items=work.items,
        unit=work.unit,
    )


def _kernel_s(operation: Operation, card: CardPerformance) -> float:
    peak = card.flops.get(operation.dtype, card.flops["float32"])
    moved_s = (operation.read_bytes + operation.written_bytes) / (card.bytes_per_s * _BANDWIDTH_SHARE)
    return max(operation.flops / (peak * _PEAK_SHARE), moved_s) + operation.launches * _LAUNCH_S

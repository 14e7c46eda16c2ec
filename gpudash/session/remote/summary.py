"""What ``gpudash monitor ssh://host --json`` prints: the figures of one machine."""

from __future__ import annotations

import time
from typing import Any

from gpudash.session.live.session import Status, metrics
from gpudash.session.live.session import summary as of_session
from gpudash.session.remote.machine import RemoteMachine


def summary(machine: RemoteMachine) -> dict[str, Any]:
    """The same keys as of this machine, and ``machine``; ``error`` where the link is lost for good."""
    seconds = machine.clock()
    status = Status(
        recording=None,
        recording_bytes=0,
        rate_hz=machine.rate_hz,
        missed=0,
        own_cpu_ratio=time.process_time() / max(seconds, 1e-9),
        driver=None,
        torch=None,
    )
    found = of_session(machine.store, status, seconds, machine.gpus, machine.gpu_problem, None)
    product = machine.devices()[0].product
    shared = any(gpu.shared_memory for gpu in machine.gpus)
    listed = [
        ("cpu", product, None, shared),
        *((None, gpu.product, gpu.uuid, gpu.shared_memory) for gpu in machine.gpus),
    ]
    devices = [
        {
            "name": name,
            "product": product,
            "uuid": uuid,
            "shared_memory": shared,
            "metrics": metrics(machine.store, uuid),
        }
        for name, product, uuid, shared in listed
    ]
    why = machine.why_not_linked
    error = {"kind": "ConnectionError", "message": why, "remedy": ""} if why else None
    status_word = "failed" if why else "finished"
    return {**found, "status": status_word, "error": error, "devices": devices, "machine": str(machine.host)}

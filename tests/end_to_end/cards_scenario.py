"""Runs of the session and programs on cards of several sizes, in one session.

``python -m tests.end_to_end.cards_scenario RECORDING`` prints what was read of each card.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from gpudash.cli.terminal.output import leave
from gpudash.devices.names import Simulation
from gpudash.session import Session, WatchRequest
from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import Warning
from gpudash.units import GIB, MIB

PATIENCE_S = 120.0
LEAK = Path(__file__).parent / "watched_scripts" / "leak.py"


def settled(session: Session) -> dict[str, Any]:
    """What is in use on each card that is listed, from readings taken after everything so far."""
    before = {gpu.uuid: session.store.latest("gpu", "used_bytes", gpu.uuid).time_s for gpu in session.gpus}
    while any(session.store.latest("gpu", "used_bytes", uuid).time_s == time_s for uuid, time_s in before.items()):
        session.runs.wait(0.01)
    return {uuid: session.store.latest("gpu", "used_bytes", uuid).value for uuid in before}


def trained(session: Session) -> dict[str, Any]:
    """What is left after a run of the session."""
    session.start_run(TrainingSpec(model="mlp", width=256, batch=512, steps=5, epochs=1), "sim:0")
    assert session.runs.wait(PATIENCE_S)
    return settled(session)


def watched(session: Session, size: int, steps: int) -> dict[str, Any]:
    """How a program on a card of ``size`` bytes ended, and what is left after it."""
    command = [sys.executable, str(LEAK), str(steps)]
    session.watch(WatchRequest(command, simulate=[size]))
    assert session.runs.wait(PATIENCE_S)
    left = settled(session)
    with session.store.lock:
        assert session.store.run is not None
        return {**session.store.run.summary(), "left": left}


def extremes(session: Session) -> dict[str, Any]:
    """The highest reading of each band of each card."""
    found: dict[str, Any] = {}
    with session.store.lock:
        for (table, metric, device), series in session.store.curves():
            seen = series.statistics(-math.inf, math.inf) if table == "gpu" else None
            if seen is not None:
                found.setdefault(device, {})[metric] = seen.max
    return found


def warnings_until_passed(session: Session) -> list[dict[str, Any]]:
    """The warnings of cards; a growth that ended between two readings is over some seconds after it."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        with session.store.lock:
            events = [event for event in session.store.events if isinstance(event, Warning)]
        found = [event for event in events if event.device.startswith("SIM")]
        if time.monotonic() > ends_s or any(event.level == "passed" for event in found[-1:]):
            return [{"device": event.device, "level": event.level, "text": event.text} for event in found]
        session.runs.wait(0.05)


def main() -> int:
    session = Session(simulation=Simulation((2 * GIB,)), recording=Path(sys.argv[1]))
    session.start()
    session.load_torch()
    assert session.wait_ready(PATIENCE_S)
    found: dict[str, Any] = {"trained": [trained(session), trained(session)]}
    found["large"] = watched(session, 24 * GIB, 60)
    found["small"] = watched(session, 384 * MIB, 10_000)
    found["devices"] = {device.name: device.uuid for device in session.devices() if device.simulated}
    found["extremes"] = extremes(session)
    found["warnings"] = warnings_until_passed(session)
    joined = session.close()
    sys.stdout.write(json.dumps(found) + "\n")
    return leave(0, joined)


if __name__ == "__main__":
    sys.exit(main())

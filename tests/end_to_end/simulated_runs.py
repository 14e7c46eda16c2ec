"""Many runs on simulated GPUs in one session: ``python -m tests.end_to_end.simulated_runs`` prints their outcomes."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpudash.cli.terminal.output import leave
from gpudash.devices.names import Simulation
from gpudash.session import Session
from gpudash.specs import MatmulSpec, PipelineSpec, PressureSpec, Spec, TrainingSpec, TransferSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB, MIB

PATIENCE_S = 60.0
PITFALLS = ("unassigned", "mixed_devices", "leaf", "numpy", "current_device")

TRAINING: dict[str, Any] = {"width": 16, "depth": 1, "batch": 4, "steps": 4, "epochs": 2}

SPECS: dict[str, Spec] = {
    "transformer": TrainingSpec(**TRAINING, sequence=8),
    "mlp": TrainingSpec(**TRAINING, model="mlp", optimizer="sgd", batches="pingpong"),
    "cnn": TrainingSpec(**TRAINING, model="cnn", optimizer="momentum", batches="resident"),
    "bf16": TrainingSpec(**TRAINING, sequence=8, precision="bf16", checkpointing=True, accumulation=2),
    "fp16": TrainingSpec(**TRAINING, model="mlp", precision="fp16", optimizer="adam", keep_intermediates=True),
    "moved at an epoch": TrainingSpec(**TRAINING, model="mlp", move_at_epoch=2),
    "inference": TrainingSpec(**{**TRAINING, "epochs": 1}, mode="inference", sequence=8),
    "matmul": MatmulSpec(size=64, repeat=3),
    "transfer": TransferSpec(blocks="64KiB", samples=3),
    "pressure": PressureSpec(step=16 * MIB, rate=200.0, cap=64 * MIB, hold=0.0),
    "cuda": PipelineSpec(move="cuda"),
    "cuda_index": PipelineSpec(move="cuda_index"),
    "pinned": PipelineSpec(move="pinned"),
    "random": PipelineSpec(fill="random", move="direct", operation="matmul"),
    **{pitfall: PipelineSpec(pitfall=pitfall) for pitfall in PITFALLS},  # type: ignore[arg-type]
}


def run(session: Session, spec: Spec, device: str = "sim:0", cap: MemoryCap | None = None) -> dict[str, Any]:
    session.start_run(spec, device, memory_cap=cap)
    assert session.runs.wait(PATIENCE_S)
    with session.store.lock:
        assert session.store.run is not None
        return session.store.run.summary()


def used(session: Session) -> int:
    """Bytes in use on sim:0, from a reading taken after everything so far."""
    before = session.store.latest("gpu", "used_bytes", "SIM-0-1GiB").time_s
    while (reading := session.store.latest("gpu", "used_bytes", "SIM-0-1GiB")).time_s == before:
        session.runs.wait(0.01)
    assert isinstance(reading.value, int)
    return reading.value


def main() -> int:
    session = Session(simulation=Simulation((GIB, GIB // 2)))
    session.start()
    session.load_torch()
    assert session.wait_ready(PATIENCE_S)
    found: dict[str, Any] = {"runs": {name: run(session, spec) for name, spec in SPECS.items()}}
    session.free_cache()
    run(session, SPECS["matmul"])  # the cache is given back in the worker, before the next run
    session.free_cache()
    run(session, PipelineSpec())
    found["before"] = used(session)
    found["full"] = run(session, MatmulSpec(size=16384))
    found["after"] = used(session)
    found["next"] = run(session, SPECS["matmul"])
    found["capped"] = run(session, MatmulSpec(size=4096), cap=MemoryCap(share=0.05))
    found["uncapped"] = run(session, PressureSpec(step=64 * MIB, rate=200.0, cap=256 * MIB, hold=0.0))
    found["second"] = run(session, SPECS["matmul"], "sim:1")
    joined = session.close()
    sys.stdout.write(json.dumps(found) + "\n")
    return leave(0, joined)


if __name__ == "__main__":
    sys.exit(main())

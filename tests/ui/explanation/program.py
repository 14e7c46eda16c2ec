"""A program of the user's that leaks, the records of its run, and its explanation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudash.devices.names import simulated_gpu
from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, WORKSPACE
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest
from gpudash.memory.explaining.patches import unified_diff
from gpudash.memory.frames import Frame
from gpudash.session.watching.request import WatchRequest
from gpudash.system.foreign_files import source_line
from gpudash.telemetry.explanation import Explanation, Remedy, Rewrite
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, StepFinished
from gpudash.units import GIB, MIB
from tests.ui.fake_session import FakeSession
from tests.unit.telemetry.run_ends import RAN_OUT

CARD = simulated_gpu(0, GIB)
STEPS = 120

LEAKING = """\
import torch

# a training that keeps what it should let go
model = torch.nn.Linear(2048, 4096).cuda()
history = []

for step in range(400):
    x = torch.randn(256, 2048, device="cuda")
    out = model(x)
    loss = out.square().mean()
    history.append(loss)
    loss.backward()
"""
ALLOCATES, KEEPS, FAILS = 9, 11, 12


def script_in(folder: Path) -> Path:
    script = folder / "leak.py"
    script.write_text(LEAKING)
    return script


def change_in(script: Path) -> Remedy:
    """The change that ends the leak, as a replay found it."""
    rewrite = Rewrite(str(script), KEEPS, 19, KEEPS, 23, "loss", "loss.item()")
    patch = unified_diff([rewrite], str(script.parent), lambda file: Path(file).read_bytes())
    return Remedy(
        f"leak.py:{KEEPS}: write history.append(loss.item()), not history.append(loss): 162 MiB",
        predicted_peak_bytes=162 * MIB,
        fits=True,
        verified_by="replay",
        rewrites=(rewrite,),
        patch=patch,
    )


def explained(script: Path, remedies: Sequence[Remedy] = ()) -> Explanation:
    """Why its memory ran out."""
    torch = Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward")

    def at(line: int) -> tuple[Frame, ...]:
        return torch, Frame(str(script), line, "<module>")

    state = MemoryState(
        device="sim:0",
        product=CARD.product,
        simulated=True,
        capacity=GIB,
        device_free=2 * MIB,
        reserved=722 * MIB,
        context_bytes=300 * MIB,
        groups=(
            *(AllocationGroup(4 * MIB, 1, ACTIVATIONS, step, "", "", "", at(ALLOCATES)) for step in range(1, STEPS)),
            AllocationGroup(32 * MIB, 2, WEIGHTS, 0, "", "", "", at(4)),
            AllocationGroup(8 * MIB, 1, WORKSPACE, 1, "", "", "", at(FAILS)),
        ),
        idle=206 * MIB,
        request=RefusedRequest(4 * MIB, 4 * MIB, STEPS, "", "", "", at(FAILS)),
        step=STEPS,
        time_s=13.0,
    )
    return explain(state, source_line).with_remedies(tuple(remedies), "It keeps loss, and with it the graph.")


def request_of(script: Path, **facts: Any) -> WatchRequest:
    return WatchRequest([sys.executable, str(script)], script.parent, simulate=(GIB,), as_cuda=True, **facts)


def failed(
    script: Path, remedies: Sequence[Remedy], spec: dict[str, Any] | None = None, explanation: Explanation | None = None
) -> FakeSession:
    """A session in which it ran out of memory."""
    session = FakeSession([CARD]).feed(1.0)
    spec = request_of(script).spec() if spec is None else spec
    found = explanation or explained(script, remedies)
    session.apply(RunStarted(time_s=1.0, run_id=1, workload="watch", device="sim:0", spec=spec, simulated=True))
    run_of_steps(session, 1, STEPS, growth=4 * MIB)
    ended = replace(RAN_OUT, time_s=session.now_s, run_id=1, seconds=12.0, steps=STEPS, explanation=found)
    session.apply(replace(ended, result={"memory": {"peak_reserved_bytes": 722 * MIB}}))
    session.feed(0.5)
    session.apply(Sample(session.now_s, "allocator", "sim:0", {"allocated_bytes": None, "reserved_bytes": None}))
    return session


def run_of_steps(session: FakeSession, run_id: int, steps: int, growth: int = 0) -> None:
    """Steps of a run, ten a second, with readings of its memory."""
    for step in range(steps):
        session.feed(0.1)
        held = 160 * MIB + growth * step
        values = {"allocated_bytes": held, "reserved_bytes": held + 2 * MIB}
        session.apply(Sample(session.now_s, "allocator", "sim:0", values))
        made = {"seconds": 0.1, "loss": None, "accuracy": None, "throughput": None}
        session.apply(StepFinished(time_s=session.now_s, run_id=run_id, step=step + 1, steps=0, **made))


def ended_well(session: FakeSession, run_id: int, steps: int, peak: int) -> None:
    run = session.store.run
    assert run is not None
    result = {"memory": {"peak_reserved_bytes": peak}}
    seconds = session.now_s - run.began_s
    session.apply(
        RunEnd(time_s=session.now_s, run_id=run_id, status="finished", seconds=seconds, steps=steps, result=result)
    )
    session.running = False

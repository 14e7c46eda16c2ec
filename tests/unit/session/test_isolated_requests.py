"""Which runs have a process of their own, and what the session shows of it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpudash.devices.names import Simulation
from gpudash.session.live.machine import measured_context
from gpudash.session.live.running import RunGuards
from gpudash.session.predicting.estimates import ASSUMED_CONTEXT_BYTES
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.sources.simulated_gpus import CardReader
from gpudash.specs import ComparisonSpec, PipelineSpec
from gpudash.telemetry.records import Sample
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import CPU_TORCH, CUDA_TORCH, Live, Make, gpu


def known(live: Live, torch: dict[str, object] = CPU_TORCH) -> Live:
    live.worker.torch(torch)
    live.settle()
    return live


@pytest.mark.parametrize(
    ("device", "asked", "isolated"),
    [
        ("cuda:0", None, True),
        ("cuda:0", False, False),
        ("cpu", None, False),
        ("cpu", True, True),
        ("sim:0", None, False),
        ("sim:0", True, True),
    ],
)
def test_runs_on_cuda_have_a_process_of_their_own_unless_told_otherwise(
    make: Make, device: str, asked: bool | None, isolated: bool
) -> None:
    live = make(simulation=Simulation((GIB,)))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH).session.start_run(PipelineSpec(), device, isolate=asked)
    assert live.worker.request.isolate is isolated
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)


@pytest.mark.parametrize(("asked", "isolated"), [(None, True), (False, False)])
def test_a_comparison_has_a_process_of_its_own_because_the_window_would_disturb_it(
    make: Make, asked: bool | None, isolated: bool
) -> None:
    live = known(make())
    live.session.start_run(ComparisonSpec(devices="cpu,cpu"), "cpu", isolate=asked)
    assert live.worker.request.isolate is isolated
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)


def test_the_runs_own_process_counts_as_ours_while_it_lasts(make: Make) -> None:
    live = known(make())
    live.session.start_run(PipelineSpec(), "cpu", isolate=True)
    live.worker.request.on_host(4711)
    live.worker.request.on_host(None)
    assert live.monitor.adopted == [4711, None]
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)


def test_a_guard_believes_a_run_that_knows_of_more_than_the_newest_reading() -> None:
    told: list[tuple[str, str]] = []
    guards = RunGuards(lambda memory, sentence: told.append((memory, sentence)))
    guards.arm({"SIM-0": (GIB, "the guard")})
    guards.observe(Sample(0.0, "gpu", "SIM-0", {"used_bytes": 100 * MIB, "total_bytes": 2 * GIB}))
    refuse = guards.refusal("SIM-0")
    assert refuse(500 * MIB, "sim:0", 100 * MIB) is None
    guards.observe(Sample(0.1, "gpu", "SIM-0", {"used_bytes": 100 * MIB, "total_bytes": 2 * GIB}))
    sentence = refuse(500 * MIB, "sim:0", 600 * MIB)
    assert sentence is not None and "are in use, and the run asks for 500 MiB more" in sentence
    assert told == [("SIM-0", sentence)]
    assert refuse(500 * MIB, "sim:0") is None  # by the reading alone it would have been granted


@pytest.mark.parametrize(("device", "kept"), [("cuda:0", 420 * MIB), ("sim:0", None)])
def test_what_its_context_took_is_kept_for_later_predictions(make: Make, device: str, kept: int | None) -> None:
    live = make(simulation=Simulation((GIB,)))
    live.monitor.has(gpu(0))
    known(live, CUDA_TORCH).session.start_run(PipelineSpec(), device, isolate=True)
    values = {"used_bytes": 2 * GIB, "free_bytes": 22 * GIB, "total_bytes": 24 * GIB, "process_bytes": GIB}
    held = {"allocated_bytes": 0, "reserved_bytes": GIB - 420 * MIB}
    for uuid, name in (("GPU-0", "cuda:0"), ("SIM-0", "sim:0")):
        live.session.emit(Sample(1.0, "allocator", name, held))
        live.session.emit(Sample(1.0, "gpu", uuid, values))
    live.settle()
    live.worker.request.on_host(4711)
    live.worker.request.on_host(None)
    assert measured_context({"cuda:0": "GPU-0", "sim:0": "SIM-0"}[device]) == kept
    # Its readings are zero now, and the next run makes a context anew.
    live.session.emit(Sample(2.0, "allocator", "cuda:0", {"allocated_bytes": 0, "reserved_bytes": 0}))
    live.session.emit(Sample(2.0, "gpu", "GPU-0", {**values, "used_bytes": GIB, "process_bytes": 0}))
    live.settle()
    assert live.session.estimates.target("cuda:0").overhead_bytes == (kept or ASSUMED_CONTEXT_BYTES)
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)


def card(index: int, reserved: int) -> dict[str, Any]:
    return {
        "index": index,
        "capacity_bytes": GIB,
        "reserved_bytes": reserved,
        "context_bytes": CONTEXT_BYTES,
        "others_bytes": {"4194305": 5 * MIB},
        "busy_s": 0.5,
    }


def used(reader: CardReader, now_s: float) -> list[Any]:
    rows = [found for found in reader.read(now_s) if isinstance(found, Sample) and found.table == "gpu"]
    return [row.values["used_bytes"] for row in rows]


def test_its_simulated_cards_are_shown_while_it_tells_of_them_and_the_own_ones_after_it(make: Make) -> None:
    live = known(make(simulation=Simulation((GIB, GIB))))
    live.session.start_run(PipelineSpec(), "sim:0", isolate=True)
    on_cards, reader = live.worker.request.on_cards, CardReader(live.monitor.cards)
    assert used(reader, 0.0) == [0, 0]
    on_cards(4711, [card(0, 64 * MIB), card(1, 2 * MIB)])
    assert used(reader, 1.0) == [CONTEXT_BYTES + 69 * MIB, CONTEXT_BYTES + 7 * MIB]
    rows = [found for found in reader.read(9.0) if isinstance(found, Sample) and found.table == "process"]
    assert (rows[0].values["pid"], rows[0].values["name"]) == (4711, "gpudash-run")
    on_cards(4711, [card(0, 32 * MIB)])
    assert used(reader, 10.0) == [CONTEXT_BYTES + 37 * MIB, 0]
    on_cards(4711, ())
    assert used(reader, 11.0) == [0, 0]
    assert os.getpid() not in {
        row.values["pid"] for row in reader.read(20.0) if isinstance(row, Sample) and row.table == "process"
    }
    live.worker.begin()
    live.worker.finish()
    assert live.session.wait_run(10.0)

"""A run in a process of its own tells the same as in the worker's thread: same records, same order, same memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from gpudash.memory.explaining.memory_state import Surroundings, other_process
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, SimulatedGpu
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import (
    Event,
    MemoryExplained,
    Note,
    RunEnd,
    RunStarted,
    StageFinished,
    StepFinished,
    Transfer,
)
from gpudash.units import GIB, MIB
from gpudash.workloads.running.context import MemoryLevel
from tests.unit.workloads.conftest import Bench
from tests.unit.workloads.hosted_workloads import AskingSpec, EndingSpec, HoldingSpec

pytestmark = pytest.mark.process

TRAINING = {"model": "mlp", "width": 16, "depth": 1, "batch": 2, "steps": 6, "epochs": 2}
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("pipeline", "cpu", {"pitfall": "leaf"}),
    ("pipeline", "sim:0", {"fill": "random"}),
    ("matmul", "sim:0", {"size": 16, "repeat": 3}),
    ("transfer", "cpu", {"blocks": "64KiB", "samples": 3}),
    ("training", "cpu", TRAINING),
    ("training", "sim:0", TRAINING),
    ("pressure", "sim:0", {"step": "64MiB", "rate": 100, "hold": 0, "cap": "128MiB"}),
    ("pressure", "sim:0", {"step": "128MiB", "rate": 100, "until": "oom"}),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    """One worker, so that each run finds the cards of the run before as free as a new one would."""
    bench = Bench()
    yield bench
    assert bench.worker.close(10.0)


def perform(
    bench: Bench, run: tuple[str, str, dict[str, Any]], cards: Sequence[SimulatedGpu], *, isolate: bool
) -> list[Event]:
    workload, device, values = run
    request: dict[str, Any] = {"cards": tuple(cards) if device == "sim:0" else (), "isolate": isolate}
    ending = bench.run(workload, device=device, request=request, **values)
    return [event for event in bench.events if event.run_id == ending.run_id]


def outline(events: Sequence[Event]) -> list[Any]:
    """The order in which kinds and names first occur; how often depends on how fast the machine is."""
    first: dict[Any, None] = {}
    for event in events:
        first[event.kind, getattr(event, "name", getattr(event, "topic", None))] = None
    return list(first)


def sums(events: Sequence[Event]) -> dict[Any, tuple[int, int]]:
    """Executions and bytes by stage, bytes by direction: quick ones are told together."""
    found: dict[Any, tuple[int, int]] = {}
    for event in events:
        if isinstance(event, StageFinished):
            count, size = found.get(event.name, (0, 0))
            found[event.name] = count + event.count, size + (event.bytes or 0)
        elif isinstance(event, Transfer):
            _, size = found.get((event.direction, event.memory), (0, 0))
            found[event.direction, event.memory] = 0, size + event.bytes
    return found


TIMED = ("second", "rate", "ratio", "flops", "observation")


def untimed(value: Any) -> Any:
    """``value`` without the figures that depend on time; their names stay."""
    if isinstance(value, Mapping):
        return {key: None if any(word in key for word in TIMED) else untimed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [untimed(item) for item in value]
    return value


@pytest.mark.timed
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0]}-{run[1]}-{run[2].get('until', '')}")
def test_the_records_are_the_same_but_for_their_times(shared: Bench, run: tuple[str, str, dict[str, Any]]) -> None:
    cards = [SimulatedGpu(0, GIB)]
    apart = perform(shared, run, cards, isolate=True)
    here = perform(shared, run, cards, isolate=False)

    assert outline(apart) == outline(here)
    assert sums(apart) == sums(here)
    steps = [[(e.step, e.loss, e.accuracy) for e in events if isinstance(e, StepFinished)] for events in (apart, here)]
    if run[0] == "training":
        assert steps[0] == steps[1] and len(steps[0]) == 6
    started, began = apart[0], here[0]
    assert isinstance(started, RunStarted) and isinstance(began, RunStarted)
    assert (started.spec, started.device, started.simulated) == (began.spec, began.device, began.simulated)
    assert [type(event) for event in apart if isinstance(event, RunEnd)] == [type(apart[-1])] == [type(here[-1])]
    assert untimed(apart[-1].result) == untimed(here[-1].result)  # type: ignore[attr-defined]
    times = [event.time_s for event in apart if not isinstance(event, StageFinished | Transfer | StepFinished)]
    assert times == sorted(times) and times[-1] <= time.monotonic()


class Told:
    """What the session's side is told of a run's own process."""

    def __init__(self) -> None:
        self.cards: list[tuple[int, Sequence[Mapping[str, Any]]]] = []
        self.hosts: list[int | None] = []
        self.shown = threading.Event()

    def on_cards(self, pid: int, cards: Sequence[Mapping[str, Any]]) -> None:
        self.cards.append((pid, cards))
        self.shown.set()


@pytest.fixture
def probed() -> Iterator[tuple[Bench, dict[str, Any]]]:
    probes: dict[str, Any] = {}

    def keep(device: str, probe: Any) -> None:
        probes[device] = probe
        probes["came"].set()

    probes["came"] = threading.Event()
    bench = Bench(on_probe=keep)
    yield bench, probes
    assert bench.worker.close(10.0)


def test_an_out_of_memory_is_explained_and_everything_is_given_back(probed: tuple[Bench, dict[str, Any]]) -> None:
    bench, probes = probed
    told, card = Told(), SimulatedGpu(0, GIB, others={4711: 100 * MIB})
    request = {"isolate": True, "cards": (card,), "on_cards": told.on_cards, "on_host": told.hosts.append}
    ending = bench.run("pressure", device="sim:0", request=request, step="128MiB", rate=50, until="oom")

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.error == "sim"
    assert ending.explanation is not None and ending.explanation.verdict
    assert ending.explanation.parts and ending.explanation.owners[0].line
    assert "pressure" in (ending.explanation.owners[0].file or "")
    assert {"peak_allocated_bytes", "peak_reserved_bytes"} <= ending.result["memory"].keys()
    pid = told.hosts[0]
    assert told.hosts == [pid, None] and pid not in (os.getpid(), None)
    full = max((cards[0] for _, cards in told.cards if cards), key=lambda figures: int(figures["reserved_bytes"]))
    assert full["reserved_bytes"] >= 512 * MIB and full["context_bytes"] == CONTEXT_BYTES
    assert full["others_bytes"] == {"4711": 100 * MIB} and full["capacity_bytes"] == GIB
    assert told.cards[-1] == (pid, ())
    last = probes["sim:0"]()
    assert (last["allocated_bytes"], last["reserved_bytes"]) == (0, 0)
    assert probes["sim:0"].peaks()["peak_reserved_bytes"] == ending.result["memory"]["peak_reserved_bytes"]
    assert card.reserved_bytes() == 0 and card.others == {4711: 100 * MIB}


def test_idle_memory_is_given_back_while_the_run_goes_on(probed: tuple[Bench, dict[str, Any]]) -> None:
    bench, probes = probed
    run = bench.begin(HoldingSpec(), "sim:0", isolate=True, cards=(SimulatedGpu(0, GIB),))
    bench.wait_for(lambda event: isinstance(event, StepFinished))
    assert probes["came"].wait(30)
    pause = threading.Event()
    while probes["sim:0"]()["peak_reserved_bytes"] < 64 * MIB:  # it is pushed some 40 times a second
        assert bench.worker.busy and not pause.wait(0.01)
    bench.worker.free_cache()
    ending = bench.end(run)
    assert ending.status == "finished" and ending.result["reserved"] == 64 * MIB


def test_a_run_that_goes_on_is_explained_when_asked(probed: tuple[Bench, dict[str, Any]]) -> None:
    bench, _ = probed
    run = bench.begin(HoldingSpec(), "sim:0", isolate=True, cards=(SimulatedGpu(0, GIB),))
    bench.wait_for(lambda event: isinstance(event, StepFinished))
    bench.worker.explain()
    note = bench.wait_for(lambda event: isinstance(event, MemoryExplained))
    assert note.run_id == run and note.explanation.verdict == "headroom"
    bench.worker.stop()
    assert bench.end(run).status == "cancelled"


def test_a_cap_holds_there_too(shared: Bench) -> None:
    request = {"isolate": True, "cards": (SimulatedGpu(0, GIB),), "memory_cap": MemoryCap(size=256 * MIB)}
    ending = shared.run("pressure", device="sim:0", request=request, step="64MiB", rate=100, until="oom")
    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and "memory cap of 256 MiB" in ending.message
    assert ending.result["memory"]["peak_reserved_bytes"] <= 256 * MIB


def test_a_run_is_granted_refused_and_told_as_in_the_workers_thread(shared: Bench) -> None:
    asked: list[tuple[int, str, int | None]] = []

    def refuse(size: int, device: str, used: int | None = None) -> str | None:
        asked.append((size, device, used))
        return "Stopped by the guard: 3 GiB are in use." if size == 2001 else None

    request = {
        "refuse": refuse,
        "memory": lambda: MemoryLevel(1, 2, 3),
        "warn_ratio": 0.5,
        "link_bytes_per_second": 7e9,
        "energy": lambda device: (1.5, 20.0) if device == "cpu" else f"{device} has no energy counter",
    }
    cards = (SimulatedGpu(0, GIB, others={4711: 5 * MIB}),)
    granted = shared.end(shared.begin(AskingSpec(), "sim:0", isolate=True, cards=cards, **request))
    assert isinstance(granted, RunEnd) and not granted.ended_badly and granted.result["granted"]
    assert granted.result["level"] == [1, 2, 3]
    assert (granted.result["warn_ratio"], granted.result["link"]) == (0.5, 7e9)
    assert granted.result["energy"] == [[1.5, 20.0], "cuda:0 has no energy counter"]
    assert granted.result["pid"] == granted.result["group"] != os.getpid()
    assert asked == [(1000, "sim:0", 5 * MIB), (1001, "cpu", None)]

    refused = shared.end(shared.begin(AskingSpec(size=2000), "cpu", isolate=True, **request))
    assert isinstance(refused, RunEnd) and refused.status == "out_of_memory"
    assert (refused.error, refused.requested_bytes) == ("guard", 2001)
    assert refused.message == "Stopped by the guard: 3 GiB are in use."


def test_without_guard_and_reading_a_run_goes_on_as_without_them(shared: Bench) -> None:
    ending = shared.end(shared.begin(AskingSpec(), isolate=True))
    assert ending.result["granted"] and ending.result["level"] is None
    assert ending.result["energy"] == ["nothing reads it"] * 2


def test_an_answer_that_fails_ends_the_run_in_words(shared: Bench) -> None:
    def broken() -> Surroundings:
        raise KeyError("gpu")

    def level() -> MemoryLevel:
        raise LookupError("no reading")

    ending = shared.end(shared.begin(AskingSpec(), isolate=True, memory=level, surroundings=broken))
    assert ending.error == "LookupError" and "no reading" in ending.message


def test_a_process_that_was_warmed_up_runs_the_next_run(probed: tuple[Bench, dict[str, Any]]) -> None:
    bench, _ = probed
    bench.worker.warm_up(isolate=True)
    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "torch")
    assert note.details["version"] == torch.__version__ and not bench.worker.loading
    spare = bench.worker._spare
    assert spare is not None and spare.ready
    assert bench.end(bench.begin(AskingSpec(), isolate=True)).result["pid"] == spare.pid
    assert [note.topic for note in bench.of(Note)] == ["torch"]


def test_processes_of_others_are_told_but_not_the_runs_own() -> None:
    from gpudash.workloads.running.hosted.request import answer, surroundings_from
    from gpudash.workloads.running.run import RunRequest

    around = Surroundings((other_process(5, 42, "python", "ann"), other_process(6, 43, "python", "bob")), 300)
    request = RunRequest(EndingSpec(), "cuda:0", 1, surroundings=lambda: around)
    told = answer(request, {"what": "surroundings"}, host_pid=43)
    assert surroundings_from(told) == Surroundings((other_process(5, 42, "python", "ann"),), 300)
    assert surroundings_from(None) == Surroundings()
    assert answer(request, {"what": "memory"}, host_pid=43) is None

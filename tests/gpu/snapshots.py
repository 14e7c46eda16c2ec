"""Snapshots that torch writes, read and replayed: every allocation at its real address."""

from __future__ import annotations

import base64
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpudash.memory.snapshot.history.model import DeviceSnapshot
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.replay.placements import replay
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.units import GIB, MIB
from tests.gpu.child import Report, asked
from tests.gpu.fixtures import columns, rebuilt
from tests.gpu.recording import History

CAP_BYTES = 2 * GIB

AT_ONCE = 3
"""Scenarios at a time on a GPU."""

EXPANDABLE = "expandable_segments:True"


class Scenario(NamedTuple):
    """Something that a program does with memory.

    Attributes:
        prepare: what it does before it is recorded; its result is what `act` is given.
        act: what is recorded.
        settings: of the allocator.
        cuda_only: whether a simulated GPU cannot do it.
    """

    act: Callable[[torch.device, Any], object]
    prepare: Callable[[torch.device], Any] = lambda _device: None
    settings: str = ""
    cuda_only: bool = False


class _Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, batch_first=True) for _ in range(4))
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embed(tokens)
        for layer in self.layers:
            values = layer(values)
        result: torch.Tensor = self.head(values)
        return result


class _Training:
    """A model that is trained on batches of different lengths."""

    def __init__(self, device: torch.device, width: int = 128) -> None:
        self.device = device
        self.model = _Net(width).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, batch: int, length: int) -> None:
        tokens = torch.zeros(batch, length, dtype=torch.int64).to(self.device)
        logits = self.model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


LENGTHS = ((4, 64), (8, 32), (2, 100), (4, 64), (6, 80))


def _train(device: torch.device, _given: None) -> object:
    training = _Training(device)
    for batch, length in LENGTHS:
        training.step(batch, length)
    getattr(torch, device.type).empty_cache()
    training.step(8, 128)
    return training


def _warmed(device: torch.device) -> _Training:
    training = _Training(device)
    for batch, length in LENGTHS:
        training.step(batch, length)
    return training


def _train_on(_device: torch.device, training: _Training) -> object:
    for batch, length in (*LENGTHS, (8, 128), *LENGTHS):
        training.step(batch, length)
    return training


def _cap(device: torch.device) -> None:
    module: Any = getattr(torch, device.type)
    total = module.get_device_properties(device).total_memory
    module.set_per_process_memory_fraction(CAP_BYTES / total, device)


def _fill(device: torch.device, _given: None) -> object:
    """Blocks with holes, a retry that finds room by giving free segments back, and then a request that is refused."""
    blocks = [torch.empty(30 * MIB + 3 * MIB * (n % 5), dtype=torch.uint8, device=device) for n in range(45)]
    kept = blocks[::2]
    del blocks
    kept += [torch.empty(90 * MIB, dtype=torch.uint8, device=device) for _ in range(6)]
    with suppress(torch.OutOfMemoryError):
        for _ in range(40):
            kept.append(torch.empty(200 * MIB, dtype=torch.uint8, device=device))
    kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device=device))
    return kept


def _side_stream(device: torch.device, _given: None) -> object:
    """Memory that another stream still uses when it is freed; its free waits until that stream is done."""
    side = torch.cuda.Stream(device)
    kept = [torch.empty(3 * MIB, dtype=torch.uint8, device=device)]
    for size in (5 * MIB, 700, 40 * MIB, 2 * MIB):
        block = torch.ones(size, dtype=torch.uint8, device=device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            kept.append(block + 1)
        block.record_stream(side)
        del block
        kept.append(torch.empty(size, dtype=torch.uint8, device=device))
    torch.cuda.synchronize(device)
    kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device=device))
    block = torch.ones(50 * MIB, dtype=torch.uint8, device=device)
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
    block.record_stream(side)
    del block
    kept.append(torch.empty(50 * MIB, dtype=torch.uint8, device=device))
    return kept


def _graphs(device: torch.device, _given: None) -> object:
    """Two captured graphs, which keep memory of their own, replayed between ordinary requests."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    inputs = torch.randn(256, 512, device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream(device).wait_stream(side)
    kept: list[Any] = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            result = model(inputs).relu() + model(inputs * 2)
        graph.replay()
        kept += [graph, result, torch.empty(3 * MIB, device=device)]
    torch.cuda.synchronize(device)
    del graph, result
    del kept[:2]
    torch.cuda.empty_cache()
    kept.append(model(inputs))
    return kept


SCENARIOS: dict[str, Scenario] = {
    "train": Scenario(_train),
    "train-late": Scenario(_train_on, _warmed),
    "oom": Scenario(_fill, _cap),
    "expandable": Scenario(_train, settings=EXPANDABLE, cuda_only=True),
    "expandable-oom": Scenario(_fill, _cap, settings=EXPANDABLE, cuda_only=True),
    "pending": Scenario(_side_stream, cuda_only=True),
    "graphs": Scenario(_graphs, cuda_only=True),
    "rounding": Scenario(_train, settings="roundup_power2_divisions:8", cuda_only=True),
    "max-split": Scenario(_fill, _cap, settings="max_split_size_mb:32", cuda_only=True),
    "collecting": Scenario(_fill, _cap, settings="garbage_collection_threshold:0.6", cuda_only=True),
}


def record(device: torch.device, argument: Mapping[str, str], tell: Report) -> None:
    """Act out a scenario under torch's history, and read, replay and pack the snapshot that torch writes."""
    scenario = SCENARIOS[argument["scenario"]]
    module: Any = getattr(torch, device.type)
    if device.type == "cuda":
        torch.cuda.init()
    given = scenario.prepare(device)
    module.synchronize()
    module.reset_peak_memory_stats(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "snapshot.pickle")
        with History(device) as history:
            kept = scenario.act(device, given)
            statistics = module.memory_stats(device)
            history.dump(str(file))
        tell("file_bytes", file.stat().st_size)
        snapshot = read_snapshot(file)
    del kept
    tell(
        "torch",
        {
            f"{figure}_{when}": statistics[f"{figure}_bytes.all.{when}"]
            for figure in ("allocated", "reserved")
            for when in ("current", "peak")
        }
        | {name: statistics.get(name, 0) for name in ("num_alloc_retries", "num_ooms")},
    )
    tell("settings", {key: value for key, value in snapshot.settings.items() if not isinstance(value, dict)})
    found = next(d for d in snapshot.devices if d.index == (device.index or 0))
    told_of(found, tell)


def told_of(device: DeviceSnapshot, tell: Report) -> None:
    """Tell what a device's snapshot holds, what its replay finds, and the snapshot in columns."""
    tell("actions", dict(Counter(entry.action for entry in device.trace)))
    tell("pools", sorted({str(segment.pool_id) for segment in device.segments}))
    tell("entry_has_pool", any(entry.pool_id is not None for entry in device.trace))
    packed = io.BytesIO()
    np.savez_compressed(packed, **columns(device))
    tell("npz", base64.b64encode(packed.getvalue()).decode())
    checked = replay(device)
    tell("replay", asdict(checked))
    tell("rebuilt_alike", replay(rebuilt(columns(device))) == checked)
    tell("alone", asdict(WhatIf(device).run(2**49)))


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """What was told of a scenario, with the verdict: every allocation, segment and release as real, figures right."""
    checked, real = found.get("replay"), found.get("torch")
    if checked is None or real is None:
        return {**found, "right": False}
    found["right"] = (
        checked["allocations"] == checked["allocations_at_real_address"]
        and checked["segments"] == checked["segments_of_real_size"]
        and checked["final_allocated"] == real["allocated_current"]
        and checked["final_reserved"] == real["reserved_current"]
        and checked["peak_reserved"] == real["reserved_peak"]
        and 0 <= real["allocated_peak"] - checked["peak_allocated"] <= checked["unrecorded_slack"]
    )
    return found


def measure(device: str, *, limit_s: float = 60.0) -> dict[str, dict[str, Any]]:
    """Every scenario, each in a process of its own."""
    on_cuda = device.startswith("cuda")
    names = [name for name, scenario in SCENARIOS.items() if on_cuda or not scenario.cuda_only]
    with ThreadPoolExecutor(AT_ONCE if on_cuda else 1) as pool:
        return dict(zip(names, pool.map(lambda name: one(device, name, limit_s), names), strict=True))


def one(device: str, name: str, limit_s: float = 60.0) -> dict[str, Any]:
    """One scenario, in a process of its own."""
    settings = SCENARIOS[name].settings
    environment = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else None
    return judged(asked(record, device, {"scenario": name}, limit_s=limit_s, environment=environment))

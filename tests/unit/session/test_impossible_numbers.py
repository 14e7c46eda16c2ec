"""Recordings with impossible numbers and types in their cells: a command ends with what makes sense, or a sentence."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run as gpudash
from gpudash.session import Replay
from gpudash.telemetry.recording.facts import read_facts
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import (
    EpochFinished,
    Marker,
    Note,
    Output,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    StageFinished,
    StepFinished,
    Transfer,
    Warning,
)
from gpudash.units import GIB, MIB

UUID = "GPU-1"
GPU = {"nvml_index": 0, "uuid": UUID, "pci_bus_id": "41:00.0", "product": "X", "total_bytes": 24 * GIB}
RESULT = {
    "memory": {"peak_allocated_bytes": MIB, "peak_reserved_bytes": MIB, "capacity_bytes": GIB},
    "rates": [
        {
            "from": "cpu",
            "to": "cuda:0",
            "memory": "pinned",
            "blocking": True,
            "block_bytes": MIB,
            "bytes_per_second_median": 1e9,
            "bytes_per_second_iqr": 1e7,
        }
    ],
    "unigram_entropy": 3.0,
    "parameters": 826_208,
    "corpus": {"source": "text", "bytes": MIB, "sha256": "ab"},
    "placement": {"groups": {"parameters": {"cuda:0": {"bytes": 5}}}, "strays": []},
    "ranks": [{"rank": 0, "host": "a", "device": "cuda:0", "seconds": 1.0}],
}
RECORDS: list[Record] = [
    Note(time_s=0.0, topic="gpus", text="", details={"gpus": [GPU], "torch_names": {"cuda:0": UUID}}),
    RunStarted(time_s=0.5, run_id=1, workload="training", device="cuda:0", spec={"steps": 2}),
    Note(
        time_s=0.6, run_id=1, topic="ranks", text="two", details={"run": "a", "world_size": 2, "ranks": [{"rank": 0}]}
    ),
    Output(time_s=0.7, run_id=1, stream="stdout", lines=["a"]),
    StageFinished(time_s=0.8, run_id=1, name="move", seconds=0.1, bytes=5, shape=[2, 3], first_values=[0.1, 0.2]),
    Transfer(
        time_s=0.9,
        run_id=1,
        from_device="cpu",
        to_device="cuda:0",
        memory="pinned",
        blocking=True,
        bytes=5,
        seconds=0.1,
    ),
    *(
        record
        for step in range(1, 3)
        for record in (
            Sample(float(step), "host", None, {"total_bytes": GIB, "used_bytes": MIB, "process_bytes": MIB}),
            Sample(float(step), "gpu", UUID, {"total_bytes": GIB, "used_bytes": MIB, "power_w": 5.0}),
            Sample(float(step), "allocator", "cuda:0", {"allocated_bytes": 5, "reserved_bytes": 6}),
            Sample(float(step), "process", UUID, {"pid": 4711, "name": "python", "memory_bytes": 5}),
            StepFinished(time_s=float(step), run_id=1, step=step, steps=2, seconds=0.5, loss=1.0, throughput=8.0),
        )
    ),
    EpochFinished(time_s=3.0, run_id=1, epoch=1, device="cuda:0", loss=1.0, accuracy=0.5, seconds=2.0, observation="o"),
    Warning(time_s=3.0, run_id=1, level="warning", device=UUID, text="full", ratio=0.9, actions=["stop"]),
    Marker(time_s=3.5, label="here"),
    RunFinished(time_s=4.0, run_id=1, status="finished", seconds=3.0, steps=2, result=RESULT),
]

IMPOSSIBLE = {
    "an infinity": "inf",
    "a word": "later",
    "nothing": None,
    "less than nothing": -5,
    "an integer of 300 digits": 10**300,
    "a list": [[1, "x"]],
    "an object": {"a": {}},
    "yes": True,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.gpudash"
    recorder = Recorder(path, meta={"host_cpus": "8", "host_product": "CPU"})
    for record in RECORDS:
        recorder.add(record)
    recorder.close("closed")
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(whole, tmp_path / "a.gpudash"))


def read_in_every_way(
    path: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    formats: Sequence[str] = ("csv", "json", "trace", "html"),
) -> None:
    """Every command that reads a recording; a traceback or an exception of its own fails."""
    out = path.with_name("out")
    for command in (
        *(["export", str(path), "--to", to, "--out", str(out), "--force"] for to in formats),
        ["compare", str(path), str(whole)],
    ):
        code = gpudash(command)
        assert "Traceback" not in capsys.readouterr().err
        assert code in (0, 1, 2), command
    read_facts(path)
    replay = Replay(path)
    low, high = replay.extent_s
    replay.seek((low + high) / 2)
    replay.devices()
    for run in replay.store.runs:
        run.summary()
    assert replay.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE host SET total_bytes = 9e999; UPDATE gpu SET total_bytes = 9e999, used_bytes = 9e999",
        "UPDATE host SET total_bytes = -9e999, process_bytes = 9e999",
        "UPDATE process SET memory_bytes = 9e999, pid = 9e999",
        "UPDATE gpu SET power_w = 9e999, used_bytes = -5, total_bytes = 'x'; UPDATE host SET total_bytes = -1",
        "UPDATE allocator SET allocated_bytes = 9e999, reserved_bytes = 1e300",
        "UPDATE host SET time_s = 9e999; UPDATE gpu SET time_s = 9e999; UPDATE event SET time_s = 9e999",
        "UPDATE host SET time_s = 1e300; UPDATE gpu SET time_s = 1e300; UPDATE allocator SET time_s = 1e300",
        "UPDATE meta SET value = '9999-12-31T23:59:59+00:00' WHERE key = 'wall_clock_origin'",
        "UPDATE meta SET value = '0001-01-01T00:00:00+14:00' WHERE key = 'wall_clock_origin'",
        "UPDATE meta SET value = replace(hex(zeroblob(2500)), '0', '9') WHERE key = 'host_cpus'",
        "UPDATE run SET began_s = 9e999, ended_s = -9e999",
        "UPDATE run SET spec = replace(hex(zeroblob(50000)), '0', '[')",
        "UPDATE event SET json = replace(hex(zeroblob(50000)), '0', '[') WHERE kind = 'Note'",
        "UPDATE gpu SET states = replace(hex(zeroblob(50000)), '0', '[')",
    ],
)
def test_an_impossible_cell_costs_itself(
    path: Path, whole: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    read_in_every_way(path, whole, capsys)


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
def test_an_impossible_value_in_the_json_of_an_event_costs_that_event_or_figure(
    path: Path, whole: Path, impossible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = [(row, json.loads(text)) for row, text in connection.execute("SELECT rowid, json FROM event")]
        places = {row: list(_places(event)) for row, event in rows}
        for number in range(max(map(len, places.values()))):
            for row, event in rows:
                bent = (
                    event if number >= len(places[row]) else _with(event, places[row][number], IMPOSSIBLE[impossible])
                )
                connection.execute("UPDATE event SET json = ? WHERE rowid = ?", (json.dumps(bent), row))
            read_in_every_way(path, whole, capsys, ("trace", "html"))


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _places(item, (*place, key))


def _with(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _with(value[place[0]], place[1:], new)
    return copy

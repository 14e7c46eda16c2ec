"""What another machine writes becomes readings with limits, and with the times of this one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudash.session.remote.readings import MOST_GPUS, MOST_PROCESSES, MOST_RECORDS, Clock, Greeting, Readings
from gpudash.telemetry.records import Note, Sample, State

UUID = "GPU-1"


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def host(time_s: float = 1.0, **fields: Any) -> bytes:
    return line(time_s=time_s, table="host", device=None, **fields)


def gpu(time_s: float = 1.0, **fields: Any) -> bytes:
    return line(time_s=time_s, table="gpu", device=UUID, **fields)


@pytest.fixture
def readings() -> Readings:
    """Of a machine with one GPU."""
    readings = Readings()
    facts = {"uuid": UUID, "product": "H200", "nvml_index": 3, "pcie_generation": 5, "pcie_width": 16}
    assert isinstance(readings.take(line(gpus=[facts]), 0.0), Note)
    return readings


def sample(readings: Readings, text: bytes, arrival_s: float = 1.0) -> Sample:
    found = readings.take(text, arrival_s)
    assert isinstance(found, Sample)
    return found


def test_times_are_as_far_apart_as_there_whatever_that_clock_shows_and_never_before_or_late() -> None:
    clock = Clock()
    assert clock.here(5000.0, 10.0) == 10.0
    assert clock.here(5000.2, 10.9) == pytest.approx(10.2)  # it was held up on the way
    assert clock.here(5000.4, 10.9) == pytest.approx(10.4)
    assert clock.here(5000.1, 11.0) == pytest.approx(10.4)  # not before the one before
    assert clock.here(9000.0, 11.5) == 11.5  # not after it came
    assert clock.here(0.0, 30.0) == 30.0  # a clock that was set, or a machine that lies
    clock.begin()
    assert clock.here(70.0, 31.0) == 31.0


def test_the_first_line_says_what_the_machine_is_in_plain_text() -> None:
    greeting = Readings().take(line(gpudash=1, product="EPYC\x1b[31m\n" + "x" * 500, cores=64), 0.0)
    assert isinstance(greeting, Greeting)
    assert greeting.product.startswith("EPYC\ufffd[31m\ufffdxx") and len(greeting.product) == 200
    assert greeting.processor.endswith("…, 64 cores") and greeting.capacity_source == "RAM"
    assert Readings().take(line(gpudash=2), 0.0) is None


def test_gpus_go_by_their_number_there(readings: Readings) -> None:
    assert [(found.uuid, found.nvml_index, found.product) for found in readings.gpus] == [(UUID, 3, "H200")]
    note = readings.take(line(gpus=[{"uuid": f"GPU-{n}"} for n in range(500)]), 1.0)
    assert isinstance(note, Note) and len(readings.gpus) == MOST_GPUS and readings.gpu_problem is None


@pytest.mark.parametrize(
    ("code", "words", "fails"),
    [
        (-1, "no NVIDIA driver", False),
        (-2, "sleeps", False),
        (9, "modprobe", True),
        (18, "restart", True),
        ("\x1b[31m", "code ?", True),
    ],
    ids=["none", "asleep", "unloaded", "mismatch", "nonsense"],
)
def test_a_machine_without_a_gpu_says_why(code: object, words: str, *, fails: bool) -> None:
    readings = Readings()
    readings.take(line(gpus=[], problem=code), 0.0)
    assert readings.gpu_problem is not None and words in readings.gpu_problem and readings.gpu_problem.isprintable()
    assert readings.driver_fails is fails


def test_a_number_that_cannot_be_is_a_gap(readings: Readings) -> None:
    text = gpu(used_bytes=1).replace(b"1}", b'NaN, "free_bytes": -5, "power_w": 1e300, "temperature_c": "hot"}')
    found = sample(readings, text)
    assert found.values == {"used_bytes": None, "free_bytes": None, "power_w": None, "temperature_c": None}
    assert set(found.states.values()) == {State.STALE}


@pytest.mark.parametrize(
    "text",
    [
        b"Welcome to gpu-7!",
        b"[1, 2]",
        b"{" * 30_000,
        b"\xff\xfe{}",
        b'{"table": "host"}',
        b'{"kind": "RunStarted", "time_s": 1, "workload": "training", "device": "cpu", "spec": {}}',
        b'{"time_s": 1, "table": "allocator", "device": "cuda:0", "allocated_bytes": 1}',
        b'{"time_s": 1, "table": "gpu", "device": "GPU-unknown", "used_bytes": 1}',
        b'{"time_s": 1, "table": "gpu", "device": null, "used_bytes": 1}',
        b'{"time_s": 1, "table": "host", "device": "GPU-1", "used_bytes": 1}',
        b'{"gpus": 5}',
        b'{"gpus": [{}]}',
        b'{"gpus": [{"uuid": "a", "cuda_capability": 7}]}',
    ],
    ids=range(13),
)
def test_what_makes_no_sense_is_counted_and_left_out(readings: Readings, text: bytes) -> None:
    before = readings.left_out
    assert readings.take(text, 1.0) is None
    assert readings.left_out == before + 1


def test_a_flood_is_left_out_and_the_next_second_is_taken_again(readings: Readings) -> None:
    taken = sum(readings.take(host(used_bytes=1), 5.0) is not None for _ in range(MOST_RECORDS + 50))
    assert taken == MOST_RECORDS and readings.left_out == 50
    assert readings.take(host(2.0, used_bytes=1), 6.0) is not None


def test_the_rows_of_a_list_of_processes_have_one_time_and_are_so_many_at_most(readings: Readings) -> None:
    rows = [line(time_s=4.0, table="process", device=UUID, pid=n, name="a\nb" * 200) for n in range(MOST_PROCESSES + 9)]
    found = [readings.take(row, 1.0 + n / 1000) for n, row in enumerate(rows)]
    kept = [row for row in found if isinstance(row, Sample)]
    assert len(kept) == MOST_PROCESSES and len({row.time_s for row in kept}) == 1
    assert str(kept[0].values["name"]).isprintable() and len(str(kept[0].values["name"])) == 200
    assert sample(readings, line(time_s=5.0, table="process", device=UUID, pid=None), 2.0).time_s > kept[0].time_s

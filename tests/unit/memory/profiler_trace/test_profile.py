"""Traces of torch.profiler: the same figures as torch's own table, and no harm from files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gpudash.memory.profiler_trace.operators import OUTSIDE
from gpudash.memory.profiler_trace.profile import TraceProfile, read_profile
from gpudash.memory.profiler_trace.trace_file import LONGEST_VALUE, TraceError, TraceFile, TraceLimits
from tests.unit.memory.profiler_trace.traces import ON_A_GPU, document, memory, operator, written


def rows(profile: TraceProfile) -> dict[str, dict[str, float]]:
    return {str(row["name"]): dict(row) for row in profile.operators}


def test_a_trace_has_the_figures_of_torch_s_own_table(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True
    ) as profiler:
        for _step in range(2):
            model(torch.randn(4, 8)).sum().backward()
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    read = read_profile(path)
    found = rows(read)
    compared = 0
    for row in profiler.key_averages():
        if row.key == "[memory]":
            continue
        ours = found[row.key]
        assert ours["calls"] == row.count, row.key
        assert ours["cpu_self_bytes"] == row.self_cpu_memory_usage, row.key
        assert ours["cpu_total_bytes"] == row.cpu_memory_usage, row.key
        # the file has nanoseconds
        assert ours["cpu_self_seconds"] * 1e6 == pytest.approx(row.self_cpu_time_total, abs=0.1), row.key
        assert ours["cpu_total_seconds"] * 1e6 == pytest.approx(row.cpu_time_total, abs=0.1), row.key
        compared += 1
    assert compared > 10 and "aten::addmm" in found
    (device,) = read.memory
    assert device.device == "cpu" and device.peak_bytes == max(device.allocated) > 0
    assert list(read.warnings) == []
    assert TraceProfile.from_json(json.loads(json.dumps(read.to_json()))) == read


def test_kernels_belong_to_the_operator_that_started_them(tmp_path: Path) -> None:
    found = rows(read_profile(written(tmp_path, document())))
    assert found["aten::mm"]["device_self_seconds"] == pytest.approx(40e-6)
    assert found["aten::linear"]["device_self_seconds"] == 0
    assert found["aten::linear"]["device_total_seconds"] == pytest.approx(40e-6)
    assert found["aten::relu"]["device_self_seconds"] == pytest.approx(5e-6), "by its External id"
    assert found["cudaLaunchKernel"]["device_self_seconds"] == 0
    assert found["aten::linear"]["cpu_self_seconds"] == pytest.approx(20e-6)
    assert found["aten::mm"]["cpu_self_seconds"] == pytest.approx(29e-6), "without the call of CUDA"


def test_memory_belongs_to_the_innermost_operator_and_the_bytes_add_up(tmp_path: Path) -> None:
    read = read_profile(written(tmp_path, document()))
    found = rows(read)
    assert found["aten::mm"]["device_self_bytes"] == 300
    assert found["aten::linear"]["device_total_bytes"] == 300
    assert found[OUTSIDE]["device_self_bytes"] == -300
    assert sum(row["device_self_bytes"] for row in read.operators) == 100


def test_the_peak_says_when_and_what_held_it(tmp_path: Path) -> None:
    (device,) = read_profile(written(tmp_path, document())).memory
    assert device.device == "cuda:0" and device.peak_bytes == 900
    assert device.peak_s == pytest.approx(15e-6) and device.held == [("aten::mm", 900)]
    assert list(device.allocated) == [600, 900, 300, 400, 100] and set(device.reserved) == {1000}


def test_a_trace_without_totals_has_its_memory_from_the_changes(tmp_path: Path) -> None:
    events = [memory(1, 10, 1, 0), memory(2, -30, 2, 0), memory(3, 5, 3, 0)]
    for event in events:
        del event["args"]["Total Allocated"]
    (device,) = read_profile(written(tmp_path, document(events))).memory
    assert list(device.allocated) == [30, 0, 5], "as if nothing were left at the lowest point"


def test_threads_and_devices_have_lanes_of_their_own(tmp_path: Path) -> None:
    events = [*ON_A_GPU, operator("aten::add", 100, 50, 9, tid=3)]
    timeline = read_profile(written(tmp_path, document(events))).timeline
    assert timeline["lanes"] == ["CPU", "CPU thread 2", "cuda:0"]
    of_kernel = [span for span in timeline["spans"] if timeline["names"][span[2]] == "gemm"]
    assert of_kernel == [[2, 0, of_kernel[0][2], 60, 40], [2, 0, of_kernel[0][2], 115, 5]]


def test_memory_without_profile_memory_is_said_to_be_missing(tmp_path: Path) -> None:
    read = read_profile(written(tmp_path, document([operator("aten::add", 1, 2, 1)])))
    assert list(read.memory) == []
    assert "profile_memory=True" in read.sentence


def test_a_file_of_many_pieces_is_read_like_one(tmp_path: Path) -> None:
    events = [operator(f"aten::op{number % 7}", number * 10, 5, number + 1) for number in range(12_000)]
    text = document(events, deviceProperties=[{"id": 0}])
    assert len(text) > 2**20, "more than a piece"
    path = written(tmp_path, text, "trace.json.gz")
    with TraceFile(path) as file:
        assert list(file.events()) == events and not file.cut_off
        assert file.facts == {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceName": "t.json"}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_of_a_file_that_is_cut_off_what_came_before_is_read(tmp_path: Path, name: str) -> None:
    begun = document()[:900]
    path = written(tmp_path, begun, name)
    if name.endswith("gz"):
        # also without the end that gzip writes
        path.write_bytes(path.read_bytes()[:-8])
    read = read_profile(path)
    assert "aten::linear" in rows(read) and len(read.operators) < 6
    assert len(read.warnings) == 1 and "is cut off behind" in read.warnings[0]


DEEP = '{"traceEvents": ' + "[" * 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[1, 2]", "no JSON object"),
        ('{"schemaVersion": 1}', "has no traceEvents"),
        ('{"traceEvents": []}', "has no traceEvents"),
        ('{"traceEvents": 7}', "no valid JSON"),
        ('{"traceEvents": [{"a": 1} {"b": 2 "c" ' + " " * 99, "no valid JSON"),
        ('{"traceEvents": [{"ph": "X", "cat": "chrome", "ts": 1}]}', "1 events and no operators"),
        ('{"traceEvents": [' + "9" * 10_000 + "]}", "thousands of digits"),
        (DEEP, "values within values"),
        ('{"traceEvents": ["' + "x" * (LONGEST_VALUE + 3 * 2**20), "no valid JSON"),
        ('{"traceEvents": [', "cut off before any operator"),
    ],
    ids=["empty", "list", "none", "no-events", "number", "wrong", "chrome", "digits", "deep", "long", "begun"],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_profile(written(tmp_path, text))
    assert words in str(refused.value) and str(refused.value).count("\n") == 0


def test_values_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    odd = [
        operator("aten::a", 1, 2, 1),
        operator("aten::b", 1, 2, 1) | {"ts": "soon"},
        operator("aten::c", 1, 2, 1) | {"ts": 10**400},
        operator("aten::d", 1, 2, 1) | {"args": [], "cat": ["cpu_op"]},
        operator("aten::e", 3, -5, 1) | {"args": None},
        memory(2, 10, 1, 10) | {"args": {"Bytes": None}},
        operator("x\x1b[31m" * 1000, 5, 1, 2),
    ]
    text = document(odd).replace('"ts": "soon"', '"ts": NaN')
    found = rows(read_profile(written(tmp_path, text)))
    assert set(found) >= {"aten::a", "aten::e"} and found["aten::e"]["cpu_total_seconds"] == 0
    assert not set(found) & {"aten::b", "aten::c", "aten::d"}
    assert all("\x1b" not in name and len(name) <= 120 for name in found)


def test_limits_hold_before_and_after_expanding(tmp_path: Path) -> None:
    path = written(tmp_path, document() + " " * 3_000_000, "bomb.json.gz")
    with pytest.raises(TraceError, match="expands to more than"):
        read_profile(path, TraceLimits(expanded_bytes=1_000_000))
    with pytest.raises(TraceError, match="more than the 100 that are opened"):
        read_profile(path, TraceLimits(file_bytes=100))


def test_deeply_nested_operators_take_no_longer_for_it(tmp_path: Path) -> None:
    events = [operator("aten::same", number, 100_000 - 2 * number, number + 1) for number in range(10_000)]
    (row,) = read_profile(written(tmp_path, document(events))).operators
    assert row["calls"] == 1, "each is all that the one around it does"
    assert row["cpu_total_seconds"] == pytest.approx(0.1)

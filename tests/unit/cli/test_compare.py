"""``gpudash compare``: what it prints, its exit codes for CI, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.units import MIB
from tests.unit.telemetry.comparing.made import MADE, Made

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    MADE.record(tmp_path / "a.gpudash")
    return tmp_path


def compared(folder: Path, made: Made, *more: str, a: Made | None = None) -> int:
    if a is not None:
        (folder / "a.gpudash").unlink()
        a.record(folder / "a.gpudash")
    (folder / "b.gpudash").unlink(missing_ok=True)
    made.record(folder / "b.gpudash")
    return run(["compare", "a.gpudash", "b.gpudash", *more])


def test_the_table_spells_the_sign_and_says_the_same(folder: Path, capsys: Capture) -> None:
    assert compared(folder, MADE) == 0
    printed = capsys.readouterr()
    assert "B minus A" in printed.out and "B over A" in printed.out
    assert "Both were asked the same. All 7 figures are the same within the noise." in printed.out
    assert printed.err == ""


def test_json_is_one_document_with_the_promised_keys(folder: Path, capsys: Capture) -> None:
    assert compared(folder, MADE.but(step_s=0.02, spec={"model": "mlp", "precision": "bf16"}), "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["status"] == "finished"
    assert told["a"] == {
        "recording": "a.gpudash",
        "workload": "training",
        "device": "cuda:0",
        "simulated": False,
        "status": "finished",
    }
    figure = next(figure for figure in told["figures"] if figure["name"] == "median_throughput")
    assert set(figure) == {"name", "unit", "a", "b", "difference", "ratio", "noise", "verdict", "better"}
    assert (figure["verdict"], figure["better"], figure["ratio"]) == ("less", "worse", pytest.approx(0.5))
    assert told["specs"] == [{"field": "precision", "a": "fp32", "b": "bf16"}]
    assert told["worse"] == ["median_throughput", "seconds"]
    assert told["tolerance"] is None


@pytest.mark.parametrize(
    ("changes", "tolerance", "code", "why"),
    [
        ({}, "10%", 0, "not worse"),
        ({"step_s": 0.0105}, "10%", 0, "not worse"),
        ({"step_s": 0.0125}, "10%", 1, "median_throughput, seconds"),
        ({"step_s": 0.0125}, "0.1", 1, "median_throughput, seconds"),
        ({"step_s": 0.0125}, "0.5", 0, "not worse"),
        ({"step_s": 0.005}, "10%", 0, "not worse"),
        ({"allocated": 130 * MIB}, "10%", 1, "peak_allocated_bytes"),
        ({"loss": 0.6}, "10%", 1, "final_loss"),
        ({"loss": 0.6}, "30%", 0, "not worse"),
        ({"wobble": 0.001}, "0", 0, "not worse"),
        ({"ending": "failed"}, "10%", 1, "A finished, and B failed."),
        ({"ending": "out_of_memory"}, "10%", 1, "A finished, and B ran out of memory."),
        ({"ending": "cancelled"}, "10%", 1, "A finished, and B was stopped early."),
        ({"ending": "running"}, "10%", 1, "A finished, and B has not ended."),
        ({"spec": {"model": "mlp", "precision": "bf16"}}, "10%", 0, "not worse"),
        ({"step_s": 0.0125, "spec": {"model": "mlp", "precision": "bf16"}}, "10%", 1, "differ in precision."),
    ],
)
def test_exit_codes_for_ci(
    folder: Path, capsys: Capture, changes: dict[str, Any], tolerance: str, code: int, why: str
) -> None:
    assert compared(folder, MADE.but(**changes), "--tolerance", tolerance) == code
    assert why in capsys.readouterr().err


FEW = {"steps": 4}
"""Steps that do not tell how much they vary, so that a tenth is assumed."""


def test_a_gate_fails_on_what_is_too_noisy_to_tell_unless_noise_is_allowed(folder: Path, capsys: Capture) -> None:
    slower, flags = MADE.but(step_s=0.0113, **FEW), ("--tolerance", "10%")
    assert compared(folder, slower, *flags, a=MADE.but(**FEW)) == 1
    printed = capsys.readouterr()
    assert "too noisy to tell" in printed.out
    assert printed.err.startswith(
        "Too noisy to tell: median_throughput (1\u202f600 items/s in A, 1\u202f416 items/s in B, "
    )
    assert printed.err.rstrip().endswith("; repeat both with more steps, or on a quieter machine.")
    assert compared(folder, slower, *flags, "--allow-noise", a=MADE.but(**FEW)) == 0
    assert "Too noisy to tell: median_throughput" in capsys.readouterr().err
    assert compared(folder, slower, "--tolerance", "20%", a=MADE.but(**FEW)) == 0


@pytest.mark.parametrize(("columns", "left_out"), [(100, ""), (80, "noise")])
def test_figures_stay_whole_on_a_narrow_terminal_and_those_that_others_imply_go_first(
    columns: int, left_out: str, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    compared(folder, MADE.but(step_s=0.02))
    told = capsys.readouterr().out
    assert "1\u202f600 items/s" in told and "…" not in told
    assert ("Left out" in told) == bool(left_out) and f" columns: {left_out}" in f"{told} columns: "


def test_without_a_tolerance_worse_is_no_failure(folder: Path, capsys: Capture) -> None:
    assert compared(folder, MADE.but(step_s=0.05, ending="failed")) == 0
    assert "less, worse" in capsys.readouterr().out


def test_with_json_the_reason_goes_to_stderr_and_the_code_is_the_same(folder: Path, capsys: Capture) -> None:
    assert compared(folder, MADE.but(step_s=0.05), "--tolerance", "10%", "--json") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["tolerance"] == 0.1
    assert printed.err.startswith("B is worse than A by more than 10 % and the noise in median_throughput")


def test_swapping_flips_the_signs(folder: Path, capsys: Capture) -> None:
    compared(folder, MADE.but(step_s=0.02), "--json")
    there = json.loads(capsys.readouterr().out)["figures"]
    run(["compare", "b.gpudash", "a.gpudash", "--json"])
    back = json.loads(capsys.readouterr().out)["figures"]
    assert [figure["difference"] for figure in there] == [-figure["difference"] for figure in back]
    assert [figure["noise"] for figure in there] == [figure["noise"] for figure in back]


def test_a_run_is_picked_by_its_number(folder: Path, capsys: Capture) -> None:
    path = folder / "two.gpudash"
    MADE.record(path, MADE.but(run_id=2, began_s=10.0, spec={"model": "cnn"}))
    assert run(["compare", "two.gpudash#1", "two.gpudash#2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"field": "model", "a": "mlp", "b": "cnn"} in told["specs"]
    assert run(["compare", "two.gpudash", "a.gpudash"]) == 0
    assert "A: two.gpudash holds 2 runs; this is the last one" in capsys.readouterr().out


def test_many_differing_fields_are_counted(folder: Path, capsys: Capture) -> None:
    spec = {f"field_{number}": number for number in range(20)}
    assert compared(folder, MADE.but(workload="matmul", spec=spec, step_s=0.05), "--tolerance", "10%") == 1
    assert "more fields." in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", ["much", "-0.1", "nan", "10", "inf", "%"])
def test_a_tolerance_that_is_no_share_is_refused(folder: Path, capsys: Capture, tolerance: str) -> None:
    assert compared(folder, MADE, f"--tolerance={tolerance}", "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["message"].startswith(f"--tolerance {tolerance}")
    assert "10" in told["error"]["remedy"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.gpudash", None, "does not exist"),
        ("empty.gpudash", b"", "is not a recording"),
        ("text.gpudash", b"hello", "is not a recording"),
        ("a.gpudash#3", None, "holds one run; there is no run 3"),
        ("a.gpudash#three", None, "to pick a run, write its number"),
        (".", None, "it is a folder, not a file"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_and_exit_2(
    folder: Path, capsys: Capture, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    assert run(["compare", "a.gpudash", name]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1 and printed.out == ""

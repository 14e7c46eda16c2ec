"""What a run needs before it begins: torch, a device that torch has, and a workload that can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gpudash.specs import TrainingSpec
from gpudash.telemetry.records import Note, RunEnd, StageFinished
from gpudash.workloads.running.installed import torch_report, way_to_torch
from gpudash.workloads.running.run import resolve
from gpudash.workloads.running.run_errors import WorkloadError
from tests.unit.workloads.conftest import Bench, MakeSpec


def test_warming_up_tells_which_torch_there_is(bench: Bench) -> None:
    bench.worker.warm_up()

    note = bench.wait_for(lambda event: isinstance(event, Note) and event.topic == "torch")

    assert note.details["version"] == torch.__version__
    assert note.details["cuda_available"] == torch.cuda.is_available()
    assert set(note.details) == {
        "version",
        "cuda_version",
        "hip_version",
        "cuda_available",
        "devices",
        "seconds",
        "problem",
    } | {"simulator_problem"}
    assert note.details["problem"] is None


def test_a_missing_torch_is_told_in_one_sentence_and_ends_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    ending = bench.run("pipeline")

    note = bench.of(Note)[0]
    assert note.topic == "torch" and note.details["version"] is None
    assert "pip install torch" in note.details["problem"] and "\n" not in note.details["problem"]
    assert (
        isinstance(ending, RunEnd)
        and ending.status == "failed"
        and ending.error == "torch"
        and ending.remedy == "Run: pip install torch"
    )


def test_an_appimage_is_not_told_to_take_torch_in_and_what_an_appimage_started_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("APPDIR", str(tmp_path))
    assert way_to_torch() == ("torch is not installed", "pip install torch")

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python/bin/python3"))
    why, command = way_to_torch()
    assert why == "torch is not installed, and an AppImage cannot take it in"
    assert command == "pip install 'gpudash[torch]' in an environment of your own"


def test_a_broken_torch_is_told_with_its_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file\\nmore')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")

    report = torch_report()

    assert "libtorch.so: cannot open shared object file" in report["problem"] and "\n" not in report["problem"]


def test_what_the_device_cannot_do_ends_the_run_before_it_begins(bench: Bench) -> None:
    ending = bench.run("pipeline", pitfall="numpy")

    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "request"
    assert "needs a CUDA device or a simulated GPU, and cpu is neither" in ending.message and not bench.of(
        StageFinished
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.usefixtures("no_simulated_gpu")
def test_a_cuda_device_that_torch_does_not_have_is_named(bench: Bench) -> None:
    ending = bench.run("pipeline", device="cuda:0")

    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "device"
    assert "torch has no cuda:0" in ending.message and "sees 0 CUDA devices" in ending.message


def test_a_workload_that_cannot_be_imported_is_named(custom: MakeSpec) -> None:
    spec = custom(lambda spec, context: {})
    del sys.modules["gpudash_tests_custom"]

    with pytest.raises(WorkloadError, match="custom cannot be loaded from gpudash_tests_custom:run"):
        resolve(spec)


def test_every_built_in_workload_can_be_resolved() -> None:
    from gpudash.specs import BUILT_IN

    assert all(callable(resolve(spec())) for spec in BUILT_IN)
    assert TrainingSpec in BUILT_IN

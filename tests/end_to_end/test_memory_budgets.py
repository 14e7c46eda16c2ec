"""``@pytest.mark.gpu_memory`` in a project of its own, and ``gpudash estimate --max`` and ``--baseline``."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.budget_project import AS_CUDA, BASELINES, BUDGETS, EVALUATION, PLAIN, Project
from tests.end_to_end.conftest import Command
from tests.unit.simulator.models.small_models import written

pytestmark = pytest.mark.timeout(600)  # several runs of pytest with torch, one after another


def test_budgets_pass_fail_with_what_filled_the_memory_or_say_what_is_wrong(tmp_path: Path) -> None:
    project = Project(tmp_path, budgets=BUDGETS)
    reports = ("--gpu-memory-report", "report.json", "--gpu-memory-sarif", "report.sarif")
    code, printed = project.run("--junit-xml", "junit.xml", *reports)
    assert code == 1, printed
    assert "5 passed, 1 skipped" in printed and "2 failed" in printed and "1 error" in printed, printed

    over = printed[printed.index("_ test_four_outputs_are_too_many _") :]
    assert "OutOfMemoryError" in over
    assert "The test has 512 MiB of sim:0 (SIMULATED)." in over
    assert re.search(r"The last request was 64 MiB .*training\.py:\d+.*; .* short", over)
    assert "What filled it" in over and re.search(r"context +300 MiB", over)
    assert re.search(r"192 MiB +192 MiB +3 +other tensors +training\.py:\d+ ", over)
    assert "gpudash/simulator" not in over.partition("GPU memory")[0], "the traceback ends in the program's own code"

    assert "The test allocated nothing on sim:0" in printed
    assert "gpu_memory('8 apples'): '8 apples' is not a size" in printed
    summary = printed[printed.index("= gpu memory =") :]
    assert re.search(r"test_a_step_fits: peak \d+ MiB allocated, \d+ MiB of 512 MiB .*\(training \d+ MiB\)", summary)
    assert "test_four_outputs_are_too_many: ran out of memory; peak 192 MiB allocated" in summary
    named = ElementTree.parse(project.folder / "junit.xml").iterfind(".//property[@name='gpu_memory_peak_bytes']")
    assert str(192 * 2**20) in [element.get("value") for element in named]

    tests = json.loads((project.folder / "report.json").read_text())["tests"]
    outcomes = {test["name"].rpartition("::")[2]: test["outcome"] for test in tests}
    assert outcomes["test_a_step_fits"] == "passed" and outcomes["test_four_outputs_are_too_many"] == "ran out"
    assert outcomes["test_on_the_cpu_nothing_is_measured"] == "failed" and "test_left_out" not in outcomes
    (alone,) = [test for test in tests if test["name"].endswith("::test_a_fixture_alone_measures")]
    assert [size for place, size in alone["lines"].items() if place.startswith("tests/test_budgets.py:")] == [2**22]
    (run,) = json.loads((project.folder / "report.sarif").read_text())["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == "gpu-memory-ran-out" and place["artifactLocation"]["uri"] == "training.py"
    assert "torch.ones" in (project.folder / "training.py").read_text().splitlines()[place["region"]["startLine"] - 1]


def test_an_out_of_memory_is_reported_with_its_cause_and_a_remedy_that_lets_the_test_pass(tmp_path: Path) -> None:
    project = Project(tmp_path, evaluation=EVALUATION)
    code, printed = project.run()
    assert code == 1, printed
    assert re.search(r"\d+ forward passes at test_evaluation\.py:10 keep their graph", printed), printed
    assert "put @torch.no_grad() above def evaluate" in printed
    begin = printed.index("--- tests/test_evaluation.py")
    patch = printed[begin : printed.index("\n\n", begin) if "\n\n" in printed[begin:] else None]
    diff = "".join(f"{line}\n" for line in patch.splitlines() if line[:1] in ("-", "+", "@", " "))
    subprocess.run(["patch", "-p0", "-s"], input=diff, text=True, cwd=project.folder, check=True, timeout=60)
    code, printed = project.run()
    assert code == 0, printed


def test_a_baseline_is_stored_by_workers_compared_with_and_fails_with_what_grew(tmp_path: Path) -> None:
    project = Project(tmp_path, baselines=BASELINES)
    code, printed = project.run("-n", "2", "--gpu-memory-write-baseline")
    assert code == 0 and "memory.json has the peaks of 2 tests now." in printed, printed
    stored = json.loads((project.folder / "memory.json").read_text(encoding="utf-8"))["entries"]
    assert set(stored) == {f"tests/test_baselines.py::test_{name}" for name in ("training", "short_training")}
    assert all(sum(entry["parts"]["category"].values()) == entry["bytes"] for entry in stored.values())

    code, printed = project.run(BATCH="4096")
    assert code == 1 and "1 failed, 1 passed" in printed, printed
    assert re.search(
        r"test_training takes \d+ MiB, \d+ MiB more than the baseline's .*beyond the tolerance of 2 %", printed
    )
    assert re.search(r"line training\.py: inputs = torch\.ones\(batch.* \+4 MiB", printed), printed
    assert re.search(r"category [a-z ]+ +\d+ [KM]iB +\d+ MiB +\+\d+ MiB", printed), printed
    assert "Who allocated it" in printed


def test_a_missing_baseline_fails_its_test_and_a_test_that_failed_leaves_none(tmp_path: Path) -> None:
    project = Project(tmp_path, baselines=BASELINES.replace("device)", "device, steps=1 / 0)"))
    (project.folder / "tests" / "test_short.py").write_text(BASELINES.replace("8, steps=1", "4, steps=1"), "utf-8")
    code, printed = project.run("tests/test_short.py", "-k", "short")
    assert code == 1 and "There is no baseline" in printed
    assert "Run pytest with --gpu-memory-write-baseline to store it." in printed
    code, printed = project.run("--gpu-memory-write-baseline")
    assert code == 1 and "No baseline was written, for tests/test_baselines.py::test_training failed." in printed
    assert not (project.folder / "memory.json").exists()


@pytest.mark.thorough
def test_a_test_that_says_cuda_is_told_how_the_simulated_gpu_is_called_that_and_then_runs_on_it(tmp_path: Path) -> None:
    project = Project(tmp_path, cuda=AS_CUDA)
    code, printed = project.run()
    assert code == 1 and "2 failed, 2 passed" in printed, printed
    hint = "Run pytest with --gpudash-as-cuda, set gpudash_as_cuda = true in its configuration, or mark the test"
    assert printed.count(hint) == 1 and "Torch not compiled with CUDA enabled" in printed
    over = printed[printed.index("_ test_too_much_for_cuda _") :]
    assert "The test has 400 MiB of sim:0 (SIMULATED)." in over and "96 MiB, most from test_cuda.py:" in over

    for options in (("--gpudash-as-cuda",), ("-o", "gpudash_as_cuda=true", "-n", "2")):
        code, printed = project.run(*options)
        assert code == 1 and "1 failed, 3 passed" in printed and hint not in printed, printed
        assert "torch.OutOfMemoryError: CUDA out of memory" in printed


def test_a_run_without_the_marker_imports_nothing_and_the_plug_in_can_be_left_out(tmp_path: Path) -> None:
    project = Project(tmp_path, plain=PLAIN)
    code, printed = project.run()
    assert code == 0 and "2 passed" in printed and "gpu memory" not in printed, printed
    code, printed = project.run("-p", "no:gpudash", "--without")
    assert code == 0 and "2 passed" in printed, printed
    code, printed = project.run("--gpu-memory-device", "tpu")
    assert code == 4 and "--gpu-memory-device 'tpu' is none; write sim or cuda:0." in printed


def test_a_prediction_above_its_limit_or_its_baseline_fails_with_what_changed(gpudash: Command, tmp_path: Path) -> None:
    file = str(tmp_path / "memory.json")
    small = ("estimate", "training", "--device", "sim:0", "--simulate", "8GiB", "--model", "mlp", "--no-alternatives")
    done = gpudash(*small, "--batch", "32", "--max", "8GiB", "--write-baseline", file)
    assert done.code == 0, done.stderr
    assert f"Stored in {file}: training" in done.stderr
    sarif, junit = tmp_path / "found.sarif", tmp_path / "found.xml"
    reports = ("--sarif", str(sarif), "--junit", str(junit))
    done = gpudash(*small, "--batch", "32768", "--max", "310MiB", "--baseline", file, "--json", *reports)
    assert done.code == 1
    document = done.document
    assert (document["status"], document["within_max"], document["max_bytes"]) == ("finished", False, 310 * 2**20)
    assert document["baseline"]["grown"] is True
    assert document["baseline"]["after_bytes"] == document["needed_bytes"]
    assert any(change["name"] == "activations" for change in document["baseline"]["changes"])
    (run,) = json.loads(sarif.read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["gpu-memory-over-limit"]
    (case,) = ElementTree.parse(junit).iterfind(".//testcase")
    assert case.get("name") == "training" and case.find("failure") is not None
    assert "more than the 310 MiB that --max allows" in done.stderr


def test_a_model_by_its_config_has_a_limit_and_a_baseline(gpudash: Command, tmp_path: Path) -> None:
    file, folder = str(tmp_path / "memory.json"), str(written(tmp_path, "llama"))
    small = ("estimate", "--model", folder, "--simulate", "8GiB", "--no-alternatives")
    done = gpudash(*small, "--max", "8GiB", "--write-baseline", file)
    assert done.code == 0, done.stderr
    assert f"Stored in {file}: model" in done.stderr
    done = gpudash(*small, "--batch", "256", "--max", "800MiB", "--baseline", file, "--json")
    assert done.code == 1, done.stderr
    document = done.document
    assert (document["workload"], document["within_max"]) == ("model", False)
    assert document["baseline"]["grown"] is True
    grew = {change["name"] for change in document["baseline"]["changes"] if change["after_bytes"]}
    assert "activations" in grew, document["baseline"]["changes"]
    assert "more than the 800 MiB that --max allows" in done.stderr

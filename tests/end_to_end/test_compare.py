"""Recorded runs compared by the real commands: two of one spec, one of another precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from tests.end_to_end.conftest import Command, run_python

TRAIN = """
import sys
from gpudash.cli import run
for name, precision in (("one", "fp32"), ("two", "fp32"), ("bf16", "bf16")):
    flags = ["--model", "mlp", "--device", "cpu", "--threads", "1", "--steps", "100", "--precision", precision]
    code = run(["run", "training", *flags, "--record", f"{name}.gpudash", "--json"])
    if code:
        sys.exit(code)
"""
"""Three runs one after another in one process, which loads torch once."""


@pytest.fixture
def trained(home: Path, tmp_path: Path) -> dict[str, str]:
    """Short trainings on the CPU, recorded: two alike, one in bf16."""
    done = run_python(home, "-c", TRAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return {name: str(tmp_path / f"{name}.gpudash") for name in ("one", "two", "bf16")}


def figures(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in document["figures"]}


def test_two_runs_of_one_spec_are_the_same_and_bf16_is_named(
    gpudash: Command, trained: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What two runs took depends on the machine's other work: that is compared with recordings made by hand."""

    def compared(*arguments: str) -> dict[str, Any]:
        run(["compare", *arguments, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    one, two, bf16 = trained["one"], trained["two"], trained["bf16"]
    done = gpudash("compare", one, two, "--json", "--tolerance", "900%")
    assert done.code == 0, done.stderr
    alike = done.document
    assert (alike["specs"], alike["worse"]) == ([], [])
    for name in ("final_loss", "final_accuracy"):
        assert (figures(alike)[name]["difference"], figures(alike)[name]["verdict"]) == (0, "same")
    assert {"median_throughput", "seconds"} <= set(figures(alike))

    assert {figure["verdict"] for figure in compared(one, one)["figures"]} == {"same"}

    there, back = compared(one, bf16), compared(bf16, one)
    assert there["specs"] == [{"field": "precision", "a": "fp32", "b": "bf16"}]
    assert back["specs"] == [{"field": "precision", "a": "bf16", "b": "fp32"}]
    for name, figure in figures(there).items():
        assert figure["difference"] == -figures(back)[name]["difference"]
        assert figure["noise"] == figures(back)[name]["noise"]

    beside = gpudash("compare", one, bf16, "--tolerance", "0.5", "--allow-noise", "--json")
    assert beside.code == bool(beside.document["worse"])
    assert ("specs differ in precision" in beside.stderr) == bool(beside.document["worse"])

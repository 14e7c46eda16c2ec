"""Recorded runs compared by the real commands: two of one spec, one of another precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Command

STEPS = "300"


@pytest.fixture
def trained(gpudash: Command, tmp_path: Path) -> dict[str, Path]:
    """Short trainings on the CPU, recorded: two alike, one in bf16."""
    paths = {name: tmp_path / f"{name}.gpudash" for name in ("one", "two", "bf16")}
    for name, path in paths.items():
        precision = "bf16" if name == "bf16" else "fp32"
        common = ("--model", "mlp", "--device", "cpu", "--threads", "1", "--steps", STEPS, "--precision", precision)
        done = gpudash("run", "training", *common, "--record", str(path), "--json")
        assert done.code == 0, done.stderr
    return paths


def figures(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in document["figures"]}


def test_two_runs_of_one_spec_are_the_same_and_bf16_is_named(gpudash: Command, trained: dict[str, Path]) -> None:
    one, two, bf16 = (str(trained[name]) for name in ("one", "two", "bf16"))

    done = gpudash("compare", one, two, "--json", "--tolerance", "10%")
    assert done.code == 0, done.stderr
    alike = done.document
    assert (alike["specs"], alike["worse"]) == ([], [])
    judged = ("median_throughput", "seconds", "peak_used_bytes", "final_loss", "final_accuracy")
    assert {name: figures(alike)[name]["verdict"] for name in judged} == dict.fromkeys(judged, "same")

    itself = gpudash("compare", one, one, "--json").document
    assert {figure["verdict"] for figure in itself["figures"]} == {"same"}

    there, back = gpudash("compare", one, bf16, "--json").document, gpudash("compare", bf16, one, "--json").document
    assert there["specs"] == [{"field": "precision", "a": "fp32", "b": "bf16"}]
    assert back["specs"] == [{"field": "precision", "a": "bf16", "b": "fp32"}]
    for name, figure in figures(there).items():
        assert figure["difference"] == -figures(back)[name]["difference"]
        assert figure["noise"] == figures(back)[name]["noise"]

    refused = gpudash("compare", one, bf16, "--tolerance", "0.5")
    assert refused.code == 1
    assert "specs differ in precision" in refused.stderr

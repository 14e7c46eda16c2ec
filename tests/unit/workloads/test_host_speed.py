"""What the host takes to start an operation is measured once on a computer, and told as usual where it was not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpudash.speed.work import HostSpeed
from gpudash.workloads.predicting.host_speed import MEASURED, PLAUSIBLE_S, known_host_speed
from tests.programs import python

MEASURING = """
import torch
torch.set_num_threads(1)
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.workloads.predicting.host_speed import keep_host_speed
dry = DryRun()
keep_host_speed(dry)
keep_host_speed(dry)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUDASH_HOME", str(tmp_path))
    return tmp_path


def test_nothing_measured_is_a_usual_workstation(home: Path) -> None:
    assert known_host_speed() == HostSpeed() and not list(home.iterdir())


@pytest.mark.parametrize(
    "kept",
    [
        "no JSON",
        "[]",
        '{"processor": "another", "operation_s": 1e-5, "backward_operation_s": 1e-5}',
        '{"operation_s": 1e-5}',
        '{"processor": null, "operation_s": "often", "backward_operation_s": 1e-5}',
    ],
)
def test_a_file_that_is_none_or_of_another_computer_is_not_believed(home: Path, kept: str) -> None:
    (home / "host_speed.json").write_text(kept, encoding="utf-8")
    assert known_host_speed() == HostSpeed()


@pytest.mark.process
def test_it_is_measured_and_kept_and_figures_that_cannot_be_are_not_believed(home: Path) -> None:
    done = python("-c", MEASURING, env={**os.environ, "GPUDASH_HOME": str(home)})
    assert done.returncode == 0, done.stderr
    found = known_host_speed()
    least, most = PLAUSIBLE_S
    assert found.source == MEASURED
    assert least < found.operation_s < most and least < found.backward_operation_s < most
    file = home / "host_speed.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "operation_s": 2.0}), encoding="utf-8")
    assert known_host_speed() == HostSpeed()

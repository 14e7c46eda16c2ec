"""``gpudash estimate`` with the real process that predicts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpudash.session.predicting.estimator import OWN_CODE_COMMAND, Estimator
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting import estimate_process
from tests.end_to_end.conftest import Command, start_python

PATIENCE_S = 60.0

MINE = """
import os
import torch
from torch import nn

def build(device):
    print("building")
    model = nn.Linear(1024, 1024, bias=False).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(8, 1024, device=device)
    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return step

def reads_numbers(device):
    weights = torch.ones(4, device=device)
    def step():
        if weights.sum().item() > 3:
            weights.add_(1)
    return step

def stays_on_the_cpu(device):
    weights = torch.ones(4)
    return lambda: weights.add_(1)

def asks(device):
    input("which model? ")

def raises(device):
    raise FileNotFoundError("data.bin")

def endless(device):
    open("endless.pid", "w").write(str(os.getpid()))
    weights = torch.ones(4, device=device)
    while True:
        weights.add_(1)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of one's own."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_training_that_fits_is_predicted_in_bytes_that_add_up(gpudash: Command) -> None:
    outcome = gpudash("estimate", "training", "--device", "sim:0", "--simulate", "8GiB", "--no-alternatives", "--json")
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert found["fits"] is True
    assert found["simulated"] is True
    assert found["capacity_bytes"] == found["free_bytes"] == 8 * GIB
    assert sum(found["by_category"].values()) == found["peak_allocated_bytes"] > 0
    assert found["peak_reserved_bytes"] >= found["peak_allocated_bytes"]
    assert found["spare_bytes"] == 8 * GIB - found["peak_reserved_bytes"] - found["overhead_bytes"]
    assert found["alternatives"] == []


def test_what_does_not_fit_is_answered_with_what_would(gpudash: Command) -> None:
    device = ("--device", "sim:0", "--simulate", "1GiB")
    outcome = gpudash("estimate", "matmul", "--size", "16384", "--dtype", "float32", *device, "--json")
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert found["fits"] is False
    assert found["peak_allocated_bytes"] >= 3 * GIB
    assert found["spare_bytes"] < 0
    fitting = [alternative for alternative in found["alternatives"] if alternative["fits"]]
    assert fitting
    assert any(alternative["fields"].get("size", 16384) < 16384 for alternative in fitting)


def test_code_of_one_s_own_is_predicted(gpudash: Command, mine: Path) -> None:
    (mine / "[my]-train.v2.py").write_text((mine / "mine.py").read_text(encoding="utf-8"), encoding="utf-8")
    outcome = gpudash("estimate", "--callable", "[my]-train.v2.py:build", "--simulate", "1GiB", "--json")
    assert outcome.code == 0, outcome.stderr
    categories = outcome.document["by_category"]
    assert (outcome.document["workload"], outcome.document["device"]) == ("[my]-train.v2.py:build", "sim:0")
    assert categories["weights"] == categories["gradients"] == 4 * MIB
    assert 8 * MIB <= categories["optimizer state"] < 8 * MIB + 4096


def test_code_is_found_whatever_its_file_is_called_or_refused_in_a_sentence_and_the_process_goes_on(
    mine: Path,
) -> None:
    (mine / "scripts").mkdir()
    text = "import random\nassert random.randint, 'not the library'\n" + (mine / "mine.py").read_text(encoding="utf-8")
    (mine / "scripts" / "random.py").write_text(text, encoding="utf-8")
    (mine / "needy.py").write_text("import only_elsewhere\n", encoding="utf-8")
    install = "Install only_elsewhere, or name another Python with --python."
    refused = {
        "needy:build": "only_elsewhere",
        "mine:asks": "the code raised EOFError",
        "mine:reads_numbers": "decides by a number of a tensor",
        "mine:stays_on_the_cpu": "Nothing was allocated on sim:0",
        "mine:raises": "FileNotFoundError: data.bin",
        "mine:missing": "mine:missing cannot be loaded",
    }
    target = {"device": "sim:0", "capacity_bytes": GIB, "free_bytes": GIB}
    estimator = Estimator()
    try:
        for name in (*refused, "mine:build", f"{mine}/mine.py:build", "scripts/random.py:build"):
            command = (*OWN_CODE_COMMAND, sys.executable)
            estimator.ask({"callable": name, "steps": 3, "target": target}, command=command)
            answer = estimator.wait(PATIENCE_S)
            assert answer is not None and answer.final
            if name not in refused:
                assert answer.problem is None and answer.estimate is not None, name
                assert answer.estimate.by_category["weights"] == 4 * MIB, name
                continue
            assert answer.problem is not None and refused[name] in answer.problem.message and answer.problem.remedy
            assert (answer.problem.remedy == install) == (name == "needy:build")
    finally:
        assert estimator.close(PATIENCE_S)


def test_the_process_that_predicts_steps_back_behind_a_run() -> None:
    target = {"device": "sim:0", "capacity_bytes": GIB, "free_bytes": GIB}
    estimator = Estimator()
    try:
        estimator.ask({"workload": "training", "spec": {"batch": 2}, "target": target, "alternatives": False})
        answer = estimator.wait(PATIENCE_S)
        assert answer is not None and answer.estimate is not None
        children = psutil.Process().children(recursive=True)
        found = [child.nice() for child in children if estimate_process.__name__ in child.cmdline()]
        assert found == [min(19, psutil.Process().nice() + estimate_process.NICENESS)]
    finally:
        assert estimator.close(PATIENCE_S)


def test_code_that_never_ends_is_stopped_at_the_time_limit(gpudash: Command, mine: Path) -> None:
    device = ("--device", "sim:0", "--simulate", "1GiB")
    outcome = gpudash("estimate", "--callable", "mine:endless", *device, "--time-limit", "1", "--json")
    assert outcome.code == 1
    assert outcome.document["error"]["kind"] == "time_limit"
    assert "--time-limit" in outcome.document["error"]["remedy"]


def test_ctrl_c_ends_the_prediction_and_leaves_no_process(home: Path, mine: Path) -> None:
    arguments = ("estimate", "--callable", "mine:endless", "--device", "sim:0", "--simulate", "1GiB", "--json")
    process = start_python(home, "-m", "gpudash", *arguments)
    marker = mine / "endless.pid"
    while not (marker.exists() and marker.read_text()):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"ended by itself: {process.communicate()}")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert document["status"] == "cancelled"
    assert document["error"]["kind"] == "interrupted"
    predictor = Path(f"/proc/{marker.read_text()}/stat")
    assert not predictor.exists() or predictor.read_text().rpartition(")")[2].split()[0] in "ZX"

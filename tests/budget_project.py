"""A small project as others have one, whose tests have budgets of GPU memory, and pytest run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SETTINGS = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--strict-config"]
filterwarnings = ["error"]
pythonpath = ["."]
"""

TRAINING = """
import os

import torch
from torch import nn

BATCH = int(os.environ.get("BATCH", "64"))


def train(device, batch=BATCH, steps=2):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        inputs = torch.ones(batch, 256, device=device)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()


def outputs(device):
    return [torch.ones(64 * 2**18, device=device) for _ in range(4)]
"""

BUDGETS = """
import pytest
import torch

from training import outputs, train


@pytest.mark.gpu_memory("512MiB")
def test_a_step_fits(gpu_memory):
    with gpu_memory.measure("training") as piece:
        train(gpu_memory.device)
    assert 0 < piece.peak_bytes == gpu_memory.peak_bytes < 2**29


@pytest.mark.gpu_memory("512MiB")
def test_four_outputs_are_too_many():
    outputs(torch.accelerator.current_accelerator())


@pytest.mark.gpu_memory("h100")
def test_a_card_by_its_name(gpu_memory):
    assert "H100" in torch.get_device_module(gpu_memory.device).get_device_name()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device=gpu_memory.device)
    torch.ones(2**20, device=gpu_memory.device)


@pytest.fixture(scope="module")
def weights():
    return torch.ones(2**20, device="sim")


@pytest.mark.gpu_memory("400MiB")
def test_what_a_fixture_of_the_module_holds_counts(weights, gpu_memory):
    assert gpu_memory.peak_bytes >= 4 * 2**20


@pytest.mark.gpu_memory("500MiB")
def test_also_in_the_next_test_on_a_card_of_another_size(weights, gpu_memory):
    assert gpu_memory.peak_bytes >= 4 * 2**20
    assert torch.sim.mem_get_info()[1] == 500 * 2**20
    (weights + 1).sum()


def test_a_fixture_alone_measures(gpu_memory):
    torch.ones(2**20, device=gpu_memory.device)
    torch.sim.reset_peak_memory_stats()
    assert gpu_memory.peak_bytes >= 2**22 and gpu_memory.budget_bytes is None


@pytest.mark.gpu_memory("1GiB")
def test_on_the_cpu_nothing_is_measured():
    train("cpu")


@pytest.mark.gpu_memory("8 apples")
def test_of_no_size():
    raise AssertionError("ran all the same")


@pytest.mark.gpu_memory("8GiB")
@pytest.mark.skip(reason="not now")
def test_left_out():
    raise AssertionError("ran all the same")
"""

EVALUATION = """
import pytest
import torch
from torch import nn


def evaluate(model, device):
    found = []
    for _batch in range(60):
        found.append(model(torch.ones(4096, 64, device=device)))
    return torch.cat(found).mean()


@pytest.mark.gpu_memory("420MiB")
def test_evaluation(gpu_memory):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(gpu_memory.device)
    evaluate(model, gpu_memory.device)
"""

BASELINES = """
import pytest

from training import train


@pytest.mark.gpu_memory("8GiB", baseline="memory.json", tolerance="2%")
def test_training(gpu_memory):
    train(gpu_memory.device)


@pytest.mark.gpu_memory(baseline="memory.json")
def test_short_training(gpu_memory):
    train(gpu_memory.device, batch=8, steps=1)
"""

AS_CUDA = """
import pytest
import torch

from training import train

FOUND = torch.cuda.is_available()


@pytest.mark.gpu_memory("512MiB")
def test_code_that_says_cuda(gpu_memory, request):
    train("cuda")
    assert FOUND and gpu_memory.device == torch.device("cuda:0")
    assert torch.cuda.max_memory_allocated() == gpu_memory.peak_bytes
    assert torch.cuda.get_device_properties(0).total_memory == 2**29


@pytest.mark.gpu_memory("512MiB", as_cuda=True)
def test_code_that_says_cuda_where_the_mark_says_so(gpu_memory):
    train(torch.device("cuda"))
    assert torch.ones(1, device=gpu_memory.device).is_cuda


@pytest.mark.gpu_memory("400MiB", as_cuda=True)
def test_too_much_for_cuda():
    kept = [torch.ones(16 * 2**18, device="cuda") for _ in range(9)]


def test_without_a_mark():
    assert torch.cuda.is_available() is FOUND
"""

PLAIN = """
import sys

HEAVY = ("torch", "numpy", "pydantic", "gpudash.simulator", "gpudash.memory", "gpudash.telemetry", "gpudash.devices")


def test_nothing_was_imported():
    assert [name for name in HEAVY if name in sys.modules] == []


def test_the_plug_in(request):
    assert request.config.pluginmanager.has_plugin("gpudash") is not request.config.getoption("without", False)
"""

WITHOUT = """
def pytest_addoption(parser):
    parser.addoption("--without", action="store_true")
"""


class Project:
    """The files in a folder.

    Args:
        folder: an empty one.
        tests: by the name of the file, its text.
    """

    def __init__(self, folder: Path, **tests: str) -> None:
        self.folder = folder / "project"
        self._installed = folder / "installed"
        (self.folder / "tests").mkdir(parents=True)
        (self.folder / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
        (self.folder / "training.py").write_text(TRAINING, encoding="utf-8")
        (self.folder / "conftest.py").write_text(WITHOUT, encoding="utf-8")
        for name, text in tests.items():
            (self.folder / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")
        # an editable installation may be older than the entry point, and a checkout has none
        about = self._installed / "gpudash_of_this_checkout-0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gpudash-of-this-checkout\nVersion: 0\n")
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
        lines = [f"{name} = {value}" for name, value in declared["pytest11"].items()]
        (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]), encoding="utf-8")

    def run(self, *options: str, **variables: str) -> tuple[int, str]:
        """pytest's exit code, and what it prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        paths = [str(self._installed), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        others = ("cacheprovider", "pytest-qt", "hypothesispytest", "anyio")
        command = [sys.executable, "-m", "pytest", *(f"-pno:{name}" for name in others), *options]
        done = subprocess.run(
            command, cwd=self.folder, env={**environment, **variables}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

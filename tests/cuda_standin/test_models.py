"""Small models by their configs, alone and over two ranks: predicted peaks against those of torch's CUDA allocator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.simulator.models import library_trainings, recipe_trainings
from tests.unit.simulator.models.rank_models import COUNT, WAYS
from tests.unit.simulator.models.small_models import cases

pytestmark = pytest.mark.timeout(600)  # the first one waits for all models to be followed and run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def peaks() -> dict[str, dict[str, int]]:
    """Predicted, and allocated on ``cuda:0``, of every case."""
    return {how[0]: told(started("small_models", *how)) for how in (["predicted", card()], ["allocated"])}


@pytest.fixture(scope="module")
def rank_peaks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """Predicted of the first of two ranks, and allocated by each on its GPU, of every way."""
    if torch.cuda.device_count() < COUNT:
        pytest.skip("needs as many GPUs as ranks")
    meeting = str(tmp_path_factory.mktemp("ranks") / "meeting")
    ranks = [started("rank_models", "allocated", str(rank), meeting) for rank in range(COUNT)]
    return [told(process) for process in (started("rank_models", "predicted", card()), *ranks)]


def card() -> str:
    """The compute capability and the multiprocessors of the first GPU."""
    about = torch.cuda.get_device_properties(0)
    return f"{about.major},{about.minor},{about.multi_processor_count}"


def started(module: str, *how: str) -> subprocess.Popen[str]:
    """A process that finds peaks out."""
    command = [sys.executable, "-m", f"tests.unit.simulator.models.{module}", *how]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> Any:
    """What it has printed."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("case", [f"{name}: {way}" for name, way in cases()])
def test_a_model_allocates_what_was_predicted(case: str, peaks: dict[str, dict[str, int]]) -> None:
    predicted, allocated = peaks["predicted"][case], peaks["allocated"][case]
    assert abs(allocated - predicted) <= 0.01 * allocated


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_of_a_model_allocates_what_was_predicted(way: str, rank_peaks: list[dict[str, int]]) -> None:
    predicted, *allocated = (peaks[way] for peaks in rank_peaks)
    assert len(allocated) == COUNT
    for rank in allocated:
        assert abs(rank - predicted) <= 0.01 * rank


def test_trainings_of_libraries_allocate_what_was_written_down() -> None:
    if not torch.__version__.startswith("2.13") or torch.cuda.get_device_capability() != (8, 0):
        pytest.skip("written down for torch 2.13 on a card of 8.0")
    assert library_trainings.every_one_allocated() == library_trainings.ALLOCATED
    recipes = told(started("recipe_trainings", "allocated"))
    # Those of bitsandbytes are among them where it is installed, which the pinned packages leave out.
    assert recipes == {name: recipe_trainings.ALLOCATED[name] for name in recipes}
    assert recipes.keys() >= recipe_trainings.WAYS.keys() - set(recipe_trainings.OF_BITSANDBYTES)

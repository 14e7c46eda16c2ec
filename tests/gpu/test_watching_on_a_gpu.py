"""Watching changes nothing about how a program ends; all programs: ``python -m tests.gpu.watching``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import watched_programs, watching

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", watched_programs.SOME)
def test_a_watched_program_ends_as_it_does_alone(name: str, tmp_path: Path) -> None:
    if watched_programs.RANKS.get(name, 1) > torch.cuda.device_count():
        pytest.skip("needs as many GPUs as ranks")
    assert watching.watched(name, tmp_path) == watching.alone(name, tmp_path)

"""After an out-of-memory on a card of the stand-in the need of the whole run is a figure, with which it runs whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.telemetry.explanation import explanation_from_json
from gpudash.units import MIB
from tests.cuda_standin.machine import Machine
from tests.end_to_end.out_of_memory.kinds import FOLDER

PROGRAM = "state_of_the_optimizer.py"


def watched(folder: Path, size_mib: int, *flags: str) -> dict[str, Any]:
    """The JSON document of ``gpudash watch`` on a card of this size."""
    here = Machine.here()
    settings = {"CUDA_STANDIN_CONTEXT": "300M"}
    machine = Machine(here.libraries, folder.parent / f"board-{size_mib}", memory=f"{size_mib}M", settings=settings)
    command = [sys.executable, "-m", "gpudash", "watch", "--no-record", "--json", *flags]
    done = subprocess.run(
        [*command, "--", sys.executable, PROGRAM],
        cwd=folder,
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(600)
def test_the_need_is_found_without_numbers_and_is_enough_and_an_edit_was_tried(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(FOLDER / PROGRAM, folder)
    ran_out = watched(folder, 768)
    found = explanation_from_json(ran_out["error"]["explanation"])
    assert not found.simulated and found.device == "cuda:0"
    need = found.need
    assert need is not None and need.is_whole, found.remedies_note
    assert need.found_by == "rerun without numbers"
    edit = found.remedies[0]
    assert edit.patch and edit.fits and edit.verified_by == "rerun without numbers"
    assert [path.name for path in folder.iterdir()] == [PROGRAM]
    larger = watched(folder, 24 * 1024)
    assert need.peak_allocated_bytes == pytest.approx(larger["memory"]["peak_allocated_bytes"], rel=0.001)
    assert watched(folder, -(-need.capacity_bytes // MIB))["status"] == "finished"
    assert watched(folder, need.capacity_bytes // MIB - 4, "--no-find-need")["status"] == "out_of_memory"

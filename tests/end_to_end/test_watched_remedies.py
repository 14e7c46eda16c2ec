"""What a watched program is advised after an out-of-memory, done: it runs to its end, or less was promised."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpudash.memory.predicting.architecture import USUAL_WORKSPACE_BYTES, WORKSPACE_VARIABLE
from gpudash.telemetry.explanation import Explanation, explanation_from_json
from gpudash.units import MIB
from tests.end_to_end.conftest import Command

SCRIPTS = Path(__file__).parent / "watched_scripts"


def watched(
    gpudash: Command,
    script: str,
    mib: int,
    settings: str = "",
    *,
    flags: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Explanation | None:
    """What is said of a program on a simulated GPU of so many MiB; ``None`` when it ran to its end."""
    program = (sys.executable, str(SCRIPTS / script), *arguments)
    variables = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else environment
    outcome = gpudash("watch", "--simulate", f"{mib}MiB", *flags, "--json", "--", *program, env=variables)
    found = outcome.document
    assert found["status"] in ("finished", "out_of_memory"), outcome.stderr
    return None if found["status"] == "finished" else explanation_from_json(found["error"]["explanation"])


@pytest.mark.table
@pytest.mark.parametrize(("script", "mib"), [("convolutions.py", 560), ("decoder.py", 1020)])
def test_what_is_said_to_fit_runs_to_its_end(gpudash: Command, tmp_path: Path, script: str, mib: int) -> None:
    copy = shutil.copy(SCRIPTS / script, tmp_path)
    in_its_folder = ("--folder", str(tmp_path))
    found = watched(gpudash, copy, mib, flags=in_its_folder)
    assert found is not None and found.step == 2
    fitting = [remedy for remedy in found.remedies if remedy.fits]
    assert any("for PyTorch" in remedy.change for remedy in fitting)
    beside = found.part_bytes("context") // MIB
    assert any(remedy.flags.startswith(WORKSPACE_VARIABLE) for remedy in found.remedies if remedy.verified_by)
    for remedy in fitting:
        if remedy.flags.startswith(WORKSPACE_VARIABLE):
            assert watched(gpudash, script, mib, environment={WORKSPACE_VARIABLE: ":16:8"}) is None
            continue
        if remedy.patch:
            subprocess.run(["patch", "-p0", "-s"], cwd=tmp_path, input=remedy.patch, text=True, check=True, timeout=60)
            assert watched(gpudash, copy, mib, flags=in_its_folder) is None
            continue
        size = mib if remedy.allocator else beside + int(remedy.change.split()[0])
        assert watched(gpudash, script, size, remedy.allocator) is None
    untried = [remedy.change[:10] for remedy in found.remedies if not remedy.verified_by]
    assert set(untried) <= {"half the b", "activation", "bf16 autoc"}


def test_of_a_first_step_that_nobody_saw_the_rest_of_no_more_is_said_than_at_least(gpudash: Command) -> None:
    found = watched(gpudash, "recurrent.py", 440, flags=("--no-find-need",))
    assert found is not None
    assert not any(remedy.fits for remedy in found.remedies)
    size = next(remedy.change for remedy in found.remedies if "for PyTorch" in remedy.change)
    assert size.startswith("at least ")
    assert "the rest of the step may need more" in found.remedies_note
    assert "--simulate 24GiB" in found.remedies_note


@pytest.mark.parametrize(("flags", "device"), [((), "sim:0"), (("--as-cuda",), "cuda")], ids=["sim", "cuda"])
def test_what_cublas_works_in_is_called_that_and_a_smaller_one_is_offered_for_it(
    gpudash: Command, flags: tuple[str, ...], device: str
) -> None:
    found = watched(gpudash, "products.py", 330, flags=flags, arguments=(device,))
    assert found is not None
    assert found.by_category["workspace"] == found.requested_bytes == USUAL_WORKSPACE_BYTES
    assert found.by_category["activations"] < 5 * MIB
    assert found.request_words.startswith("The last request was 9 MiB for the workspace of cuBLAS (")
    smaller = found.remedies[0]
    assert smaller.flags == f"{WORKSPACE_VARIABLE}=:16:8" and smaller.fits
    assert smaller.verified_by == "rerun without numbers"
    variables = {WORKSPACE_VARIABLE: ":16:8"}
    assert watched(gpudash, "products.py", 330, flags=flags, arguments=(device,), environment=variables) is None


def test_a_batch_that_the_command_gives_is_made_smaller_in_the_command(gpudash: Command) -> None:
    found = watched(gpudash, "batch_option.py", 420, arguments=("--batch-size=8192",))
    assert found is not None
    first = found.remedies[0]
    assert first.fits and first.verified_by == "rerun without numbers"
    assert first.change.startswith("--batch-size: a batch of 2048 in place of 8192")
    assert first.command[-1] == "--batch-size=2048"
    assert gpudash("watch", "--simulate", "420MiB", "--json", "--", *first.command).document["status"] == "finished"

"""After an out-of-memory on a simulated GPU the need of the whole run is a figure, with which it runs to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.telemetry.explanation import Explanation, explanation_from_json
from gpudash.units import MIB
from tests.end_to_end.conftest import Outcome, environment, run_python

SCRIPTS = Path(__file__).parent / "watched_scripts"

Watch = Callable[..., Outcome]


@pytest.fixture
def watch(home: Path, tmp_path: Path) -> Watch:
    """Run ``gpudash watch`` on a simulated GPU that answers for CUDA, in a folder that is empty at first."""
    folder = tmp_path / "project"
    folder.mkdir()

    def command(script: str, *arguments: str, capacity: int, flags: tuple[str, ...] = ()) -> Outcome:
        card = ("--simulate", f"{capacity // MIB}MiB", "--as-cuda", "--folder", str(folder))
        program = (sys.executable, str(SCRIPTS / script), *arguments)
        done = run_python(home, "-m", "gpudash", "watch", *card, *flags, "--json", "--", *program)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return command


def explained(outcome: Outcome) -> Explanation:
    return explanation_from_json(outcome.document["error"]["explanation"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("where", "capacity", "line"),
    [
        ("backward", 342 * MIB, "loss.backward()"),
        ("optimizer", 456 * MIB, "optimizer.step()"),
        ("evaluation", 324 * MIB, "loss = model(inputs).square().mean()"),
    ],
)
def test_the_need_that_is_found_is_the_peak_of_the_whole_run_and_the_program_runs_with_just_that(
    watch: Watch, tmp_path: Path, where: str, capacity: int, line: str
) -> None:
    ran_out = watch("needs.py", where, capacity=capacity, flags=("--find-need",))
    found = explained(ran_out)
    need = found.need
    assert found.where.text == line
    assert need is not None and need.is_whole, found.remedies_note
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == ["log.txt"]
    assert (tmp_path / "project" / "log.txt").read_text() == "begun\n"  # by the run that failed alone
    larger = watch("needs.py", where, capacity=24 * 1024 * MIB)
    _, allocated, reserved = next(line for line in larger.stderr.splitlines() if line.startswith("peak ")).split()
    assert need.peak_allocated_bytes == pytest.approx(int(allocated), rel=0.001)
    assert need.peak_reserved_bytes == pytest.approx(int(reserved), rel=0.001)
    first = next(remedy for remedy in found.remedies if " of the card (" in remedy.change)
    assert first.fits and first.verified_by == need.found_by == "rerun without numbers"
    assert not any(remedy.change.startswith("at least") for remedy in found.remedies)
    assert watch("needs.py", where, capacity=need.capacity_bytes).document["status"] == "finished"
    assert need.capacity_bytes - need.peak_reserved_bytes < CONTEXT_BYTES + 2 * MIB, "with a segment less it would not"


def test_where_the_need_is_not_found_a_bound_is_told_as_one(watch: Watch) -> None:
    found = explained(watch("needs.py", "backward", capacity=322 * MIB, flags=("--no-find-need",)))
    assert found.need is None
    assert any(remedy.change.startswith("at least") for remedy in found.remedies)


def test_a_program_that_ends_otherwise_when_it_is_run_again_has_no_need_and_a_sentence_says_why(
    watch: Watch, tmp_path: Path
) -> None:
    (tmp_path / "project" / "once.py").write_text(ONCE)
    found = explained(watch(str(tmp_path / "project" / "once.py"), capacity=322 * MIB, flags=("--find-need",)))
    assert found.need is None
    assert "run again without network and lasting files, the program ended with RuntimeError" in found.remedies_note


ONCE = """\
from pathlib import Path
import torch
mark = Path("mark")
if mark.exists():
    raise RuntimeError("only once")
mark.touch()
held = torch.empty(10 * 2**20, device="cuda")
"""


def test_a_program_that_decides_by_numbers_is_run_again_with_them_and_the_figure_says_so(
    watch: Watch, tmp_path: Path
) -> None:
    (tmp_path / "project" / "decides.py").write_text(DECIDES)
    found = explained(watch(str(tmp_path / "project" / "decides.py"), capacity=342 * MIB))
    need = found.need
    assert need is not None and need.found_by == "rerun", found.remedies_note
    assert need.peak_allocated_bytes == 80 * MIB
    assert "on a larger simulated GPU" in found.remedies_note


DECIDES = """\
import torch
held = torch.ones(5 * 2**20, device="cuda")
if held.sum().item() > 7:
    held = held * 2, torch.empty(5 * 2**20, device="cuda"), held
    more = torch.empty(5 * 2**20, device="cuda")
"""


def test_an_interruption_leaves_the_search_and_the_exit_code_is_the_program_s(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    card = ("--simulate", "322MiB", "--as-cuda", "--folder", str(tmp_path), "--find-need", "--no-record")
    command = [sys.executable, "-m", "gpudash", "watch", *card, "--", sys.executable, str(script)]
    with subprocess.Popen(
        command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        said = next(line for line in running.stderr if "Finding out what would have fit" in line)
        assert "Ctrl+C leaves it" in said
        os.kill(running.pid, signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait() == 7
    assert "What the whole run needs is not known: the search was stopped." in rest


ENDLESS = """\
import os, sys, time
import torch
if os.path.exists("ran"):
    time.sleep(1000)
open("ran", "w").close()
try:
    torch.empty(10 * 2**20, device="cuda")
except torch.OutOfMemoryError:
    sys.exit(7)
"""

"""Out-of-memories as the commands explain them, and what comes of following their advice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from gpudash.session import Replay
from gpudash.telemetry.explanation import explanation_from_json
from gpudash.telemetry.records import plain
from gpudash.units import GIB, MIB
from tests.end_to_end.conftest import Command

CARD = ("--device", "sim:0", "--simulate", "2GiB")
RAMP = ("run", "pressure", *CARD, "--pattern", "ramp", "--rate", "30")
TRIED = 2
"""Remedies of a training that are tried; each is a whole command."""

LEARN = ("--width", "64", "--sequence", "256", "--steps", "2")
TRAINING = ("run", "training", "--device", "sim:0", "--simulate", "768MiB", *LEARN, "--batch", "128")


def finishes_with(gpudash: Command, command: tuple[str, ...], remedy: dict[str, Any]) -> bool:
    """Whether a command does, with a remedy's flags in place of its own."""
    words = list(command)
    for name in remedy["fields"]:
        flag = f"--{name.replace('_', '-')}"
        if flag in words:
            place = words.index(flag)
            del words[place : place + 2]
    return gpudash(*words, *shlex.split(remedy["flags"]), "--json", "--no-record").code == 0


def test_a_ramp_to_the_end_is_explained_and_its_remedies_finish(gpudash: Command, tmp_path: Path) -> None:
    path = tmp_path / "ramp.gpudash"
    ended = gpudash(*RAMP, "--until", "oom", "--json", "--record", str(path))
    document = ended.document
    assert (ended.code, document["status"], document["error"]["kind"]) == (3, "out_of_memory", "sim")
    assert (document["device"], document["simulated"]) == ("sim:0", True)
    assert document["memory"]["peak_used_bytes"] <= 2 * GIB
    found = explanation_from_json(document["error"]["explanation"])
    assert found.verdict == "leak" and found.owners[0].text.startswith("held.append(")
    assert sum(part.bytes for part in found.parts) == found.capacity_bytes == 2 * GIB
    assert any("pressure.py:" in warning for warning in document["warnings"])
    appliable = [remedy for remedy in document["error"]["explanation"]["remedies"] if remedy["fields"]]
    assert appliable
    assert all(finishes_with(gpudash, RAMP, remedy) for remedy in appliable)
    reopened = Replay(path).store.run
    assert reopened is not None and reopened.error is not None
    assert reopened.error.explanation is not None
    assert plain(reopened.error.explanation) == document["error"]["explanation"]


def test_a_training_that_is_too_large_is_explained_and_its_remedies_finish(
    gpudash: Command,
) -> None:
    ended = gpudash(*TRAINING, "--json", "--no-record")
    assert ended.code == 3
    told = ended.document["error"]["explanation"]
    assert told["verdict"] == "real capacity" and told["headline"].startswith("Memory was full of activations")
    appliable = [remedy for remedy in told["remedies"] if remedy["fields"] and not remedy["device"]]
    assert len(appliable) >= TRIED
    assert all(remedy["predicted_peak_bytes"] < 768 * MIB for remedy in appliable)
    assert all(finishes_with(gpudash, TRAINING, remedy) for remedy in appliable[:TRIED])


def test_the_terminal_tells_the_cause_before_anything_else(gpudash: Command) -> None:
    ended = gpudash("run", "pressure", *CARD, "--pattern", "fragmentation", "--until", "oom", "--rate", "1000")
    assert ended.code == 3
    lines = ended.stdout.splitlines()
    assert "out of memory" in lines[0]
    assert "is idle inside PyTorch but in pieces" in lines[1]
    assert lines[2].startswith("The last request was")
    for title in ("This would have fit", "What filled it", "Who allocated it"):
        assert title in lines
    assert any("--until cap --cap" in line and "by dry run" in line for line in lines)
    assert not any("expandable segments" in line for line in lines), "the run would only have gone on to the end"
    assert any(line.startswith("Evidence:") for line in lines)

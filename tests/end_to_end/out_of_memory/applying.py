"""Runs a kind under ``gpudash watch``, applies the first remedy as it is written, and runs it again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudash.memory.explaining.remedies import ALONE
from gpudash.telemetry.explanation import Explanation, Remedy, explanation_from_json
from gpudash.units import GIB, KIB, MIB
from tests.end_to_end.out_of_memory.kinds import Kind

LIMIT_S = 300.0

_SETTING = re.compile(r"([A-Z_]+)=(\S+)")
_OF_CARD = re.compile(r"([\d.]+) (KiB|MiB|GiB) of the card")
_FOR_PYTORCH = re.compile(r"([\d.]+) (KiB|MiB|GiB) for PyTorch")
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True)
class Setup:
    """How a program is run.

    Attributes:
        program: its file.
        card_bytes, others_bytes: of the card, and what other processes hold of it.
        environment: variables in addition.
        python: that runs it; by default this one, on a simulated card that answers for CUDA.
    """

    program: Path
    card_bytes: int
    others_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def run(self, base: Mapping[str, str]) -> dict[str, Any]:
        """The JSON document of ``gpudash watch``."""
        flags = ["--no-record", "--json", "--simulate", f"{self.card_bytes}B", "--as-cuda"]
        flags += ["--simulate-others", f"{self.others_bytes}B"] if self.others_bytes else []
        command = [sys.executable, "-m", "gpudash", "watch", *flags, "--", self.python, str(self.program)]
        ended = subprocess.run(
            command,
            cwd=self.program.parent,
            env={**base, **self.environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        document: dict[str, Any] = json.loads(ended.stdout)
        return document


@dataclass(frozen=True)
class Tried:
    """What came of a kind.

    Attributes:
        kind: it.
        found: why it ran out; ``None`` where that was not explained.
        cause_is_right: whether the headline says what it has to.
        remedy: the first; ``None`` without any.
        how: it was applied: "edit", "variable", "card" or "alone"; "" where it could not be.
        runs: whether the program then ran to its end.
        problem: why not, in a sentence.
    """

    kind: Kind
    found: Explanation | None
    cause_is_right: bool
    remedy: Remedy | None
    how: str = ""
    runs: bool = False
    problem: str = ""


def tried(kind: Kind, folder: Path, environment: Mapping[str, str]) -> Tried:
    """Run a kind, and again with its first remedy.

    Args:
        folder: for a copy of the program, an empty one.
        environment: in which gpudash runs.
    """
    program = folder / kind.program.name
    shutil.copy(kind.program, program)
    setup = Setup(program, kind.card_bytes, kind.others_mib * MIB)
    document = setup.run(environment)
    error = document.get("error") or {}
    if document["status"] != "out_of_memory" or not error.get("explanation"):
        return Tried(kind, None, False, None, problem=f"It {document['status']}: {error.get('message', '')}")
    found = explanation_from_json(error["explanation"])
    is_right = re.search(kind.cause, found.headline) is not None
    if not found.remedies:
        return Tried(kind, found, is_right, None, problem="No remedy is offered.")
    remedy = found.remedies[0]
    changed = applied(remedy, setup, found)
    if changed is None:
        return Tried(kind, found, is_right, remedy, problem="It cannot be applied as it is written.")
    again, how = changed
    ended = again.run(environment)
    message = (ended.get("error") or {}).get("message", "")
    return Tried(kind, found, is_right, remedy, how, ended["status"] == "finished", message)


def applied(remedy: Remedy, setup: Setup, found: Explanation) -> tuple[Setup, str] | None:
    """How a program is run with a remedy, as it is written, and what kind of change that is."""
    if remedy.patch:
        _patch(remedy.patch, setup.program.parent)
        return setup, "edit"
    setting = _SETTING.fullmatch(remedy.flags)
    if setting is not None:
        return replace(setup, environment={setting[1]: setting[2]}), "variable"
    if remedy.change.startswith(ALONE):
        return replace(setup, others_bytes=0), "alone"
    size = _size(_OF_CARD, remedy.change)
    if size is not None:
        return replace(setup, card_bytes=size), "card"
    size = _size(_FOR_PYTORCH, remedy.change)
    if size is not None:
        return replace(setup, card_bytes=size + found.part_bytes("context", "process")), "card"
    return None


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def _patch(patch: str, folder: Path) -> None:
    command: Sequence[str] = ("patch", "-p0", "--batch", "--forward")
    subprocess.run(command, input=patch, text=True, cwd=folder, check=True, capture_output=True)

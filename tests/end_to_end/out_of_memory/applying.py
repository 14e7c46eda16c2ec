"""Runs a kind under ``gpudash watch``, applies the first remedy as it is written, and runs it again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudash.memory.explaining.remedies import ALONE
from gpudash.memory.predicting.architecture import WORKSPACE_VARIABLE, workspace_bytes
from gpudash.telemetry.explanation import Explanation, Remedy, explanation_from_json
from gpudash.units import GIB, KIB, MIB
from tests.cuda_standin.machine import Machine
from tests.end_to_end.out_of_memory.kinds import Kind

LIMIT_S = 900.0
"""For a run with the reruns behind it, on a machine that may be busy."""

STANDIN_TORCH = "2.13.0"
"""The version for which the libraries of the stand-in are built beside its Python."""

CONTEXT_MIB = 300
"""Of a context, as a simulated card takes it too."""

_SETTING = re.compile(r"([A-Z_]+)=(\S+)")
_OF_CARD = re.compile(r"([\d.]+) (KiB|MiB|GiB) of the card")
_FOR_PYTORCH = re.compile(r"([\d.]+) (KiB|MiB|GiB) for PyTorch")
_TO = re.compile(r"(?:at most |fraction\()([\d,.]+\d)")
_IN_PLACE_OF = re.compile(r"(?:a batch of |num_beams=)?(\d+)(?: inner steps)? in place of (\d+)")
_OF_WORKSPACE = re.compile(r"a workspace of (\d+) (KiB|MiB|GiB) for cuBLAS")
_CARD = re.compile(r"a card with (\d+) GiB")
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True)
class Setup:
    """How a program is run.

    Attributes:
        program: its file.
        card_bytes, others_bytes: of the card, and what other processes hold of it.
        environment: variables in addition.
        standin: a Python with torch for CUDA, on whose stand-in it is run; "" for a simulated card.
    """

    program: Path
    card_bytes: int
    others_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    standin: str = ""

    def run(self, base: Mapping[str, str]) -> dict[str, Any]:
        """The JSON document of ``gpudash watch``."""
        flags = ["--no-record", "--json"]
        variables = {**base, **self.environment}
        if not self.standin:
            flags += ["--simulate", f"{self.card_bytes}B", "--as-cuda"]
            flags += ["--simulate-others", f"{self.others_bytes}B"] if self.others_bytes else []
            return self._watched(flags, sys.executable, variables)
        with _standin(self.standin, self.card_bytes) as machine:
            variables |= machine.environment
            with _other_process(self.standin, self.others_bytes, variables):
                return self._watched(flags, self.standin, variables)

    def _watched(self, flags: Sequence[str], python: str, variables: Mapping[str, str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "gpudash", "watch", *flags, "--", python, str(self.program)]
        ended = subprocess.run(
            command,
            cwd=self.program.parent,
            env=variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        document: dict[str, Any] = json.loads(ended.stdout)
        return document


@contextmanager
def _standin(python: str, card_bytes: int) -> Iterator[Machine]:
    """A machine with one card of the stand-in."""
    libraries = Path(python).parents[1] / f"cuda-standin-{STANDIN_TORCH}"
    with tempfile.TemporaryDirectory(prefix="cuda-standin-") as folder:
        settings = {"CUDA_STANDIN_CONTEXT": f"{CONTEXT_MIB}M"}
        yield Machine(libraries, Path(folder, "state"), memory=f"{-(-card_bytes // MIB)}M", settings=settings)


@contextmanager
def _other_process(python: str, size: int, variables: Mapping[str, str]) -> Iterator[None]:
    """Another process that holds so many bytes of the stand-in's card, its context among them; none for 0."""
    if not size:
        yield
        return
    held = size - CONTEXT_MIB * MIB
    code = f"import torch; x = torch.empty({held // 4}, device='cuda'); print(1, flush=True); input()"
    process = subprocess.Popen(
        [python, "-c", code], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Tried:
    """What came of a kind.

    Attributes:
        kind: it.
        found: why it ran out; ``None`` where that was not explained.
        cause_is_right: whether the headline says what it has to.
        remedy: the first; ``None`` without any.
        how: it was applied: "edit", "variable", "edit and variable", "card" or "alone"; "" where it could not be.
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


def tried(kind: Kind, folder: Path, environment: Mapping[str, str], standin: str = "") -> Tried:
    """Run a kind, and again with its first remedy.

    Args:
        standin: as of `Setup`.
        folder: for a copy of the program, an empty one.
        environment: in which gpudash runs.
    """
    program = folder / kind.program.name
    shutil.copy(kind.program, program)
    setup = Setup(program, kind.card_bytes, kind.others_mib * MIB, standin=standin)
    try:
        return _tried(kind, setup, environment)
    except subprocess.TimeoutExpired:
        return Tried(kind, None, False, None, problem=f"It did not end within {LIMIT_S:.0f} s.")


def _tried(kind: Kind, setup: Setup, environment: Mapping[str, str]) -> Tried:
    """Raises: subprocess.TimeoutExpired: it came to no end."""
    document = setup.run(environment)
    error = document.get("error") or {}
    if document["status"] != "out_of_memory" or not error.get("explanation"):
        return _told_at_the_end(kind, setup, environment, document)
    found = explanation_from_json(error["explanation"])
    is_right = re.search(kind.cause, found.headline) is not None
    if not found.remedies:
        return Tried(kind, found, is_right, None, problem="No remedy is offered.")
    remedy = found.remedies[0]
    differs = disagreement(remedy)
    if differs:
        return Tried(kind, found, is_right, remedy, problem=differs)
    changed = applied(remedy, setup, found)
    if changed is None:
        return Tried(kind, found, is_right, remedy, problem="It cannot be applied as it is written.")
    again, how = changed
    ended = again.run(environment)
    message = (ended.get("error") or {}).get("message", "")
    return Tried(kind, found, is_right, remedy, how, ended["status"] == "finished", message)


def _told_at_the_end(kind: Kind, setup: Setup, environment: Mapping[str, str], document: Mapping[str, Any]) -> Tried:
    """Of a program without an explanation, as where the driver has no room for its context: what its end says, done."""
    error = document.get("error") or {}
    message = f"{document['status']}: {error.get('message', '')}"
    is_right = document["status"] == "out_of_memory" and re.search(kind.cause, message) is not None
    if "end one of them" not in error.get("remedy", ""):
        return Tried(kind, None, is_right, None, problem=message)
    ended = replace(setup, others_bytes=0).run(environment)
    return Tried(kind, None, is_right, None, "alone", ended["status"] == "finished", message)


def disagreement(remedy: Remedy) -> str:
    """Where the words of a remedy have another figure, or another unit, than the change that was tried; "" nowhere."""
    lines = remedy.patch.splitlines()
    after = "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))
    before = "\n".join(line[1:] for line in lines if line.startswith("-") and not line.startswith("---"))
    if remedy.command:
        after += " ".join(remedy.command)
    for pattern, texts in ((_TO, (after,)), (_IN_PLACE_OF, (after, before))):
        match = pattern.search(remedy.change)
        if match is None or not after:
            continue
        for figure, text in zip(match.groups(), texts, strict=True):
            # of a command only the one with the change is known
            if text and figure.replace(",", "") not in re.findall(r"[\d.]+", text):
                return f"It says {figure}, and the change does not have that: {text}"
    workspace = _OF_WORKSPACE.search(remedy.change)
    setting = dict(_SETTING.findall(remedy.flags)).get(WORKSPACE_VARIABLE)
    if workspace is not None and setting is not None:
        size = int(workspace[1]) * _UNITS[workspace[2]]
        if size != workspace_bytes(setting):
            return f"It says {workspace[0]}, and {setting} is {workspace_bytes(setting)} bytes."
    card = _CARD.search(remedy.change)
    size_of_card = _size(_OF_CARD, remedy.change)
    if card is not None and size_of_card is not None and int(card[1]) * GIB < size_of_card:
        return f"The card that it names is smaller than what it says is needed: {remedy.change}"
    return ""


def applied(remedy: Remedy, setup: Setup, found: Explanation) -> tuple[Setup, str] | None:
    """How a program is run with a remedy, as it is written, and what kind of change that is."""
    settings = dict(_SETTING.findall(remedy.flags))
    if remedy.patch:
        _patch(remedy.patch, setup.program.parent)
        return replace(setup, environment=settings), "edit and variable" if settings else "edit"
    if settings:
        return replace(setup, environment=settings), "variable"
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

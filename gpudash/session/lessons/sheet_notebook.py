"""The sheet as a Jupyter notebook: each guess beside the outcome, and cells that run the same code again.

The format is nbformat 4.5 (https://nbformat.readthedocs.io/en/latest/format_description.html). What the learner wrote
goes into code cells, and into text cells as code, where Markdown and HTML have no effect.
"""

from __future__ import annotations

import ast
import json
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudash.session.demo.scenes import Act, LinesAct, RungAct, Scene
from gpudash.session.lessons.lessons import Lesson
from gpudash.session.lessons.sheet import KeptGuess, Sheet
from gpudash.specs import ComparisonSpec, Spec
from gpudash.specs.invalid import flag
from gpudash.specs.model import ModelSpec
from gpudash.telemetry.export.writing import atomically
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.units import MIB

ABOUT = """\
# Lessons in GPU memory

Each lesson of `gpudash lesson` asks for a guess, then shows what comes. Below are the guesses beside what came, and
cells that run the same once more: change them, guess again, and run them.

The GPU of these cells is **simulated**: the CPU computes, with real numbers, and memory is counted as a GPU's allocator
counts it. Times are the CPU's. What is called predicted was computed without running anything."""

SETUP = '''\
try:
    import gpudash
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "gpudash is not installed here. Run this in a cell: %pip install gpudash "
        "- then restart the kernel and run all cells."
    ) from None
import sys

import torch
from torch import nn

gpudash.simulate("8GiB")
gpu = torch.device("sim:0")
MIB = 2**20


def measured(lines, limit):
    """Run lines and say what they took of the simulated GPU, where the lesson's had `limit` MiB."""
    torch.manual_seed(0)
    kept = None
    try:
        with gpudash.measure() as found:
            kept = lines()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return
    peak = (found.peak_bytes - found.began_bytes) / MIB
    end = found.allocated_bytes[-1] if len(found.allocated_bytes) else found.began_bytes
    print(f"Peak {peak:,.0f} MiB, {(end - found.began_bytes) / MIB:,.0f} MiB kept; simulated.")
    if peak > limit:
        print(f"The card of the lesson has {limit} MiB: there it runs out of memory.")'''


def notebook(lessons: Sequence[Lesson], sheet: Sheet) -> str:
    """Lessons as a notebook, in JSON.

    Args:
        lessons: in order.
        sheet: the guesses made in them.
    """
    cells = [_text(ABOUT), _code(SETUP)]
    for lesson in lessons:
        kept = sheet.of(lesson)
        cells.append(_text(f"## {lesson.title}\n\n{lesson.about}."))
        for scene in lesson.scenes:
            cells.append(_text(_question_text(scene, kept.get(scene.title))))
            cells += list(map(_code, _codes(scene, kept.get(scene.title))))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    written = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(written, indent=1, ensure_ascii=False)


def write_notebook(out: Path, lessons: Sequence[Lesson], sheet: Sheet, *, force: bool = False) -> None:
    """Write the notebook to a file, whole or not at all.

    Args:
        out: must end in ``.ipynb``.
        lessons: as for `notebook`.
        sheet: as for `notebook`.
        force: whether the file may already exist.

    Raises:
        RecordingError: one sentence, when the file must not or cannot be written.
    """
    if out.suffix != ".ipynb":
        raise RecordingError(f"{out} is not the name of a notebook; end it in .ipynb")
    with atomically(out, force=force) as part:
        part.write_text(notebook(lessons, sheet), encoding="utf-8")


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def _question_text(scene: Scene, kept: KeptGuess | None) -> str:
    """The question, and what the sheet says about it."""
    found = [f"### {scene.title}"]
    question = scene.question("sim")
    if question is not None:
        found.append(question.text)
        if question.choices:
            found.append("\n".join(f"{number}. {choice}" for number, choice in enumerate(question.choices, 1)))
    if kept is None:
        found.append("| your guess | what came |\n|---|---|\n| – | run the cell |")
    else:
        came = kept.came or "run the cell"
        found.append(f"| your guess | what came |\n|---|---|\n| {_cell(kept.guess)} | {_cell(came)} |")
    if question is not None and question.why and kept is not None and kept.came:
        found.append(f"*{question.why}*")
    return "\n\n".join(found)


def _cell(text: str) -> str:
    """Text from the sheet for a Markdown table: as code, where only a backtick and a bar have a meaning."""
    return f"`{' '.join(text.replace('`', ' ').replace('|', ' ').split()) or ' '}`"


def _codes(scene: Scene, kept: KeptGuess | None) -> list[str]:
    """The cells that run a scene: one for each of its lines acts, one for all other acts."""
    found = []
    commands = []
    for act in scene.acts:
        if isinstance(act, LinesAct):
            source = act.source
            if scene.editable and kept is not None and kept.source:
                source = kept.source
            found.append(_lines(source, act))
        else:
            commands.append(_command(act))
    if commands:
        found.append("\n".join(commands))
    return found


def _lines(source: str, act: LinesAct) -> str:
    """Lines as a function, so that its local tensors are released, and a call that measures it."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return "# These lines are no Python yet:\n" + textwrap.indent(source, "# ", lambda _line: True)
    body = textwrap.indent(source, "    ")
    return f"def lines():\n{body}\n    return locals()\n\n\nmeasured(lines, {act.limit // MIB})"


def _command(act: Act) -> str:
    """The command that repeats an act."""
    assert not isinstance(act, LinesAct)
    spec = act.spec
    arguments = ["run", spec.name]
    if isinstance(act, RungAct):
        assert isinstance(spec, ModelSpec)
        arguments = ["estimate", "--model", "gpt2", "--simulate", "4GiB", "--no-alternatives"]
    elif not isinstance(spec, ComparisonSpec):
        arguments += ["--device", "cpu"] if act.where == "cpu" else ["--simulate", "8GiB"]
    arguments += _flags(spec)
    if not isinstance(act, RungAct):
        arguments += ["--no-record", "--quiet"]
    return f"!{{sys.executable}} -m gpudash {shlex.join(arguments)}"


def _flags(spec: Spec) -> list[str]:
    """The fields that differ from the defaults, as flags."""
    arguments = []
    changed = spec.model_dump(exclude_defaults=True)
    changed.pop("path", None)  # for a model: the command names it
    changed.update(changed.pop("fields", {}))  # for a comparison: the workload's own fields
    for name, value in changed.items():
        if value is True:
            arguments.append(flag(name))
        else:
            arguments += [flag(name), str(value)]
    return arguments

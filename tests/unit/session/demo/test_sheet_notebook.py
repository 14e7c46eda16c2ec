"""The sheet as a notebook: it is one, its cells are Python, and a kernel runs them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from gpudash.session.lessons.lessons import Lesson, find_lesson, lessons
from gpudash.session.lessons.sheet import Sheet
from gpudash.session.lessons.sheet_notebook import SETUP, notebook, write_notebook
from gpudash.telemetry.recording.recorder import RecordingError

DEVICES = find_lesson("devices")


def guessed(lesson: Lesson, path: Path) -> Sheet:
    """A sheet with a guess in every scene, wrong in the first."""
    sheet = Sheet(path)
    for scene in lesson.scenes:
        question = scene.question("sim")
        assert question is not None
        sheet.note(lesson, scene, question, 0.0, 1.0)
    return sheet


def cells(written: str, kind: str) -> list[str]:
    return [cell["source"] for cell in json.loads(written)["cells"] if cell["cell_type"] == kind]


def test_all_lessons_make_a_valid_notebook_whose_cells_are_python_or_commands(tmp_path: Path) -> None:
    written = notebook(lessons(), guessed(DEVICES, tmp_path / "s.json"))
    nbformat.validate(nbformat.reads(written, as_version=4))
    for source in cells(written, "code"):
        lines = source.splitlines()
        if lines[0].startswith("!"):
            assert all(line.startswith("!{sys.executable} -m gpudash ") for line in lines)
        else:
            compile(source, "cell", "exec")
    words = "\n".join(cells(written, "markdown"))
    assert all(lesson.title in words for lesson in lessons())
    assert "**simulated**" in words and "| `On the GPU` | `Still on the CPU` |" in words
    assert "| – | run the cell |" in words, "of what was not guessed"


def test_without_gpudash_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpudash", None)
    with pytest.raises(ModuleNotFoundError, match="%pip install gpudash"):
        exec(compile(SETUP, "setup", "exec"), {})


def test_the_learner_s_own_lines_are_in_their_cell_and_what_is_no_python_is_a_comment(tmp_path: Path) -> None:
    own = DEVICES.scenes[-1]
    question, act = own.question("sim"), own.editable_lines
    assert question is not None and act is not None
    sheet = Sheet(tmp_path / "s.json")
    for source, expected in (("a = 7\nb = a", "def lines():\n    a = 7\n    b = a\n"), ("a = (", "# a = (")):
        sheet.note(DEVICES, replace(own, acts=(replace(act, source=source),)), question, 1.0, 1.0)
        assert expected in cells(notebook([DEVICES], sheet), "code")[-1]


def test_what_a_foreign_file_holds_is_no_markdown(tmp_path: Path) -> None:
    sheet = guessed(DEVICES, tmp_path / "s.json")
    text = sheet.path.read_text().replace("On the GPU", "<img src=x> ` | [a](javascript:b)")
    sheet.path.write_text(text)
    words = "\n".join(cells(notebook([DEVICES], Sheet(sheet.path)), "markdown"))
    assert "| `<img src=x> [a](javascript:b)` |" in words


@pytest.mark.parametrize(
    ("name", "force", "said"),
    [
        ("sheet.txt", False, "is not the name of a notebook; end it in .ipynb"),
        ("there.ipynb", False, "exists already; choose another name or add --force"),
        ("folder.ipynb", True, "is a folder; name a file"),
        ("none/sheet.ipynb", False, "does not exist"),
    ],
)
def test_a_place_that_will_not_do_is_said(tmp_path: Path, name: str, force: bool, said: str) -> None:
    (tmp_path / "there.ipynb").write_text("mine")
    (tmp_path / "folder.ipynb").mkdir()
    with pytest.raises(RecordingError, match=said):
        write_notebook(tmp_path / name, [DEVICES], Sheet(tmp_path / "s.json"), force=force)
    assert (tmp_path / "there.ipynb").read_text() == "mine"


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_kernel_runs_it_and_its_figures_are_those_of_the_lesson(tmp_path: Path) -> None:
    out = tmp_path / "sheet.ipynb"
    write_notebook(out, [find_lesson("training")], Sheet(tmp_path / "s.json"))
    found = nbformat.read(out, as_version=4)
    NotebookClient(found, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in found.cells for output in cell.get("outputs", []))
    assert "Peak 64 MiB, 64 MiB kept; simulated." in said
    assert "256 MiB kept" in said
    assert "there it runs out of memory" in said, "the loop that keeps its losses"

"""What a cell of a notebook needs of the cells before it, and the magic as IPython is given it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpudash.simulator import notebook
from gpudash.simulator.notebook import PredictedCell, describe, needed_of, predict_cell
from gpudash.simulator.predict import PredictedProgram, PredictionError
from gpudash.units import GIB, MIB


def needed(cell: str, *earlier: str) -> list[str]:
    """The statements before a cell, without the line that gives their names."""
    return needed_of(cell, earlier).splitlines()[:-1]


def test_what_a_cell_uses_is_made_before_it_and_nothing_else() -> None:
    earlier = ("import torch\nimport pandas", "size = 3\nother = 4", "model = torch.nn.Linear(size, size)")
    assert needed("model(1)", *earlier) == ["import torch", "size = 3", "model = torch.nn.Linear(size, size)"]


def test_a_training_that_was_run_before_is_not_run_again() -> None:
    earlier = (
        "model = make()",
        "for i in range(9):\n    loss = model(i)\n    optimizer.step()",
        "model.cuda()",
        "print(model)",
    )
    assert needed("out = [model(i) for i in range(3)]", *earlier) == ["model = make()", "model.cuda()"]
    assert needed("for i in range(3):\n    model(i)", *earlier) == ["model = make()", "model.cuda()"]


def test_what_was_overwritten_is_left_out_and_what_may_have_been_is_kept() -> None:
    assert needed("use(x)", "x = 1", "x = 2") == ["x = 2"]
    assert needed("use(x)", "x = 1", "x += 2") == ["x = 1", "x += 2"]
    assert needed("use(x)", "x = 1", "x = x + 2") == ["x = 1", "x = x + 2"]
    assert needed("use(x)", "x = 1", "if y:\n    x = 2", "y = 0") == ["x = 1", "if y:", "    x = 2"]
    assert needed("x = 5\nuse(x)", "x = 1") == []
    assert needed("x = x + 5", "x = 1") == ["x = 1"]


def test_functions_classes_stars_and_settings_of_an_object_count() -> None:
    earlier = (
        "from helpers import *",
        "width = 8",
        "class Net(Module):\n    def forward(self, x):\n        return width",
        "def make(deep):\n    return Net()",
        "config = {}",
        "config['lr'] = 1",
        "this is no Python",
    )
    kept = "\n".join(needed("train(make(3), config)", *earlier))
    assert [line for line in kept.splitlines() if line and not line.startswith(" ")] == [
        "from helpers import *",
        "width = 8",
        "class Net(Module):",
        "def make(deep):",
        "config = {}",
        "config['lr'] = 1",
    ]


def test_a_cell_that_is_no_python_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"Line 2 of the cell is no Python"):
        needed_of("a = 1\nfor", ())


class FakeShell:
    """IPython's ``InteractiveShell``, as far as an extension meets it."""

    def __init__(self, *run: str) -> None:
        self.user_ns: dict[str, Any] = {"In": ["", *run]}
        self.magics: dict[tuple[str, str | None], Any] = {}

    def register_magic_function(self, func: Any, magic_kind: str = "line", magic_name: str | None = None) -> None:
        self.magics[magic_kind, magic_name] = func

    def transform_cell(self, raw_cell: str) -> str:
        return raw_cell.replace("!ls", "get_ipython().system('ls')")


PREDICTED = PredictedCell(
    fits=False,
    needed_bytes=3 * GIB,
    peak_allocated_bytes=2 * GIB,
    peak_reserved_bytes=2 * GIB,
    by_category={},
    by_line={"/tmp/x/cell.py:4": 300 * MIB, "/tmp/x/earlier_cells.py:2": GIB, "model.py:7": MIB},
    assumptions=("one thing",),
    document={},
)


def test_the_extension_offers_the_magic_which_asks_with_its_flags_and_the_cells_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def predict_cell(cell: str, earlier: list[str], **options: Any) -> PredictedCell:
        asked.update(options, cell=cell, earlier=earlier)
        return PREDICTED

    monkeypatch.setattr(notebook, "predict_cell", predict_cell)
    shell = FakeShell("x = 1", "%%gpudash_estimate")
    notebook.load_ipython_extension(shell)
    magic = shell.magics["cell", "gpudash_estimate"]

    assert magic("--gpu 24GiB --steps 5", "train(x)\n!ls") is PREDICTED
    assert asked == {
        "cell": "train(x)\nget_ipython().system('ls')",
        "earlier": ["", "x = 1"],
        "gpu": ["24GiB"],
        "steps": 5,
        "time_limit_s": 60.0,
    }
    shown: list[str] = []
    PREDICTED._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert "does not fit: it needs 3.00 GiB at its peak" in shown[0]
    assert not capsys.readouterr().err


def test_a_failure_names_the_line_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_python: str, script: str, **_options: Any) -> PredictedProgram:
        raise PredictionError(f"At {script}:4 the code raised ZeroDivisionError.")

    monkeypatch.setattr(notebook, "predict_program", fail)
    with pytest.raises(PredictionError, match="At line 3 of the cell the code raised"):
        predict_cell("x", ())


def test_a_prediction_counts_lines_as_the_notebook_does_the_largest_first() -> None:
    lines = describe(PREDICTED).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines[1:4]] == [
        "line 2 of what earlier cells made",
        "line 3 of the cell",
        "model.py:7",
    ]
    assert lines[4:] == ["one thing"]


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("--gpu", "x", "takes --gpu NAME_OR_SIZE"),
        ("--steps many", "x", "takes --gpu NAME_OR_SIZE"),
        ("--colour red", "x", "--colour red"),
        ("'", "x", "No closing quotation"),
        ("", "for", "is no Python"),
        ("", "x", "asked nothing"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence_in_the_notebook(
    line: str, cell: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_command: str, **_options: Any) -> PredictedProgram:
        raise PredictionError("The program has asked nothing of a GPU.")

    monkeypatch.setattr(notebook, "predict_program", refuse)
    shell = FakeShell()
    notebook.load_ipython_extension(shell)
    assert shell.magics["cell", "gpudash_estimate"](line, cell) is None
    told = capsys.readouterr()
    assert said in told.err and len(told.err.splitlines()) == 1 and not told.out

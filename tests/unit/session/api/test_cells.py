"""What a cell of a notebook needs of the cells before it."""

from __future__ import annotations

import pytest

from gpudash.session.api.cells import needed_of


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

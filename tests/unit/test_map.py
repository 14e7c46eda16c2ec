"""``ARCHITECTURE.md`` names places and functions that exist, and its picture is that of the imports there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.floors import PICTURE, floors, imports, picture

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+(?:/[\w.]+)*/?)`", text)) | set(re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text))
    paths = {name for name in named if "/" in name}
    assert len(paths) > 3
    assert sorted(path for path in paths if not any((base / path).exists() for base in (ROOT, ROOT / "gpudash"))) == []


def test_every_function_on_the_way_of_a_reading_to_a_pixel_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    way = text.split("## How a reading becomes a pixel")[1].split("\n## ")[0]
    files = [ROOT / "gpudash" / name for name in re.findall(r"`([\w/]+\.py)`", way)]
    known = {name for file in files for name in _defined(ast.parse(file.read_text(encoding="utf-8")))}
    known |= {"Sample", "State"}  # of telemetry/records.py, which the page names before
    named = set(re.findall(r"`([A-Z]\w*(?:\.\w+)?|[a-z_]+)`", way)) - {"used_bytes", "None"}
    assert len(named) > 15
    assert sorted(named - known) == []


def test_every_name_that_somebody_adding_a_plot_needs_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    way = text.split("* **a plot**: ")[1].split("\n* **")[0]
    files = [ROOT / "gpudash" / name for name in re.findall(r"`((?:telemetry|ui)/[\w/]+\.py)`", way)]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    named = set(re.findall(r"`([A-Z]\w+|[a-z_]+)`", way)) - {"used_bytes"}
    assert {"DERIVED", "DerivedPlot", "plots_for"} <= named
    assert [name for name in sorted(named) if not re.search(rf"^\s*(def |class )?{name}\b", source, re.MULTILINE)] == []


def _defined(tree: ast.Module) -> set[str]:
    """Classes, functions and methods of a module."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
    return found


def test_the_picture_of_the_floors_is_that_of_the_imports() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "python -m tests.floors draws it anew"


def test_no_room_imports_from_a_floor_above() -> None:
    level = {name: number for number, names in enumerate(floors()) for name in names}
    pairs, libraries = imports(list(level))
    assert len(pairs) > 30
    assert [pair for pair in sorted(pairs) if level[pair[0]] > level[pair[1]]] == []
    assert [name for name, found in libraries.items() if "Qt" in found] == ["ui"]

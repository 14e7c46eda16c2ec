"""``import gpudash``: its names, and what they cost before they are used."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

import gpudash

NAMES = (
    "estimate",
    "explain",
    "fits",
    "live_figure",
    "log_to",
    "measure",
    "read_recording",
    "simulate",
    "watch_this_process",
)

HEAVY = ("torch", "numpy", "PySide6", "pyqtgraph", "pydantic", "jinja2", "rich")


def test_the_package_lists_its_functions_and_no_rooms() -> None:
    assert dir(gpudash) == sorted(["__version__", *NAMES])
    for name in NAMES:
        assert getattr(gpudash, name).__doc__


def test_another_name_is_refused_as_python_refuses_it() -> None:
    name = "nonsense"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        getattr(gpudash, name)


@pytest.mark.process
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import gpudash, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.process
@pytest.mark.parametrize("module", ["estimating", "memory", "simulating", "tracking"])
def test_examples_in_the_docstrings_are_true(module: str) -> None:
    # in a process of its own: they give it a GPU
    code = f"import doctest, gpudash.session.api.{module} as m, sys; sys.exit(doctest.testmod(m).failed)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = doctest.DocTestFinder().find(importlib.import_module(f"gpudash.session.api.{module}"))
    assert any(one.examples for one in found)

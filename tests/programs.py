"""Programs of the system that some tests need, and what a Python of its own runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

PATIENCE_S = 170.0
"""For a module that dry-runs many programs."""


def program(*names: str) -> str:
    """The path of the first of ``names`` that is installed.

    Where none is the test is skipped, unless GPUDASH_REQUIRE_WINDOW asks for every test that a machine can be made for.
    """
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("GPUDASH_REQUIRE_WINDOW"):
            pytest.fail(f"{names[0]} is not installed, and GPUDASH_REQUIRE_WINDOW asks for the tests that need it")
        pytest.skip(f"{names[0]} is not installed")
    return found


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python that has ended, with what it printed; ``options`` are of `subprocess.run`."""
    usual = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False}
    return subprocess.run([sys.executable, *arguments], **usual | options)


def output_of(
    module: str,
    *arguments: str,
    warns: bool = True,
    environment: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> str:
    """What a module of the tests prints when a Python of its own runs it, which has to end well.

    Args:
        module: below ``tests``.
        warns: whether warnings are no errors.
        environment: in place of this process's.
    """
    words = (*(() if warns else ("-W", "error")), "-m", f"tests.{module}", *arguments)
    done = python(*words, cwd=ROOT, env=environment, timeout=patience_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_by(module: str, *arguments: str, **options: Any) -> Any:
    """The JSON in the last line of `output_of`."""
    return json.loads(output_of(module, *arguments, **options).splitlines()[-1])

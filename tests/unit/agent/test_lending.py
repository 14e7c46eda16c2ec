"""The simulator is lent to a program that has none, and to no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.dashboard import OTHERS, PACKAGE, version_of

pytestmark = pytest.mark.process

LOOK = """
import importlib.util, sys, types
sys.path[:0] = {paths!r}
package = types.ModuleType("_agent")
package.__path__ = [{agent!r}]
sys.modules["_agent"] = package
from _agent.memory.simulating import Lender
sys.meta_path.insert(0, Lender({folder!r}))
found = importlib.util.find_spec("gpudash")
print(found.origin)
import gpudash
print(gpudash.__file__, importlib.util.find_spec("gpudash.simulator") is not None)
"""


def found(python: str, *paths: Path) -> list[str]:
    code = LOOK.format(paths=[str(path) for path in paths], agent=str(PACKAGE / "agent"), folder=str(PACKAGE))
    done = subprocess.run(
        [python, "-S", "-c", code], capture_output=True, text=True, check=True, cwd="/", env={"PYTHONPATH": ""}
    )
    return done.stdout.split()


@pytest.mark.parametrize("python", [sys.executable, *map(str, OTHERS)])
def test_a_folder_without_code_is_no_package_to_take_it_from(tmp_path: Path, python: str) -> None:
    if version_of(python) < (3, 9):
        pytest.skip("the agent does not run there")
    (tmp_path / "gpudash" / "_resources").mkdir(parents=True)
    ours = str(PACKAGE / "__init__.py")
    assert found(python, tmp_path) == [ours, ours, "True"]
    assert found(python) == [ours, ours, "True"]


def test_a_package_of_the_programs_own_comes_first(tmp_path: Path) -> None:
    (tmp_path / "empty" / "gpudash").mkdir(parents=True)
    own = tmp_path / "own" / "gpudash"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("")
    file = str(own / "__init__.py")
    assert found(sys.executable, tmp_path / "empty", tmp_path / "own") == [file, file, "False"]

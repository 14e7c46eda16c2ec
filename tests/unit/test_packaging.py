"""The recipe for conda says again, in conda-forge's names, what `pyproject.toml` says; and what building lacks is
said in a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpudash import __version__
from tests.packaging.surroundings import SERVERS, missing_tools, unreachable_server

ROOT = Path(__file__).resolve().parents[2]

OF_CONDA_FORGE = {"pyside6-essentials": "pyside6", "torch": "pytorch"}
"""What conda-forge calls otherwise than PyPI."""


def recipe() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "resources/packaging/recipe.yaml").read_text(encoding="utf-8"))
    return read


def project() -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def by_name(lines: list[str]) -> dict[str, set[str]]:
    """Of requirements as ``name >=1,<2``: bounds by the name that PyPI would give."""
    return {
        canonicalize_name(name): set(bounds.split(",")) for name, _, bounds in (line.partition(" ") for line in lines)
    }


def of_pypi(lines: list[str]) -> dict[str, set[str]]:
    """The same of PyPI's, where those that hold for the oldest Python stand for all."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"}):
            name = canonicalize_name(requirement.name)
            found[OF_CONDA_FORGE.get(name, name)] = {str(bound) for bound in requirement.specifier}
    return found


def test_the_recipe_for_conda_asks_for_what_the_project_asks_for() -> None:
    asked = by_name(recipe()["requirements"]["run"])
    python = asked.pop("python")
    assert python == {">=${{ python_min }}"}
    assert recipe()["context"]["python_min"] == project()["requires-python"].removeprefix(">=")
    assert asked == of_pypi(project()["dependencies"])
    extras = of_pypi(project()["optional-dependencies"]["torch"])
    assert by_name(recipe()["requirements"]["run_constraints"]) == extras


def test_the_recipe_for_conda_has_the_version_and_the_commands_of_the_project() -> None:
    assert recipe()["context"]["version"] == __version__
    commands = {**project()["scripts"], **project()["gui-scripts"]}
    assert recipe()["build"]["python"]["entry_points"] == [f"{name} = {call}" for name, call in commands.items()]


def test_tools_that_are_not_installed_are_named_with_the_line_that_installs_them() -> None:
    installed = {"Xvfb": "/usr/bin/Xvfb", "xdotool": "/usr/bin/xdotool"}
    assert missing_tools(installed.get) == (
        "make package needs desktop-file-validate, appstreamcli. Run: sudo apt install desktop-file-utils appstream"
    )
    assert missing_tools(lambda tool: f"/usr/bin/{tool}") == ""


def test_a_server_that_cannot_be_reached_is_named_with_what_does_without_it() -> None:
    def refuse(address: str) -> object:
        raise OSError("Name or service not known")

    assert unreachable_server("conda", refuse) == (
        f"{SERVERS['conda']} cannot be reached (Name or service not known). "
        "make package PACKAGE_OPTIONS=--offline builds from this machine's interpreter and PyPI's files."
    )
    asked: list[str] = []
    assert unreachable_server("appimage", asked.append) == ""
    assert asked == [SERVERS["appimage"]]


@pytest.mark.parametrize("picture", sorted((ROOT / "resources/readme").glob("*.png")), ids=lambda picture: picture.stem)
def test_a_picture_of_the_guide_is_small_enough_for_the_wheel(picture: Path) -> None:
    assert picture.stat().st_size <= 100_000, "python -m tests.end_to_end.guide_pictures writes it in 256 colours"

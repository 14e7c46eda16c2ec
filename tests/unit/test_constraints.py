"""``constraints.txt`` names every distribution that gpudash, its extras and its tests need."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

REQUIREMENTS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pins() -> dict[str, str]:
    """The version of each distribution, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    parts = [line.partition("==") for line in lines]
    return {canonicalize_name(name): version for name, _, version in parts}


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """What distribution ``name`` with ``extras`` needs here, by canonical name, and what that needs."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    found: set[str] = set()
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            found.add(canonicalize_name(requirement.name))
            found |= needed(requirement.name, frozenset(requirement.extras), seen)
    return found


def test_every_distribution_that_the_tests_need_has_its_version_there() -> None:
    wanted = needed("gpudash", frozenset({"test", "test-models"}), set())
    assert len(wanted) > 40
    assert sorted(wanted - pins().keys() - {"setuptools"}) == []


@pytest.mark.parametrize("extra", REQUIREMENTS)
def test_the_version_of_everything_that_an_extra_asks_for_is_one_that_it_takes(extra: str) -> None:
    there = pins()
    requirements = [Requirement(line) for line in REQUIREMENTS[extra]]
    asked = [one for one in requirements if one.marker is None or one.marker.evaluate()]
    assert asked
    for requirement in asked:
        version = there.get(canonicalize_name(requirement.name), "")
        assert version, f"{requirement.name} has no version in constraints.txt"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, not {version}"


def test_lines_are_sorted_and_each_distribution_stands_there_once() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert list(pins()) == sorted(pins())
    assert len(lines) == len(pins())

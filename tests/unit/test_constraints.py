"""``constraints.txt`` names every distribution that gpudash and its tests need, so that nothing has to be looked up."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


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
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    named = {canonicalize_name(re.split("==", line)[0]) for line in lines if line.strip()}
    wanted = needed("gpudash", frozenset({"test", "test-models"}), set())
    assert len(wanted) > 40
    assert sorted(wanted - named - {"setuptools"}) == []

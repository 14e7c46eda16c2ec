"""Every kind of out-of-memory: the cause is named, and the first remedy lets the program run to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import environment
from tests.end_to_end.out_of_memory.applying import tried
from tests.end_to_end.out_of_memory.kinds import KINDS, Kind

pytestmark = pytest.mark.long


def test_there_are_twenty_kinds() -> None:
    assert len(KINDS) >= 20


@pytest.mark.table
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_the_cause_is_named_and_the_first_remedy_works_as_it_is_written(kind: Kind, home: Path, tmp_path: Path) -> None:
    found = tried(kind, tmp_path, environment(home))
    assert found.found is not None, found.problem
    assert found.cause_is_right, found.found.headline
    assert found.runs, f"{found.remedy}: {found.problem}"

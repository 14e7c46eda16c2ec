"""The fuzzing of the reader runs, and would tell: a short stretch of it, always the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpudash.memory.snapshot.reading import reader as reading
from tests.fuzzing.seeds import seeds
from tests.fuzzing.snapshots import Coverage, changed, check

pytestmark = pytest.mark.long


def test_changed_files_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    chance, corpus = random.Random(7), seeds()
    for number in range(600):
        # CPython's unpickler complains on standard error of some that are cut off: the byte 0x96 is left out
        content = changed(chance.choice(corpus), corpus, chance).replace(b"\x96", b"\x94")
        check(content, tmp_path / "snapshot.pickle", sparing=number % 2 == 1)


def test_an_error_that_is_no_refusal_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_arguments: object) -> None:
        raise IndexError

    monkeypatch.setattr(reading, "assembled", breaks)
    with pytest.raises(IndexError):
        check(seeds()[4], tmp_path / "snapshot.pickle", sparing=False)


def test_files_that_go_a_new_way_are_told_from_others(tmp_path: Path) -> None:
    coverage, path = Coverage(), tmp_path / "snapshot.pickle"
    assert coverage.of(lambda: check(seeds()[4], path, sparing=False))
    assert not coverage.of(lambda: check(seeds()[4], path, sparing=False))
    assert coverage.of(lambda: check(b"{]", path, sparing=False))

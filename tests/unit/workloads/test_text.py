from __future__ import annotations

import hashlib
import math
from pathlib import Path

from gpudash.system.files import resource
from gpudash.workloads.programs.text import LIMIT, SMALLEST, corpus


def library(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_this_machines_text_is_a_mebibyte_of_python_with_its_hash() -> None:
    found = corpus()

    assert found.data == corpus().data and found.sha256 == hashlib.sha256(found.data).hexdigest()
    assert len(found.data) <= LIMIT and b"import" in found.data
    assert 0 < found.unigram_entropy < math.log(len(found.vocabulary)) and 0 < found.most_frequent_share < 1


def test_files_come_in_order_of_their_path_and_others_are_left_out(tmp_path: Path) -> None:
    part = SMALLEST // 2
    folder = library(
        tmp_path,
        {
            "b.py": b"b" * part,
            "a/z.py": b"a" * part,
            "a/test/t.py": b"t" * part,
            "site-packages/s.py": b"s" * part,
            "a/readme.txt": b"r" * part,
        },
    )

    assert corpus(folder).data == b"a" * part + b"b" * part


def test_the_text_is_cut_to_its_limit(tmp_path: Path) -> None:
    assert len(corpus(library(tmp_path, {"a.py": b"ab" * LIMIT})).data) == LIMIT


def test_entropy_and_share_are_those_of_the_bytes(tmp_path: Path) -> None:
    found = corpus(library(tmp_path, {"a.py": b"aab" * SMALLEST}))

    assert math.isclose(found.unigram_entropy, math.log(3) - 2 / 3 * math.log(2), rel_tol=1e-9)
    assert math.isclose(found.most_frequent_share, 2 / 3) and found.vocabulary == b"ab"


def test_without_sources_the_shipped_text_is_used(tmp_path: Path) -> None:
    found = corpus(tmp_path)

    assert found.source == "the text shipped with gpudash"
    assert found.data == resource("text", "fallback.txt").read_bytes() and len(found.data) >= SMALLEST
    assert found.data.isascii()

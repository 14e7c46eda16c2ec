"""``ARCHITECTURE.md`` names places that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+(?:/[\w.]+)*/?)`", text)) | set(re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text))
    paths = {name for name in named if "/" in name}
    assert len(paths) > 3
    assert sorted(path for path in paths if not any((base / path).exists() for base in (ROOT, ROOT / "gpudash"))) == []

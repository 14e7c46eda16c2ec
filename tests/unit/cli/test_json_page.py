"""Every document of ``--json`` is described in ``resources/guide/json.md``, key by key."""

from __future__ import annotations

import json
import re

import pytest

from gpudash.cli import run
from gpudash.system.files import resource
from tests.json_page import PAGE, PLAIN, undescribed

SAMPLES = tuple(str(resource("samples", f"two-runs-{name}.gpudash")) for name in ("bf16", "fp32"))

COMMANDS = [
    ("devices", "--simulate", "8GiB"),
    ("devices", "--known"),
    ("compare", *SAMPLES),
    ("compare", *SAMPLES, "--tolerance", "10%"),
    ("devices", "--nothing"),
    ("compare", "here.gpudash", "there.gpudash"),
    ("runs", "--folder", str(resource("samples"))),
    ("runs", str(resource("samples", "out-of-memory.gpudash"))),
    ("runs", "here.gpudash"),
    ("snapshot", "here.pickle"),
    ("run", "matmul", "--size", "x"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_a_command_prints_is_on_the_page(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    run([*words, "--json"])
    assert undescribed(words, json.loads(capsys.readouterr().out)) == []


def test_every_type_on_the_page_is_one_that_is_described() -> None:
    for title, keys in PAGE.items():
        for key, said in keys.items():
            inner = re.sub(r"^(list|map) of ", "", said.type.removesuffix(" or null")).removesuffix(" or null")
            assert inner in {*PLAIN, "number", "any", "null", *PAGE}, f"{title}: {key}"

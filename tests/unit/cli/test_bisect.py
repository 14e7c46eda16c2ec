"""The command line of ``gpudash bisect``, and how its answer is printed."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from gpudash.cli import build_app, run
from gpudash.cli.bisect import LEFT_OUT, excerpt
from gpudash.session.predicting.bisecting.repository import Hunk
from gpudash.system.files import resource
from tests.json_page import undescribed

PAGE = resource("guide", "bisect.md").read_text(encoding="utf-8")
COMMANDS = [line.partition("#")[0] for line in re.findall(r"^gpudash (bisect .*)$", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_guide_is_one(line: str) -> None:
    words = shlex.split(line)
    command, bound, _ = build_app(words).parse_args(words, exit_on_error=False, print_error=False)
    assert command.__name__ == "bisect"
    assert bound.arguments.get("callable") or bound.arguments.get("command")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "There is nothing to run at the commits."),
        (("--callable", "a.py:b", "--", "python", "x.py"), "A command is given together with --callable."),
        (("--callable", "a.py"), "--callable 'a.py' names no function."),
        (("--python", "python", "--", "true"), "--python is for a --callable"),
        (("--callable", "a.py:b", "--python", "no-such-python"), "--python 'no-such-python' is no program."),
        (("--simulate", "8GiB", "--simulate", "l4", "--", "true"), "A search has one card"),
        (("--raised-by", "much", "--", "true"), "--raised-by 'much' is no rise."),
        (("--raised-by", "0%", "--", "true"), "--raised-by '0%' is no rise."),
    ],
)
def test_what_cannot_be_searched_for_is_refused_before_anything_is_run(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bisect", "one", "two", "--json", *words]) == 2
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["error"]["message"].startswith(said) and document["error"]["remedy"]
    assert undescribed(("bisect",), document) == [] and said in printed.err


def test_of_a_large_hunk_the_rows_around_the_lines_are_shown() -> None:
    rows = [*(f" {number}" for number in range(10, 40)), "-old", "+new", *(f" {number}" for number in range(41, 90))]
    hunk = Hunk("a.py", "a.py", 10, 80, 10, 80, "\n".join(["@@ -10,80 +10,80 @@", *rows]))
    shown = excerpt(hunk, [40])
    assert shown == [
        "@@ -10,80 +10,80 @@",
        LEFT_OUT,
        *(f" {number}" for number in range(35, 40)),
        "-old",
        "+new",
        *(f" {number}" for number in range(41, 47)),
        LEFT_OUT,
    ]
    assert excerpt(hunk, [])[:3] == ["@@ -10,80 +10,80 @@", " 10", " 11"]

"""The guide's page on lessons: its commands, run as they stand there, and its table."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from gpudash.cli import build_app, run
from gpudash.session.lessons.lessons import find_lesson, lessons
from gpudash.system.files import resource

PAGE = resource("guide", "lessons.md").read_text(encoding="utf-8")

COMMANDS = re.findall(r"gpudash (lesson[^#`\n]*?) *(?:#.*)?(?:`|\n)", PAGE)


def test_every_command_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUDASH_HOME", str(tmp_path / "home"))
    played = []
    for line in COMMANDS:
        words = shlex.split(line.partition("<")[0])
        command, bound, _ = build_app(words).parse_args(words, exit_on_error=False, print_error=False)
        assert command.__name__ == "lesson"
        if "name" in bound.arguments:
            played.append(find_lesson(bound.arguments["name"]).name)
            continue
        assert run(words) == 0
    assert played == ["precision", "worth", "devices"], (
        "those that play are played by the tests of the stage and the terminal"
    )
    printed = capsys.readouterr()
    assert all(lesson.name in printed.out for lesson in lessons()) and "Wrote sheet.ipynb" in printed.err
    notebook = json.loads((tmp_path / "sheet.ipynb").read_text(encoding="utf-8"))
    assert all(any(lesson.title in "".join(cell["source"]) for cell in notebook["cells"]) for lesson in lessons())


def test_the_page_lists_every_lesson_with_the_minutes_that_it_takes() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", PAGE, re.MULTILINE)
    assert rows == [(lesson.name, str(lesson.minutes)) for lesson in lessons()]

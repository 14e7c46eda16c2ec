"""The page of ``gpudash --help`` is printed without the parser, and says what the parser's pages say."""

from __future__ import annotations

import re

import pytest

from gpudash.cli import build_app, run
from gpudash.cli.terminal.front_page import COMMANDS, FLAGS, WHOLE


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["--help"]) == 0
    return capsys.readouterr().out


def sentences(page: str) -> str:
    """A page as one line, without what is drawn round it."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", page).split())


def test_the_page_lists_every_command_and_no_other(page: str) -> None:
    assert set(COMMANDS) == {name for name in build_app(()) if not name.startswith("-")}
    assert all(re.search(rf"│ {name} +{re.escape(command.summary[:20])}", page) for name, command in COMMANDS.items())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_the_page_says_of_a_command_is_what_its_own_page_begins_with(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    _usage, *paragraphs = capsys.readouterr().out.split("\n\n")
    assert sentences(paragraphs[0]) == COMMANDS[name].summary


def test_what_the_page_says_of_flags_is_what_the_parser_says(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    build_app(["--help"]).help_print([])
    by_parser = sentences(capsys.readouterr().out)
    assert WHOLE.summary in by_parser and WHOLE.summary in sentences(page)
    for flags in FLAGS.values():
        for name, text in flags.items():
            assert f"{name} {text}" in by_parser
            assert f"{name} {text}" in sentences(page)


def test_an_unknown_command_is_answered_with_those_that_the_page_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    assert f"There is: {', '.join(COMMANDS)}." in capsys.readouterr().err

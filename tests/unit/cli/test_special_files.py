"""What has a name as a file has and is none: every command that takes a path answers in a sentence, at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.sources.prometheus.address import TOKEN_FILE, read_address
from gpudash.sources.prometheus.client import read_token
from gpudash.system.settings import load_settings, save_settings

KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": lambda path: os.mkfifo(path),
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}

WORDS = {"fifo": "FIFO", "link to /dev/zero": "device", "folder": "folder"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def special(kind: str, tmp_path: Path) -> Path:
    """Something that cannot be read; its name would do for a file of Python code."""
    path = tmp_path / "special.py"
    KINDS[kind](path)
    return path


def refusal(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one line that says why a command ended."""
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert code in (1, 2), line
    assert printed.out == "" and "Traceback" not in line
    assert any(word in line for word in words), line
    return line


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "{}", "{}"),
        ("export", "{}", "--to", "csv", "--out", "out"),
        ("export", "{}", "--to", "html", "--out", "out"),
        ("export", "{}", "--to", "png", "--out", "out"),
        ("open", "{}"),
        ("estimate", "training", "--baseline", "{}"),
        ("estimate", "training", "--write-baseline", "{}"),
        ("monitor", "--seconds", "1", "--no-record", "--serve", ":0", "--serve-token-file", "{}"),
        ("monitor", "--seconds", "1", "--no-record", "--serve", ":0", "--serve-cert", "{}", "--serve-key", "{}"),
    ],
    ids=lambda command: " ".join(word for word in command if word != "{}"),
)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    command: tuple[str, ...], kind: str, special: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([word.format(special) for word in command])
    refusal(capsys, code, WORDS[kind], "no regular file", "has no config.json")


@pytest.mark.process
@pytest.mark.parametrize(
    "command", [("snapshot", "{}"), ("estimate", "--callable", "{}:build"), ("estimate", "--model", "{}")]
)
def test_a_process_that_reads_for_a_command_waits_no_longer(
    command: tuple[str, ...], kind: str, special: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = ("--python", sys.executable) if "estimate" in command else ()
    code = run([*(word.format(special) for word in command), *python])
    refusal(capsys, code, WORDS[kind], "no regular file", "has no config.json", "without a snapshot.pickle")


@pytest.mark.parametrize("command", [("monitor", "--seconds", "1"), ("watch", "--", "true")])
def test_a_recording_replaces_nothing_that_is_there_and_waits_for_nobody(
    command: tuple[str, ...], special: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = command
    line = refusal(capsys, run([name, "--record", str(special), *rest]), "exists already")
    assert str(special) in line


def test_settings_that_cannot_be_read_cost_only_themselves(kind: str, special: Path) -> None:
    settings, problems = load_settings(special)
    (problem,) = problems
    assert settings == load_settings(special.with_name("none"))[0]
    assert problem.startswith(f"{special} cannot be read (it is a {WORDS[kind]}")
    assert problem.endswith("the defaults are used until it is fixed")
    with pytest.raises(OSError, match=f"it is a {WORDS[kind]}"):
        save_settings({"rate_hz": 4.0}, special)


def test_a_token_that_cannot_be_read_is_refused_without_waiting(kind: str, special: Path) -> None:
    address = read_address("prometheus:https://example.org")
    with pytest.raises(ValueError, match=f"it is a {WORDS[kind]}"):
        read_token(address, {TOKEN_FILE: str(special)})

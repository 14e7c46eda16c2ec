"""What the guide's pages tell to type: commands are understood, those of a server run, and what is named is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpudash.cli import build_app, run
from gpudash.cli.terminal.workload_flags import parsed_fields
from gpudash.specs import ModelSpec, build
from gpudash.system.files import resource
from tests.unit.memory.serving import gguf_files

ROOT = Path(__file__).parents[3]

PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(resource("guide").glob("*.md"))}

BLOCK = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)

NAMED = {
    "file": re.compile(r"(?<![\w./-])((?:tests|gpudash)/[\w./]+\.\w+)"),
    "module": re.compile(r"-m\s+(tests[\w.]*)"),
    "program": re.compile(r"--program\s+([\w./]+\.py)"),
}
"""What a page names of the repository, in code."""

USERS_OWN = {("budgets", "tests/memory.json")}
"""What only looks like it: a file of the reader's own project."""


def commands(page: str) -> list[list[str]]:
    """The lines of a page's blocks that call gpudash, without that word."""
    lines = [line for block in BLOCK.findall(PAGES[page]) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("gpudash ")]


ESTIMATES = [words for page in ("fit", "models", "serving") for words in commands(page)]

SERVED = [words for words in ESTIMATES if "serve" in words]


@pytest.mark.parametrize("words", [words for words in ESTIMATES if words not in SERVED], ids=shlex.join)
def test_a_command_of_a_page_is_understood(words: list[str]) -> None:
    # One that is not known is left over, or refused.
    _, bound, _ = build_app(words).parse_args(words, exit_on_error=False, print_error=False)
    rest = bound.arguments.get("arguments", ())
    if "--model" not in words:
        assert not rest
        return
    fields = {**parsed_fields(ModelSpec, rest), "path": bound.arguments["model"]}
    assert build(ModelSpec, fields).path == bound.arguments["model"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models of the page on servers are."""
    for name, hub in (("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"), ("Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B")):
        (tmp_path / name).mkdir()
        text = resource("models", *hub.split("/"), "config.json").read_text(encoding="utf-8")
        (tmp_path / name / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "Llama-3-8B-Q4_K_M.gguf").write_bytes(gguf_files.header(*gguf_files.LLAMA_3_8B))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_about_a_server_is_answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SERVED) >= 3
    for words in SERVED:
        assert run(words) == 0, (words, capsys.readouterr().err)
        assert "GiB" in capsys.readouterr().out


def test_the_page_has_the_speed_that_its_command_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = next(block for block in BLOCK.findall(PAGES["serving"]) if block.startswith("predicted, for prompts"))
    above = PAGES["serving"].partition(shown)[0]
    command = re.findall(r"`gpudash ([^`]+)`", above)[-1]
    assert above.endswith(f"`gpudash {command}` ends with:\n\n```\n")
    assert run(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    for line in shown.splitlines():
        assert line.removesuffix(" …") in printed


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_of_the_repository_is_there(page: str) -> None:
    spans = [*BLOCK.findall(PAGES[page]), *re.findall(r"`([^`]+)`", PAGES[page])]
    named = {(kind, name) for kind, pattern in NAMED.items() for span in spans for name in pattern.findall(span)}
    missing = {name for kind, name in named if not _is_there(kind, name) and (page, name) not in USERS_OWN}
    assert not missing


def _is_there(kind: str, name: str) -> bool:
    if kind != "module":
        return (ROOT / name).is_file()
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()

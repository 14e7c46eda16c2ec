"""What an explanation would write in a program, as a diff that fits the file to the byte, or none."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from gpudash.memory.explaining.patches import unified_diff
from gpudash.telemetry.explanation import Rewrite

BEFORE = "losses = []\nfor loss in range(3):\n\tlosses.append(  loss  )  # kept\nprint(losses)\n"


def rewrite(file: Path, text: str, before: str, after: str) -> Rewrite:
    """Of an expression where it first stands as an argument in a file of this text."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    node = next(argument for call in calls for argument in call.args if ast.unparse(argument) == before)
    assert node.end_lineno is not None and node.end_col_offset is not None
    return Rewrite(str(file), node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, before, after)


def diff(folder: Path, *rewrites: Rewrite) -> str:
    return unified_diff(rewrites, str(folder), lambda file: Path(file).read_bytes())


@pytest.mark.parametrize("command", [["patch", "-p0", "-s"], ["git", "apply", "-p0", "-"]], ids=["patch", "git"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.py", BEFORE.encode()),
        ("src/train.py", BEFORE.encode()),
        ("lärm mit leer.py", BEFORE.replace("kept", "gehört").encode()),
        ("train.py", BEFORE.replace("\n", "\r\n").encode()),
        ("train.py", BEFORE.rstrip("\n").encode()),
        ("train.py", BEFORE.replace("print(losses)\n", "").rstrip("\n").encode()),
        ("train.py", BEFORE.replace("(  loss  )", "(\n\t\tloss\n\t)").encode()),
    ],
    ids=["plain", "folder", "non-ascii name", "crlf", "no newline", "no newline in the line itself", "several lines"],
)
def test_a_diff_is_taken_by_patch_and_by_git(tmp_path: Path, command: list[str], name: str, content: bytes) -> None:
    if shutil.which(command[0]) is None:
        pytest.fail(f"{command[0]} is not installed")
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    made = diff(tmp_path, rewrite(file, content.decode(), "loss", "loss.item()"))
    subprocess.run(command, cwd=tmp_path, input=made.encode(), check=True, timeout=60)
    at = content.index(b"loss", content.index(b"append"))
    assert file.read_bytes() == content[:at] + b"loss.item()" + content[at + 4 :]


def test_several_places_of_several_files_are_one_diff(tmp_path: Path) -> None:
    text = "kept.append(a)\nkept.append(b)\n"
    rewrites = []
    for name in ("one.py", "two.py"):
        file = tmp_path / name
        file.write_text(text)
        rewrites += [rewrite(file, text, value, f"{value}.detach()") for value in ("a", "b")]
    subprocess.run(
        ["patch", "-p0", "-s"], cwd=tmp_path, input=diff(tmp_path, *rewrites).encode(), check=True, timeout=60
    )
    for name in ("one.py", "two.py"):
        assert (tmp_path / name).read_text() == "kept.append(a.detach())\nkept.append(b.detach())\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("changed.py", BEFORE.replace("loss ", "lost ").encode()),
        ("latin.py", BEFORE.encode() + b"# \xe4\n"),
        ("old_mac.py", BEFORE.replace("# kept", "# kept\r#").encode()),
        ('quote".py', BEFORE.encode()),
        ("line\n.py", BEFORE.encode()),
    ],
    ids=["changed since", "not utf-8", "lone carriage return", "quote in the name", "newline in the name"],
)
def test_of_a_file_that_a_diff_cannot_be_sure_of_there_is_none(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert diff(tmp_path, rewrite(file, BEFORE, "loss", "loss.item()")) == ""


def test_of_a_file_outside_of_the_program_s_folder_or_one_that_is_gone_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    library = tmp_path / "library.py"
    library.write_text(BEFORE)
    assert diff(tmp_path / "project", rewrite(library, BEFORE, "loss", "loss.item()")) == ""
    assert diff(tmp_path, rewrite(tmp_path / "gone.py", BEFORE, "loss", "loss.item()")) == ""

"""What an explanation would write in a program, as a diff that fits the file to the byte, or none."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from gpudash.memory.explaining.patches import in_folder, unified_diff
from gpudash.memory.snapshot.source_edits import SourceFile
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.parametrize("command", [["patch", "-p0", "-s"], ["git", "apply", "-p0", "-"]], ids=["patch", "git"])
@pytest.mark.parametrize(
    ("seen", "content"),
    [
        ("a = 1\nb = 64\nc = 3\n", b"a = 1  \nb = 64\t\nc = 3"),
        ("a = 1\nb = 64\nc = 3\n", b"a = 1\r\nb = 64\r\nc = 3 \r\n"),
        ("\n" * 9 + "b = 64\n", b" \n" * 9 + b"b = 64"),
    ],
    ids=["blanks", "crlf", "at the end"],
)
def test_a_diff_of_lines_whose_ends_nobody_saw_is_taken_and_leaves_the_others_as_they_are(
    tmp_path: Path, command: list[str], seen: str, content: bytes
) -> None:
    file = tmp_path / "my train.py"
    file.write_bytes(content)
    lines = seen.splitlines()
    source = SourceFile(str(file), lambda _file, line: lines[line - 1] if line <= len(lines) else "")
    number = lines.index("b = 64") + 1
    made = in_folder(source.patch({number: ("b = 32", "d = 4")}), str(tmp_path), lambda name: Path(name).read_bytes())
    subprocess.run(command, cwd=tmp_path, input=made.encode(), check=True, timeout=60)
    ending = b"\r\n" if b"\r" in content else b"\n"
    begin, _, rest = content.partition(b"b = 64")
    rest = rest.partition(b"\n")[2]
    assert file.read_bytes() == begin + b"b = 32" + ending + b"d = 4" + ending + rest


def test_of_lines_that_are_others_by_now_there_is_no_diff(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    source = SourceFile(str(file), lambda _file, line: "b = 64" if line == 1 else "")
    patch = source.patch({1: ("b = 32",)})
    for content in (b"b = 65\n", b"", b"b = 64\rc = 1\n", b"b = 64 # \xe4\n"):
        file.write_bytes(content)
        assert in_folder(patch, str(tmp_path), lambda name: Path(name).read_bytes()) == ""

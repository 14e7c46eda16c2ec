"""What can be seen to be wrong with a command before it is started: one sentence each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpudash.session.watching.request import WatchRequest, check_request, program_name, python_with_torch, script_of


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "train.py", "--lr", "3"], "train.py"),
        (["/usr/bin/python3.11", "-u", "-X", "dev", "-W", "error", "a/b.py"], "a/b.py"),
        (["python", "-m", "package"], None),
        (["python3", "-c", "print(1)"], None),
        (["python3", "-mpackage"], None),
        (["python", "-"], None),
        (["python"], None),
        (["torchrun", "train.py"], None),
        (["pythonic", "train.py"], None),
    ],
)
def test_the_script_of_a_command_is_known(command: Sequence[str], script: str | None) -> None:
    assert script_of(command) == script


@pytest.mark.process
def test_a_python_with_torch_is_found_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bare" / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "ours" / "bin" / "python"))

    def python(place: str, *, torch: bool) -> Path:
        path = tmp_path / place / "bin" / "python"
        path.parent.mkdir(parents=True)
        path.touch(0o755)
        if torch:
            package = tmp_path / place / "lib" / "python3.12" / "site-packages" / "torch"
            package.mkdir(parents=True)
            (package / "version.py").touch()
        return path

    project = tmp_path / "project"
    python("bare", torch=False)
    assert python_with_torch(project, "python") is None
    ours = python("ours", torch=True)
    assert python_with_torch(project, "python") == ours
    conda = python("home/miniconda3/envs/ml", torch=True)
    assert python_with_torch(project, "python") == conda
    own = python("project/.venv", torch=True)
    assert python_with_torch(project, "python") == own
    assert python_with_torch(project, str(own)) == conda, "the one that has just failed is not offered again"


def test_a_program_is_called_by_its_script_or_by_itself() -> None:
    assert program_name(["python", "a/train.py"]) == "train.py"
    assert program_name(["/usr/bin/torchrun", "train.py"]) == "torchrun"
    assert program_name(["env", "OMP_NUM_THREADS=1", "A=b", "python", "train.py"]) == "train.py"
    assert program_name(["env", "-i", "A=b", "python", "train.py"]) == "env"
    assert program_name(["env"]) == program_name(["env", "A=b"]) == "env"


def refusal(command: Sequence[str], folder: Path | None = None) -> str:
    with pytest.raises(ValueError, match=r"\.$") as caught:
        check_request(WatchRequest(command, folder))
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text
    return text


def test_no_command_and_no_folder_are_refused(tmp_path: Path) -> None:
    assert refusal([]).startswith("There is no command to watch")
    assert refusal([""]).startswith("There is no command to watch")
    assert refusal(["true"], tmp_path / "none") == (
        f"There is no folder {tmp_path / 'none'} to run the command in; name one that is there."
    )


def test_a_program_that_is_not_there_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert "There is no program nothing_of_this_name on PATH" in refusal(["nothing_of_this_name"])
    assert "There is no program ./nothing" in refusal(["./nothing"], tmp_path)
    (tmp_path / "train.py").write_text("")
    assert refusal(["train.py"], tmp_path).endswith("write: python train.py.")
    (tmp_path / "tool").write_text("")
    assert refusal(["tool"], tmp_path).endswith("write: ./tool.")
    assert refusal([str(tmp_path)]).endswith("is a folder, not a program; name the program in it.")


def test_a_program_that_may_not_be_executed_is_refused_with_the_way_out(tmp_path: Path) -> None:
    script, tool = tmp_path / "train.py", tmp_path / "tool"
    script.write_text("")
    tool.write_text("")
    assert refusal([str(script)]) == f"{script} may not be executed (permission denied); try: python {script}."
    assert refusal([str(tool)]).endswith(f"try: chmod +x {tool}.")


@pytest.mark.process
def test_a_script_that_is_not_there_or_no_script_is_refused(tmp_path: Path) -> None:
    assert refusal([sys.executable, "none.py"], tmp_path).startswith(f"There is no script none.py in {tmp_path}")
    assert "a folder without a __main__.py" in refusal([sys.executable, str(tmp_path)])
    (tmp_path / "__main__.py").write_text("")
    check_request(WatchRequest([sys.executable, str(tmp_path)]))


@pytest.mark.process
@pytest.mark.parametrize(("right", "words"), [(os.R_OK, "may not be read"), (os.X_OK, "may not be entered")])
def test_what_may_not_be_read_or_entered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: int, words: str
) -> None:
    (tmp_path / "train.py").write_text("")
    given = os.access

    def access(path: os.PathLike[str], mode: int) -> bool:  # root, who may run the tests, has every right
        return given(path, mode) and not (mode == right and str(path).startswith(str(tmp_path)))

    monkeypatch.setattr(os, "access", access)
    assert words in refusal([sys.executable, "train.py"], tmp_path)


def test_the_path_of_the_environment_asked_for_is_searched(tmp_path: Path) -> None:
    tool = tmp_path / "tool_of_its_own"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    check_request(WatchRequest(["tool_of_its_own"], environment={"PATH": str(tmp_path)}))


def test_a_request_is_told_as_a_spec_of_plain_values(tmp_path: Path) -> None:
    request = WatchRequest(("python", "x.py"), tmp_path, {"A": "1"}, (2**30,), 5, False)
    assert request.spec() == {
        "command": ["python", "x.py"],
        "folder": str(tmp_path),
        "environment": {"A": "1"},
        "simulate": [2**30],
        "simulate_others": 5,
        "memory_history": False,
    }
    assert WatchRequest(("python", "x.py"), simulate=(2**30,), as_cuda=True).spec()["as_cuda"] is True

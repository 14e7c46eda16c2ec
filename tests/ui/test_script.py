"""The user's own program as values: what is wrong with each, and what is run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.known_gpus import KnownGpu
from gpudash.session.watching.request import found_python
from gpudash.ui.forms.script_form import Script, python_name
from gpudash.units import GIB

GROUP = "(?P<loss>[-+.e0-9]+)"


@pytest.fixture
def file(tmp_path: Path) -> str:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("print(1)")
    return str(script)


NO_ROOM = (
    "A GPU of 1 MiB has no room for a tensor: the CUDA context takes about 300 MiB of it, so simulate 302 MiB or more"
)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("file", "", "Choose the script to run."),
        ("file", "/nowhere/train.py", "There is no file /nowhere/train.py."),
        ("file", "/", "/ is a folder; name the script in it."),
        ("arguments", "--name 'a b", "A quote is opened and not closed."),
        ("folder", "/nowhere", "There is no folder /nowhere."),
        ("folder", sys.executable, f"{sys.executable} is a file, not a folder."),
        ("environment", "A=1 B", "'B' is not NAME=value."),
        ("environment", "=1", "'=1' is not NAME=value."),
        ("environment", "A='1", "A quote is opened and not closed."),
        ("environment", "GPUDASH_SOCKET=x", "GPUDASH_SOCKET is set by gpudash itself."),
        (
            "metric_pattern",
            "loss (.*)",
            f"The pattern for losses has no group named loss or accuracy, such as {GROUP}.",
        ),
        ("python", "/nowhere/python", "/nowhere/python is not a program that can be run."),
        ("python", __file__, f"{__file__} is not a program that can be run."),
        ("simulate", "8 apples", "'8 apples' is not a size; write for example 512MiB or 8GiB"),
        ("simulate", "1MiB", NO_ROOM),
    ],
)
def test_each_value_that_cannot_be_used_has_its_own_sentence(file: str, field: str, value: str, words: str) -> None:
    assert Script(**{"file": file, field: value}).problems() == {field: words}


@pytest.mark.process
def test_a_whole_form_becomes_a_command_with_its_surroundings(file: str, tmp_path: Path) -> None:
    script = Script(file, "--name 'a b' -v", str(tmp_path), "A=1 B='x y'\nC=", sys.executable, "8 GiB", False)
    assert script.problems() == {}
    assert script.command == (sys.executable, file, "--name", "a b", "-v")
    assert script.working_folder == tmp_path
    assert script.variables == {"A": "1", "B": "x y", "C": ""}
    assert script.simulated_card == 8 * GIB


def test_a_script_alone_runs_in_its_own_folder_on_the_python_that_is_found(file: str) -> None:
    script = Script(file)
    assert script.command == (found_python(file), file)
    assert script.working_folder == Path(file).parent
    assert script.variables == {} and script.simulated_card is None


@pytest.mark.process
def test_paths_may_be_relative_and_begin_with_a_tilde(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(file).parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    assert Script("train.py").command[1] == Script("~/train.py").command[1] == file
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    assert Script(file, python="bin/python").command[0] == str(folder / "bin" / "python")
    assert Script(file, python="python3").command[0] == "python3"


@pytest.mark.process
def test_the_projects_own_interpreter_comes_before_the_shells(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert found_python("") == found_python(file) == "/usr/bin/python3"
    own = Path(file).parent / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert found_python(file) == str(own)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert found_python("") == sys.executable


def test_an_interpreter_is_named_from_the_project_on(file: str) -> None:
    own = str(Path(file).parent / ".venv" / "bin" / "python")
    assert python_name(own, Script(file)) == ".venv/bin/python"
    assert python_name("/usr/bin/python3", Script(file)) == "python3"


def test_values_come_back_from_a_file(file: str) -> None:
    script = Script(file, "-v", "", "A=1", "python3", "8GiB", False)
    assert Script.from_json(script.to_json()) == script


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_a_file_that_holds_anything_else_gives_the_defaults_for_what_is_wrong(value: object) -> None:
    assert Script.from_json(value) == Script()
    kept = Script.from_json({"file": value, "memory_history": value, "unknown": value})
    assert kept.file == (value if isinstance(value, str) else "")
    assert kept.memory_history is (value if isinstance(value, bool) else True)


def test_a_recorded_run_is_told_from_its_command() -> None:
    spec = {
        "command": ["/venv/bin/python", "-u", "train.py", "--name", "a b"],
        "folder": "/work",
        "environment": {"A": "x y"},
        "simulate": [8 * GIB],
        "memory_history": True,
    }
    told = Script.from_spec(spec)
    assert told == Script(
        "train.py", "--name 'a b'", "/work", "A='x y'", "/venv/bin/python -u", "8GiB", True, as_cuda=False
    )
    assert Script.from_spec({"pid": 7, "command": ["./serve", "-v"]}) == Script(
        arguments="-v", python="./serve", memory_history=False, as_cuda=False
    )
    assert Script.from_spec({}) == Script(memory_history=False, as_cuda=False)


def test_a_gpu_that_answered_for_cuda_is_filled_in_again_from_a_recording() -> None:
    spec = {"command": ["python", "train.py"], "simulate": [24 * GIB], "as_cuda": True}
    assert Script.from_spec(spec) == Script(
        "train.py", python="python", simulate="24GiB", as_cuda=True, memory_history=False
    )
    assert not Script.from_spec({**spec, "as_cuda": False}).as_cuda


def test_a_gpu_by_its_name_is_simulated_and_filled_in_again_from_a_recording() -> None:
    script = Script("train.py", simulate="RTX 4090")
    assert isinstance(script.simulated_card, KnownGpu) and script.simulated_card.key == "rtx4090"
    assert Script.from_spec({"command": ["python", "train.py"], "simulate": ["rtx4090"]}).simulate == "rtx4090"

"""What a command in the sandbox writes does not stay, and it has no network; nothing of that ends the command.

Where this system allows its users no namespaces, the command is not run at all.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpudash.system import sandbox

pytestmark = pytest.mark.process

ALLOWS = sandbox.can_hold_back()

REFUSED = "not run"

FORBIDDEN = (
    ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh") if ALLOWS else ()
)
"""Begins a command that may make no user namespace; nothing where no command may."""


def run(folder: Path, code: str, *kept: Path, as_usual: bool = False, before: Sequence[str] = ()) -> str:
    """What a Python prints that runs in a folder, and whose writing is held back but in the folders ``kept``; `REFUSED`
    where it was not run, as what it writes cannot be held back.
    """
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    program = [sys.executable, "-c", f"open({str(scratch / 'ran')!r}, 'w').close()\n{code}"]
    command = sandbox.command_in_sandbox(program, str(scratch), [str(path) for path in kept], as_usual=as_usual)
    done = subprocess.run([*before, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    ran = (scratch / "ran").exists()
    sandbox.empty(str(scratch))
    if done.returncode == sandbox.NOT_HELD_BACK:
        assert not ran and not done.stdout
        return REFUSED
    assert done.returncode == 0 and ran, done.stderr
    return done.stdout


def expected(printed: str) -> str:
    """What is printed where this system allows namespaces."""
    return printed if ALLOWS else REFUSED


def test_files_that_it_makes_changes_and_removes_are_as_before_once_it_has_ended(tmp_path: Path) -> None:
    folder, kept = tmp_path / "project", tmp_path / "kept"
    for path in (folder, kept, folder / "old"):
        path.mkdir()
    (folder / "old" / "weights").write_text("old")
    (folder / "log").write_text("before\n")
    code = (
        "import os, shutil\n"
        "shutil.rmtree('old')\n"
        "open('log', 'a').write('after\\n')\n"
        "os.makedirs('new/folder')\n"
        f"open({str(kept / 'answer')!r}, 'w').write('heard')\n"
        f"open({str(tmp_path / 'absolute')!r}, 'w').write('x')\n"
        "print(sorted(os.listdir()), open('log').read().split())\n"
    )
    assert run(folder, code, kept) == expected("['log', 'new'] ['before', 'after']\n")
    assert sorted(path.name for path in folder.iterdir()) == ["log", "old"]
    assert (folder / "old" / "weights").read_text() == "old"
    assert (folder / "log").read_text() == "before\n"
    assert (kept / "answer").exists() == ALLOWS
    assert not (tmp_path / "absolute").exists()


def test_it_reaches_nobody_but_itself_and_yields_to_all_others(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    code = (
        "import os, socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).close()\n"
        "try:\n"
        "    socket.create_connection(('192.0.2.1', 80), timeout=5)\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "print(os.nice(0), os.getuid())\n"
    )
    assert run(folder, code) == expected(f"Network is unreachable\n19 {os.getuid()}\n")


def test_as_usual_it_has_the_network_and_its_priority_and_yet_nothing_it_writes_stays(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import os, socket\n"
            f"socket.create_connection({server.getsockname()!r}, timeout=5).close()\n"
            "os.system('echo made > by_shell')\n"
            "print(os.nice(0), os.listdir())\n"
        )
        assert run(folder, code, as_usual=True) == expected(f"{os.nice(0)} ['by_shell']\n")
    assert not list(folder.iterdir())


def test_it_may_make_files_where_everybody_may_and_they_do_not_stay(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with tempfile.NamedTemporaryFile(dir="/tmp") as there:
        made = f"{there.name}-made"
        code = f"import os; open({made!r}, 'w').write('x'); print(os.path.exists({there.name!r}))"
        assert run(folder, code) == expected("True\n")
    assert not Path(made).exists()


def test_where_no_namespace_may_be_made_nothing_is_run(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    assert run(folder, "open('made', 'w').close()", before=FORBIDDEN) == REFUSED
    assert not list(folder.iterdir())
    asking = "from gpudash.system import sandbox; print(sandbox.can_hold_back())"
    answer = subprocess.run([*FORBIDDEN, sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


def test_that_a_command_can_write_in_its_folder_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert sandbox.can_hold_back(str(scratch), str(tmp_path)) == ALLOWS
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"] and not list(scratch.iterdir())


def test_without_a_scratch_folder_it_only_yields(tmp_path: Path) -> None:
    code = "import os; open('made', 'w').close(); print(os.nice(0))"
    command = sandbox.command_in_sandbox([sys.executable, "-c", code])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "19\n" and (tmp_path / "made").exists()


def test_this_system_can_hold_back_what_a_command_writes() -> None:
    command = [sys.executable, "-I", "-S", sandbox.__file__, "--probe"]
    assert sandbox.can_hold_back() == (subprocess.run(command, check=False, timeout=60).returncode == 0)

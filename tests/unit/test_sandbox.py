"""What a command in the sandbox writes does not stay, and it has no network; nothing of that ends the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpudash.system import sandbox


def run(folder: Path, code: str, *kept: Path) -> str:
    """What a Python prints that runs in a folder, and whose writing is held back but in the folders ``kept``."""
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    command = sandbox.command_in_sandbox([sys.executable, "-c", code], str(scratch), [str(path) for path in kept])
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    sandbox.clear(str(scratch))
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert run(folder, code, kept) == "['log', 'new'] ['before', 'after']\n"
    assert sorted(path.name for path in folder.iterdir()) == ["log", "old"]
    assert (folder / "old" / "weights").read_text() == "old"
    assert (folder / "log").read_text() == "before\n"
    assert (kept / "answer").read_text() == "heard"
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
    assert run(folder, code) == f"Network is unreachable\n19 {os.getuid()}\n"


def test_without_a_scratch_folder_it_only_yields(tmp_path: Path) -> None:
    code = "import os; open('made', 'w').close(); print(os.nice(0))"
    command = sandbox.command_in_sandbox([sys.executable, "-c", code])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "19\n" and (tmp_path / "made").exists()


def test_this_system_can_hold_back_what_a_command_writes() -> None:
    command = [sys.executable, "-I", "-S", sandbox.__file__, "--probe"]
    assert sandbox.can_hold_back() == (subprocess.run(command, check=False, timeout=60).returncode == 0)

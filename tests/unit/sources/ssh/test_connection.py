"""What the end of a connection means, and the command that runs the reader there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpudash.sources.ssh import connection
from gpudash.sources.ssh.address import SshHost
from gpudash.sources.ssh.connection import fault_of, remote_command
from tests.programs import program

HOST = SshHost("gpu-7", "me", 2222)

PATIENCE_S = 120.0

SOURCE = connection.reader_source()

CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed.
"""


def test_a_changed_key_is_taken_out_by_the_name_and_from_the_file_by_which_ssh_knows_it() -> None:
    def command(host: SshHost, more: str = "") -> str:
        return fault_of(host, CHANGED + more, 255, greeted=False).text.partition("if that is right: ")[2]

    assert command(HOST) == "ssh-keygen -R '[gpu-7]:2222'"
    assert command(SshHost("gpu-7")) == "ssh-keygen -R gpu-7"
    told = (
        "Offending ED25519 key in {file}:3\nHost key for {name} has changed and you have requested strict checking.\n"
    )
    usual = told.format(file=Path("~/.ssh/known_hosts").expanduser(), name="[10.0.0.7]:22022")
    assert command(HOST, usual) == "ssh-keygen -R '[10.0.0.7]:22022'"
    other = told.format(file="/etc/ssh/known hosts", name="gpu-7")
    assert command(HOST, other) == "ssh-keygen -f '/etc/ssh/known hosts' -R gpu-7"


@pytest.mark.parametrize(
    ("problems", "code", "words", "lasting"),
    [
        (CHANGED, 255, "is not the one that is known", True),
        ("Host key verification failed.\n", 255, "log in once in a terminal", True),
        (
            "me@gpu-7: Permission denied (publickey,password).\n",
            255,
            "wants a password; Reconnect, or opening ssh://me@gpu-7:2222",
            True,
        ),
        ("me@gpu-7: Permission denied (publickey).\n", 255, "accepts none of your keys", True),
        ("ssh: Could not resolve hostname gpu-7: Name or service not known\n", 255, "no host called gpu-7", False),
        ("ssh: connect to host gpu-7 port 2222: Connection refused\n", 255, "refuses the connection", False),
        ("ssh: connect to host gpu-7 port 2222: Connection timed out\n", 255, "does not answer", False),
        ("gpudash: no python3\n", 127, "has no python3", True),
        ("gpudash: old python3 3.6\n", 1, "is 3.6; the reader needs 3.8", True),
        ("gpudash: no /proc\n", 1, "only Linux can be watched", True),
        ("sh: 1: boom\n", 3, "did not run the reader (exit code 3: sh: 1: boom)", True),
        ("kex: by \x1b[31mremote\n", 255, "ssh cannot reach me@gpu-7:2222: kex: by \ufffd[31mremote", False),
        ("", None, "ssh cannot reach", False),
    ],
    ids=[
        "changed",
        "unknown",
        "password",
        "keys",
        "name",
        "refused",
        "time",
        "python",
        "old",
        "proc",
        "other",
        "ssh",
        "cut",
    ],
)
def test_every_end_is_one_sentence_with_the_way_out(
    problems: str, code: int | None, words: str, *, lasting: bool
) -> None:
    fault = fault_of(HOST, problems, code, greeted=False)
    assert words in fault.text and fault.lasting is lasting
    assert fault.text.isprintable() and len(fault.text) < 260


def test_a_link_that_breaks_is_lost_whatever_ssh_says_meanwhile() -> None:
    fault = fault_of(HOST, "Connection to gpu-7 closed by remote host.\n", 255, greeted=True)
    assert fault.text == "The link to me@gpu-7:2222 was lost (Connection to gpu-7 closed by remote host)"
    assert not fault.lasting


def programs(folder: Path) -> dict[str, str]:
    """An environment in which python3 is this one."""
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    return {"PATH": str(folder), "HOME": str(folder)}


@pytest.mark.process
@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_every_login_shell_runs_the_reader_which_ends_with_its_input_and_leaves_nothing(
    shell: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    environment = programs(home)
    command = [program(shell), "-c", remote_command(len(SOURCE), 0.2)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=home) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(SOURCE)
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        assert first["gpudash"] == 1 and first["cores"] == os.cpu_count()
        tables = set()
        while "host" not in tables:
            tables.add(json.loads(process.stdout.readline()).get("table"))
        process.stdin.close()
        process.stdin = None
        _rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and errors == b""
    assert [entry.name for entry in home.iterdir()] == ["python3"]


@pytest.mark.process
def test_a_machine_without_python_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", remote_command(len(SOURCE), 0.2)],
        input=SOURCE,
        capture_output=True,
        env={"PATH": str(tmp_path)},
        timeout=PATIENCE_S,
        check=False,
    )
    fault = fault_of(HOST, done.stderr.decode(), done.returncode, greeted=False)
    assert fault.text.startswith("me@gpu-7:2222 has no python3") and done.stdout == b""


@pytest.mark.process
def test_an_old_python_is_told_before_it_reads_a_line_that_it_does_not_know(tmp_path: Path) -> None:
    command = remote_command(len(SOURCE), 0.2).replace("import sys;", "import sys;sys.version_info=(3,6,15);")
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=SOURCE,
        capture_output=True,
        env=programs(tmp_path / "home"),
        timeout=PATIENCE_S,
        check=False,
    )
    fault = fault_of(HOST, done.stderr.decode(), done.returncode, greeted=False)
    assert "The python3 of me@gpu-7:2222 is 3.6; the reader needs 3.8 or newer there" in fault.text

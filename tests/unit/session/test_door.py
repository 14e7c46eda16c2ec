"""Who may enter a program by its door: what could debug it, and nothing else that can reach the socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from gpudash.agent.attach import attach_socket
from gpudash.session.watching.attaching import entry_methods
from tests.programs import program
from tests.unit.agent.dashboard import INJECT
from tests.unit.session.watched import PATIENCE_S

pytestmark = pytest.mark.process

TIMES = 200

VISITED = "import sys; print(1, flush=True); input(); print(getattr(sys, 'entered', None))"
"""Says at its end whether somebody's code was executed in it."""

VISITOR = textwrap.dedent("""
    import os, socket, struct, sys
    name, how, times = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3])
    answers, who = set(), struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
    for _ in range(times):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(60)
            answer = b""
            own = struct.pack("i", os.open("/proc/self", os.O_RDONLY))
            beside = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)]
            beside += [] if how == "bare" else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, own)]
            try:
                door.connect(b"\\0" + name)
                door.sendmsg([b"import sys; sys.entered = True\\n"], beside)
                door.shutdown(socket.SHUT_WR)
                answer = door.recv(16)
            except (BrokenPipeError, ConnectionResetError):
                pass
            answers.add(answer)
            os.close(*struct.unpack("i", own))
    print(answers)
""")
"""Sends code again and again, alone or with its own folder of /proc, and prints what it was answered."""


@pytest.fixture
def visited() -> Iterator[subprocess.Popen[str]]:
    """A program with a door, that ends when it gets a line."""
    environment = {**os.environ, "GPUDASH_AGENT": "1", "PYTHONPATH": str(INJECT)}
    command = [sys.executable, "-c", VISITED]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        process.kill()


def name_of(process: subprocess.Popen[str]) -> str:
    return attach_socket.NAME.format(pid=process.pid).removeprefix("\0")


def unentered(process: subprocess.Popen[str]) -> bool:
    """End the program; whether nobody's code was executed in it."""
    return process.communicate("\n", timeout=PATIENCE_S) == ("None\n", "")


def visits(process: subprocess.Popen[str], how: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What was answered to `VISITOR`, run by the command ``prefix``."""
    command = [*prefix, sys.executable, "-I", "-S", "-c", VISITOR, name_of(process), how, str(TIMES)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def is_refused(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether each visit was; an answer is lost where the door closes before it has read what was sent."""
    return done.stdout in ("{b'no'}\n", "{b''}\n", "{b'', b'no'}\n", "{b'no', b''}\n") and done.stderr == ""


def own_namespaces() -> tuple[str, ...]:
    """A command that runs another one as the same user in namespaces of its own, where that is possible."""
    as_root = () if os.geteuid() == 0 else ("--user", "--map-current-user")
    command = (program("unshare"), *as_root, "--mount", "--pid", "--fork", "--ipc", "--uts")
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if tried.returncode:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("how", ["bare", "with its folder"])
def test_root_of_a_container_that_shares_the_network_never_enters(visited: subprocess.Popen[str], how: str) -> None:
    dropped = (program("setpriv"), "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    done = visits(visited, how, (*own_namespaces(), *(dropped if os.geteuid() == 0 else ())))
    assert is_refused(done)
    assert unentered(visited)


def test_a_process_without_the_programs_capabilities_never_enters(visited: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities to go without")
    done = visits(visited, "with its folder", (program("setpriv"), "--bounding-set=-all", "--inh-caps=-all"))
    assert is_refused(done)
    assert unentered(visited)


def test_a_process_in_the_programs_place_enters_when_it_shows_its_folder(visited: subprocess.Popen[str]) -> None:
    assert is_refused(visits(visited, "bare"))
    done = visits(visited, "with its folder")
    assert (done.stdout, done.stderr) == ("{b'in'}\n", "")
    assert visited.communicate("\n", timeout=PATIENCE_S) == ("True\n", "")


def test_what_speaks_has_to_be_the_process_that_connected(visited: subprocess.Popen[str]) -> None:
    speaks = textwrap.dedent("""
        import os, socket, struct, sys
        connection = socket.socket(fileno=int(sys.argv[1]))
        folder = struct.pack("i", os.open(f"/proc/{os.getppid()}", os.O_RDONLY))
        connection.sendmsg([b"import sys; sys.entered = 1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, folder)])
    """)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(attach_socket.NAME.format(pid=visited.pid))
        command = [sys.executable, "-I", "-S", "-c", speaks, str(connection.fileno())]
        subprocess.run(command, pass_fds=[connection.fileno()], timeout=PATIENCE_S, check=True)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(16) == attach_socket.REFUSED
    assert unentered(visited)


def test_a_process_that_has_ended_since_it_spoke_never_enters(visited: subprocess.Popen[str]) -> None:
    speaks = textwrap.dedent("""
        import os, signal, socket, struct, sys
        name, pid = sys.argv[1].encode(), int(sys.argv[2])
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(60)
        os.kill(pid, signal.SIGSTOP)  # nobody answers until this process is gone
        threads = [f"/proc/{pid}/task/{one}/stat" for one in os.listdir(f"/proc/{pid}/task")]
        while any(open(thread).read().rpartition(")")[2].split()[0] != "T" for thread in threads):
            pass
        door.connect(b"\\0" + name)
        folder = struct.pack("i", os.open("/proc/self", os.O_RDONLY))
        door.sendmsg([b"import sys; sys.entered = 1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, folder)])
        door.shutdown(socket.SHUT_WR)
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:
            pass
        os.kill(pid, signal.SIGCONT)
        print(door.recv(16))
    """)
    command = [sys.executable, "-I", "-S", "-c", speaks, name_of(visited), str(visited.pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == ("b'no'\n", "")
    assert unentered(visited)


def test_a_gpudash_that_is_refused_says_why(visited: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(socket.socket):
        """A connection at which a door answers as to a gpudash of another container."""

        def recv(self, *_arguments: Any) -> bytes:
            return attach_socket.REFUSED

    monkeypatch.setattr(socket, "socket", Elsewhere)
    with pytest.raises(entry_methods.WayClosedError, match="the program refuses this gpudash"):
        entry_methods._through_attach_socket(psutil.Process(visited.pid), INJECT, "{}", lambda _seconds: True)

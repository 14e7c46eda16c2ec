"""Ways to enter a running Python program, and the reasons why one is unavailable.

* The attach socket: the program has opened it beforehand (`gpudash.agent.attach.attach_socket`).
* ``sys.remote_exec`` of Python 3.14 (PEP 768), called by the program's own interpreter.
* A debugger, only where the user asks for it: the agent's start is handed to `Py_AddPendingCall`, so that it runs
  where Python would handle a signal and not wherever the program happened to stand.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from gpudash.agent.attach import attach_socket, entering
from gpudash.session.watching.attaching.addresses import Mapping, NoAddressError, addresses, mappings
from gpudash.session.watching.attaching.registers import described_registers
from gpudash.system.files import runtime_folder
from gpudash.system.foreign_text import last_line

OLDEST = (3, 9)
"""Oldest Python in which the agent runs."""

REMOTE_EXEC = (3, 14)
"""The first Python with ``sys.remote_exec``."""

ATTACH_SOCKET_S = 5.0
"""Longest wait for the attach socket's thread."""

HELPER_S = 30.0
"""Time limit for a helper process or a debugger: reading a large program's symbols takes seconds."""

ARRIVAL_S = 10.0
"""Longest wait for the program to run what it was given, which happens between two of its instructions."""

PREFIX = "gpudash-enter-"

ENDED = "it has ended meanwhile"

HOW = (
    "To be seen from inside, a program is started with GPUDASH_AGENT=1 (gpudash watch --prepare prints the lines for a "
    "shell), or calls gpudash.agent.open_attach_socket()"
)

REFUSED = (
    "the program refuses this gpudash, which runs in other namespaces, with another root folder or with fewer rights, "
    "or cannot be read in /proc; start gpudash as and where the program was started"
)

PREPARED = {
    "GPUDASH_AGENT": "1",
    "PYTHONPATH": shlex.quote(str(Path(entering.__file__).parents[1] / "inject")) + "${PYTHONPATH:+:$PYTHONPATH}",
}
"""Environment variables that open the attach socket in a shell's programs, in shell syntax."""

NO_PTRACE = (
    "the system does not let one process look into another (ptrace); allow it by "
    "sysctl kernel.yama.ptrace_scope=0, or in a container by --cap-add SYS_PTRACE"
)

_NOWHERE = "/dev/null/none"
"""Passed to gdb for each folder from which it would read: most of its time is spent on starting."""

_QUIETLY = (
    "set confirm off",
    "set debuginfod enabled off",
    "set auto-load off",
    # Read no file of the program while it is stopped: nothing is looked up by name.
    "set auto-solib-add off",
    f"set sysroot {_NOWHERE}",
    f"set debug-file-directory {_NOWHERE}",
    # Signals that arrive meanwhile are the program's; if one makes a call fail, the call is unwound.
    "handle all nostop noprint pass",
    "handle SIGSEGV SIGILL SIGBUS SIGFPE SIGABRT stop print pass",
    "set unwindonsignal on",
)
"""Commands for the debugger before it attaches."""

_BY_THE_WAY = re.compile(
    r"\s*$|\$|\[|0x|(?:gdb: )?[Ww]arning:|Python Exception |Could not load the Python|Limited Python|Suggest passing"
)
"""Lines that gdb also prints on success."""

_PYTHON = re.compile(r"(?:python|pypy)(?:(\d+)(?:\.(\d+))?)?[a-z]*")
_LIBRARY = re.compile(r"/libpython(\d+)\.(\d+)[a-z]*\.so")
_LIBC = re.compile(r"/(?:libc[.-][^/]*so|ld-musl-)[^/]*$")
_PAGE = 4096
_KERNEL = 2**47
_MAP_FIXED_NOREPLACE = 0x100000
_MAP_PRIVATE_ANONYMOUS = 0x22
_READ_WRITE = 3


class WayClosedError(Exception):
    """A method is unavailable: the end of a sentence that begins with its name."""


class NotYetError(WayClosedError):
    """The code for the agent was passed on, but the program has not run it yet; it still may."""


@dataclass(frozen=True, slots=True)
class Entered:
    """How a program was entered.

    Attributes:
        way: "door", "remote_exec", "gdb", or "" if it was not.
        closed: methods that were tried before, and why each was unavailable.
        awaited: the method by which the agent may still arrive; "" for none.
    """

    way: str = ""
    closed: dict[str, str] = field(default_factory=dict)
    awaited: str = ""

    def late(self) -> Entered:
        """The result if the agent has arrived after all."""
        closed = {way: why for way, why in self.closed.items() if way != self.awaited}
        return Entered(self.awaited, closed)

    @property
    def why_not(self) -> str:
        """Why the other methods were not used, in sentences; "" if there are none."""
        return " ".join(why if why == NOT_OPENED else f"{NAMES[way]}: {why}." for way, why in self.closed.items())


NOT_OPENED = "It was not started so that it can be entered."
"""Why a program without an attach socket cannot be entered through it; a sentence of its own."""

NAMES = {
    "any": "It cannot be entered",
    "door": "No door",
    "remote_exec": "No sys.remote_exec",
    "gdb": "No debugger",
}


def enter(
    process: psutil.Process, path: Path, config: str, has_come: Callable[[float], bool], *, by_gdb: bool = False
) -> Entered:
    """Start the agent in a program, by the first available method.

    Args:
        process: the program.
        path: path of the socket to which the agent connects.
        config: the agent's settings, as JSON.
        has_come: waits up to the given seconds for the agent; returns whether it has connected.
        by_gdb: whether to enter it only by a debugger.
    """
    closed: dict[str, str] = {}
    awaited = ""
    try:
        # First check what rules out all methods, so that one sentence replaces one for each.
        _require_same_place(process)
        _require_running(process)
    except WayClosedError as error:
        return Entered(closed={"any": str(error)})
    except psutil.Error:
        return Entered(closed={"any": ENDED})
    if by_gdb:
        methods: dict[str, Callable[[psutil.Process, Path, str, Callable[[float], bool]], None]] = {"gdb": _by_debugger}
    else:
        methods = {"door": _through_attach_socket, "remote_exec": _by_remote_exec}
    for name, way in methods.items():
        try:
            way(process, path, config, has_come)
        except (WayClosedError, psutil.Error) as error:
            if has_ended(process):
                return Entered(closed={"any": ENDED})
            closed[name] = str(error)
            if isinstance(error, NotYetError):
                awaited = name
        else:
            return Entered(name, closed)
    return Entered(closed=closed, awaited=awaited)


def has_ended(process: psutil.Process) -> bool:
    """Whether it has ended; another process that has got its PID is not it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def require_debugger() -> None:
    """Check that gdb is installed.

    Raises:
        ValueError: one sentence, if it is not.
    """
    if shutil.which("gdb") is None:
        raise ValueError("There is no gdb on PATH; install it, or leave --with gdb out.")


def _require_same_place(process: psutil.Process) -> None:
    """Raises: WayClosedError: if it sees other files or processes than we do, or is another user's."""
    # By effective user, as the kernel decides about ptrace and files in /proc.
    if process.uids().effective != os.geteuid():
        raise WayClosedError(f"it belongs to {process.username()}, and only its owner may go inside")
    for namespace in ("pid", "mnt"):
        with suppress(OSError):
            if Path(f"/proc/{process.pid}/ns/{namespace}").readlink() != Path(f"/proc/self/ns/{namespace}").readlink():
                raise WayClosedError("it runs in a container; run gpudash in there")
    with suppress(OSError):
        if not Path(f"/proc/{process.pid}/root").samefile("/"):
            raise WayClosedError("it has a root folder of its own (chroot); run gpudash in there")


def _require_running(process: psutil.Process) -> None:
    """Raises: WayClosedError: if it is stopped, and could not respond, or has ended."""
    if has_ended(process):
        raise WayClosedError(ENDED)
    if process.status() == psutil.STATUS_STOPPED:
        raise WayClosedError(f"it is stopped; let it go on (kill -CONT {process.pid}), and attach again")
    if process.status() == psutil.STATUS_TRACING_STOP:
        raise WayClosedError("a debugger has stopped it; let it go on there, and attach again")


def _require_arrival(has_come: Callable[[float], bool]) -> None:
    """Raises: WayClosedError: if the program does not run what it was given."""
    if not has_come(ARRIVAL_S):
        raise NotYetError(f"the program did not come by within {ARRIVAL_S:.0f} s; it is inside a long call")


def _script(path: Path, config: str, extra: tuple[str, ...] = ()) -> str:
    """The code that starts the agent in a program; everything but starting a thread happens on that thread."""
    source = Path(entering.__file__)
    lines = (
        "from importlib.machinery import SourceFileLoader as Loader",
        "agent = {}",
        f"exec(Loader('entering', {str(source)!r}).get_code('entering'), agent)",
        f"agent['enter']({str(source.parents[1])!r}, {str(path)!r}, {config!r})",
    )
    text = _guarded(lines) + (_guarded(extra) if extra else "")
    return f"import _thread\n_thread.start_new_thread(exec, ({text!a}, {{}}))\n"


def _guarded(lines: tuple[str, ...]) -> str:
    """Python code that does nothing if one of its lines fails."""
    return "".join(("try:\n", *(f" {line}\n" for line in lines), "except Exception:\n pass\n"))


def _through_attach_socket(process: psutil.Process, path: Path, config: str, has_come: Callable[[float], bool]) -> None:
    """Raises: WayClosedError: if it has no attach socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ATTACH_SOCKET_S)
        try:
            connection.connect(attach_socket.NAME.format(pid=process.pid))
            pid, user = attach_socket.peer_of(connection)
            # After the program has ended, anyone may bind an abstract socket of this name: ask the kernel who answers.
            if (pid, user) != (process.pid, os.geteuid()):
                raise WayClosedError("another process has taken the place of the program's")
            _send_as_this_process(connection, _script(path, config).encode())
            # The receiver reads to the end before it executes anything.
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(16)
        except ConnectionRefusedError:
            raise WayClosedError(NOT_OPENED) from None
        except TimeoutError:
            why = "the program is inside a long call that keeps Python to itself"
            raise NotYetError(f"nobody answers at it within {ATTACH_SOCKET_S:.0f} s; {why}") from None
        except OSError as error:
            raise WayClosedError(f"nobody answers at it ({error.strerror or error})") from None
    if answer == attach_socket.REFUSED:
        raise WayClosedError(REFUSED)
    # Its thread has answered, but no agent: the guarded code suppressed an exception.
    if answer != attach_socket.ENTERED or not has_come(ARRIVAL_S):
        raise WayClosedError("nothing was heard from behind it")


def _send_as_this_process(connection: socket.socket, text: bytes) -> None:
    """Send text with what the receiver checks: our credentials, and our folder in /proc.

    Raises:
        OSError: if it cannot be sent in one call.
    """
    credentials = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
    folder = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        checked = [
            (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", folder)),
        ]
        sent = connection.sendmsg([text], checked)
    finally:
        os.close(folder)
    # Part of a script must not be executed: `sendmsg` on a stream may send less than all.
    if sent < len(text):
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))


def _by_remote_exec(process: psutil.Process, path: Path, config: str, has_come: Callable[[float], bool]) -> None:
    """Raises: WayClosedError: if its Python does not support it, or does not allow it."""
    python, version = _python_of(process)
    if version < REMOTE_EXEC:
        raise WayClosedError(f"its Python is {_written(version)}, and only 3.14 and newer have it")
    if python is None:
        raise WayClosedError("Python is a part of another program there, whose interpreter cannot be called")
    # The program opens the file itself, so it must exist until the agent has connected.
    with _script_file(process.pid, _script(path, config)) as file:
        code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
        errors = _ran([str(python), "-I", "-S", "-c", code, str(process.pid), str(file)])
        if errors is not None:
            raise WayClosedError(_remote_refusal(errors))
        _require_arrival(has_come)


def _by_debugger(process: psutil.Process, path: Path, config: str, has_come: Callable[[float], bool]) -> None:
    """Raises: WayClosedError: if it is not allowed, or does not find the functions."""
    # The kernel allows one tracer; gdb would report that too, but only after its slow start.
    if tracer := _tracer_of(process.pid):
        raise WayClosedError(f"another debugger is at it (process {tracer}), and only one can be")
    _, version = _python_of(process)
    if version < OLDEST:
        raise WayClosedError(f"its Python is {_written(version)}, and the agent runs from {_written(OLDEST)} on")
    # Before gdb starts: reading a large program's symbols takes seconds, in which it would be stopped.
    calls, place = _calls_of(process.pid)
    unmap = "import ctypes", f"ctypes.CDLL(None).munmap(ctypes.c_void_p({place}), ctypes.c_size_t({_PAGE}))"
    with _script_file(process.pid, _script(path, config, unmap)) as file:
        code = f"try:\n exec(open({str(file)!r}).read(), {{}})\nexcept Exception:\n pass\n"
        output = _debugged(process.pid, calls, place, code)
        if (refusal := _debugger_refusal(output)) is not None:
            raise WayClosedError(refusal)
        _require_arrival(has_come)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Addresses of the functions that a debugger calls in the program, or passes to one of them."""

    mmap: int
    add_pending_call: int
    run_simple_string: int


def _calls_of(pid: int) -> tuple[_Calls, int]:
    """Found while the program runs, so that it need not be stopped for the search.

    Returns:
        The addresses, and that of a page where the program has nothing mapped.

    Raises:
        WayClosedError: if they are not found, or its memory may not be read.
    """
    try:
        mapped = mappings(pid)
        files = dict.fromkeys(one.path for one in mapped if one.path.startswith("/"))
        executable = str(Path(f"/proc/{pid}/exe").readlink())
        libc = next((file for file in files if _LIBC.search(file)), None)
        if libc is None:
            raise WayClosedError("its C library is not found")
        (mmap,) = addresses(pid, libc, ("mmap",), Path(libc), mapped)
        wanted = ("Py_AddPendingCall", "PyRun_SimpleString")
        why = NoAddressError("no Py_AddPendingCall is found in it")
        # The executable first: if it is linked statically it has the functions, and no libpython is mapped.
        for file in (executable, *filter(_LIBRARY.search, files)):
            if file == executable:
                # Through /proc, which still opens a file that was replaced or deleted since the program began.
                opened = Path(f"/proc/{pid}/exe")
            else:
                opened = Path(file)
            try:
                return _Calls(mmap, *addresses(pid, file, wanted, opened, mapped)), _free_page(mapped)
            except NoAddressError as error:
                why = error
    except NoAddressError as error:
        why = error
    except PermissionError:
        raise WayClosedError(NO_PTRACE) from None
    except OSError as error:
        raise WayClosedError(f"what it runs cannot be read ({error.strerror or error})") from None
    raise WayClosedError(str(why))


def _debugged(pid: int, calls: _Calls, place: int, code: str) -> str:
    """Let the program map a page, put ``code`` there, and run it when it next handles signals.

    Memory is mapped, not allocated, because the program may be inside malloc. It is stopped for some milliseconds: gdb
    must not read any symbols.
    """
    data = code.encode() + b"\0"
    # Write the page as an array of 64-bit numbers, in a single assignment by gdb.
    data += bytes(-len(data) % 8)
    if len(data) > _PAGE:
        raise WayClosedError("the path of the temporary folder is too long; let TMPDIR name another")
    mapping = f"((unsigned long (*)(unsigned long, unsigned long, int, int, int, long)) {calls.mmap})"
    # MAP_FIXED_NOREPLACE fails if something is mapped there by now, instead of replacing it (mmap(2)).
    flags = _MAP_PRIVATE_ANONYMOUS | _MAP_FIXED_NOREPLACE
    # Each command runs whatever the result of the previous ones, and must do nothing if no page was mapped.
    numbers = ", ".join(
        f"(unsigned long) {int.from_bytes(data[at : at + 8], 'little')}" for at in range(0, len(data), 8)
    )
    commands = [
        f"attach {pid}",
        f"set $mapped = {mapping}({place}, {_PAGE}, {_READ_WRITE}, {flags}, -1, 0) == {place}",
        "print $mapped",
        f"set $written = $mapped && (({{unsigned long[{len(data) // 8}]}}{place} = {{{numbers}}}), 1)",
    ]
    calling = f"((int (*)(void *, void *)) {calls.add_pending_call})"
    call = f"{calling}((void *) {calls.run_simple_string}, (void *) {place})"
    commands += [f"print $mapped ? {call} : -1", "detach"]
    command = ["gdb", "-nx", "-batch", f"--data-directory={_NOWHERE}"]
    for one in _QUIETLY:
        command += ["-iex", one]
    registers, described = os.memfd_create("registers"), described_registers()
    if described is not None:
        os.write(registers, described.encode("ascii"))
        command += ["-iex", f"set tdesc filename /proc/self/fd/{registers}"]
    for one in commands:
        command += ["-ex", one]
    try:
        gdb = subprocess.Popen(
            command,
            pass_fds=(registers,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd="/",
            # Settings for the user's Python do not apply to the one in gdb, whose messages are read here.
            env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
            | {"LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise WayClosedError(f"gdb could not be started ({error.strerror or error})") from None
    finally:
        os.close(registers)
    with gdb:
        try:
            return gdb.communicate(timeout=HELPER_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            # On SIGINT it unwinds the call in progress and detaches; killing it would leave the program in that call.
            gdb.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                gdb.communicate(timeout=HELPER_S)
            gdb.kill()
            raise WayClosedError(f"gdb took longer than {HELPER_S:.0f} s, and was ended") from None


def _tracer_of(pid: int) -> int:
    """PID of the process that debugs it; 0 for none."""
    with suppress(OSError):
        found = re.search(r"^TracerPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1])
        return 0
    return 0


def _debugger_refusal(output: str) -> str | None:
    """Why gdb failed, by its output; ``None`` if it succeeded."""
    # $1 and $2 are the results of the two `print` commands: the page was mapped, and the call was accepted.
    if re.search(r"^\$1 = 1$", output, re.MULTILINE) and re.search(r"^\$2 = 0$", output, re.MULTILINE):
        return None
    if "Operation not permitted" in output or "Could not attach" in output:
        return NO_PTRACE
    lines = [line.strip() for line in output.splitlines() if not _BY_THE_WAY.match(line)]
    return f"gdb could not ({lines[-1].rstrip('.') if lines else 'it does not say why'})"


def _remote_refusal(errors: str) -> str:
    """Why ``sys.remote_exec`` failed, by the last line of its traceback."""
    last = last_line(errors)
    if "PermissionError" in last or "Operation not permitted" in last:
        return NO_PTRACE
    if "disabled" in last or "not enabled" in last:
        return "the program was started with it disabled (PYTHON_DISABLE_REMOTE_DEBUG)"
    if "main thread" in last:
        return "the program's main thread has ended, and that alone executes what comes from outside"
    return f"its Python refused ({last.rstrip('.') or 'without a word'})"


def _ran(command: list[str]) -> str | None:
    """Standard error of a helper if it failed; ``None`` if it succeeded."""
    clean = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=HELPER_S, check=False, env=clean, cwd="/")
    except subprocess.TimeoutExpired:
        return "it took too long"
    except OSError as error:
        return str(error.strerror or error)
    if done.returncode == 0:
        return None
    return done.stderr.decode(errors="replace")


def _python_of(process: psutil.Process) -> tuple[Path | None, tuple[int, int]]:
    """Its interpreter and version; the interpreter is ``None`` if Python is embedded in another program.

    Raises:
        WayClosedError: if it is not Python, or that is unknown.
    """
    try:
        link = Path(f"/proc/{process.pid}/exe").readlink()
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise WayClosedError(f"what it runs cannot be read ({error.strerror or error})") from None
    named = _PYTHON.match(link.name)
    library = _LIBRARY.search(maps)
    if named is None and library is None:
        raise WayClosedError("it is no Python program")
    if named is not None and named[1] and named[2]:
        version = int(named[1]), int(named[2])
    elif library is not None:
        version = int(library[1]), int(library[2])
    else:
        version = _version_of(link)
    if named is None:
        return None, version
    is_deleted = str(link).endswith(" (deleted)")
    return Path(f"/proc/{process.pid}/exe") if is_deleted else link, version


def _version_of(python: Path) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [str(python), "-I", "-S", "-c", code], capture_output=True, timeout=HELPER_S, check=True, cwd="/"
        )
        major, minor = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        raise WayClosedError("the version of its Python cannot be told") from None
    return major, minor


def _written(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@contextmanager
def _script_file(pid: int, text: str) -> Iterator[Path]:
    """A file for the program to run: deleted afterwards, or emptied if the program may still run it later."""
    _sweep()
    path = runtime_folder() / f"{PREFIX}{pid}-{os.urandom(6).hex()}.py"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    try:
        yield path
    except WayClosedError:
        # A program may still run it later: then it must exist, and do nothing.
        path.write_text("", encoding="ascii")
        raise
    path.unlink(missing_ok=True)


def _sweep() -> None:
    """Delete files left for programs that have ended."""
    for path in runtime_folder().glob(f"{PREFIX}*.py"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and not (pid.isdecimal() and psutil.pid_exists(int(pid))):
                path.unlink()


def _free_page(mapped: list[Mapping]) -> int:
    """An address where the program has nothing mapped, below all of its libraries."""
    taken = [(one.begins, one.ends) for one in mapped]
    # Below `_KERNEL`: the gap beyond it separates the two halves of the address space.
    gaps = [(begins, ends) for (_, begins), (ends, _) in pairwise(taken) if ends < _KERNEL]
    begins, ends = max(gaps, key=lambda gap: gap[1] - gap[0])
    return (begins + (ends - begins) // 2) // _PAGE * _PAGE

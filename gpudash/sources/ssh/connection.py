"""A connection to a machine through the system's ssh, with the reader sent over it; and why it ended, in one sentence
with a remedy."""

from __future__ import annotations

import ast
import functools
import logging
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpudash.sources.ssh.address import SshHost
from gpudash.sources.ssh.asking import Asking, SshQuestion

logger = logging.getLogger(__name__)

LONGEST_LINE = 2**16
"""Longest line in bytes; longer ones are dropped."""

MOST_PROBLEMS = 4000
"""Bytes kept of the standard error of ssh and of the remote side."""

ENDING_S = 1.0
"""Time for ssh to end by itself after it was asked to."""

OLDEST = (3, 8)
"""Oldest Python version on the remote machine that can run the reader."""

_CHUNK = 2**16

_NO_PYTHON, _OLD_PYTHON = "gpudash: no python3", "gpudash: old python3 "

_START = (
    "import sys;"
    f'v=sys.version_info;v<{OLDEST} and sys.exit("{_OLD_PYTHON}%d.%d"%v[:2]);'
    'exec(compile(sys.stdin.buffer.read({size}),"gpudash","exec"))'
)

_COMMAND = (
    "exec /bin/sh -c '"
    "command -v python3 >/dev/null 2>&1 || {{ echo {no_python} >&2; exit 127; }}; "
    "exec python3 -I -S -B -u -c \"$0\" {period}' '{start}'"
)
"""Accepted by every login shell: no nested quotes of the same kind, and nothing that a shell would expand."""

_OPTIONS = (
    "-T",  # no remote terminal
    "-a",  # use the ssh agent, but do not forward it
    "-x",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
    "-o", "ControlMaster=no",  # use an existing master; one of ours would outlive the window
    "-o", "LogLevel=ERROR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Why a connection ended or failed.

    Attributes:
        text: one sentence that names the machine.
        lasting: whether retries are in vain until something is changed.
    """

    text: str
    lasting: bool = False


class Connection:
    """Starts ssh; `read` returns the reader's output. Belongs to one thread, except `stop`.

    Args:
        host: the destination.
        period_s: seconds between readings.
        prompt: whether ssh may ask for passwords and host keys in gpudash's terminal. Otherwise it may only ask
            through ``asking``, or through the user's own SSH_ASKPASS.
        asking: receives ssh's questions; the connection closes it at the end.

    Raises:
        OSError: if ssh cannot be started.
    """

    def __init__(self, host: SshHost, period_s: float, *, prompt: bool = False, asking: Asking | None = None) -> None:
        self._host = host
        self._asking, self._batch = asking, not (prompt or asking is not None or has_askpass(os.environ))
        # The reader is sent with every connection: nothing is installed remotely.
        source = reader_source()
        batch = []
        if self._batch:
            batch = ["-o", "BatchMode=yes"]
        if asking is None:
            asks = {}
        else:
            asks = asking.environment
        if batch:
            asks = {"SSH_ASKPASS_REQUIRE": "never"}  # the batch mode does not reach a jump host's ssh
        command = [_ssh(), *_OPTIONS, *batch, *host.arguments, remote_command(len(source), period_s)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            # Without a prompt, in a process group of its own, so that Ctrl+C in the terminal only reaches gpudash;
            # with one, ssh needs the terminal.
            start_new_session=not prompt,
            env={**os.environ, **asks},
        )
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._input, self._output, self._errors = self._process.stdin, self._process.stdout, self._process.stderr
        logger.info("process %d began: ssh to ssh://%s", self._process.pid, host.name)
        self._leads = not prompt
        self._ending = threading.Lock()
        self._problems = b""
        self._begun, self._too_long = b"", False
        self.left_out = 0
        for stream in (self._output, self._errors):
            # One thread reads both: if it blocked on one, ssh could fill the other's pipe and block too.
            os.set_blocking(stream.fileno(), False)
        with suppress(BrokenPipeError):
            self._input.write(source)  # fits in a pipe's buffer, so this does not block

    @property
    def pid(self) -> int:
        """PID of ssh."""
        return self._process.pid

    @property
    def question(self) -> SshQuestion | None:
        """ssh's pending question; any thread may read and answer it."""
        if self._asking is None:
            return None
        return self._asking.question

    @property
    def cancelled(self) -> bool:
        """Whether the user refused a question."""
        return self._asking is not None and self._asking.refused

    def read(self, timeout_s: float) -> list[bytes] | None:
        """Complete lines, waiting for some at most ``timeout_s``; ``None`` once the connection has ended.

        `left_out` counts lines that are too long.
        """
        # A new selector for each read: while ssh asks, the sockets to watch change.
        with selectors.DefaultSelector() as selector:
            for stream in (self._output, self._errors):
                selector.register(stream, selectors.EVENT_READ)
            if self._asking is not None:
                self._asking.register(selector)
            ready = {key.fileobj for key, _events in selector.select(timeout_s)}
        if self._asking is not None:
            self._asking.hear(ready)
        if self._errors in ready:
            self._take_problems()
        if self._output not in ready:
            # Its output may have ended just before the process itself.
            if self._process.poll() is None:
                return []
            return None
        data = _available(self._output.fileno())
        if data == b"":
            return None
        # The last part is not a complete line yet.
        *whole, self._begun = (self._begun + (data or b"")).split(b"\n")
        if whole and self._too_long:
            del whole[0]
            self._too_long = False
            self.left_out += 1
        # Of an endless line, only remember that it was too long.
        if len(self._begun) > LONGEST_LINE:
            self._begun, self._too_long = b"", True
        kept = [line for line in whole if len(line) <= LONGEST_LINE]
        self.left_out += len(whole) - len(kept)
        return [line for line in kept if line.strip()]

    def stop(self) -> None:
        """End ssh and its children now; any thread may call it, more than once."""
        with self._ending:
            # Under the same lock as `end`: once a process was waited for, its PID may be another's.
            self._signal(signal.SIGTERM)

    def end(self, *, greeted: bool) -> LinkFault:
        """End ssh, close its pipes, and return why it ended.

        Args:
            greeted: whether the remote reader had started.
        """
        by_itself = self._process.poll()
        # ssh's own exit code gives the reason; one caused by our signal says nothing.
        if by_itself is None:
            with suppress(subprocess.TimeoutExpired):  # having closed its output, it is about to exit
                by_itself = self._process.wait(ENDING_S / 4)
        self.stop()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            with self._ending:
                self._signal(signal.SIGKILL)
            self._process.wait()
        logger.info("process %d, ssh to ssh://%s, ended with code %s", self._process.pid, self._host.name, by_itself)
        # After the process: ssh's last message is the reason.
        self._take_problems()
        for stream in (self._input, self._output, self._errors):
            with suppress(OSError):
                stream.close()
        if self._asking is not None:
            self._asking.close()
            if self._asking.refused and not greeted:
                return LinkFault(_CANCELLED.format(name=self._host.name), lasting=True)
        problems = self._problems.decode(errors="replace")
        if self._asking is None:
            answered = _WRONG in problems
        else:
            answered = self._asking.answered > 0
        answered = answered and not self._batch  # batch mode: it was only a jump host's question
        return fault_of(self._host, problems, by_itself, greeted=greeted, answered=answered)

    def _signal(self, number: signal.Signals) -> None:
        # Already waited for: its PID may be another process's.
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._leads:
                os.killpg(self._process.pid, number)  # with a jump host's ssh, or a ProxyCommand
            else:
                self._process.send_signal(number)

    def _take_problems(self) -> None:
        self._problems = (self._problems + (_available(self._errors.fileno()) or b""))[-MOST_PROBLEMS:]


def remote_command(size: int, period_s: float) -> str:
    """The remote shell's command: it runs a reader of ``size`` bytes that arrives on standard input."""
    return _COMMAND.format(no_python=_NO_PYTHON, period=f"{period_s:g}", start=_START.format(size=size))


def can_prompt() -> bool:
    """Whether ssh can ask in a terminal now: there is one, and this program is in the foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        # The kernel stops a background program that reads from the terminal.
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def fault_of(host: SshHost, problems: str, code: int | None, *, greeted: bool, answered: bool = False) -> LinkFault:
    """The reason why a connection ended.

    Args:
        problems: text on standard error, from ssh or from the remote side.
        code: exit code of ssh; ``None`` if we ended it.
        greeted: whether the remote reader had started.
        answered: whether a question was answered.
    """
    last = _last_line(problems)
    # Once the reader has started, any end is a lost connection; quote ssh's last words.
    if greeted:
        return LinkFault(f"The link to {host.name} was lost{f' ({last})' if last else ''}")
    if _NO_PYTHON in problems:
        return LinkFault(_WITHOUT_PYTHON.format(name=host.name), lasting=True)
    if _OLD_PYTHON in problems or _NO_ISOLATION in problems:
        version = _plain(problems.partition(_OLD_PYTHON)[2].split("\n")[0], 8) or "older than 3.4"
        return LinkFault(f"The python3 of {host.name} is {version}; the reader needs 3.8 or newer there", lasting=True)
    name, here = host.name, host.host
    # The jump host's ssh writes to the same standard error, before our own ssh.
    if _BEHIND in problems and _FORWARDED not in problems:  # the jump host's ssh gives the reason
        name, here = f"the jump host of {host.name}", "that jump host's name"
        if found := _UNRESOLVED.search(problems):
            here = _plain(found[1], 80)
    # In order: the message about a changed key also says that verification failed.
    for mark, template, lasting in _FAULTS:
        if mark in problems:
            text = template.format(name=name, login=host.login, host=here, forget=_forgetting(host, problems))
            return LinkFault(text if name == host.name else text[0].upper() + text[1:], lasting)
    if "Permission denied" in problems:
        text = _denied(host, name, problems, answered=answered)
        return LinkFault(text if name == host.name else text[0].upper() + text[1:], lasting=True)
    # 255 is ssh's own code (ssh(1)); any other is the remote command's.
    if code == 255 or code is None:
        return LinkFault(f"ssh cannot reach {host.name}{f': {last}' if last else ''}; see what {host.login} says")
    return LinkFault(
        f"{host.name} did not run the reader (exit code {code}{f': {last}' if last else ''}); see what "
        f"{host.login} python3 --version says",
        lasting=True,
    )


_CANCELLED = "The login to {name} was cancelled; Reconnect asks again"

_WITHOUT_PYTHON = "{name} has no python3 on its PATH; install Python 3.8 or newer there"

_NO_ISOLATION = "Unknown option: -I"
"""Message of a Python before 3.4."""

_BEHIND = "kex_exchange_identification: Connection closed"
"""ssh's message after a jump host's ssh has ended without reaching the machine."""

_FORWARDED = "stdio forwarding failed"
"""Message of a jump host's ssh that could log in but not connect further."""

_WRONG = "Permission denied, please try again"
"""ssh's message about a wrong password, before it asks again."""

_UNRESOLVED = re.compile(r"Could not resolve hostname ([^:\s]+)")

_KNOWN_AS = re.compile(r"host key for (\S+) has changed", re.IGNORECASE)
"""Finds ssh's name for a host whose key has changed: from the configuration, with the port unless that is 22."""

_KNOWN_IN = re.compile(r"Offending \S+ key in (.+):\d+\s*$", re.MULTILINE)

_CHANGED = """The host key of {name} is not the one that is known: it was installed anew, or somebody is in between; \
compare the keys, and take the old one out if that is right: {forget}"""

_UNKNOWN = """{name} is not known to ssh yet; log in once in a terminal to compare and accept its host key: {login}"""

_NO_WAY = "There is no way to {name} from here; look at the network or VPN"

_KEYS = "{name} was offered too many keys; name one in ~/.ssh/config with IdentityFile and IdentitiesOnly=yes"

_FAULTS = (
    ("HOST IDENTIFICATION HAS CHANGED", _CHANGED, True),
    ("Host key verification failed", _UNKNOWN, True),
    ("Could not resolve hostname", "There is no host called {host}; look at the name, or at ~/.ssh/config", False),
    ("Connection refused", "{name} refuses the connection; look at the port, and whether sshd runs there", False),
    ("timed out", "{name} does not answer; look whether it is on, and whether a firewall is in between", False),
    ("No route to host", _NO_WAY, False),
    ("Network is unreachable", _NO_WAY, False),
    ("Too many authentication failures", _KEYS, True),
    ("gpudash: no /proc", "{name} has no /proc; only Linux can be watched over ssh", True),
)
"""Text on standard error, its meaning, and whether retries are in vain."""


def _forgetting(host: SshHost, problems: str) -> str:
    """The command that removes a host's key from the file where ssh knows it."""
    if host.port in (None, 22):
        usual = host.host
    else:
        usual = f"[{host.host}]:{host.port}"
    name, place = _KNOWN_AS.search(problems), _KNOWN_IN.search(problems)
    if place is None:
        known_in = ""
    else:
        known_in = _plain(place[1], 200)
    if known_in in ("", str(Path("~/.ssh/known_hosts").expanduser())):
        other = ""
    else:
        other = f"-f {shlex.quote(known_in)} "
    return f"ssh-keygen {other}-R {shlex.quote(_plain(name[1], 200) if name else usual)}"


def _denied(host: SshHost, name: str, problems: str, *, answered: bool) -> str:
    """The authentication methods that failed, which ssh names in brackets.

    Args:
        name: what refused the login: the host or its jump host.
    """
    methods, by_hand = problems.rpartition("Permission denied")[2], host.login.removeprefix("ssh ")
    key = f"leave a key there: ssh-copy-id {by_hand}"
    if "password" in methods or "keyboard-interactive" in methods:
        if answered:
            return f"{name} did not accept the password; try again with another, or {key}"
        return f"{name} wants a password; Reconnect, or opening {host} from a terminal, lets ssh ask for it; or {key}"
    return f"{name} accepts none of your keys for that user; see what ssh -v {by_hand} says"


def _last_line(problems: str) -> str:
    lines = [line.strip() for line in problems.splitlines() if line.strip()]
    if lines:
        return _plain(lines[-1], 160).rstrip(".")
    return ""


def _plain(text: str, longest: int) -> str:
    """Text from the remote side, made safe for a sentence."""
    kept = "".join(character if character.isprintable() else "\ufffd" for character in text.strip())
    if len(kept) <= longest:
        return kept
    return f"{kept[: longest - 1]}…"


def _ssh() -> str:
    found = shutil.which("ssh")
    if found is None:
        raise FileNotFoundError(
            "there is none on the PATH of this computer; install it: sudo apt install openssh-client"
        )
    return found


def has_askpass(environment: Mapping[str, str]) -> bool:
    """Whether the user has an askpass program of their own with which ssh asks on the screen."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS_REQUIRE")
    return bool(environment.get("SSH_ASKPASS")) and any(map(environment.get, shown))


def _available(descriptor: int) -> bytes | None:
    """The data that can be read now; b"" at the end, ``None`` if there is none yet."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def reader_source() -> bytes:
    """The reader as it is sent: without docstrings and comments, to fit in a pipe's buffer.

    Each machine connects on its own thread, and CPython 3.11 counts the recursion depth of `ast` for all threads
    together: two that parse at the same time can raise SystemError (https://github.com/python/cpython/issues/106905).
    """
    with _one_parses:
        return _stripped_reader()


_one_parses = threading.Lock()


@functools.cache
def _stripped_reader() -> bytes:
    tree = ast.parse(Path(__file__).with_name("remote_reader.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)] or [ast.Pass()]
    return ast.unparse(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or a string that documents a constant."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )

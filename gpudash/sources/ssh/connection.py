"""One connection to a machine, through the system's ssh, with the reader sent over it; and what its end means, in one
sentence with the way out."""

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
"""Bytes of a line; a longer one is left out without being kept."""

MOST_PROBLEMS = 4000
"""Bytes kept of what ssh and the other side write to their standard error."""

ENDING_S = 1.0
"""How long ssh may take to end by itself, having been asked to."""

OLDEST = (3, 8)
"""The Python that the reader needs there."""

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
"""Every login shell takes it: it has no quote within a quote of the same kind, and nothing that one of them expands."""

_OPTIONS = (
    "-T",  # no terminal there
    "-a",  # the agent is asked here, and not lent to the machine
    "-x",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
    "-o", "ControlMaster=no",  # a master that is there is used; one of ours would outlive the window
    "-o", "LogLevel=ERROR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Why a connection ended, or never came about.

    Attributes:
        text: one sentence that names the machine.
        lasting: whether trying again is in vain until something is done about it.
    """

    text: str
    lasting: bool = False


class Connection:
    """Starts ssh; `read` gives what the reader there writes. Belongs to one thread, apart from `stop`.

    Args:
        host: where to.
        period_s: seconds between readings.
        prompt: whether ssh may ask for a password, or whether a host is the right one, in the terminal that gpudash
            was started from. Else it may only ask through ``asking``, or through the user's own SSH_ASKPASS.
        asking: hears what ssh asks; the connection closes it when it ends.

    Raises:
        OSError: when ssh cannot be started.
    """

    def __init__(self, host: SshHost, period_s: float, *, prompt: bool = False, asking: Asking | None = None) -> None:
        self._host = host
        self._asking, self._batch = asking, not (prompt or asking is not None or has_askpass(os.environ))
        # The reader is sent with every connection: nothing is installed there.
        source = reader_source()
        batch = []
        if self._batch:
            batch = ["-o", "BatchMode=yes"]
        if asking is None:
            asks = {}
        else:
            asks = asking.environment
        if batch:
            asks = {"SSH_ASKPASS_REQUIRE": "never"}  # a jump host's ssh is not told of the batch mode
        command = [_ssh(), *_OPTIONS, *batch, *host.arguments, remote_command(len(source), period_s)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            # Without a prompt in a group of its own, so that Ctrl+C in the terminal reaches gpudash alone; with one,
            # ssh needs the terminal.
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
            # Both are read in one thread: a read that waits for one would let the other fill its pipe, and ssh stop.
            os.set_blocking(stream.fileno(), False)
        with suppress(BrokenPipeError):
            self._input.write(source)  # less than a pipe holds, so that this does not wait

    @property
    def pid(self) -> int:
        """Number of the ssh process."""
        return self._process.pid

    @property
    def question(self) -> SshQuestion | None:
        """What ssh asks here now; any thread may look and answer."""
        if self._asking is None:
            return None
        return self._asking.question

    @property
    def cancelled(self) -> bool:
        """Whether the user declined to answer."""
        return self._asking is not None and self._asking.refused

    def read(self, timeout_s: float) -> list[bytes] | None:
        """Whole lines that have come, waiting for some at most ``timeout_s``; ``None`` once no more can come.

        Lines that are too long are counted in `left_out`.
        """
        # Made anew for each read: the streams to listen to change while ssh asks.
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
            # Its output may have ended a moment before the process itself.
            if self._process.poll() is None:
                return []
            return None
        data = _available(self._output.fileno())
        if data == b"":
            return None
        # The last part is no whole line yet, and waits for the rest.
        *whole, self._begun = (self._begun + (data or b"")).split(b"\n")
        if whole and self._too_long:
            del whole[0]
            self._too_long = False
            self.left_out += 1
        # Of a line without an end nothing is kept but that it was too long.
        if len(self._begun) > LONGEST_LINE:
            self._begun, self._too_long = b"", True
        kept = [line for line in whole if len(line) <= LONGEST_LINE]
        self.left_out += len(whole) - len(kept)
        return [line for line in kept if line.strip()]

    def stop(self) -> None:
        """Have ssh end now, with what it has started; any thread may call, and again."""
        with self._ending:
            # Under the lock with `end`: a process that was waited for has a number that may be another's by now.
            self._signal(signal.SIGTERM)

    def end(self, *, greeted: bool) -> LinkFault:
        """Have ssh ended, let go of its pipes, and say why it ended.

        Args:
            greeted: whether the reader there had begun.
        """
        by_itself = self._process.poll()
        # Its own exit code says why; the one that a signal from here causes says nothing.
        if by_itself is None:
            with suppress(subprocess.TimeoutExpired):  # one that has closed its output is about to end by itself
                by_itself = self._process.wait(ENDING_S / 4)
        self.stop()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            with self._ending:
                self._signal(signal.SIGKILL)
            self._process.wait()
        logger.info("process %d, ssh to ssh://%s, ended with code %s", self._process.pid, self._host.name, by_itself)
        # After the process: what ssh writes last is the reason.
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
        answered = answered and not self._batch  # a jump host's ssh, which does not know of it, has answered nothing
        return fault_of(self._host, problems, by_itself, greeted=greeted, answered=answered)

    def _signal(self, number: signal.Signals) -> None:
        # Waited for already: its number may be another process's.
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
    """What the shell there is given: it runs a reader of ``size`` bytes that comes on its standard input."""
    return _COMMAND.format(no_python=_NO_PYTHON, period=f"{period_s:g}", start=_START.format(size=size))


def can_prompt() -> bool:
    """Whether ssh can ask in a terminal now: there is one, and this program is in its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        # A program in the background that reads the terminal is stopped by the kernel.
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def fault_of(host: SshHost, problems: str, code: int | None, *, greeted: bool, answered: bool = False) -> LinkFault:
    """What ended a connection.

    Args:
        problems: what was written to the standard error, by ssh or from the other side.
        code: exit code of ssh; ``None`` when it was ended from here.
        greeted: whether the reader there had begun.
        answered: whether a question of ssh's was answered.
    """
    last = _last_line(problems)
    # Once the reader has begun, whatever follows is a loss, with ssh's last words.
    if greeted:
        return LinkFault(f"The link to {host.name} was lost{f' ({last})' if last else ''}")
    if _NO_PYTHON in problems:
        return LinkFault(_WITHOUT_PYTHON.format(name=host.name), lasting=True)
    if _OLD_PYTHON in problems or _NO_ISOLATION in problems:
        version = _plain(problems.partition(_OLD_PYTHON)[2].split("\n")[0], 8) or "older than 3.4"
        return LinkFault(f"The python3 of {host.name} is {version}; the reader needs 3.8 or newer there", lasting=True)
    name, here = host.name, host.host
    # The jump host's ssh writes to the same standard error, before the one that was started here.
    if _BEHIND in problems and _FORWARDED not in problems:  # the jump host's own ssh says why
        name, here = f"the jump host of {host.name}", "that jump host's name"
        if found := _UNRESOLVED.search(problems):
            here = _plain(found[1], 80)
    # In order: the text of a changed key also says that verification failed.
    for mark, template, lasting in _FAULTS:
        if mark in problems:
            text = template.format(name=name, login=host.login, host=here, forget=_forgetting(host, problems))
            return LinkFault(text if name == host.name else text[0].upper() + text[1:], lasting)
    if "Permission denied" in problems:
        text = _denied(host, name, problems, answered=answered)
        return LinkFault(text if name == host.name else text[0].upper() + text[1:], lasting=True)
    # 255 is ssh's own (ssh(1)); any other code is that of the command there.
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
"""What a Python before 3.4 says."""

_BEHIND = "kex_exchange_identification: Connection closed"
"""What ssh says, behind what a jump host's ssh said, when that has ended without a way to the machine."""

_FORWARDED = "stdio forwarding failed"
"""What a jump host's ssh says where it was let in, and the way on is closed."""

_WRONG = "Permission denied, please try again"
"""What ssh says of a password before it asks for the next."""

_UNRESOLVED = re.compile(r"Could not resolve hostname ([^:\s]+)")

_KNOWN_AS = re.compile(r"host key for (\S+) has changed", re.IGNORECASE)
"""By which name ssh knows a host whose key has changed: that of the configuration, with the port where it is not 22."""

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
"""Text on the standard error, what it means, and whether trying again is in vain."""


def _forgetting(host: SshHost, problems: str) -> str:
    """The command that takes a host's key out of the file in which ssh knows it."""
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
    """Which of ssh's ways in were not open, as it names them in brackets.

    Args:
        name: who has refused: the host or its jump host.
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
    """Text of the other side, as a sentence can hold it."""
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
    """Whether the user has a program of their own by which ssh asks for passwords on the screen."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS_REQUIRE")
    return bool(environment.get("SSH_ASKPASS")) and any(environment.get(name) for name in shown)


def _available(descriptor: int) -> bytes | None:
    """What can be read now, b"" at the end, ``None`` where there is nothing yet."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def reader_source() -> bytes:
    """The reader as it is sent: without docstrings and comments, so that a pipe holds all of it.

    Machines are linked by a thread each, and CPython 3.11 counts the depth of `ast`'s recursion for all threads
    together: two that parse at once can raise SystemError (https://github.com/python/cpython/issues/106905).
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
    """Whether it is a docstring, or stands behind a constant like one."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )

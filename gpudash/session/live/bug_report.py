"""What a bug report needs, as one text that can be read before it is sent: findings, versions, settings and the log, in
which names of users, hosts and files are replaced.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpudash import __version__
from gpudash.system.folders import log_file
from gpudash.system.foreign_files import open_regular
from gpudash.system.log import KEPT, MOST_BYTES, without_secrets
from gpudash.system.settings import Settings, load_settings

LOG_BYTES = 1_000_000
"""Bytes of the log, newest last, that a report has."""

PACKAGES = (
    "torch",
    "PySide6-Essentials",
    "pyqtgraph",
    "numpy",
    "nvidia-ml-py",
    "psutil",
    "pydantic",
    "cyclopts",
    "rich",
    "transformers",
    "diffusers",
    "peft",
    "lightning",
)

PRIVATE = ("notify", "serve")
"""Settings whose value is not shown, only whether they are set."""

HEADING = """gpudash: a bug report
Read it before you send it: names of users, hosts and files are replaced, what a program itself has said is not.
"""


def bug_report(findings: Iterable[str]) -> str:
    """The report.

    Args:
        findings: what ``gpudash doctor`` has found, one sentence each.
    """
    parts = {
        "Findings": findings,
        "Versions": _versions(),
        "Settings": _settings(),
        "Log": [newest_log(LOG_BYTES) or "There is no log."],
    }
    text = "\n".join(f"{title}\n{'-' * len(title)}\n" + "\n".join(lines) + "\n" for title, lines in parts.items())
    return f"{HEADING}\n{Anonymous().without_names(text)}"


def newest_log(most: int) -> str:
    """The end of the log in whole lines, at most so many bytes; "" where there is none.

    Raises:
        OSError: when it cannot be read.
    """
    file, found = log_file(), b""
    for path in (file, *(file.with_name(f"{file.name}.{number}") for number in range(1, KEPT + 1))):
        try:
            with open_regular(path) as stream:
                found = stream.read(2 * MOST_BYTES) + found
        except FileNotFoundError:
            break
        if len(found) > most:
            break
    if len(found) > most:
        found = found[-most:].partition(b"\n")[2]
    return found.decode("utf-8", "replace").rstrip("\n")


def _versions() -> Iterator[str]:
    yield f"gpudash {__version__}"
    yield f"Python {platform.python_version()} on {platform.platform()}"
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _settings() -> Iterator[str]:
    settings, problems = load_settings()
    yield from problems
    usual = Settings()
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if value != getattr(usual, name):
            yield f"{name} is set" if name in PRIVATE else f"{name} = {value!r}"
    if settings == usual:
        yield "All are as they come."


_PATH = r"(?:~|/)[^\s'\"`,;<>|:()\[\]{}]*"
_PATHS = re.compile(
    rf"\"(?P<double>(?:~|/)[^\"\n]+)\"|'(?P<single>(?:~|/)[^'\n]+)'|(?<![\w.:/~<>-])(?P<bare>{_PATH}/?[^\s'\"`,;<>|:()\[\]{{}}]+)"
)
_KEPT = (
    re.compile(r"/((?:site|dist)-packages/.+\.py)$"),
    re.compile(r"/(lib/python3\.\d+/.+\.py)$"),
    re.compile(r"/(gpudash/[\w/]+\.py)$"),
)
_KERNEL = ("/proc/", "/sys/", "/dev/")
_RECORDING = re.compile(r"[^\s/'\"]+\.gpudash\b")
_URL_HOST = re.compile(r"://(?:[^\s/@'\"]*@)?(\[[0-9a-f:]+\]|[^\s/:?#'\",;)<>]+)", re.IGNORECASE)
_LOGIN = re.compile(r"[\w.+-]+@([\w-]+(?:\.[\w-]+)*)")
_IPV4, _IPV6 = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])", r"(?<![\w:.])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f:]*"
_ADDRESS = re.compile(f"{_IPV4}|{_IPV6}", re.IGNORECASE)
_SERIAL = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}", re.IGNORECASE)
_OWN_HOST = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]")


class Anonymous:
    """Replaces names, each by the same everywhere, so that it can still be seen what belongs together.

    Paths of packages and of Python's own library keep their end. What is no path, host or user by its looks stays.
    """

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._users = _own_users()
        for name in _own_hosts():
            self._host(name)

    def without_names(self, text: str) -> str:
        """``text`` without names of users, hosts and files, and without secrets."""
        text = without_secrets(text)
        for found in (*_URL_HOST.finditer(text), *_LOGIN.finditer(text)):
            self._host(found[1])
        text = _PATHS.sub(self._path, text)
        text = _RECORDING.sub(lambda found: self._file(found[0]), text)
        text = _LOGIN.sub(lambda found: f"<user>@{self._host(found[1])}", text)
        text = _ADDRESS.sub(lambda found: self._host(found[0]), text)
        text = _SERIAL.sub(r"\1-<serial>", text)
        for name in sorted(self._hosts, key=len, reverse=True):
            text = _word(name).sub(self._hosts[name], text)
        for name in self._users:
            text = _word(name).sub("<user>", text)
        return text

    def _path(self, found: re.Match[str]) -> str:
        quote = ""
        if found["double"]:
            quote = '"'
        elif found["single"]:
            quote = "'"
        path = found["double"] or found["single"] or found["bare"]
        end = ""
        if not quote:
            path, end = (path.rstrip("."), path[len(path.rstrip(".")) :])
        if path.startswith(_KERNEL):
            return found[0]
        kept = next(filter(None, (pattern.search(path) for pattern in _KEPT)), None)
        return f"{quote}{f'…/{kept[1]}' if kept else self._file(path)}{quote}{end}"

    def _file(self, path: str) -> str:
        name = self._files.setdefault(path, f"<file {len(self._files) + 1}>")
        return name + (suffix if re.fullmatch(r"\.\w{1,8}", suffix := Path(path).suffix) else "")

    def _host(self, name: str) -> str:
        if name.lower() in _OWN_HOST or name.startswith("<"):
            return name
        return self._hosts.setdefault(name, f"<host {len(self._hosts) + 1}>")


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w<-]){re.escape(name)}(?![\w>-])")


def _own_hosts() -> set[str]:
    """What this machine is called."""
    names = {socket.gethostname(), platform.node()}
    return {part for name in names for part in (name, name.partition(".")[0]) if len(part) > 1 and part != "localhost"}


def _own_users() -> set[str]:
    """The user's name; root counts as none."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} | {Path.home().name}
    with suppress(KeyError, OSError):  # of a container's user, who has no name
        names.add(getpass.getuser())
    return {name for name in names if len(name) > 1 and name != "root"}

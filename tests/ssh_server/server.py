"""A real sshd on a loopback port of its own, with keys of its own, for a machine that is read over ssh."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.programs import program

START_S = 60.0
"""Longest that a server may take to start on a busy machine."""

LOOKED_S = 0.02

PASSWORD = "battery staple"
"""Of a server that takes a password."""

_HASH = "$5$rounds=1000$AxVIa3ZPIpQ7V9dP$WXykNv1BEMB9k8PUIAwv9S9j7amsfpWr5xM5Y8xoZqB"
"""crypt(3) of it."""

PRIVATE = Path("/run/sshd")
"""What sshd wants to be there when root starts it; the system's own start makes it."""


def sshd() -> str:
    """The server's path; where there is none the test is skipped or fails, as `program` says."""
    return program("sshd", "/usr/sbin/sshd")


@dataclass(frozen=True)
class Client:
    """The user's side: keys, ssh's configuration, and a folder with an ``ssh`` that uses them.

    Attributes:
        folder: of all.
        key: a key without a passphrase.
    """

    folder: Path
    key: Path

    @property
    def programs(self) -> Path:
        """To be put first on the PATH."""
        return self.folder / "bin"

    @property
    def known_hosts(self) -> Path:
        """The hosts' keys that are known."""
        return self.folder / "known_hosts"

    def environment(self) -> dict[str, str]:
        """This process's, with the ``ssh`` first on the PATH, and no agent that has other keys."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
        return {**kept, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}

    def name(self, alias: str, port: int, options: Mapping[str, str] | None = None) -> None:
        """Let ``alias`` be known to ssh's configuration; options given take the place of the usual ones."""
        lines = {
            "HostName": "127.0.0.1",
            "Port": str(port),
            "User": getpass.getuser(),
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": alias,
            **(options or {}),
        }
        with (self.folder / "config").open("a") as config:
            config.write(f"Host {alias}\n" + "".join(f"  {name} {value}\n" for name, value in lines.items()))


def make_client(folder: Path) -> Client:
    """A client without any host."""
    keygen, ssh = program("ssh-keygen"), program("ssh")
    folder.mkdir(parents=True)
    key = make_key(keygen, folder / "key")
    client = Client(folder, key)
    (folder / "config").touch()
    client.known_hosts.touch()
    client.programs.mkdir()
    script = client.programs / "ssh"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(ssh)} -F {shlex.quote(str(folder / "config"))} "$@"\n')
    script.chmod(0o755)
    return client


def make_key(keygen: str, path: Path, passphrase: str = "") -> Path:
    """A key at ``path``."""
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True, timeout=START_S)
    return path


class Server:
    """A running sshd.

    Attributes:
        port: it listens at.
        key: of the host, its public half in one line.
    """

    def __init__(self, folder: Path, port: int, key: str, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.key = key
        self.process = process
        self._folder = folder

    @property
    def log(self) -> str:
        """What it has written of itself."""
        return (self._folder / "sshd.log").read_text(errors="replace")

    def sessions(self) -> list[psutil.Process]:
        """The processes that it has started for those who are logged in."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def programs(self) -> list[str]:
        """The names of these processes, as far as they have not ended meanwhile."""
        names = []
        for process in self.sessions():
            with suppress(psutil.NoSuchProcess):
                names.append(process.name())
        return names

    def stop(self) -> None:
        """Listen no longer, and kill every connection."""
        logged_in = self.sessions()
        self.process.terminate()
        self.process.wait(START_S)
        self.cut(logged_in)

    def cut(self, logged_in: Sequence[psutil.Process] | None = None) -> None:
        """Kill every connection, or these; whoever was logged in is not told."""
        for process in self.sessions() if logged_in is None else logged_in:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@contextmanager
def ssh_server(
    folder: Path,
    client: Client,
    alias: str,
    *,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    known: bool = True,
    password: bool = False,
) -> Iterator[Server]:
    """A server that ``client`` knows as ``alias``, and accepts its key.

    Args:
        folder: for its files.
        variables: what programs see there, beside a PATH on which the only python3 is this one.
        options: more lines of its configuration, that come first and so count.
        known: whether the client knows its host key.
        password: whether `PASSWORD` opens it, and no key; that takes a C compiler.
    """
    keygen, server = program("ssh-keygen"), sshd()
    folder.mkdir(parents=True, exist_ok=True)
    host_key = folder / "host_key"
    if not host_key.exists():
        make_key(keygen, host_key)
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    port = _free_port()
    shutil.copyfile(f"{client.key}.pub", folder / "authorized_keys")
    config = folder / "sshd_config"
    if password:
        options = ["PasswordAuthentication yes", "PubkeyAuthentication no", *options]
    config.write_text("\n".join([*options, *_lines(folder, variables or {}, port)]) + "\n")
    if os.geteuid() == 0:
        PRIVATE.mkdir(mode=0o755, exist_ok=True)
    log = folder / "sshd.log"
    process = subprocess.Popen(
        [server, "-D", "-f", str(config), "-E", str(log)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(_password(folder) if password else {})},
    )
    running = Server(folder, port, public, process)
    try:
        _await(process, log)
        client.name(alias, port)
        if known:
            with client.known_hosts.open("a") as hosts:
                hosts.write(f"{alias} {public}\n")
        yield running
    finally:
        running.stop()


def _password(folder: Path) -> dict[str, str]:
    """Variables with which an sshd takes `PASSWORD` of whoever logs in."""
    library = folder / "password.so"
    source = Path(__file__).with_name("password.c")
    command = [program("gcc", "cc"), "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True, timeout=START_S)
    return {"LD_PRELOAD": str(library), "SSH_SERVER_PASSWORD": _HASH}


def _lines(folder: Path, variables: Mapping[str, str], port: int) -> list[str]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    if not (programs / "python3").is_symlink():
        (programs / "python3").symlink_to(sys.executable)
    seen = {"PATH": str(programs), **variables}
    enter = folder / "enter"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in seen.items())
    enter.write_text(f'#!/bin/sh\n{exports}exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    enter.chmod(0o755)
    return [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {folder / 'host_key'}",
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        f"PidFile {folder / 'sshd.pid'}",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"ForceCommand {enter}",
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it listens."""
    until, text = time.monotonic() + START_S, ""
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text(errors="replace") if log.exists() else ""
        if "Server listening on" in text:
            return
        time.sleep(LOOKED_S)
    process.kill()
    process.wait()
    pytest.fail(f"sshd did not start:\n{text[-2000:]}")

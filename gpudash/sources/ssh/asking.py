"""What ssh wants to know from a person, where there is no terminal for it to ask in: ssh starts a program of ours,
which brings the question here and takes the answer back. No answer is written anywhere."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import socket
import sys
import threading
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gpudash.sources.ssh.askpass import GIVEN, LONGEST
from gpudash.system.files import PrivateFolder, runtime_folder

QuestionKind = Literal["secret", "text", "confirm", "told"]

_KINDS: dict[str, QuestionKind] = {"confirm": "confirm", "none": "told"}
"""SSH_ASKPASS_PROMPT, as ssh sets it (ssh(1), from OpenSSH 8.4 on); anything else is a question with an answer."""

_NO_SECRET = "(yes/no"
"""What ssh's question for a host key holds: its answer may be seen."""

MOST_WAITING = 8
"""Questions that wait for an answer at once; more are refused."""


class SshQuestion:
    """What ssh wants to know. Any thread may answer or refuse it, once.

    Attributes:
        prompt: ssh's own words, or those of the machine that it hands on; not to be trusted to be short or plain.
        kind: "secret" is not to be seen while it is typed, "text" is, "confirm" is answered by yes or no, and "told"
            goes away by itself.
        again: whether the same was asked before in this attempt, and the answer led to nothing.
        open: whether it still waits; ssh may have ended meanwhile.
        answered, refused: what became of it.
        channel: to the program that asks.
    """

    def __init__(self, prompt: str, kind: QuestionKind, channel: socket.socket, *, again: bool) -> None:
        self.prompt = prompt
        self.kind = kind
        self.again = again
        self.open = True
        self.answered = self.refused = False
        self.channel = channel
        self._lock = threading.Lock()

    def answer(self, text: str) -> None:
        """Hand an answer to ssh; a question that is no longer open is left alone."""
        with self._lock:
            if self.open:
                self.open, self.answered = False, True
                with suppress(OSError):  # ssh has ended
                    self.channel.sendall(GIVEN + text.encode()[: LONGEST - len(GIVEN)])
                    self.channel.shutdown(socket.SHUT_WR)

    def refuse(self) -> None:
        """Let ssh have no answer."""
        with self._lock:
            if self.open:
                self.open, self.refused = False, True
                with suppress(OSError):
                    self.channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait no longer; for the thread of the connection alone."""
        with self._lock:
            self.open = False
            self.channel.close()


class Asking:
    """Hears the questions of one ssh and of what it starts. Belongs to the thread of its connection, apart from
    `question`.

    Raises:
        OSError: when there is no place for a socket, or none from which a program may be started.

    Attributes:
        environment: variables by which ssh asks here.
        answered: how many questions were answered.
        refused: whether one was refused: nothing is asked any more.
    """

    def __init__(self) -> None:
        self.answered, self.refused = 0, False
        self._prompts: set[str] = set()
        self._calling: list[socket.socket] = []
        self._waiting: list[SshQuestion] = []
        self._folder = PrivateFolder(runtime_folder(), "gpudash-ask-")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            address = str(self._folder.path / "socket")
            self._listener.bind(address)
            self._listener.listen(MOST_WAITING)
            program = self._folder.path / "ask"
            source = Path(__file__).with_name("askpass.py")
            command = shlex.join([sys.executable, "-I", "-S", "-B", str(source), address])
            program.write_text(f'#!/bin/sh\nexec {command} "$1"\n')
            program.chmod(0o700)
            if not os.access(program, os.X_OK):
                raise PermissionError(f"No program may be started from {self._folder.path}.")
        except BaseException:
            self.close()
            raise
        self.environment = {
            "SSH_ASKPASS": str(program),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": os.environ.get("DISPLAY") or ":0",  # without one an ssh before 8.4 asks nobody
        }

    @property
    def question(self) -> SshQuestion | None:
        """What ssh wants to know now; any thread may look."""
        return next((question for question in list(self._waiting) if question.open), None)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have a selector wake for what is to be heard."""
        for each in (self._listener, *self._calling, *(question.channel for question in self._waiting)):
            selector.register(each, selectors.EVENT_READ)

    def hear(self, ready: Container[object]) -> None:
        """Take in what has come, and let go of what is over.

        Args:
            ready: of what was registered, what can be read.
        """
        for question in list(self._waiting):
            if question.open and question.channel not in ready:
                continue
            question.close()  # answered, refused, or what asked has ended
            self._waiting.remove(question)
            self.answered += question.answered
            self.refused = self.refused or (question.refused and question.kind != "told")
        for channel in [channel for channel in self._calling if channel in ready]:
            self._calling.remove(channel)
            self._read(channel)
        if self._listener in ready:
            with suppress(OSError):
                channel, _address = self._listener.accept()
                channel.setblocking(False)
                self._calling.append(channel)

    def close(self) -> None:
        """Hear nothing more."""
        for question in self._waiting:
            question.close()
        for channel in self._calling:
            channel.close()
        self._waiting.clear()
        self._calling.clear()
        self._listener.close()
        self._folder.remove()

    def _read(self, channel: socket.socket) -> None:
        """Take in a question; what is none, or one too many, is let go."""
        try:
            data = json.loads(channel.recv(2 * LONGEST))
            prompt, hint = str(data["words"]), str(data["kind"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            channel.close()
            return
        if self.refused or len(self._waiting) >= MOST_WAITING:
            channel.close()
            return
        channel.setblocking(True)
        kind = _KINDS.get(hint, "text" if _NO_SECRET in prompt else "secret")
        self._waiting.append(SshQuestion(prompt, kind, channel, again=prompt in self._prompts))
        self._prompts.add(prompt)

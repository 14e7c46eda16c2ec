"""ssh's questions to the user, where it has no terminal to ask in: ssh starts our program, which brings the question
here and takes the answer back. Answers are never written anywhere."""

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
"""Kinds by SSH_ASKPASS_PROMPT (ssh(1), since OpenSSH 8.4); any other value means a question with an answer."""

_NO_SECRET = "(yes/no"
"""Part of ssh's question about a host key: its answer may be shown."""

MOST_WAITING = 8
"""Most pending questions; more are refused."""


class SshQuestion:
    """A question of ssh. Any thread may answer or refuse it, once.

    Attributes:
        prompt: ssh's own words, or the remote machine's: untrusted, possibly long or unprintable.
        kind: "secret" if the answer must be hidden while it is typed, "text" if it may be shown, "confirm" for yes or
            no, "told" for a message that disappears by itself.
        again: whether it is a repetition, because the answer was wrong.
        open: whether it is pending; ssh may have ended meanwhile.
        answered, refused: whether the user answered or refused it.
        channel: socket to the program that asks.
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
        """Send an answer to ssh; does nothing if the question is no longer pending."""
        with self._lock:
            if self.open:
                self.open, self.answered = False, True
                with suppress(OSError):  # ssh has ended
                    self.channel.sendall(GIVEN + text.encode()[: LONGEST - len(GIVEN)])
                    self.channel.shutdown(socket.SHUT_WR)

    def refuse(self) -> None:
        """Give ssh no answer."""
        with self._lock:
            if self.open:
                self.open, self.refused = False, True
                with suppress(OSError):
                    self.channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the question; only for the connection's thread."""
        with self._lock:
            self.open = False
            self.channel.close()


class Asking:
    """Receives the questions of one ssh and its children. Belongs to the connection's thread, except `question`.

    Raises:
        OSError: if a socket cannot be created, or programs cannot be started from its folder.

    Attributes:
        environment: variables that make ssh ask here.
        answered: number of questions answered.
        refused: whether one was refused: then no more are shown.
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
            "DISPLAY": os.environ.get("DISPLAY") or ":0",  # before version 8.4, ssh only asks if DISPLAY is set
        }

    @property
    def question(self) -> SshQuestion | None:
        """The pending question; safe from any thread."""
        return next((question for question in list(self._waiting) if question.open), None)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Register the sockets with a selector."""
        for each in (self._listener, *self._calling, *(question.channel for question in self._waiting)):
            selector.register(each, selectors.EVENT_READ)

    def hear(self, ready: Container[object]) -> None:
        """Receive questions, and close those that are done.

        Args:
            ready: the registered sockets that can be read.
        """
        for question in list(self._waiting):
            if question.open and question.channel not in ready:
                continue
            question.close()  # answered, refused, or the program that asked has ended
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
        """Receive no more questions."""
        for question in self._waiting:
            question.close()
        for channel in self._calling:
            channel.close()
        self._waiting.clear()
        self._calling.clear()
        self._listener.close()
        self._folder.remove()

    def _read(self, channel: socket.socket) -> None:
        """Read a question; drops malformed ones, and those beyond the limit."""
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

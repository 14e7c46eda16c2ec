"""Receives the messages of the agents in a watched program, on a socket that only its user can access."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .wire import PROTOCOL, Decoder, WireError, encode

if TYPE_CHECKING:
    from .wire import Message

MOST_CONNECTIONS = 64
"""Most connected processes; further ones run without a connection."""

MOST_WAITING = 1024
"""Most connections waiting to be accepted: each is tried once, so that no program is blocked."""

ACCEPTED_AT_ONCE = 16
"""Connections accepted before the existing ones are read: of many forked processes most have ended by then."""

LONGEST_PATH = 100
"""Longest path of a socket in bytes: the system accepts 107 (unix(7))."""

READ_BYTES = 262_144
"""Most bytes read from one connection before the others are read."""

_CREDENTIALS = struct.Struct("3i")
"""Linux's ``struct ucred``: PID, user, group (unix(7))."""


@dataclass(eq=False)
class Peer:
    """A connected process.

    Attributes:
        pid: PID, from the system.
        hello: its introduction; empty until that has arrived.
        lost: number of messages it could not send.
    """

    connection: socket.socket
    pid: int
    hello: Message = field(default_factory=dict)
    lost: int = 0
    decoder: Decoder = field(default_factory=Decoder)

    @property
    def rank(self) -> int | None:
        """Rank in a distributed run; ``None`` outside of one."""
        rank = self.hello.get("rank")
        if isinstance(rank, int):
            return rank
        return None

    @property
    def label(self) -> str:
        """Its name in a sentence: "Rank 1 (pid 4711)"."""
        if self.rank is None:
            return f"pid {self.pid}"
        return f"rank {self.rank} (pid {self.pid})"


class AgentServer:
    """Listens on a path. Belongs to one thread.

    Args:
        path: path of the socket, in a folder closed to other users.

    Raises:
        OSError: if it cannot listen there.

    Attributes:
        troubles: one sentence for each refusal, until they are fetched.
        peers: processes that are connected now.
    """

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise OSError(f"The path of the socket is longer than {LONGEST_PATH} bytes: {path}")
        self.troubles: deque[str] = deque(maxlen=20)
        self.peers: list[Peer] = []
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._listening.bind(str(path))
            path.chmod(0o600)
            self._listening.listen(MOST_WAITING)
        except OSError:
            self._listening.close()
            self._selector.close()
            raise
        self._selector.register(self._listening, selectors.EVENT_READ, None)

    def receive(self, timeout_s: float) -> Iterator[tuple[Peer, Message]]:
        """New messages, by connection; includes the introductions.

        Args:
            timeout_s: longest wait for the first message.
        """
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
            else:
                yield from self._read(key.data)

    def send(self, peer: Peer, message: Message) -> bool:
        """Send a message to a process; false if it does not accept it immediately."""
        try:
            data = encode(message)
            return peer.connection.send(data) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        """Close all connections."""
        for peer in list(self.peers):
            self._drop(peer)
        self._selector.close()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.setblocking(False)
            pid, user = _credentials(connection)
            if user != os.getuid():
                self.troubles.append("A process of another user tried to connect and was refused.")
            elif len(self.peers) >= MOST_CONNECTIONS:
                self.troubles.append(f"Only {MOST_CONNECTIONS} processes are heard at a time; pid {pid} runs unheard.")
            else:
                peer = Peer(connection, pid)
                self.peers.append(peer)
                self._selector.register(connection, selectors.EVENT_READ, peer)
                self.send(peer, {"type": "welcome", "protocol": PROTOCOL})
                continue
            connection.close()

    def _read(self, peer: Peer) -> Iterator[tuple[Peer, Message]]:
        try:
            data = peer.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        try:
            messages = peer.decoder.feed(data)
        except WireError as error:
            self._refuse(peer, f"What pid {peer.pid} sent was not understood and it is heard no more: {error}")
            return
        for message in messages:
            if not peer.hello and not self._introduced(peer, message):
                return
            yield peer, message

    def _introduced(self, peer: Peer, message: Message) -> bool:
        if message["type"] != "hello":
            self._refuse(peer, f"Pid {peer.pid} spoke without an introduction and is heard no more.")
            return False
        if message.get("protocol") != PROTOCOL:
            self._refuse(
                peer,
                f"Pid {peer.pid} speaks version {message.get('protocol')!r} of the messages, not {PROTOCOL}: it was "
                "started by another gpudash, and is not heard.",
            )
            return False
        peer.hello = message
        return True

    def _refuse(self, peer: Peer, sentence: str) -> None:
        self.troubles.append(sentence)
        self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
            with suppress(KeyError, ValueError):
                self._selector.unregister(peer.connection)
            peer.connection.close()


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """PID and user of the other end."""
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return 0, -1
    pid, user, _ = _CREDENTIALS.unpack(found)
    return pid, user

"""Messages between the dashboard and a process it watches or hosts: a length, then JSON.

Four bytes tell, most significant first, how many bytes of UTF-8 JSON follow: one object with a ``type``.
"""

from __future__ import annotations

import json
import struct
from typing import Any

PROTOCOL = 1
"""Version of the messages; both ends tell theirs first, and do not go on with another."""

MOST_BYTES = 8 * 2**20
"""Of one message."""

_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class WireError(ValueError):
    """What came is none of these messages: one sentence."""


def encode(message: Message) -> bytes:
    """One message as bytes.

    Raises:
        WireError: when it is longer than `MOST_BYTES`.
    """
    body = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(body) > MOST_BYTES:
        raise WireError(f"A message of {len(body):,} bytes is longer than the {MOST_BYTES:,} that are sent.")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Puts messages together from pieces of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now.

        Raises:
            WireError: when a length is beyond `MOST_BYTES`, or what follows it is no object with a type. Nothing that
                comes later can be trusted then.
        """
        self._pending += data
        found: list[Message] = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MOST_BYTES:
                raise WireError(f"A message of {length:,} bytes is longer than the {MOST_BYTES:,} that are taken.")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            found.append(_object(bytes(self._pending[_LENGTH.size : end])))
            del self._pending[:end]
        return found


def _object(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("A message is not JSON.") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("A message is no object with a type.")
    return message

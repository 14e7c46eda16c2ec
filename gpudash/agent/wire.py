"""Messages between the dashboard and a process that it watches or hosts: a length, then JSON.

Four bytes, most significant first, are the length of the UTF-8 JSON that follows: an object with a ``type``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Message = dict[str, "Any"]

PROTOCOL = 1
"""Version of the protocol; both ends send theirs first, and stop if they differ."""

MOST_BYTES = 8 * 2**20
"""Largest message."""

_LENGTH_BYTES = 4

_MOST_DIGITS = 20
"""Characters of a 64-bit integer, with its sign."""


def _writer() -> Callable[[Message], str]:
    """``json.dumps`` without blanks; if possible without importing `json`, which would delay every Python."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        # json.dumps uses the same C function; its signature differs between Python versions, hence the TypeError
        # below.
        encoder: Any = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
        return lambda message: "".join(encoder(message, 0))
    except (ImportError, TypeError):
        import json

        return lambda message: json.dumps(message, separators=(",", ":"))


def _refuse(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_text = _writer()


class WireError(ValueError):
    """The data are not a valid message: one sentence."""


def number_in(value: object) -> float | None:
    """The number in a field of a message; ``None`` for anything else, including booleans."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def encode(message: Message) -> bytes:
    """A message as bytes.

    Raises:
        WireError: if it is longer than `MOST_BYTES`.
    """
    body = _text(message).encode("ascii")
    if len(body) > MOST_BYTES:
        raise WireError(f"A message of {len(body):,} bytes is longer than the {MOST_BYTES:,} that are sent.")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Decoder:
    """Reassembles messages from pieces of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are now complete.

        Raises:
            WireError: if a length exceeds `MOST_BYTES`, or is not followed by an object with a type. Later data cannot
                be trusted then.
        """
        self._pending += data
        found: list[Message] = []
        while len(self._pending) >= _LENGTH_BYTES:
            length = int.from_bytes(self._pending[:_LENGTH_BYTES], "big")
            if length > MOST_BYTES:
                raise WireError(f"A message of {length:,} bytes is longer than the {MOST_BYTES:,} that are taken.")
            end = _LENGTH_BYTES + length
            # Incomplete: the length is read again later, which is cheaper than storing it.
            if len(self._pending) < end:
                break
            found.append(_object(bytes(self._pending[_LENGTH_BYTES:end])))
            del self._pending[:end]
        return found


def _number(text: str) -> int | float:
    """An integer in JSON: an int if it fits in 64 bits, else a float, possibly infinite."""
    if len(text) > _MOST_DIGITS:
        return float(text)
    number = int(text)
    if -(2**63) <= number < 2**63:
        return number
    return float(number)


def _object(body: bytes) -> Message:
    import json
    import re

    try:
        # Numbers beyond 64 bits are rare, and checking each would take most of the time of reading a message.
        long = re.search(rb"\d{19}", body) is not None
        if long:
            message = json.loads(body, parse_int=_number)
        else:
            message = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("A message is not JSON.") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("A message is no object with a type.")
    return message

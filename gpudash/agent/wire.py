"""Messages between the dashboard and a process it watches or hosts: a length, then JSON.

Four bytes tell, most significant first, how many bytes of UTF-8 JSON follow: one object with a ``type``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Message = dict[str, "Any"]

PROTOCOL = 1
"""Version of the messages; both ends tell theirs first, and do not go on with another."""

MOST_BYTES = 8 * 2**20
"""Of one message."""

_LENGTH_BYTES = 4

_MOST_DIGITS = 20
"""Characters of a whole number of 64 bits, with its sign."""


def _writer() -> Callable[[Message], str]:
    """``json.dumps`` without blanks; without importing `json`, where that can be: it would delay every Python."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        # what json.dumps ends up with, by the same C function; its signature differs between Pythons, hence
        # the TypeError below
        encoder: Any = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
        return lambda message: "".join(encoder(message, 0))
    except (ImportError, TypeError):
        import json

        return lambda message: json.dumps(message, separators=(",", ":"))


def _refuse(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_text = _writer()


class WireError(ValueError):
    """What came is none of these messages: one sentence."""


def number_in(value: object) -> float | None:
    """The number in a field of a message; ``None`` where it holds anything else, a truth included."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def encode(message: Message) -> bytes:
    """One message as bytes.

    Raises:
        WireError: when it is longer than `MOST_BYTES`.
    """
    body = _text(message).encode("ascii")
    if len(body) > MOST_BYTES:
        raise WireError(f"A message of {len(body):,} bytes is longer than the {MOST_BYTES:,} that are sent.")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


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
        while len(self._pending) >= _LENGTH_BYTES:
            length = int.from_bytes(self._pending[:_LENGTH_BYTES], "big")
            if length > MOST_BYTES:
                raise WireError(f"A message of {length:,} bytes is longer than the {MOST_BYTES:,} that are taken.")
            end = _LENGTH_BYTES + length
            # the rest has not come yet: the length is read again then, which is cheaper than to remember it
            if len(self._pending) < end:
                break
            found.append(_object(bytes(self._pending[_LENGTH_BYTES:end])))
            del self._pending[:end]
        return found


def _number(text: str) -> int | float:
    """A whole number of JSON: an int where 64 bits hold it, else a float, infinite where that holds it neither."""
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
        # a number beyond 64 bits is rare, and asking for each would take most of the time of reading a message
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

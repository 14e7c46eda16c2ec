"""Snapshots that another tool has written as JSON: the same structure, each list of frames written out in full."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from gpudash.memory.snapshot.model import Frame, SnapshotError
from gpudash.memory.snapshot.shape import LARGEST
from gpudash.memory.snapshot.source import Source
from gpudash.memory.snapshot.stacks import UNKNOWN_LINE

BEGINNINGS = (b"{", b"[", b"\xef\xbb\xbf")
SPACE = b" \t\r\n"


def looks_like_json(begin: bytes) -> bool:
    """Whether a file that begins so may be JSON; a pickle of protocol 0 begins with neither of the brackets."""
    return begin.lstrip(SPACE).startswith(BEGINNINGS)


def decoded(source: Source) -> Any:
    """The data, equal frames being one and the same tuple.

    Raises:
        SnapshotError: it is no JSON, cut off, or nested too deeply.
        OSError: it cannot be read.
        MemoryError: there is not enough for it.
    """
    text = source.stream.read()

    def refused(constant: str) -> NoReturn:
        raise SnapshotError(f"{source.name} is no memory snapshot: it holds {constant}, which no size or time is.")

    try:
        return json.loads(text, object_hook=_Frames().kept_once, parse_constant=refused)
    except (SnapshotError, OSError, MemoryError):
        raise
    except RecursionError as error:
        raise SnapshotError(f"{source.name} is no memory snapshot: its JSON is nested without end.") from error
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg:
            raise SnapshotError(f"{source.name} is cut off: copy it again, or write it again.") from error
        raise SnapshotError(
            f"{source.name} is not a memory snapshot, since its JSON is wrong at line {error.lineno}."
        ) from error
    except ValueError as error:
        raise SnapshotError(f"{source.name} is not a memory snapshot, since its JSON cannot be read.") from error


class _Frames:
    """Replaces the dictionaries that are frames while the text is read, so that a million copies take no room."""

    def __init__(self) -> None:
        self._known: dict[Frame, Frame] = {}

    def kept_once(self, value: dict[str, Any]) -> Any:
        """The frame that a dictionary is, or the dictionary."""
        name, file, line = value.get("name"), value.get("filename"), value.get("line")
        if type(name) is not str or type(file) is not str or type(line) is not int or not 0 <= line <= LARGEST:
            return value
        frame = (file, line if line < UNKNOWN_LINE else 0, name)
        return self._known.setdefault(frame, frame)

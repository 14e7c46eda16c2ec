"""The fast way to a snapshot's data: CPython's unpickler, with every way to an object of a class closed.

A real snapshot is made of dicts, lists, tuples, strings and numbers; a pickle that asks for anything else is refused
before it can do anything.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any, NoReturn

from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.memory.snapshot.reading.shape import shown
from gpudash.memory.snapshot.reading.source import Source

BEGINNINGS = (b"\x80", b"(", b"]", b"}")
"""How pickles of a dictionary or a list begin: of protocol 2 and later, and of the older ones."""


def refuse_global(file: str, module: object, name: object) -> NoReturn:
    """Refuse a pickle, the file of this name, that asks for an object of Python's.

    Raises:
        SnapshotError: always.
    """
    what = f"{shown(module)[1:-1]}.{shown(name)[1:-1]}"
    raise SnapshotError(
        f"{file} asks for the Python object {what}, which no memory snapshot does: it is not opened, "
        "since such a file can run anything."
    )


def refuse_reference(file: str) -> NoReturn:
    """Refuse a pickle, the file of this name, that refers to what is not in it.

    Raises:
        SnapshotError: always.
    """
    raise SnapshotError(f"{file} is no memory snapshot: it refers to objects outside itself, which no snapshot does.")


class PlainUnpickler(pickle.Unpickler):
    """Makes dicts, lists, tuples, strings and numbers, and nothing else."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.stream)
        self._name = source.name

    def find_class(self, module: str, name: str) -> NoReturn:
        refuse_global(self._name, module, name)

    def persistent_load(self, identity: object) -> NoReturn:
        refuse_reference(self._name)


def unpickled(source: Source) -> Any:
    """The data of a pickle.

    Raises:
        SnapshotError: it is no pickle, cut off, or asks for anything but plain data.
        OSError: it cannot be read.
        MemoryError: there is not enough for it.
    """
    # objects that extension codes have stood for in another pickle would be handed out without asking find_class
    copyreg.clear_extension_cache()
    try:
        return PlainUnpickler(source).load()
    except (SnapshotError, OSError, MemoryError):
        raise
    except Exception as error:  # the unpickler raises whatever the bytes make it stumble over
        raise _unreadable(source, error) from error


def _unreadable(source: Source, error: Exception) -> SnapshotError:
    """The sentence for a pickle that cannot be read to its end."""
    name = source.name
    if source.begin[:1] not in BEGINNINGS:
        return SnapshotError(f"{name} is no memory snapshot: it is neither a pickle nor JSON.")
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
        return SnapshotError(f"{name} is cut off: copy it again, or record the snapshot again.")
    words = " ".join(str(error).split())[:120].rstrip(". ")
    return SnapshotError(f"{name} is damaged, or no pickle ({words}): copy it again, or record the snapshot again.")

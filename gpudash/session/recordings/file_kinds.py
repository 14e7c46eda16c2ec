"""The kind of a file to open, recognised by its content, never by its name."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpudash.session.trackers.event_files import VERSION, find_event_files
from gpudash.specs.model_names import has_config
from gpudash.system.foreign_files import open_regular

Kind = Literal["recording", "snapshot", "trace", "scalars"]

FormInput = Literal["script", "model"]
"""What goes into the form, as the next run, instead of a tab."""

SCRIPT_SUFFIX = ".py"

SNAPSHOT_NAME = "snapshot.pickle"
"""The snapshot in the report folder of an out-of-memory."""

HEAD_BYTES = 4096
"""Bytes from the beginning of a file that identify its kind."""

OF_TRACES = (
    b'"schemaVersion"',
    b'"traceEvents"',
    b'"displayTimeUnit"',
    b'"baseTimeNanoseconds"',
    b'"deviceProperties"',
)
"""Keys that identify a trace of torch.profiler by its beginning; a snapshot in JSON has none of them."""

SQLITE = b"SQLite format 3\x00"
"""How every SQLite file begins (https://www.sqlite.org/fileformat.html, 1.3)."""

HEAD_OF_EVENTS = 64
"""Bytes within which the first record of a TensorBoard event file names its version."""

GZIP = b"\x1f\x8b"
PICKLE = b"\x80"
"""How a pickle of protocol 2 and later begins."""

OLD_PICKLES = (b"(", b"]", b"}")
"""How a dict or a list begins in a pickle of protocol 0 or 1."""

JSON = (b"{", b"[")
MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors write before text in UTF-8."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that can be opened.

    Attributes:
        path: the file to read.
        kind: its kind.
        title: a short name: the file's, or that of the report's folder.
    """

    path: Path
    kind: Kind
    title: str


def form_input(path: Path) -> FormInput | None:
    """What the form would take from ``path``: a Python file, or a model's config or folder; ``None`` for all else."""
    if path.suffix == SCRIPT_SUFFIX and path.is_file():
        return "script"
    if has_config(path):
        return "model"
    return None


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file that begins with ``head``; ``None`` if it is not one of them."""
    if head.startswith(SQLITE):
        return "recording"
    if VERSION in head[:HEAD_OF_EVENTS]:
        return "scalars"
    text = _expanded(head).removeprefix(MARK).lstrip()
    if text.startswith(b"{") and any(key in text for key in OF_TRACES):
        return "trace"
    if head.startswith((PICKLE, GZIP)) or text.startswith((*OLD_PICKLES, *JSON)):
        return "snapshot"
    return None


def _expanded(head: bytes) -> bytes:
    """The first bytes of compressed data, expanded; other data is returned unchanged."""
    if not head.startswith(GZIP):
        return head
    try:
        # 31: with the header and trailer of gzip (zlib.h, inflateInit2)
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


def find_file(path: Path) -> FoundFile:
    """Find what to open at ``path``: a file, the report folder of an out-of-memory, or a TensorBoard log.

    Raises:
        ValueError: one sentence, when there is nothing to open.
    """
    path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  # resolve() would follow links and rename the tab
    title = path.name
    try:
        if path.is_dir():
            if not (path / SNAPSHOT_NAME).exists():
                if find_event_files(path):
                    return FoundFile(path, "scalars", title)
                raise ValueError(f"{title} is a folder without a {SNAPSHOT_NAME} in it; name the file itself.")
            path = path / SNAPSHOT_NAME
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not head:
        raise ValueError(f"{title} is empty; nothing was written into it.")
    kind = kind_of(head)
    if kind is None:
        raise ValueError(
            f"{title} is neither a memory snapshot of PyTorch nor a recording of gpudash nor a trace of PyTorch's "
            "profiler; it was not opened."
        )
    return FoundFile(path, kind, title)

"""Real text that every machine has: the source of Python's standard library."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudash.system.files import resource
from gpudash.system.foreign_files import LARGEST_SOURCE, read_regular

LIMIT = 2**20
"""Bytes of text to use: enough for hundreds of steps, read in a few milliseconds."""

SMALLEST = 2**16
"""Below this many bytes a library's sources count as missing, and the shipped text is used."""

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """A text and facts about it.

    Attributes:
        source: where it comes from, for people.
        sha256: of `data`, in hexadecimal.
        unigram_entropy: of its bytes, in nats: the loss of the best guess without context (Shannon 1948, H = −Σ p ln
            p).
        most_frequent_share: fraction of the most frequent byte: the accuracy of always guessing it.
    """

    data: bytes
    source: str
    sha256: str
    unigram_entropy: float
    most_frequent_share: float

    @functools.cached_property
    def vocabulary(self) -> bytes:
        """The bytes that occur, ascending; a character's number is its index."""
        return bytes(sorted(set(self.data)))


def corpus(library: Path | None = None) -> Corpus:
    """The first `LIMIT` bytes of the sorted ``*.py`` of the standard library, or of the shipped text.

    The last text is cached, because a process for predictions requests it repeatedly.

    Args:
        library: folder to read instead of this Python's own library.
    """
    return _read(library or Path(sysconfig.get_path("stdlib")))


@functools.lru_cache(maxsize=1)
def _read(library: Path) -> Corpus:
    data = b"".join(_parts(library))[:LIMIT]
    source = f"Python's standard library, {sysconfig.get_python_version()}"
    if len(data) < SMALLEST:
        data, source = resource("text", "fallback.txt").read_bytes()[:LIMIT], "the text shipped with gpudash"
    counts = Counter(data)
    shares = [count / len(data) for count in counts.values()]
    return Corpus(
        data,
        source,
        hashlib.sha256(data).hexdigest(),
        unigram_entropy=-sum(share * math.log(share) for share in shares),
        most_frequent_share=max(shares),
    )


def _parts(library: Path) -> Iterator[bytes]:
    size = 0
    for path in sorted(_sources(library), key=lambda path: path.relative_to(library).as_posix()):
        try:
            part = read_regular(path, LARGEST_SOURCE)
        except OSError:
            continue
        yield part
        size += len(part)
        if size >= LIMIT:
            return


def _sources(library: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))

"""Coverage-guided fuzzing of the snapshot reader: ``python -m tests.fuzzing.snapshots --seconds 600``.

A file that takes new steps from line to line of the reader is kept and changed further. Whatever the bytes, what comes
out is a snapshot or one sentence, within the limits of memory and time. With atheris installed, its engine is used.
"""

from __future__ import annotations

import argparse
import pickletools
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gpudash.units import GIB, MIB
from tests.fuzzing.seeds import seeds

try:
    import atheris
except ImportError:
    atheris = None

with nullcontext() if atheris is None else atheris.instrument_imports(include=["gpudash.memory"]):
    from gpudash.memory.snapshot.history import model
    from gpudash.memory.snapshot.history.model import SnapshotError
    from gpudash.memory.snapshot.reading import reader as reading
    from gpudash.memory.snapshot.reading.source import ReadLimits

ROOM = str(Path(model.__file__).parents[1])
MEMORY_BYTES = 512 * MIB
LONGEST_S = 5.0
LARGEST = 100_000
"""Bytes of a file that is kept."""

OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
INTERESTING = [
    struct.pack(form, value)
    for form, value in (("<B", 255), ("<H", 65535), ("<I", 2**31), ("<I", 2**32 - 1), ("<q", -1), ("<q", 2**63 - 1))
] + [
    b"\x8b\x00\x01\x00\x00" + bytes(256),
    b"\x8a\x09" + b"\xff" * 9,
    b"G\x7f\xf8" + bytes(6),
    b"N",
    b"\x88",
    b"]",
    b"}",
]
WORDS = [
    b"frames",
    b"addr",
    b"size",
    b"action",
    b"segments",
    b"blocks",
    b"history",
    b"pool_id",
    b"NaN",
    b"-1",
    b"1e999",
]


def check(content: bytes, path: Path, sparing: bool) -> None:
    """Read a file in one of the reader's ways; anything but a snapshot or one sentence is an error."""
    path.write_bytes(content)
    # a small limit makes the reader go the sparing way
    limits = ReadLimits(expanded_bytes=4 * MIB, memory_bytes=4 * len(content) + 1 if sparing else MEMORY_BYTES)
    began = time.process_time()
    try:
        snapshot = reading.read_snapshot(path, limits=limits)
    except SnapshotError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 1000, sentence
    else:
        for device in snapshot.devices:
            for entry in device.trace:
                assert entry.stack is None or snapshot.stacks[entry.stack]
        assert all("\n" not in warning for warning in snapshot.warnings)
    assert time.process_time() - began < LONGEST_S, "it takes too long"


class Coverage:
    """Steps from line to line in the reader that have been seen."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int, int]] = set()
        self._now: set[tuple[int, int, int]] = set()

    def of(self, call: Callable[[], None]) -> bool:
        """Whether the call takes a step never taken before."""
        self._now = set()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(None)
        new = self._now - self.seen
        self.seen |= new
        return bool(new)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not file.startswith(ROOM):
            return None
        code, last = id(frame.f_code), 0

        def line(inner: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            nonlocal last
            self._now.add((code, last, inner.f_lineno))
            last = inner.f_lineno
            return line

        return line


def changed(content: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    """The content with a few changes."""
    data = bytearray(content)
    for _change in range(chance.choice((1, 1, 2, 4, 8))):
        place = chance.randrange(len(data) + 1)
        kind = chance.randrange(8)
        if kind == 0 and place < len(data):
            data[place] = chance.randrange(256)
        elif kind == 1:
            data[place:place] = chance.choice(OPCODES)
        elif kind == 2:
            del data[place : place + chance.randrange(1, 9)]
        elif kind == 3:
            other = chance.choice(corpus)
            begin = chance.randrange(len(other) + 1)
            data[place:place] = other[begin : begin + chance.randrange(1, 200)]
        elif kind == 4:
            replaced = chance.choice(INTERESTING)
            data[place : place + len(replaced)] = replaced
        elif kind == 5:
            data[place:place] = chance.choice(WORDS)
        elif kind == 6:
            piece = data[place : place + chance.randrange(1, 64)]
            data[place:place] = piece * chance.choice((1, 2, 20, 300))
        elif place < len(data):
            data[place] ^= 1 << chance.randrange(8)
    return bytes(data[:LARGEST])


def fuzz(seconds: float, seed: int, found_at: Path) -> int:
    """Change files until the time is over; a file that breaks the reader is left at ``found_at``."""
    chance, coverage = random.Random(seed), Coverage()
    corpus = seeds()
    until, runs, told = time.monotonic() + seconds, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        first = list(corpus)
        while time.monotonic() < until:
            content = first.pop() if first else changed(chance.choice(corpus), corpus, chance)
            for sparing in (False, True):
                found_at.write_bytes(content)
                if coverage.of(partial(check, content, path, sparing)) and content not in corpus:
                    corpus.append(content)
                runs += 1
            if time.monotonic() - told > 10:
                told = time.monotonic()
                sys.stdout.write(f"{runs} files, {len(corpus)} kept, {len(coverage.seen)} steps\n")
                sys.stdout.flush()
    found_at.unlink()
    sys.stdout.write(f"{runs} files, {len(corpus)} kept, {len(coverage.seen)} steps: nothing found\n")
    return 0


def with_atheris(seconds: float, found_at: Path) -> None:
    """The same with libFuzzer's engine."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, content in enumerate(seeds()):
            for sparing in (False, True):
                (corpus / f"{number}-{sparing}").write_bytes(bytes([sparing]) + content)
        path = Path(folder) / "snapshot.pickle"

        def one(content: bytes) -> None:
            if content:
                found_at.write_bytes(content)
                check(content[1:], path, bool(content[0] & 1))

        options = [
            f"-max_total_time={seconds:.0f}",
            "-max_len=20000",
            "-len_control=0",
            f"-rss_limit_mb={4 * GIB // MIB}",
            f"-artifact_prefix={found_at}-",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], one)
        atheris.Fuzz()


def main() -> int:
    """Read the command line and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()) / "gpudash-fuzzing-found")
    parser.add_argument("--own", action="store_true", help="use the engine of this module also beside atheris")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (4 * GIB, 4 * GIB))
    if atheris is not None and not given.own:
        with_atheris(given.seconds, given.found)
        return 0
    return fuzz(given.seconds, given.seed, given.found)


if __name__ == "__main__":
    sys.exit(main())

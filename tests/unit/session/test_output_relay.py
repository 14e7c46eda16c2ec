"""What a program prints, passed on to a pager that lets it wait: nothing is lost, and leaving waits for nobody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from gpudash.session.watching import output_relay
from gpudash.session.watching.output_log import JOIN_S, OutputLog, OutputReader

PRINTED = b"".join(b"line %06d\n" % number for number in range(30_000))
"""More than the pipes of program and pager hold together."""

QUIET_S = 8 * output_relay.HELD_UP_S


@dataclass
class Relayed:
    """A relay between a program that prints `PRINTED` and a pager that does not read yet."""

    relay: subprocess.Popen[bytes]
    pager: int
    reader: OutputReader
    read: bytearray = field(default_factory=bytearray)
    reading: threading.Thread | None = None

    def read_on(self) -> None:
        """The pager reads to the end, on a thread of its own."""

        def read() -> None:
            while piece := os.read(self.pager, 65_536):
                self.read.extend(piece)

        self.reading = threading.Thread(target=read)
        self.reading.start()


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (output, program), (error, errors), (pager, target) = os.pipe(), os.pipe(), os.pipe()
    os.close(errors)
    handed = (output, error, theirs.fileno())
    command = [sys.executable, "-I", "-S", output_relay.__file__, *map(str, handed)]
    relay = subprocess.Popen(command, stdout=target, pass_fds=handed)
    for descriptor in (output, error, target):
        os.close(descriptor)
    theirs.close()

    def print_all() -> None:
        left = memoryview(PRINTED)
        with suppress(BrokenPipeError):
            while left:
                left = left[os.write(program, left) :]
        os.close(program)

    printing = threading.Thread(target=print_all)
    printing.start()
    made = Relayed(relay, pager, OutputReader(ours, OutputLog(), lambda: 0.0, 1, lambda *_heard: None))
    yield made
    relay.kill()
    relay.wait()
    printing.join()
    os.close(pager)


def test_nothing_is_lost_while_a_pager_lets_the_output_wait(relayed: Relayed) -> None:
    looks = iter(range(1_000_000))

    def look() -> bool:
        if next(looks) * JOIN_S > 1.5 * QUIET_S and relayed.reading is None:
            relayed.read_on()
        return False

    assert relayed.reader.end(QUIET_S, QUIET_S, look)
    assert relayed.reading is not None
    relayed.reading.join()
    assert relayed.relay.wait() == 0
    assert bytes(relayed.read) == PRINTED


def test_a_pager_that_waits_keeps_nobody_who_is_leaving(relayed: Relayed) -> None:
    assert not relayed.reader.end(QUIET_S, QUIET_S, lambda: True)


def test_in_one_place_the_lines_of_both_streams_stay_whole() -> None:
    (output, program), (error, errors), (place, target) = os.pipe(), os.pipe(), os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handed = (output, error, theirs.fileno())
    command = [sys.executable, "-I", "-S", output_relay.__file__, *map(str, handed), "lines"]
    relay = subprocess.Popen(command, stdout=target, stderr=target, pass_fds=handed)
    for descriptor in (output, error, target):
        os.close(descriptor)
    theirs.close()
    read = b""

    def read_until(words: bytes) -> None:
        nonlocal read
        while words not in read:
            piece = os.read(place, 65_536)
            assert piece, read
            read += piece

    os.write(program, b"epoch 1 loss 0.5")
    os.write(errors, b"a warning\n")
    os.write(program, b"000\nnext ")
    read_until(b"next ")  # no end of a line follows: it is shown as it is
    os.write(errors, b"50 %\r")
    os.write(errors, b"100 %\n")
    read_until(b"100 %")
    os.write(program, b"the last")
    os.close(program)
    os.close(errors)
    read_until(b"the last")
    assert relay.wait() == 0
    assert b"a warning\n" in read and b"\na warning" in b"\n" + read
    assert read.replace(b"a warning\n", b"") == b"epoch 1 loss 0.5000\nnext \n50 %\r100 %\nthe last"
    ours.close()
    os.close(place)

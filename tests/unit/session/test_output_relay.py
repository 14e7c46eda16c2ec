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

from gpudash.session.watching.output import relay as output_relay
from gpudash.session.watching.output.log import JOIN_S, OutputLog, OutputReader

pytestmark = pytest.mark.process

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


@dataclass
class OnTerminal:
    """A relay with a status line, whose outputs are one place that is read as a terminal would show it."""

    program: int
    place: int
    status: socket.socket
    relay: subprocess.Popen[bytes]
    seen: bytes = b""

    def read_until(self, words: bytes) -> None:
        while words not in self.seen:
            piece = os.read(self.place, 65_536)
            assert piece, self.seen
            self.seen += piece

    def rows(self) -> list[str]:
        """What is on the screen: a carriage return goes back, and ERASE empties the row."""
        text = self.seen.replace(output_relay.ERASE, b"\0").decode()
        return [row.rpartition("\0")[2].rstrip("\r") for row in text.split("\n")]


@pytest.fixture
def on_terminal() -> Iterator[OnTerminal]:
    (output, program), (error, errors), (place, target) = os.pipe(), os.pipe(), os.pipe()
    copies, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status, brought = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handed = (output, error, theirs.fileno(), brought.fileno())
    command = [sys.executable, "-I", "-S", output_relay.__file__, *map(str, handed)]
    relay = subprocess.Popen(command, stdout=target, stderr=target, pass_fds=handed)
    for descriptor in (output, error, errors, target):
        os.close(descriptor)
    theirs.close()
    brought.close()
    yield OnTerminal(program, place, status, relay)
    relay.kill()
    relay.wait()
    for end in (copies, status):
        end.close()
    os.close(place)


def test_a_status_line_stands_below_the_output_and_leaves_it_unharmed(on_terminal: OnTerminal) -> None:
    os.write(on_terminal.program, b"step 1\n")
    on_terminal.status.send(b"Sgpudash step 1")
    on_terminal.read_until(b"gpudash step 1\r")
    assert on_terminal.rows() == ["step 1", "gpudash step 1"]
    os.write(on_terminal.program, b"step 2\n")
    on_terminal.read_until(b"step 2\n")
    on_terminal.status.send(b"Na notice")
    on_terminal.read_until(b"a notice\n")
    os.write(on_terminal.program, b"the last, without an end")
    os.close(on_terminal.program)
    on_terminal.read_until(b"without an end")
    assert on_terminal.relay.wait() == 0
    assert on_terminal.rows() == ["step 1", "step 2", "a notice", "the last, without an end"]


@pytest.mark.parametrize("begun", [b"Name: ", b"\r 50 %", b"outer\ninner\x1b[A\n"], ids=["prompt", "bar", "two bars"])
def test_a_status_line_keeps_away_from_a_line_that_the_program_writes_on(on_terminal: OnTerminal, begun: bytes) -> None:
    os.write(on_terminal.program, begun)
    on_terminal.read_until(begun)
    on_terminal.status.send(b"Sgpudash step 1")
    on_terminal.status.send(b"Na notice")  # comes behind it, so that it has been heard
    on_terminal.read_until(b"a notice\n")
    assert b"gpudash step 1" not in on_terminal.seen.partition(b"a notice")[0]
    os.close(on_terminal.program)


def test_a_status_line_goes_with_whoever_sends_it(on_terminal: OnTerminal) -> None:
    on_terminal.status.send(b"Sgpudash step 1")
    on_terminal.read_until(b"gpudash step 1\r")
    on_terminal.status.close()
    on_terminal.read_until(b"gpudash step 1\r" + output_relay.ERASE)
    os.write(on_terminal.program, b"it runs on\n")
    on_terminal.read_until(b"it runs on\n")
    assert on_terminal.rows() == ["it runs on", ""]
    os.close(on_terminal.program)

"""The program's end of the socket, when the other end is slow, stopped, gone, or not what it was."""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.agent.channel import MOST_WAITING_BYTES, Channel
from gpudash.agent.wire import Decoder, encode

READING = {"type": "allocator", "text": "x" * 1000}


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        made.listen(1)
        yield made


def connected(listener: socket.socket) -> tuple[Channel, socket.socket]:
    made = Channel(listener.getsockname())
    return made, listener.accept()[0]


def heard(end: socket.socket, channel: Channel) -> list[str]:
    """Types of everything the channel still has to tell."""
    decoder, found = Decoder(), []
    end.settimeout(0.2)
    channel.flush()
    while True:
        try:
            data = end.recv(2**20)
        except TimeoutError:
            return found
        if not data:
            return found
        found += [message["type"] for message in decoder.feed(data)]
        channel.flush()


def test_nobody_listening_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Channel(str(tmp_path / "nowhere"))


def test_too_many_waiting_is_an_error_and_no_wait(listener: socket.socket) -> None:
    waiting = [Channel(listener.getsockname()) for _ in range(2)]
    with pytest.raises(BlockingIOError):
        Channel(listener.getsockname())
    for one in waiting:
        one.close()


@pytest.mark.timed
def test_a_dashboard_that_never_reads_costs_readings_and_no_time(listener: socket.socket) -> None:
    channel, end = connected(listener)
    began = time.monotonic()
    channel.post({"type": "hello"}, keep=True)
    for number in range(10_000):
        channel.post(READING)
        if number == 5000:
            channel.post({"type": "oom"}, keep=True)
    channel.drain(0.05)
    assert time.monotonic() - began < 10, "posting waits for nobody"
    assert channel.lost > 5000 and channel._waiting_bytes <= MOST_WAITING_BYTES
    found = heard(end, channel)
    assert found[0] == "hello" and found.count("oom") == 1
    assert found.count("allocator") == 10_000 - channel.lost
    channel.close()
    end.close()


def test_even_messages_that_must_arrive_are_bounded(listener: socket.socket) -> None:
    channel, end = connected(listener)
    for _ in range(10_000):
        channel.post(READING, keep=True)
    assert channel._waiting_bytes <= MOST_WAITING_BYTES + 2000 and channel.lost > 5000
    channel.close()
    end.close()


def test_a_dashboard_that_dies_ends_the_connection_and_nothing_else(listener: socket.socket) -> None:
    channel, end = connected(listener)
    end.close()
    for _ in range(3):
        channel.post(READING)
    assert not channel.alive and channel.receive() == []
    channel.drain(1)
    channel.close()


def test_an_end_without_a_word_is_noticed_when_reading(listener: socket.socket) -> None:
    channel, end = connected(listener)
    assert channel.receive() == [] and channel.alive
    end.sendall(encode({"type": "snapshot", "path": "/x"}))
    assert channel.receive() == [{"type": "snapshot", "path": "/x"}]
    end.close()
    assert channel.receive() == [] and not channel.alive


@pytest.mark.parametrize(
    "answer", [b"\xff" * 8, encode({"type": "welcome", "protocol": 99}), encode({"type": "welcome"})]
)
def test_nonsense_or_another_version_ends_the_connection(listener: socket.socket, answer: bytes) -> None:
    channel, end = connected(listener)
    end.sendall(answer)
    assert channel.receive() == [] and not channel.alive
    end.close()


def test_what_cannot_be_written_is_counted_as_lost(listener: socket.socket) -> None:
    channel, end = connected(listener)
    channel.post({"type": object()})
    assert channel.lost == 1 and channel.alive
    channel.close()
    end.close()


def test_a_descriptor_that_the_program_gave_to_something_else_is_not_touched(
    listener: socket.socket, tmp_path: Path
) -> None:
    for use in ("post", "receive", "close", "drain"):
        channel, end = connected(listener)
        descriptor = channel._socket.fileno()
        precious = os.open(tmp_path / "precious", os.O_RDWR | os.O_CREAT)
        os.dup2(precious, descriptor)
        if use == "drain":
            channel._partial = b"message"
        {
            "post": lambda made=channel: made.post(READING),
            "receive": channel.receive,
            "close": channel.close,
            "drain": lambda made=channel: made.drain(1),
        }[use]()
        assert not channel.alive and os.fstat(descriptor).st_size == 0
        os.close(descriptor)
        os.close(precious)
        end.close()


def test_messages_of_many_threads_stay_whole(listener: socket.socket) -> None:
    channel, end = connected(listener)
    threads = [
        threading.Thread(
            target=lambda: [channel.post({"type": "a", "x": "y" * 300}) for _ in range(100)], name="Thread-p"
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard(end, channel) == ["a"] * 400 and not channel.lost
    channel.close()
    end.close()


def test_a_forked_child_that_lets_go_takes_no_message_from_its_parent(listener: socket.socket) -> None:
    channel, end = connected(listener)
    # a fork leaves both with the same open socket, and so does this
    child = copy.copy(channel)
    child._socket = socket.socket(fileno=os.dup(channel._socket.fileno()))
    end.sendall(encode({"type": "detach"}))
    child.close(forked=True)
    assert not child.alive and channel.alive
    assert [message["type"] for message in channel.receive()] == ["detach"]
    channel.close()
    end.close()

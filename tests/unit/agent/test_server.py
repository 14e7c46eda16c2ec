"""Who may talk to the dashboard, and what happens to those who talk nonsense or too much."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpudash.agent import server as agent_server
from gpudash.agent.server import AgentServer, Peer
from gpudash.agent.wire import MOST_BYTES, PROTOCOL, encode
from tests.unit.session.watched import Agent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent"


@pytest.fixture
def server(path: Path) -> Iterator[AgentServer]:
    server = AgentServer(path)
    yield server
    server.close()


def heard(server: AgentServer, rounds: int = 6) -> list[tuple[Peer, dict[str, Any]]]:
    return [told for _ in range(rounds) for told in server.receive(0.02)]


def test_a_process_is_welcomed_introduces_itself_and_is_heard(server: AgentServer, path: Path) -> None:
    agent = Agent(path, rank=1)
    agent.say("steps", steps=[])
    told = heard(server)
    assert [message["type"] for _, message in told] == ["hello", "steps"]
    (peer, _), *_ = told
    assert (peer.pid, peer.rank, peer.label) == (os.getpid(), 1, f"rank 1 (pid {os.getpid()})")
    assert agent.heard() == [{"type": "welcome", "protocol": PROTOCOL}]
    assert server.send(peer, {"type": "snapshot", "path": "/x"})
    assert agent.heard() == [{"type": "snapshot", "path": "/x"}]
    agent.close()
    assert heard(server) == []
    assert server.peers == []
    assert not server.troubles


def test_only_the_user_may_reach_the_socket(server: AgentServer, path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_another_users_process_is_refused(server: AgentServer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server, "_credentials", lambda _connection: (77, os.getuid() + 1))
    agent = Agent(path)
    assert heard(server) == []
    assert list(server.troubles) == ["A process of another user tried to connect and was refused."]
    agent.close()


def test_another_version_is_told_and_not_heard(server: AgentServer, path: Path) -> None:
    agent = Agent(path, hello=False)
    agent.say("hello", protocol=PROTOCOL + 1)
    agent.say("steps", steps=[])
    assert heard(server) == []
    assert f"speaks version {PROTOCOL + 1} of the messages, not {PROTOCOL}" in server.troubles.popleft()
    assert server.peers == []
    agent.close()


def test_who_does_not_introduce_itself_is_not_heard(server: AgentServer, path: Path) -> None:
    agent = Agent(path, hello=False)
    agent.say("steps", steps=[])
    assert heard(server) == []
    assert "without an introduction" in server.troubles.popleft()
    agent.close()


@pytest.mark.parametrize(
    "nonsense",
    [struct.pack(">I", MOST_BYTES + 1), struct.pack(">I", 3) + b"[1]", struct.pack(">I", 4) + b"\xff\xfe\xfd\xfc"],
)
def test_nonsense_ends_one_connection_and_no_other(server: AgentServer, path: Path, nonsense: bytes) -> None:
    good, bad = Agent(path), Agent(path)
    heard(server)
    bad.connection.sendall(nonsense)
    good.say("steps", steps=[])
    assert [message["type"] for _, message in heard(server)] == ["steps"]
    assert "was not understood and it is heard no more" in server.troubles.popleft()
    assert len(server.peers) == 1
    good.close()
    bad.close()


def test_more_processes_than_can_be_heard_run_unheard(
    server: AgentServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_server, "MOST_CONNECTIONS", 2)
    agents = [Agent(path) for _ in range(3)]
    heard(server)
    assert len(server.peers) == 2
    assert "Only 2 processes are heard at a time" in server.troubles.popleft()
    for agent in agents:
        agent.close()


def test_a_crowd_that_has_ended_before_it_is_heard_is_heard_all_the_same(server: AgentServer, path: Path) -> None:
    for number in range(200):
        agent = Agent(path)
        agent.say("bye", number=number)
        agent.close()
    told = [message["number"] for _, message in heard(server, 60) if message["type"] == "bye"]
    assert sorted(told) == list(range(200))
    assert not server.peers and not server.troubles


def test_a_flood_of_one_leaves_the_others_their_turn(server: AgentServer, path: Path) -> None:
    loud, quiet = Agent(path), Agent(path)
    heard(server)
    loud.connection.setblocking(False)
    flood = encode({"type": "held", "holdings": [0] * 1000}) * 100
    for turn in range(20):
        with suppress(BlockingIOError):
            loud.connection.send(flood)
        quiet.say("steps", steps=[turn])
        told = list(server.receive(0.02))
        assert [message for _, message in told if message["type"] == "steps"]
    loud.close()
    quiet.close()


def test_a_process_that_takes_nothing_is_not_waited_for(server: AgentServer, path: Path) -> None:
    agent = Agent(path)
    (peer, _), *_ = heard(server)
    message = {"type": "snapshot", "path": "x" * 100_000}
    assert not all(server.send(peer, message) for _ in range(50))
    agent.close()
    heard(server)
    assert not server.send(peer, message)


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="longer than"):
        AgentServer(tmp_path / ("x" * 120))

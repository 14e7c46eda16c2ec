"""A rank's end of the socket, and what it tells of its failure."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudash.agent.server import AgentServer, Peer
from gpudash.workloads.programs.parallel import launch_process
from gpudash.workloads.programs.parallel.rank_link import EndsHere, Link, facts_of, place_of
from gpudash.workloads.running.run_errors import WorkloadError

PATIENCE_S = 30.0


class Listening:
    """The run's side of one rank's connection."""

    def __init__(self, server: AgentServer) -> None:
        self.server = server
        self.reported: list[tuple[Peer, dict[str, Any]]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """The newest message of a kind, waiting for one that is not known yet."""
        for _ in range(int(PATIENCE_S / 0.05)):
            found = [message for _, message in self.reported if message["type"] == kind]
            if found:
                return found[-1]
            self.reported += self.server.receive(0.05)
        raise AssertionError(f"no {kind} came, only {[message['type'] for _, message in self.reported]}")

    def ask(self, **message: Any) -> None:
        self.server.send(self.reported[0][0], message)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    server = AgentServer(tmp_path / "s")
    yield Listening(server)
    server.close()


@pytest.fixture
def link(listening: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    link = Link(tmp_path / "s", 0.0)
    link.start("cpu")
    yield link
    link.leave()


def test_a_rank_introduces_itself_and_tells_where_it_stands(listening: Listening, link: Link) -> None:
    link.begin_step(3)

    hello, beat = listening.until("hello"), listening.until("beat")
    assert (hello["rank"], hello["world_size"], hello["device"]) == (1, 2, "cpu")
    assert beat["used_bytes"] > 0 and beat["allocated_bytes"] is None and ":" in beat["where"]


def test_a_rank_that_is_to_stop_waits_until_it_knows_after_which_step(listening: Listening, link: Link) -> None:
    link.begin_step(5)
    listening.until("hello")
    listening.ask(type="stop")
    assert listening.until("held")["step"] == 5
    ends: list[int] = []

    def train_on() -> None:
        link.begin_step(6)
        ends.append(6)
        with pytest.raises(EndsHere):
            link.begin_step(7)
        ends.append(7)

    training = threading.Thread(target=train_on)
    training.start()
    assert not ends
    listening.ask(type="end_at", step=6)
    training.join(PATIENCE_S)
    assert ends == [6, 7]


def test_what_a_rank_tells_at_its_end_arrives(listening: Listening, link: Link) -> None:
    link.report("done", steps=4)
    link.leave()
    assert listening.until("done")["steps"] == 4


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (ValueError("no row\nmore"), {"error": "ValueError", "message": "no row", "because_of": None, "full": None}),
        (RuntimeError("[gloo/pair.cc] Connection closed by peer [::1]"), {"because_of": "gone"}),
        (RuntimeError("[gloo/x.cc:78] Timed out waiting 6000ms for recv"), {"because_of": "late"}),
        (RuntimeError("shape mismatch"), {"because_of": None}),
        (MemoryError(), {"full": "host", "error": "MemoryError"}),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
            {"full": "host", "requested_bytes": 64},
        ),
        (WorkloadError("nan", "The loss is NaN.", "Lower it."), {"error": "nan", "remedy": "Lower it."}),
    ],
)
def test_a_failure_is_told_with_its_kind_and_whose_fault_it_is(
    link: Link, error: BaseException, facts: dict[str, Any]
) -> None:
    with pytest.raises(type(error)) as caught:
        failing(error)()

    told = facts_of(caught.value, link, "cpu")
    assert {name: told[name] for name in facts} == facts
    assert told["where"].endswith("in fail") and told["used_bytes"] > 0 and told["total_bytes"] > 0


def test_a_place_is_that_of_the_innermost_frame() -> None:
    assert place_of(sys._getframe()).endswith("in test_a_place_is_that_of_the_innermost_frame")
    assert place_of(None) == ""


@pytest.mark.parametrize(
    ("device", "lacking", "words"),
    [
        ("cpu", "is_gloo_available", "Gloo is missing"),
        ("cuda:0", "is_nccl_available", "NCCL is missing"),
        ("cpu", "is_available", "torchrun is missing"),
    ],
)
def test_a_torch_without_the_backend_is_told_before_any_rank_starts(
    monkeypatch: pytest.MonkeyPatch, device: str, lacking: str, words: str
) -> None:
    import torch

    assert launch_process.what_is_missing("cpu") is None
    monkeypatch.setattr(torch.distributed, lacking, lambda: False)
    assert words in str(launch_process.what_is_missing(device))


def test_a_torch_without_torchrun_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.run", None)
    assert "torchrun is missing" in str(launch_process.what_is_missing("cpu"))

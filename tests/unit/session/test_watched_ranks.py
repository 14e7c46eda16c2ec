"""The ranks of a watched program become rows of one table, notes and a summary, whatever their agents send."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpudash.agent.server import Peer
from gpudash.session.watching.messages.ranks import LONGEST_NAME, ROWS_PER_SECOND, WatchedRanks
from gpudash.telemetry.ranks.ranks import POLL_S
from gpudash.telemetry.records import Note, Sample
from gpudash.units import GIB
from tests.unit.session.watched import Surrounded

MIB = 2**20


class Run:
    """A watched run of several ranks."""

    def __init__(self) -> None:
        self.around = Surrounded()
        clock = lambda: self.around.now_s  # noqa: E731
        time_of = lambda message: message["time_us"] / 1e6 if "time_us" in message else self.around.now_s  # noqa: E731
        self.ranks = WatchedRanks(1, self.around.emit, clock, time_of, 1000 * MIB)

    def join(self, number: int, world_size: int = 2, *, restart: int = 0, device: str = "cpu", **hello: Any) -> Peer:
        """Another rank introduces itself."""
        rank = number
        facts = {"rank": rank, "local_rank": rank, "local_world_size": world_size, "host": "node1", "run": "job7"}
        pid = 100 + rank + 10 * restart
        peer = Peer(socket.socket.__new__(socket.socket), pid, {**facts, "restart": restart, **hello})
        about = {"rank": rank, "world_size": world_size, "strategy": "ddp", "backend": "gloo", "device": device}
        assert self.ranks.take(peer, {"type": "rank", **about})
        return peer

    def step(self, peer: Peer, number: int, *, compute: float | None = 0.08, blocked: float | None = 0.02) -> None:
        row = [number, round(self.around.now_s * 1e6), 0.1, compute, blocked, 0.5, None]
        self.ranks.take(peer, {"type": "rank_steps", "steps": [row]})

    def memory(self, peer: Peer, **sizes: Any) -> None:
        self.ranks.take(peer, {"type": "rank_memory", **sizes})

    @property
    def rows(self) -> list[Sample]:
        return [record for record in self.around.reported if isinstance(record, Sample)]

    def notes(self, topic: str) -> list[Any]:
        return self.around.events(Note, topic=topic)


def test_where_a_rank_stands_is_kept_until_its_next_step_and_nonsense_is_left_out() -> None:
    run = Run()
    peers = [run.join(number) for number in (0, 1)]
    told = [["train.py", 31, "batches"], ["q.py", "1", "get"], 7, ["x" * 5000, 2, "f"]]
    run.ranks.take(peers[1], {"type": "rank_place", "frames": told})
    first, second = run.ranks.places[1]
    assert first == {"file": "train.py", "line": 31, "name": "batches"}
    assert len(second["file"]) == LONGEST_NAME
    run.step(peers[1], 1)
    assert run.ranks.places == {}


def test_ranks_are_told_once_all_are_there() -> None:
    run = Run()
    run.join(1)
    assert not run.notes("ranks")
    run.join(0)
    (note,) = run.notes("ranks")
    assert note.text == "2 ranks train with DistributedDataParallel over gloo."
    facts = {key: note.details[key] for key in ("world_size", "strategy", "backend", "run")}
    assert facts == {"world_size": 2, "strategy": "ddp", "backend": "gloo", "run": "job7"}
    assert note.details["ranks"][1] == {
        "rank": 1,
        "local_rank": 1,
        "device": "cpu",
        "host": "node1",
        "pid": 101,
        "capacity_bytes": 1000 * MIB,
    }


def test_a_step_of_all_ranks_becomes_a_row_of_each() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    run.step(zero, 1, blocked=0.03)
    assert not run.rows
    run.step(one, 1, blocked=0.01)
    first, second = run.rows
    assert (first.device, second.device, first.time_s) == ("0", "1", 10.0)
    assert first.values["waiting_s"] == pytest.approx(0.02) and first.values["loss"] == 0.5
    result = run.ranks.result()
    assert [row["steps"] for row in result["ranks"]] == [1, 1] and result["ranks"][0]["host"] == "node1"
    assert (result["world_size"], result["restarts"], result["parameters_equal"]) == (2, 0, None)


def test_a_program_without_ranks_has_no_result_of_them() -> None:
    run = Run()
    peer = Peer(socket.socket.__new__(socket.socket), 5, {})
    run.step(peer, 1)
    run.memory(peer, used_bytes=5)
    assert run.ranks.result() == {} and not run.rows and run.ranks.why_full(0) == ""
    assert not run.ranks.take(peer, {"type": "steps"})


def test_a_slow_rank_is_told_when_it_is_found_twice_and_then_never_again() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    told = []
    for number in range(1, 200):
        run.around.now_s += POLL_S / 10
        run.step(zero, number, compute=0.08, blocked=0.03)
        run.step(one, number, compute=0.10, blocked=0.01)
        told.append(len(run.notes("straggler")))
    (note,) = run.notes("straggler")
    assert note.details == {"rank": 1, "slower": pytest.approx(0.25)}
    assert told.index(1) >= 30 and told[-1] == 1
    assert run.ranks.result()["straggler"]["rank"] == 1
    assert len(run.notes("straggler")) == 1


def test_a_slow_rank_of_a_short_run_is_told_at_its_end() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    for number in range(1, 40):
        run.step(zero, number, compute=0.08, blocked=0.03)
        run.step(one, number, compute=0.10, blocked=0.01)
    assert not run.notes("straggler")
    assert run.ranks.result()["straggler"]["slower"] == pytest.approx(0.25)
    assert len(run.notes("straggler")) == 1


def test_unequal_memory_is_told_once_the_run_has_settled() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    run.memory(zero, used_bytes=300 * MIB)
    run.memory(one, used_bytes=600 * MIB)
    for number in range(1, 5):
        run.around.now_s += POLL_S
        run.step(zero, number)
        run.step(one, number)
    assert not run.notes("imbalance")
    for number in range(5, 9):
        run.around.now_s += POLL_S
        run.step(zero, number)
        run.step(one, number)
    (note,) = run.notes("imbalance")
    assert note.details == {"rank": 1, "bytes": 600 * MIB}
    assert run.ranks.result()["memory_imbalance"]["bytes"] == 600 * MIB
    assert run.ranks.why_full(1).startswith("Memory is unequal: rank 1")


def test_capacities_and_peaks_are_those_the_allocator_told() -> None:
    run = Run()
    zero, one = run.join(0, device="cuda:0"), run.join(1, device="cuda:1")
    run.memory(zero, allocated_bytes=5, reserved_bytes=6, peak_allocated_bytes=8, capacity_bytes=100)
    run.memory(one, allocated_bytes=5, reserved_bytes=6, peak_allocated_bytes=8, capacity_bytes=50)
    first, second = run.ranks.result()["ranks"]
    assert (first["capacity_bytes"], first["peak_allocated_bytes"], second["capacity_bytes"]) == (100, 8, 50)
    assert "device of rank 1 is the smallest" in run.ranks.why_full(1)
    assert "rank 0 was the first to ask" in run.ranks.why_full(0)


def test_of_memory_that_is_not_known_nothing_is_said() -> None:
    run = Run()
    zero, one = run.join(0, device="sim:0"), run.join(1, device="sim:1")
    assert run.ranks.why_full(1) == "" and run.ranks.held(1) == ""
    run.memory(zero, allocated_bytes=5, reserved_bytes=6)
    assert run.ranks.why_full(1) == "" and run.ranks.held(1) == ""
    run.memory(one, allocated_bytes=5, reserved_bytes=6)
    assert "rank 1 was the first to ask" in run.ranks.why_full(1)


def test_a_rank_is_told_with_what_it_held_and_with_what_it_alone_asked_for() -> None:
    run = Run()
    zero, one = run.join(0, device="sim:0"), run.join(1, device="sim:1")
    for peer in (zero, one):
        run.memory(peer, allocated_bytes=MIB, reserved_bytes=960 * MIB, peak_allocated_bytes=900 * MIB)
    assert run.ranks.held(1) == "At its peak it had 900 MiB allocated on sim:1, and 960 MiB reserved."
    run.ranks.refused(one, {"requested_bytes": 7 * GIB, "allocated_bytes": GIB})
    assert run.ranks.why_full(1) == (
        "All ranks held about as much, and rank 1 alone asked for more: it would have allocated 8.00 GiB; the others "
        "allocated 0.88 GiB at their peak."
    )
    run.memory(zero, allocated_bytes=3 * GIB, reserved_bytes=3 * GIB)
    assert run.ranks.why_full(1).startswith("Memory is unequal: rank 0 allocated 3.00 GiB")


def test_when_the_launcher_starts_all_again_what_the_old_ones_still_say_is_not_heard() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    run.step(zero, 1)
    run.step(one, 1)
    new_zero = run.join(0, restart=1)
    run.join(1)  # a late one of the first start
    run.step(zero, 2)
    run.step(one, 2)
    assert len(run.rows) == 2
    new_one = run.join(1, restart=1)
    run.step(new_zero, 1)
    run.step(new_one, 1)
    assert len(run.rows) == 4
    assert run.notes("ranks")[-1].text.endswith("over gloo, started again (1).")
    result = run.ranks.result()
    assert result["restarts"] == 1 and [row["pid"] for row in result["ranks"]] == [110, 111]


def test_ranks_that_the_program_starts_itself_are_called_by_their_number() -> None:
    run = Run()
    facts = {"local_rank": None, "local_world_size": None, "run": None}
    peers = [run.join(rank, **{**facts, "rank": None}) for rank in (0, 1)]
    assert [peer.label for peer in peers] == ["rank 0 (pid 100)", "rank 1 (pid 101)"]
    for peer in peers:
        run.step(peer, 1)
    assert len(run.rows) == 2


def test_a_node_joins_its_own_ranks() -> None:
    run = Run()
    peers = [run.join(rank, 4, local_rank=rank - 2, local_world_size=2, group_rank=1) for rank in (2, 3)]
    for peer in peers:
        run.step(peer, 1)
    assert [row.device for row in run.rows] == ["2", "3"]
    assert run.notes("ranks")[0].text.startswith("4 ranks, 2 of them here, train")
    assert run.ranks.known() == {2: 102, 3: 103}


def test_rows_are_passed_on_as_whole_steps_and_no_more_than_can_be_written() -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    for number in range(1, 2 * ROWS_PER_SECOND):
        run.step(zero, number)
        run.step(one, number)
    assert len(run.rows) == ROWS_PER_SECOND
    assert run.ranks.result()["ranks"][0]["steps"] == 2 * ROWS_PER_SECOND - 1


@pytest.mark.parametrize(
    "steps",
    [
        None,
        5,
        [5],
        [[]],
        [["1", 0, 0.1, None, None, None, None]],
        [[1, 0, None, None, None, None, None]],
        [[1, 0, 0.1]],
    ],
)
def test_rows_that_make_no_sense_are_left_out(steps: Any) -> None:
    run = Run()
    zero, one = run.join(0), run.join(1)
    for peer in (zero, one):
        run.ranks.take(peer, {"type": "rank_steps", "steps": steps})
    run.memory(zero, used_bytes="much", allocated_bytes=-1)
    assert [row.values for row in run.rows] == [{}]


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 10**9), ("0", 2), (0, None)])
def test_a_rank_that_cannot_be_is_refused(rank: Any, world_size: Any) -> None:
    peer = Peer(socket.socket.__new__(socket.socket), 5, {})
    with pytest.raises(ValueError, match="rank"):
        Run().ranks.take(peer, {"type": "rank", "rank": rank, "world_size": world_size})

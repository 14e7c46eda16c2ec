"""``gpudash watch -- torchrun ...``: an unchanged script on several ranks, and on several nodes."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from gpudash.session.recordings.joining import JoinedRecording
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import Sample
from tests.end_to_end.conftest import Command, Outcome

SCRIPT = Path(__file__).parent / "watched_scripts" / "unequal_ranks.py"
CUDA_SCRIPT = Path(__file__).parent / "watched_scripts" / "cuda_ranks.py"
STEPS = 60
MIB, GIB = 2**20, 2**30


def torchrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *words]


STANDALONE = ("--standalone", "--nproc-per-node", "2")

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
"""The ranks meet on this machine, whose own name need not be known to it."""


def watched(gpudash: Command, *words: str, losses: Path) -> Outcome:
    return gpudash("watch", "--json", "--", *words, env={**LOOPBACK, "LOSSES": f"{losses}/losses"})


def losses(folder: Path) -> list[list[float]]:
    return [[float(line) for line in (folder / f"losses{rank}").read_text().split()] for rank in (0, 1)]


def losses_alone() -> list[list[float]]:
    """What the script's two ranks compute, by one process that nobody watches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    chances = [torch.Generator().manual_seed(1 + rank) for rank in (0, 1)]
    found: list[list[float]] = [[], []]
    for _step in range(STEPS):
        optimizer.zero_grad()
        for told, chance in zip(found, chances, strict=True):
            inputs = torch.randn(16, 8, generator=chance)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            (loss / 2).backward()
            told.append(loss.item())
        optimizer.step()
    return found


def rows(recording: str) -> list[Sample]:
    with open_recording(Path(recording)) as opened:
        return list(opened.samples("rank"))


def test_ranks_are_seen_step_by_step_and_compute_what_they_compute_unwatched(gpudash: Command, tmp_path: Path) -> None:
    command = torchrun(*STANDALONE, "--max-restarts", "1", str(SCRIPT), "once")
    outcome = watched(gpudash, *command, losses=tmp_path)
    assert outcome.code == 0, outcome.stderr
    for seen, alone in zip(losses(tmp_path), losses_alone(), strict=True):
        assert seen == pytest.approx(alone, rel=1e-5)

    found = outcome.document
    result = found["result"]
    assert (found["status"], found["steps"]) == ("finished", STEPS)
    assert (result["world_size"], result["strategy"], result["backend"], result["restarts"]) == (2, "ddp", "gloo", 1)
    assert any(text.endswith("over gloo, started again (1).") for text in found["notes"])
    assert all(f"Rank {rank} (pid " in " ".join(found["notes"]) for rank in (0, 1))
    zero, one = result["ranks"]
    assert (zero["rank"], one["rank"], zero["device"], zero["steps"]) == (0, 1, "cpu", STEPS)
    assert zero["pid"] != one["pid"] and zero["host"] == os.uname().nodename
    assert zero["waiting_share"] > one["waiting_share"]
    assert one["peak_used_bytes"] > 50 * 2**20
    assert result["straggler"]["rank"] == 1 and result["straggler"]["slower"] > 0.2

    told = rows(found["recording"])
    assert Counter(row.device for row in told if "step_s" in row.values) == {"0": STEPS, "1": STEPS}
    assert {row.device for row in told if "used_bytes" in row.values} == {"0", "1"}
    parts = [row.values for row in told if "waiting_s" in row.values]
    assert len(parts) >= 2 * (STEPS - 1)


def test_two_nodes_record_on_their_own_and_open_as_one(gpudash: Command, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job7")
    command = torchrun(*meeting, "--rdzv-endpoint", f"127.0.0.1:{port}", str(SCRIPT))
    variables = {**LOOPBACK, "LOSSES": f"{tmp_path}/losses"}
    paths = [tmp_path / f"node{number}.gpudash" for number in range(2)]

    with ThreadPoolExecutor(2) as nodes:
        begun = [
            nodes.submit(gpudash, "watch", "--json", "--record", str(path), "--", *command, env=variables)
            for path in paths
        ]
        outcomes = [one.result() for one in begun]
    assert [one.code for one in outcomes] == [0, 0], outcomes
    heard = [[row["rank"] for row in one.document["result"]["ranks"]] for one in outcomes]
    assert sorted(heard) == [[0], [1]]
    assert all(one.document["result"]["straggler"] is None for one in outcomes)  # a node alone cannot know

    joined = JoinedRecording(paths)
    try:
        told = rows(str(joined.path))
        with open_recording(joined.path) as opened:
            status = opened.runs[0].status
            found = [event for event in opened.events() if getattr(event, "topic", "") == "straggler"]
    finally:
        joined.remove()
    assert status == "finished" and not joined.path.exists()
    assert Counter(row.device for row in told if "step_s" in row.values) == {"0": STEPS, "1": STEPS}
    slow = {row["pid"]: row["rank"] for one in outcomes for row in one.document["result"]["ranks"]}
    assert len(slow) == 2 and [event.details["rank"] for event in found] == [1]  # type: ignore[attr-defined]


@pytest.mark.table
@pytest.mark.timeout(600)  # four processes that import torch, on few cores
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("fault", ["computes", "loads"])
def test_a_slow_rank_is_named_with_whether_it_computes_or_waits_for_its_input(
    gpudash: Command, tmp_path: Path, strategy: str, fault: str
) -> None:
    script = SCRIPT.with_name("loading_ranks.py")
    outcome = watched(gpudash, *torchrun(*STANDALONE, str(script), strategy, fault, "1"), losses=tmp_path)
    assert outcome.code == 0, outcome.stderr
    result = outcome.document["result"]
    assert (result["strategy"], result["straggler"]["rank"]) == (strategy, 1)
    assert ("a step for its input." in result["straggler"]["text"]) == (fault == "loads")
    zero, one = result["ranks"]
    parts = ("compute_share", "communication_share", "waiting_share", "input_share")
    assert sum(one[part] for part in parts) == pytest.approx(1.0, abs=0.01)
    assert zero["waiting_share"] > 0.3 > one["waiting_share"]
    assert (one["input_share"] > one["compute_share"]) == (fault == "loads")


def test_a_rank_that_hangs_is_named_with_the_line_at_which_it_stands(gpudash: Command, tmp_path: Path) -> None:
    script = SCRIPT.with_name("hanging_rank.py")
    outcome = watched(gpudash, *torchrun(*STANDALONE, str(script)), losses=tmp_path)
    assert outcome.code == 1, outcome.stderr
    error = outcome.document["error"]
    assert error["kind"] == "hang" and error["message"].startswith("Rank 1 (pid ")
    stands = [frame for frame in error["frames"] if frame["file"] == str(script)]
    assert [frame["name"] for frame in stands] == ["<module>", "next_batch"]
    line = script.read_text().splitlines().index("    return batches.get()") + 1
    assert error["remedy"] == f"Rank 1 stood at hanging_rank.py:{line}; look what that line waits for."


def on_simulated_cards(gpudash: Command, count: int, strategy: str, fault: str, rank: int) -> Outcome:
    """A script that says "cuda", each of whose ranks has a simulated card of 8 GiB; one of them has a fault."""
    command = torchrun("--standalone", "--nproc-per-node", str(count), str(CUDA_SCRIPT), strategy, fault, str(rank))
    cards = ("--simulate", ",".join(["8GiB"] * count), "--as-cuda")
    return gpudash("watch", "--json", *cards, "--", *command, env=LOOPBACK)


@pytest.mark.timeout(600)  # five processes that import torch, on few cores
@pytest.mark.parametrize(("strategy", "count"), [("fsdp", 2), ("ddp", 4)])
def test_a_rank_that_fills_its_simulated_card_is_named_with_its_memory(
    gpudash: Command, strategy: str, count: int
) -> None:
    rank = count - 1
    outcome = on_simulated_cards(gpudash, count, strategy, "full", rank)
    assert outcome.code == 1, outcome.stderr  # the launcher's
    found = outcome.document
    assert found["status"] == "out_of_memory"
    row = found["result"]["ranks"][rank]
    # seven of 1 GiB fit beside the context, the eighth does not
    assert 7 * GIB < row["peak_allocated_bytes"] <= row["peak_reserved_bytes"] < 7 * GIB + 50 * MIB
    # what is used is polled: a stream's segment, taken just before the refusal, may lie between two readings
    assert 0 <= row["peak_reserved_bytes"] + 300 * MIB - row["peak_used_bytes"] <= 2 * MIB
    assert (row["device"], row["capacity_bytes"]) == (f"sim:{rank}", 8 * GIB)
    assert found["error"]["message"].startswith(f"Rank {rank} (pid {row['pid']}) ran out of memory on sim:{rank}")
    assert f"Memory is unequal: rank {rank} allocated 7.0" in found["error"]["message"]
    others = [other for other in found["result"]["ranks"] if other["rank"] != rank]
    assert len(others) == count - 1
    assert all(0 < other["peak_allocated_bytes"] < 50 * MIB for other in others)
    assert found["result"]["memory_imbalance"]["rank"] == rank


def test_a_rank_that_is_killed_is_named_with_the_memory_of_its_simulated_card_and_the_recording_is_whole(
    gpudash: Command,
) -> None:
    outcome = on_simulated_cards(gpudash, 2, "ddp", "killed", 1)
    assert outcome.code == 1, outcome.stderr
    found = outcome.document
    row = found["result"]["ranks"][1]
    assert 3 * GIB < row["peak_allocated_bytes"] < 3 * GIB + 50 * MIB
    message = found["error"]["message"]
    assert message.startswith(f"Rank 1 (pid {row['pid']}) was killed by SIGKILL")
    assert "At its peak it had 3.02 GiB allocated on sim:1" in message
    steps = [row.values["step"] for row in rows(found["recording"]) if row.device == "1" and "step" in row.values]
    assert steps == list(range(1, len(steps) + 1)) and 0 < len(steps) <= 12
    with closing(sqlite3.connect(found["recording"])) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.timeout(600)
def test_a_rank_on_a_simulated_card_that_the_others_wait_for_is_named(gpudash: Command) -> None:
    outcome = on_simulated_cards(gpudash, 4, "fsdp", "slow", 1)
    assert outcome.code == 0, outcome.stderr
    result = outcome.document["result"]
    assert result["strategy"] == "fsdp" and result["straggler"]["rank"] == 1
    slow, *others = sorted(result["ranks"], key=lambda row: row["rank"] != 1)
    assert all(slow["waiting_share"] < other["waiting_share"] for other in others)
    assert len({row["peak_reserved_bytes"] for row in result["ranks"]}) == 1
    assert slow["peak_allocated_bytes"] > 0 and result["memory_imbalance"] is None

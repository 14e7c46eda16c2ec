"""A CUDA program that runs already is entered by its door or by its Python, followed, and left as it was."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.agent.server import AgentServer
from gpudash.session.watching.attaching.attached import arrived, release, save_snapshot_of
from gpudash.session.watching.attaching.entry_methods import REMOTE_EXEC, enter
from tests.cuda_standin.conftest import LIMIT_S, ROOT, Program

MIB = 2**20
LOOKS = 5000
"""Each waits for something to come."""

PROGRAM = """
import os, select, torch
kept = [torch.ones(2**20, device="cuda")]
# it never waits for long: Python lets somebody in between two of its own instructions
while True:
    if not select.select([0], [], [], 0.01)[0]:
        continue
    line = os.read(0, 100)
    if not line:
        break
    if line == b"more\\n":
        kept.append(torch.ones(2**21, device="cuda"))
    print(len(os.listdir("/proc/self/task")), torch._C._cuda_isHistoryEnabled(), flush=True)
"""


@pytest.mark.parametrize("way", ["door", "remote_exec"])
def test_a_running_cuda_program_is_entered_and_left_as_it_was(program: Program, tmp_path: Path, way: str) -> None:
    if way == "remote_exec" and sys.version_info < REMOTE_EXEC:
        pytest.skip("this Python has no sys.remote_exec")
    # behind the folder of an older torch, where that is what the tests run with
    paths = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "gpudash" / "agent" / "inject")])
    door = {"GPUDASH_AGENT": "1", "PYTHONPATH": os.pathsep.join(paths)}
    running = program.start(PROGRAM, **(door if way == "door" else {}))
    assert running.stdin is not None and running.stdout is not None

    def say(line: str) -> str:
        running.stdin.write(f"{line}\n")
        running.stdin.flush()
        return str(running.stdout.readline())

    socket = tmp_path / "agent"
    server, heard = AgentServer(socket), list[dict[str, Any]]()

    def hear() -> None:
        heard.extend(message for _, message in server.receive(0.05))

    def until(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(LOOKS):
            if found := [message for message in heard if holds(message)]:
                return found[0]
            assert running.poll() is None
            hear()
        raise AssertionError(heard[-3:])

    try:
        alone = say("")
        assert alone.endswith("False\n")

        def has_come(_seconds: float) -> bool:
            return arrived(server, running.pid, LIMIT_S, hear, lambda: False)

        config = json.dumps({"history": True, "history_entries": 1000})
        entered = enter(psutil.Process(running.pid), socket, config, has_come)
        assert entered.way == way
        assert until(lambda message: message["type"] == "torch")["history"] is True
        assert until(lambda message: message["type"] == "allocator")["devices"]["cuda:0"]["allocated_bytes"] == 4 * MIB
        assert say("more").endswith("True\n")
        until(lambda message: any(row[0] == 8 * MIB for row in message.get("holdings", ())))
        release(server, hear)
        assert not server.peers
        path = tmp_path / "snapshot.pickle"
        assert save_snapshot_of(running.pid, path).way == way
        snapshot = pickle.loads(path.read_bytes())
        assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == 12 * MIB
        # the system is rid of a thread a little after the thread has ended
        assert alone in (say("") for _ in range(LOOKS))
        running.stdin.close()
        assert running.stderr is not None and (running.stderr.read(), running.wait(LIMIT_S)) == ("", 0)
    finally:
        server.close()
        running.kill()
        running.wait(LIMIT_S)
        running.stdout.close()
        running.stderr.close()

"""What being attached to, again and again, costs a training that runs: beside the same script that is left alone.

Both are given their steps in turn, a stretch at a time, so that what else the machine does weighs on both alike. During
each stretch of the one somebody comes and leaves; its losses have to be those of the other to the last bit.

``python -m tests.benchmarks.attaching 200 door``; ``remote_exec`` needs ``--python`` to name a Python 3.14. Where that
has no torch a program of plain Python takes its place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gpudash.agent.server import AgentServer
from gpudash.session.watching.attaching.attached import arrived, release
from gpudash.session.watching.attaching.entry_methods import enter
from tests.benchmarks.watching import upper_end
from tests.unit.agent.dashboard import INJECT

TIMES = 200
STEPS = 25
"""Of a stretch, and of each of those in which nobody comes, which tell how alike the two are."""

STAY = 8
"""Stretches during which somebody stays, at the least: a third of a second or so."""

WARM_UP = 20
"""Times that somebody comes before threads, files and memory are counted."""

ARRIVAL_S = 60.0

SCRIPT = """
import gc, os, sys, time
try:
    import torch
except ImportError:
    values = [float(i % 7) for i in range(64)]
    def step():
        for at in range(200):
            values[at % 64] = (values[at % 64] * 1.01 + values[(at + 1) % 64]) % 10.0
        return repr(sum(values))
else:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    wide, batch = 256, 128
    model = torch.nn.Sequential(
        torch.nn.Linear(wide, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide), torch.nn.ReLU(),
        torch.nn.Linear(wide, 10),
    )
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(batch, wide), torch.randint(0, 10, (batch,))
    def step():
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item().hex()
for line in sys.stdin:
    word, count = line.split()
    if word == "steps":
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(int(count)):
            loss = step()
        print(loss, time.process_time() - cpu, time.perf_counter() - wall, flush=True)
    else:
        gc.collect()
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        tasks, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        print(tasks, files, resident, len(gc.get_objects()), flush=True)
"""


class Script:
    """The script, running; it waits until it is told to go on."""

    def __init__(self, python: str, *, door: bool) -> None:
        # where an installation keeps what it has compiled it is read, and not compiled each time
        left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        environment |= {"OMP_NUM_THREADS": "1"}
        if door:
            environment |= {"GPUDASH_AGENT": "1", "PYTHONPATH": str(INJECT)}
        self.process = subprocess.Popen(
            [python, "-c", SCRIPT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, word: str, count: int = 0) -> list[str]:
        """What it answers."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word} {count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self) -> None:
        """Let it leave."""
        self.process.communicate()


def come_and_leave(pid: int, way: str, folder: Path, may_leave: threading.Event) -> None:
    """Go inside, stay until one may leave, and go out again."""
    path = folder / "agent"
    path.unlink(missing_ok=True)
    server = AgentServer(path)

    def hear() -> None:
        for _ in server.receive(0.02):
            pass

    def has_come(_seconds: float) -> bool:
        return arrived(server, pid, ARRIVAL_S, hear, lambda: False)

    try:
        entered = enter(psutil.Process(pid), path, json.dumps({"history": True}), has_come, by_gdb=way == "gdb")
        if entered.way != way:
            raise RuntimeError(f"entered by {entered.way or 'nothing'}: {entered.why_not}")
        while not may_leave.is_set():
            hear()
        release(server, hear)
    finally:
        server.close()


def measure(times: int = TIMES, way: str = "door", python: str = sys.executable, stay: int = STAY) -> dict[str, Any]:
    """Ratios of processor time and of time a step, whether losses are the same, and what has grown since `WARM_UP`.

    Somebody who comes by gdb has the program stand still meanwhile, which takes time but none of the processor's.
    """
    visited, alone = Script(python, door=way == "door"), Script(python, door=False)
    found, quiet, walls, same, before = list[float](), list[float](), list[float](), True, list[str]()
    try:
        for script in (visited, alone):
            script.ask("steps", STEPS)
        with tempfile.TemporaryDirectory() as folder:
            for number in range(times):
                if number == min(WARM_UP, times // 2):
                    before = visited.ask("state")
                may_leave, left = threading.Event(), threading.Event()
                visit = (visited.process.pid, way, Path(folder), may_leave, left)
                visitor = threading.Thread(target=_visit, args=visit)
                visitor.start()
                cpu, wall, stretches, loss = 0.0, 0.0, 0, ""
                while visitor.is_alive():
                    loss, seconds, passed = visited.ask("steps", STEPS)
                    cpu, wall, stretches = cpu + float(seconds), wall + float(passed), stretches + 1
                    if stretches >= stay:
                        may_leave.set()
                visitor.join()
                if not left.is_set():
                    raise RuntimeError("the program could not be entered")
                # in as many stretches: each begins with caches that others have filled
                beside = [alone.ask("steps", STEPS) for _ in range(stretches)]
                same = same and beside[-1][0] == loss
                alone_cpu, alone_wall = (sum(float(stretch[at]) for stretch in beside) for at in (1, 2))
                found.append(cpu / alone_cpu)
                (_, one, first), (_, two, second) = visited.ask("steps", STEPS), alone.ask("steps", STEPS)
                quiet.append(float(one) / float(two))
                walls.append(wall / alone_wall * float(second) / float(first))
        after = visited.ask("state")
    finally:
        visited.end()
        alone.end()
    grown = [int(last) - int(first) for first, last in zip(before, after, strict=True)]
    # how its memory happens to lie makes a process faster or slower for all its life
    ratios = np.array(found) / np.array(quiet)
    return {
        "times": times,
        "way": way,
        "same_losses": same,
        "cpu_median_ratio": statistics.median(found),
        "between_median_ratio": statistics.median(quiet),
        "cpu_over_between": statistics.median(ratios),
        "cpu_over_between_upper": upper_end(ratios),
        "wall_over_between": statistics.median(walls),
        **dict(zip(("more_threads", "more_files", "more_bytes", "more_objects"), grown, strict=True)),
    }


def _visit(pid: int, way: str, folder: Path, may_leave: threading.Event, left: threading.Event) -> None:
    come_and_leave(pid, way, folder, may_leave)
    left.set()


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=int, nargs="?", default=TIMES)
    parser.add_argument("way", nargs="?", default="door", choices=("door", "remote_exec", "gdb"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--stay", type=int, default=STAY, help=f"stretches of {STEPS} steps during each visit")
    asked = parser.parse_args()
    sys.stdout.write(json.dumps(measure(asked.times, asked.way, asked.python, asked.stay)) + "\n")


if __name__ == "__main__":
    main()

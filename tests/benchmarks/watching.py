"""What watching costs an unchanged training script: the same steps in two processes, one of them watched, in turn.

Stretches of steps of either follow right after one another, so that what else the machine does weighs on both alike;
how its memory happens to lie makes a process faster or slower for all its life, so that each pair has new processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit.agent.dashboard import PACKAGE, Dashboard

PAIRS = 28
HISTORY_PAIRS = 12
"""Fewer: the interval of these ends far below its budget, and that of the others close to it."""

STRETCHES = 6
STEPS = 25
"""Of a stretch."""

RESAMPLES = 4000

SCRIPT = """
import logging, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
device = torch.device(sys.argv[1])
wide, batch = 512, 256
model = torch.nn.Sequential(
    torch.nn.Linear(wide, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide), torch.nn.ReLU(),
    torch.nn.Linear(wide, 10),
).to(device)
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(batch, wide, device=device)
targets = torch.randint(0, 10, (batch,), device=device)
log = logging.getLogger("gpudash")
step = 0
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.info("step", extra={"step": step, "loss": loss})
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""

SIMULATED = (
    f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\nimport gpudash.simulator as s; s.simulate(2**32)\n"
)
"""What the one that is not watched needs to have the device at all."""

Times = NDArray[np.float64]
"""Seconds of wall clock and of processor time, the agent's thread included; of many pairs, ratios, a row each."""


class Script:
    """The script, running; it waits until it is told to go on."""

    def __init__(self, code: str, device: str, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def steps(self, count: int) -> Times:
        """What so many steps took."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(f"{count}\n")
        pipes.stdin.flush()
        return np.array(pipes.stdout.readline().split(), dtype=np.float64)

    def end(self) -> None:
        """Let it leave."""
        self._process.communicate()


def pair(device: str, dashboard: Dashboard, **config: Any) -> Times:
    """Watched over not watched, of two new processes."""
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    watched = Script(SCRIPT, device, dashboard.environment(**config, period_s=0.1))
    alone = Script(SIMULATED + SCRIPT if device == "sim" else SCRIPT, device, bare)
    found = []
    try:
        for script in (watched, alone):
            script.steps(STEPS)
        for number in range(STRETCHES):
            taken = {script: script.steps(STEPS) for script in ((watched, alone) if number % 2 else (alone, watched))}
            found.append(taken[watched] / taken[alone])
    finally:
        watched.end()
        alone.end()
    return np.asarray(np.median(found, axis=0))


def pairs(device: str, dashboard: Dashboard, count: int, **config: Any) -> Times:
    """The ratios of so many pairs."""
    return np.array([pair(device, dashboard, **config) for _ in range(count)])


def upper_end(ratios: Times) -> float:
    """Upper end of the 95 % interval of the median, by bootstrap."""
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    return float(np.quantile(np.median(drawn, 1), 0.975))


def figures(name: str, ratios: Times) -> dict[str, float]:
    """Median ratio and upper end, of wall clock and of processor time, which other programs disturb less."""
    wall, cpu = ratios.T
    return {
        f"{name}median_ratio": statistics.median(wall),
        f"{name}upper_ratio": upper_end(wall),
        f"{name}cpu_median_ratio": statistics.median(cpu),
        f"{name}cpu_upper_ratio": upper_end(cpu),
    }


def measure(count: int | None = None) -> dict[str, float]:
    """Ratios on the CPU and, with memory history, on a simulated GPU; the agent's part of the time."""
    plain_count = count or PAIRS
    history_count = count or HISTORY_PAIRS
    with tempfile.TemporaryDirectory() as folder:
        dashboard = Dashboard(Path(folder))
        try:
            plain = pairs("cpu", dashboard, plain_count)
            history = pairs("sim", dashboard, history_count, simulate=[2**32], history=True)
            watched = plain_count + history_count
            dashboard.wait_until(lambda: len([m for m in dashboard.messages if m["type"] == "bye"]) == watched)
            shares = [bye["cpu_s"] / bye["wall_s"] for bye in dashboard.of("bye")]
        finally:
            dashboard.close()
    return {**figures("", plain), **figures("history_", history), "agent_percent": 100 * max(shares)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else None)) + "\n")

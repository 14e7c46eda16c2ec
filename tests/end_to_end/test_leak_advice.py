"""Trainings that keep something of every step until a simulated GPU is full: doing what is advised ends each leak."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.system.foreign_files import source_line
from tests.end_to_end.conftest import run_python
from tests.unit.memory.snapshot.made import explained

STEPS = 120

PROGRAM = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 256)
        self.second = torch.nn.Linear(256, 256)

    def forward(self, inputs):
        hidden = torch.relu(self.first(inputs))
        return self.second(hidden)


kept, sums = [], torch.zeros((), device="sim:0")
table = torch.zeros(2048, 256, device="sim:0")
net = Net().to("sim:0")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range({steps}):
    inputs = torch.randn(2048, 256, device="sim:0")
    out = net(inputs)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    with torch.no_grad():
        embedding = inputs * 2.0
    {keeps}
    del inputs, out, loss, embedding
"""

ONE_AFTER_THE_OTHER = """\
import gc, runpy, sys
import torch
from gpudash.simulator import simulate

simulate(400 * 2**20)
for path in sys.argv[1:]:
    torch.sim.memory._record_memory_history(max_entries=100_000)
    try:
        runpy.run_path(path)
    except torch.OutOfMemoryError:
        torch.sim.memory._dump_snapshot(path + ".pickle")
    torch.sim.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.sim.empty_cache()
"""

GRAPH = "and with it the graph that made it"
HOST = "keep less of it, or {}.detach().cpu(), which takes 2 MiB of host memory at each step."
ITSELF = f"keeps {{}} itself, 2 MiB of every step: {HOST}"
ADVICE = (
    ("kept.append(loss)", f"keeps loss, {GRAPH}: keep loss.item() instead."),
    ("kept.append((step, loss))", f"keeps loss, {GRAPH}: keep loss.item() instead."),
    ("sums += loss", f"adds up loss, {GRAPH}: add loss.detach() instead."),
    ("table += out", f"adds up out, {GRAPH}: add out.detach() instead."),
    ("kept.append(out)", f"keeps out, {GRAPH}: {HOST.format('out')}"),
    ("kept.append(out.detach())", ITSELF.format("out.detach()", "out")),
    ("kept.append(embedding)", ITSELF.format("embedding", "embedding")),
    ("kept.append(inputs.square())", ITSELF.format("inputs.square()", "inputs.square()")),
)
"""Statement that keeps something, and the advice."""


def trained(home: Path, scripts: list[Path]) -> None:
    run_python(home, "-c", ONE_AFTER_THE_OTHER, *map(str, scripts), extra={"OMP_NUM_THREADS": "1"}, check=True)


@pytest.mark.thorough
def test_what_is_advised_ends_the_leak_whatever_is_kept(tmp_path: Path, home: Path) -> None:
    leaking, fixed = [], []
    for number, (keeps, _) in enumerate(ADVICE):
        leaking.append(tmp_path / f"leak{number}.py")
        leaking[-1].write_text(PROGRAM.format(steps=STEPS, keeps=keeps))
    trained(home, leaking)
    for script, (keeps, advice) in zip(leaking, ADVICE, strict=True):
        found = explained(read_snapshot(Path(f"{script}.pickle")), source=source_line)
        assert found.verdict == "leak"
        assert found.remedies_note.startswith(f"{script.name}:")
        edit = found.remedies[0]
        assert (edit.fits, edit.verified_by) == (True, "replay")
        assert edit.change.startswith(f"{script.name}:") and f", not {keeps}: " in edit.change
        assert advice in found.remedies_note
        instead = re.search(rf"{script.name}:\d+: write (.*), not ", edit.change)
        assert instead is not None
        fixed.append(script.with_name(f"fixed-{script.name}"))
        fixed[-1].write_text(PROGRAM.format(steps=STEPS, keeps=instead[1]))
    trained(home, fixed)
    assert [script.name for script in fixed if Path(f"{script}.pickle").exists()] == []


EVALUATING = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


net = Net().to("sim:0")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x_val = torch.randn(65536, 16, device="sim:0")
history, eval_cache = [], {{}}
for step in range({steps}):
    loss = net(torch.randn(8192, 16, device="sim:0")).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    {keeps}
    if step % 5 == 0:
        {caches}
"""
"""A training with an evaluation in every fifth step, by the same module."""

CACHE = "eval_cache[step] = net(x_val)"
OF_EVERY_FIFTH = ("history.append(loss.item())", CACHE)
OF_BOTH = ("history.append(loss)", CACHE)


@pytest.mark.thorough
def test_what_every_fifth_step_keeps_is_found_alone_and_next_to_a_leak_of_every_step(
    tmp_path: Path, home: Path
) -> None:
    leaking = [tmp_path / "fifth.py", tmp_path / "both.py"]
    for script, (keeps, caches) in zip(leaking, (OF_EVERY_FIFTH, OF_BOTH), strict=True):
        script.write_text(EVALUATING.format(steps=400, keeps=keeps, caches=caches))
    trained(home, leaking)
    for script in leaking:
        found = explained(read_snapshot(Path(f"{script}.pickle")), source=source_line)
        assert found.verdict == "leak" and f", allocated at {script.name}:11" in found.headline
        edit = found.remedies[0]
        assert (edit.fits, edit.verified_by) == (True, "replay")
        places = re.findall(rf"{script.name}:\d+: write (.*?), not", edit.change)
        assert places[-1] == "eval_cache[step] = net(x_val).detach().cpu()"
        if script.stem == "both":
            assert places[:-1] == ["history.append(loss.item())"]
        else:
            assert places[:-1] == [] and " 8 MiB alive every 5 steps, allocated at " in found.headline
    fixed = tmp_path / "fixed.py"
    fixed.write_text(EVALUATING.format(steps=400, keeps=OF_EVERY_FIFTH[0], caches=f"{CACHE}.detach().cpu()"))
    trained(home, [fixed])
    assert not Path(f"{fixed}.pickle").exists()

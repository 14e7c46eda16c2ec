"""A training that leaks until its simulated GPU is full: its snapshot names the line, and the advice works."""

from __future__ import annotations

from pathlib import Path

from gpudash.telemetry.explanation import explanation_from_json
from gpudash.units import MIB
from tests.end_to_end.conftest import Command, run_python

SCRIPT = """\
import sys
import torch
from gpudash.simulator import simulate

simulate(400 * 2**20)
torch.sim.memory._record_memory_history()
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).to("sim:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
try:
    for step in range(30):
        batch = torch.randn(1024, 512, device="sim:0")
        loss = model(batch).square().mean()
        losses.append(loss)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
except torch.OutOfMemoryError:
    print("full at step", step + 1)
torch.sim.memory._dump_snapshot(sys.argv[1])
"""


def trained(script: Path, snapshot: Path, home: Path) -> str:
    done = run_python(home, str(script), str(snapshot), extra={"OMP_NUM_THREADS": "1"}, check=True)
    return done.stdout


def test_a_leak_on_a_simulated_gpu_is_named_and_the_advice_works(gpudash: Command, tmp_path: Path, home: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "leak.pickle"
    script.write_text(SCRIPT)
    assert "full at step" in trained(script, path, home)
    document = gpudash("snapshot", str(path), "--json").document
    (device,) = document["devices"]
    found = explanation_from_json(device["explanation"])
    assert found.verdict == "leak"
    assert {growth.line for growth in found.growing} <= {12, 13}
    remedy = found.remedies[0]
    assert (remedy.fits, remedy.verified_by) == (True, "replay")
    assert remedy.change.startswith("train.py:14: write losses.append(loss.item()), not losses.append(loss): ")
    assert found.remedies_note == (
        "train.py:14 (losses.append(loss)) keeps loss, and with it the graph that made it: keep loss.item() instead."
    )
    script.write_text(SCRIPT.replace("losses.append(loss)", "losses.append(loss.item())"))
    fixed = tmp_path / "fixed.pickle"
    assert "full" not in trained(script, fixed, home)
    (calm,) = gpudash("snapshot", str(fixed), "--json").document["devices"]
    assert calm["oom"] is None
    assert remedy.predicted_peak_bytes is not None
    assert abs(calm["peak_reserved_bytes"] - remedy.predicted_peak_bytes) <= 24 * MIB

"""The diff in the report of a leak: ``patch`` takes it, the program runs to its end, and its losses are the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpudash.telemetry.explanation import explanation_from_json
from tests.end_to_end.conftest import Command

PROGRAM = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(512, 512).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, outputs = [], {{}}
for step in range(24):
\tinputs = torch.randn(2048, 512, device="cuda")
\tfound = model(inputs).relu()
\tloss = found.square().mean()
\tloss.backward(retain_graph=True)
\toptimizer.step()
\toptimizer.zero_grad()
\t{keeps}  # für später
\tprint(f"step {{step}} loss {{loss.item():.6f}}", flush=True)"""


def losses(text: str) -> list[str]:
    return re.findall(r"step \d+ loss [\d.]+", text)


def test_the_diff_of_a_leak_is_taken_by_patch_and_the_program_runs_to_its_end_with_the_same_losses(
    gpudash: Command, tmp_path: Path
) -> None:
    for number, keeps in enumerate(("losses.append(loss)", "outputs[step] = (\n\t\tfound,\n\t)")):
        folder = tmp_path / f"übung {number}"
        folder.mkdir()
        script = folder / "train.py"
        script.write_bytes(PROGRAM.format(keeps=keeps).replace("\n", "\r\n").encode())
        watch = ("watch", "--as-cuda", "--json", "--folder", str(folder), "--simulate")
        ran_out = gpudash(*watch, "420MiB", "--", sys.executable, str(script))
        found = explanation_from_json(ran_out.document["error"]["explanation"])
        patch = Path(ran_out.document["report"]) / "fix.patch"
        assert found.verdict == "leak"
        assert patch.read_bytes().decode() == found.remedies[0].patch
        with patch.open("rb") as diff:
            subprocess.run(["patch", "-p0", "-s"], cwd=folder, stdin=diff, check=True, timeout=60)
        fixed = gpudash(*watch, "420MiB", "--", sys.executable, str(script))
        assert fixed.document["status"] == "finished"
        before = losses(ran_out.stderr)
        assert len(before) >= 4 and losses(fixed.stderr)[: len(before)] == before

"""Losses that are summed for one backward pass: it is named as the cause, and the diff that splits it trains alike."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.snapshot.causes.needless_graphs.sum_edits import LossSum, loss_sums
from gpudash.memory.snapshot.history.model import Stack
from gpudash.memory.snapshot.source_edits import SourceFile
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, KEPT, WEIGHTS, Made, explained

MODEL = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
data = torch.randn(11, 5, 4)
def of(batch):
    return model(batch).square().mean()
"""

AT_TIMES = """\
def train():
    total = 0.0
    for i, batch in enumerate(data):
        loss = of(batch)
        total = total + loss / 4
        if (i + 1) % 4 == 0:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            shown.append(f"{total.item():.5f}")
            total = 0.0
shown = []
train()
train()
"""

BEHIND = """\
for batches in data.split(4):
    optimizer.zero_grad()
    total = 0
    for batch in batches:
        total += of(batch) + 0.1 * of(-batch)
    total = total / len(batches)
    total.backward()
    optimizer.step()
    print(total.item())
"""


def sums(program: str) -> list[LossSum]:
    lines = program.splitlines()
    file = SourceFile("train.py", lambda _file, line: lines[line - 1] if line <= len(lines) else "")
    return list(loss_sums(file, [file]))


def trained(program: str) -> list[torch.Tensor]:
    names: dict[str, torch.nn.Module] = {}
    exec(program, names)
    return list(names["model"].parameters())


@pytest.mark.parametrize(
    "program",
    [
        AT_TIMES,
        AT_TIMES.replace("            optimizer.zero_grad()\n", "").replace(
            "optimizer.step()", "optimizer.step()\n            optimizer.zero_grad()"
        ),
        AT_TIMES.replace("total.backward()", "scaler.scale(total / 2).backward()").replace(
            "optimizer.step()", "scaler.step(optimizer)\n            scaler.update()"
        ),
        BEHIND,
        BEHIND.replace("    optimizer.zero_grad()\n", "").replace(
            "    total.backward()", "    optimizer.zero_grad()\n    total.backward()"
        ),
        BEHIND.replace("total = total / len(batches)", "mean = 0.5 * total").replace("total.back", "mean.back"),
        BEHIND.replace(
            "        total += of(batch) + 0.1 * of(-batch)",
            "        with torch.autocast('cpu', dtype=torch.bfloat16):\n            total += of(batch)",
        ),
    ],
)
def test_a_backward_pass_in_each_round_makes_the_same_gradients(program: str, tmp_path: Path) -> None:
    (found,) = sums(MODEL + program)
    assert found.patch
    file = tmp_path / "train.py"
    file.write_text(MODEL + program, encoding="utf-8")
    command = ("patch", "-p0", "--batch", "--forward")
    subprocess.run(command, input=found.patch, text=True, cwd=tmp_path, check=True, capture_output=True)
    edited = file.read_text(encoding="utf-8")
    assert edited.count(".backward()") == 1
    torch.testing.assert_close(trained(MODEL + program), trained(edited))


@pytest.mark.parametrize(
    "program",
    [
        # the sum is differentiated by what it is as a whole
        BEHIND.replace("total / len(batches)", "total / total.detach().norm()"),
        BEHIND.replace("total / len(batches)", "total.sqrt()"),
        BEHIND.replace("total / len(batches)", "total + penalty(model)"),
        # how often it was added to is known at the end alone
        BEHIND.replace("for batch in", "for number, batch in enumerate(")
        .replace("es:\n        t", "es):\n        t")
        # the enumeration's number is another one in every round
        .replace("len(batches)", "(number + 1)"),
        # what a list takes in may be read by others
        BEHIND.replace("        total +=", "        kept.append(batch @ w)\n        total +="),
        # a sum that is too large is not differentiated at all
        BEHIND.replace("    total.backward()", "    if total.item() > 9:\n        continue\n    total.backward()"),
        # another backward pass beside it, one over the sum that comes again, gradients that nobody is seen to clear
        BEHIND.replace("    total.backward()", "    other.backward()\n    total.backward()"),
        BEHIND.replace("total.backward()", "total.backward(retain_graph=True)"),
        BEHIND.replace("    optimizer.zero_grad()\n", ""),
        BEHIND.replace("        total +=", "        optimizer.zero_grad()\n        total +="),
        AT_TIMES.replace("shown.append(f", "shown.append(total)\n            print(f"),
    ],
)
def test_what_may_be_another_training_is_left_alone(program: str) -> None:
    assert [found.patch for found in sums(MODEL + program)] == [""]


@pytest.mark.parametrize(
    "program",
    [
        BEHIND.replace("    total.backward()", "        total.backward(retain_graph=True)"),
        BEHIND.replace("    total.backward()\n", ""),
        # a state with the graph of the rounds before
        BEHIND.replace("total += of(batch)", "out, state = cell(batch, state)\n        total += of(out)"),
        BEHIND.replace("total += of(batch)", "states.append(cell(states[-1]))\n        total += of(states[-1])"),
        BEHIND.replace("of(batch) + 0.1 * of(-batch)", "of(batch).item()"),
    ],
)
def test_a_sum_that_is_not_kept_for_a_later_backward_pass_is_none(program: str) -> None:
    assert sums(MODEL + program) == []


STEP = {
    36: "def step(model, data):",
    37: "    optimizer.zero_grad()",
    38: "    total = 0",
    40: "    for batch in data:",
    41: "        total = total + of(model(batch))",
    46: "    total.backward()",
    47: "    optimizer.step()",
}


def ran_out(lines: dict[int, str], *stacks: Stack) -> Explanation:
    """A program that asks for 40 MiB in each of some lines until that is refused, in the last one again and again."""
    made = Made(capacity=200 * MIB)
    made.malloc(20 * MIB, WEIGHTS)
    with suppress(AllocationRefused):
        for stack in (*stacks, *stacks[-1:] * 9):
            made.malloc(40 * MIB, stack)
    return explained(made.snapshot(), source=lambda _file, line: lines.get(line, ""))


def test_graphs_that_are_kept_for_one_backward_pass_are_counted_and_its_line_is_named() -> None:
    found = ran_out(STEP, FORWARD)
    assert found.cause == (
        "train.py:41 adds up losses with their graphs: those of 4 micro-batches, 160 MiB, are kept until one backward "
        "pass at train.py:46."
    )
    first = found.remedies[0]
    assert first.change == (
        "train.py:41: a backward pass on each micro-batch's loss, in place of one on their sum at train.py:46, with "
        "the same gradients up to rounding: up to 120 MiB less at this moment"
    )
    assert first.verified_by == "replay"
    assert [row for row in first.patch.splitlines()[2:] if row[:1] in "+-"] == [
        "-        total = total + of(model(batch))",
        "+        micro_loss = of(model(batch))",
        "+        micro_loss.backward()",
        "+        total = total + micro_loss.detach()",
        "-    total.backward()",
    ]


def test_losses_whose_graphs_have_a_part_in_common_are_left_to_one_backward_pass() -> None:
    shared = STEP | {40: "    features = (", 41: "        encoder(data))", 43: "    for part in features:"}
    found = ran_out(shared | {44: "        total = total + of(part)"}, FORWARD, KEPT)
    assert found.cause.startswith("One step's activations are too many for the card")
    of_parts = STEP | {40: "    for part in data:", 41: "        total = total + of(", 44: "            part)"}
    assert "those of 3 micro-batches" in ran_out(of_parts, FORWARD, KEPT).cause

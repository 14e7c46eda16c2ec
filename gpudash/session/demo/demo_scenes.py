"""The scenes of the demo, in playing order.

For a simulated GPU only bytes and losses are shown; a rate is always labelled as this computer's CPU's.
"""

from __future__ import annotations

from gpudash.session.demo.act_pictures import (
    copy_pictures,
    line_pictures,
    panel_pictures,
    precision_pictures,
    rung_pictures,
)
from gpudash.session.demo.answers import copies, fewer_bytes, filled_by, peak_in_tensors, trained_answer, where_it_was
from gpudash.session.demo.ladder import ladder
from gpudash.session.demo.pictures import LineScript
from gpudash.session.demo.scenes import LinesAct, RunAct, RungAct, Scene, SceneQuestion
from gpudash.specs import TrainingSpec
from gpudash.units import MIB

LIMIT = 256 * MIB
"""The memory of the card for lines: a few blocks fill it."""

SMALL_STEPS = 60
"""Steps of the training that runs on both devices: enough for the loss to fall."""

_SMALL = TrainingSpec.model_validate({"width": 64, "depth": 2, "sequence": 32, "steps": SMALL_STEPS, "epochs": 2})

_PRECISE = {"width": 128, "depth": 2, "sequence": 64, "batch": 16, "steps": 20, "epochs": 1}

MY_LINES = "a = torch.randn(4096, 4096, device=gpu)\nb = a @ a\nc = (a + b).relu()"
"""The initial text of the editor."""


def _mistake(source: str, mend: str, end: str = "", limit: int = 48 * MIB) -> LinesAct:
    return LinesAct(source, limit, script=LineScript(mend=mend, end=end), is_mistake=True)


def _batches(where: str, label: str, code: str) -> RunAct:
    fields = {"model": "mlp", "width": 256, "depth": 2, "batch": 1024, "steps": 60, "epochs": 3, "batches": where}
    return RunAct(label, code, TrainingSpec.model_validate(fields))


def _precision(name: str, code: str) -> RunAct:
    return RunAct(name, code, TrainingSpec.model_validate({**_PRECISE, "precision": name}))


_MODEL, _RUNGS, _RUNG_SPECS = ladder()

SCENES = (
    Scene(
        "Move a tensor",
        "What does a copy on the GPU, and a result there, take?",
        (
            LinesAct(
                "x = torch.randn(4096, 4096)\nx = x.to(gpu)\ny = x + 10\nz = y.cpu()",
                LIMIT,
                script=LineScript(before="x has 64 MiB. It is made on the CPU, moved, added to, and brought back."),
            ),
        ),
        line_pictures,
        (
            SceneQuestion(
                "A tensor of 64 MiB is moved to the GPU, and y = x + 10 is computed there. How much is allocated?",
                ("64 MiB", "128 MiB", "192 MiB"),
            ),
        ),
        peak_in_tensors,
    ),
    Scene(
        "What can go wrong",
        "Four mistakes, made for real, in PyTorch's own words",
        (
            _mistake(
                "x = torch.randn(4096, 4096)\nx.to(gpu)",
                "x = x.to(gpu)",
                "No error, but x is still on the CPU: its copy had no name and is gone.",
                128 * MIB,
            ),
            _mistake(
                "x = torch.randn(2048, 2048)\nw = torch.randn(2048, 2048, device=gpu)\ny = x + w", "x.to(gpu) + w"
            ),
            _mistake(
                "x = torch.randn(2048, 2048)\nx.requires_grad_()\ny = x.to(gpu)\ny.sum().backward()\ny.grad.norm()",
                "x.grad.norm()",
            ),
            _mistake("x = torch.randn(2048, 2048, device=gpu)\nx.numpy()", "x.cpu().numpy()"),
        ),
        line_pictures,
        (
            SceneQuestion(
                "x.to(gpu) stands on a line of its own. Where is x afterwards?",
                ("On the GPU", "Still on the CPU", "Nowhere: an error"),
            ),
        ),
        where_it_was,
        answered_by=0,
    ),
    Scene(
        "Copy once, or every step",
        "The same training, its batches in three places",
        (
            _batches("resident", "once", "data = data.to(gpu)    # before step 1"),
            _batches("moved", "every step", "x = batch.to(gpu)      # in each step"),
            _batches("pingpong", "there and back", "x = batch.to(gpu); batch = x.cpu()"),
        ),
        copy_pictures,
        (
            SceneQuestion(
                "Every batch is copied to the GPU and back, not just to it. How many bytes cross?",
                ("As many", "About twice as many", "Five times as many"),
                ("cuda", "sim"),
            ),
        ),
        copies,
    ),
    Scene(
        "Train on the CPU, then on the GPU",
        "The same seed, the same data, another device",
        (
            RunAct("on the CPU", 'model.to("cpu")', _SMALL, "cpu"),
            RunAct("on the GPU", "model.to(gpu)", _SMALL, "gpu"),
        ),
        panel_pictures,
        (
            SceneQuestion(
                "This model is small. How fast is the GPU compared with the CPU?",
                ("No faster", "Up to five times", "More than five times"),
                ("cuda",),
            ),
            SceneQuestion(
                f"Same seed, same data, another device. After {SMALL_STEPS} steps the loss is …",
                ("lower on the CPU", "the same within 1 %", "lower on the GPU"),
                ("sim",),
            ),
        ),
        trained_answer,
    ),
    Scene(
        "Run out of memory, and fix it",
        "A training loop keeps one number a step. Or more?",
        (
            LinesAct(
                "model = nn.Linear(1024, 4096, device=gpu)\n"
                "x = torch.randn(2304, 1024, device=gpu)\n"
                "losses = []\n"
                "for step in range(6):\n"
                "    loss = model(x).square().mean()\n"
                "    losses.append(loss)",
                LIMIT,
                LineScript(
                    mend="losses.append(loss.item())",
                    before="Six steps on a card of 256 MiB. Each keeps its loss: one number.",
                ),
            ),
            LinesAct(
                "model = nn.Linear(1024, 4096, device=gpu)\n"
                "x = torch.randn(2304, 1024, device=gpu)\n"
                "losses = []\n"
                "for step in range(6):\n"
                "    loss = model(x).square().mean()\n"
                "    losses.append(loss.item())",
                LIMIT,
                LineScript(
                    before="The same loop with loss.item(): a number keeps no graph.",
                    end="Fixed: all six steps fit; from the second on, each takes the same.",
                ),
            ),
        ),
        line_pictures,
        (
            SceneQuestion(
                "This loop runs out of memory. What is the memory full of?",
                ("Weights", "Results of past steps", "Optimizer state"),
            ),
        ),
        filled_by,
        answered_by=0,
    ),
    Scene(
        "Three precisions",
        "The same training in fp32, bf16 and fp16: what is left of the peak?",
        (
            _precision("fp32", "loss = model(x)"),
            _precision("bf16", "with autocast(dtype=bfloat16): loss = model(x)"),
            _precision("fp16", "with autocast(dtype=float16): scaler.scale(loss)"),
        ),
        precision_pictures,
        (
            SceneQuestion(
                "Under autocast results take two bytes, not four. How much of the peak is left?",
                ("About half", "Between half and all", "As much as before"),
                ("cuda", "sim"),
            ),
        ),
        fewer_bytes,
    ),
    Scene(
        "The ladder of remedies",
        f"{_MODEL}, on a card of 4 GiB",
        tuple(RungAct(place, spec) for place, spec in enumerate(_RUNG_SPECS)),
        rung_pictures,
    ),
    Scene(
        "My three lines",
        "What do these lines need, beyond the blocks they keep?",
        (LinesAct(MY_LINES, 320 * MIB, script=LineScript()),),
        line_pictures,
        editable=True,
    ),
)
"""The scenes, in playing order."""

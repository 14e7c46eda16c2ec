"""Published models at their real size, small ones, and the allocator's matrix: predicted peaks against the card's.

Every prediction is made without the card, by processes that do not see it; every measurement is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cuda_standin.machine import is_here
from tests.gpu.child import ROOT, Report, asked, limited

MATRIX_LIMIT_S = 240.0

PREDICTING_AT_ONCE = 4

NOT_DISTURBED_AT_ONCE = 2
"""Runs at a time on the card: together they need less memory than it has."""

INFER: dict[str, Any] = {"task": "infer"}
LORA: dict[str, Any] = {"task": "lora", "lora_rank": 16}
CHECKPOINTED: dict[str, Any] = {"checkpointing": True}

REAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Llama-3.1-8B", {**INFER, "batch": 1, "sequence": 8192}),
    ("Llama-3.1-8B", {**LORA, "batch": 1, "sequence": 2048}),
    ("Llama-3.1-8B", {**LORA, **CHECKPOINTED, "batch": 4, "sequence": 2048}),
    ("Llama-3.1-8B", {**CHECKPOINTED, "optimizer": "sgd", "batch": 2, "sequence": 2048}),
    ("Qwen3-8B", {**LORA, "batch": 1, "sequence": 1024, "attention": "eager"}),
    ("Mistral-7B-v0.2", {**CHECKPOINTED, "batch": 1, "sequence": 4096}),
    ("Gemma-2-9B", {**LORA, "batch": 1, "sequence": 1024}),
    ("Whisper-large-v3", {"precision": "amp", "batch": 4}),
    ("T5-large", {"precision": "amp", "batch": 8, "sequence": 512, "optimizer": "adafactor"}),
    ("BERT-base", {"precision": "fp32", "batch": 32, "sequence": 512}),
    ("BERT-base", {"precision": "amp_fp16", "batch": 64, "sequence": 512, "clip": 1.0}),
    ("ViT-base-16", {"precision": "amp", "batch": 256, "optimizer": "adamw_fused"}),
    ("ViT-base-16", {"precision": "fp32", "batch": 64, "offload": "activations"}),
    ("SD-1.5 (U-Net)", {"precision": "amp", "batch": 8}),
    ("SDXL (U-Net)", {**INFER, "precision": "fp16", "batch": 2}),
    ("SDXL (U-Net)", {**CHECKPOINTED, "precision": "bf16", "batch": 4}),
    ("FLUX.1-dev", {**INFER, "batch": 1}),
    ("Qwen3-30B-A3B", {**INFER, "batch": 1, "sequence": 2048}),
)
"""Names of `tests.unit.simulator.models.real_models` and what is asked of each. The 30 B model is the last: it has
the card for itself."""

ALONE_FROM = 50 * 2**30
"""A run that is predicted to take more than these bytes has the card for itself."""


def real_name(name: str, way: Mapping[str, Any]) -> str:
    return f"{name}: {', '.join(f'{key} {value}' for key, value in way.items())}"


def follow(_device: None, argument: Mapping[str, Any], tell: Report) -> None:
    """What is predicted of `REAL`'s number ``place`` on a card of ``capability`` and ``multiprocessors``."""
    from gpudash.memory.predicting.architecture import Architecture
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model

    name, way = REAL[argument["place"]]
    architecture = Architecture(
        tuple(argument["capability"]), argument["multiprocessors"], cudnn_converts=not is_here()
    )
    with tempfile.TemporaryDirectory() as folder:
        followed, _facts = follow_model(_asked(Path(folder), name, way), DryRun(), architecture)
    found = judge(followed.trace, Target("sim:0"), name)
    tell("allocated", found.peak_allocated_bytes)
    tell("reserved", found.peak_reserved_bytes)


def take(device: Any, argument: Mapping[str, Any], tell: Report) -> None:
    """What two steps of `REAL`'s number ``place`` take of torch's allocator, from before the model was built."""
    import torch

    from gpudash.simulator.models.steps import RequestedModel

    name, way = REAL[argument["place"]]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = RequestedModel(_asked(Path(folder), name, way), draws=True)
        step = model.build(device)
        for _ in range(2):
            step()
        torch.cuda.synchronize(device)
    tell("allocated", torch.cuda.max_memory_allocated(device))
    tell("reserved", torch.cuda.max_memory_reserved(device))


def _asked(folder: Path, name: str, way: Mapping[str, Any]) -> dict[str, Any]:
    from tests.unit.simulator.models.real_models import CONFIGS
    from tests.unit.simulator.models.small_models import REQUESTED

    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return {**REQUESTED, **way, "path": str(folder)}


def real(device: str, card: Mapping[str, Any], places: Sequence[int], *, limit_s: float = 120.0) -> dict[str, Any]:
    """Predict and run these of `REAL`.

    Args:
        card: ``capability`` and ``multiprocessors``.
    """
    given = [{"place": place, **card} for place in places]
    with ThreadPoolExecutor(PREDICTING_AT_ONCE) as predicting:
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        predicted = list(
            predicting.map(lambda one: asked(follow, "none", one, limit_s=limit_s, environment=hidden), given)
        )
    large = [(told.get("reserved") or ALONE_FROM) >= ALONE_FROM / NOT_DISTURBED_AT_ONCE for told in predicted]
    taken: dict[int, dict[str, Any]] = {}
    for alone in (False, True):
        some = [one for one, is_large in zip(given, large, strict=True) if is_large is alone]
        with ThreadPoolExecutor(1 if alone else NOT_DISTURBED_AT_ONCE) as running:
            results = running.map(lambda one: asked(take, device, one, limit_s=limit_s), some)
            taken |= {one["place"]: told for one, told in zip(some, results, strict=True)}
    found = {real_name(*REAL[place]): beside(told, taken[place]) for place, told in zip(places, predicted, strict=True)}
    return {"summary": summary(found), "models": found}


def small(card: Mapping[str, Any]) -> dict[str, Any]:
    """Every case of `tests.unit.simulator.models.small_models`, allocated memory alone."""
    words = ",".join(map(str, (*card["capability"], card["multiprocessors"])))
    module = "tests.unit.simulator.models.small_models"
    with ThreadPoolExecutor(2) as pool:
        ways = (["predicted", words], ["allocated"])
        predicted, taken = pool.map(lambda way: _printed([module, *way], hides=way[0] == "predicted"), ways)
    found = {
        name: beside({"allocated": predicted[-1][name]}, {"allocated": bytes_}) for name, bytes_ in taken[-1].items()
    }
    return {"summary": summary(found), "models": found}


def matrix(capability: str) -> dict[str, Any]:
    """The configurations of `tests.allocator_matrix` for cards of this capability, by processes for each allocator."""
    from tests.allocator_matrix.configurations import ALLOCATORS, configurations

    wanted = [one for one in configurations() if f"{one.capability}" == capability]
    groups = {name: [one.name for one in wanted if one.allocator == name] for name in ALLOCATORS}
    cudnn = [] if is_here() else ["--cudnn"]
    parts = [names[start::2] for names in groups.values() for start in range(2)]
    with ThreadPoolExecutor(NOT_DISTURBED_AT_ONCE) as measuring, ThreadPoolExecutor(PREDICTING_AT_ONCE) as predicting:
        measured = {
            name: measuring.submit(
                _printed, ["tests.allocator_matrix.measuring", *names], PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[name]
            )
            for name, names in groups.items()
        }
        dry = [
            predicting.submit(_printed, ["tests.allocator_matrix.predicting", *cudnn, *part], hides=True)
            for part in parts
        ]
        rows = {row["name"]: row for future in dry for row in future.result()}
        taken = [row for future in measured.values() for row in future.result()]
    found = {row["name"]: beside(rows[row["name"]], row) for row in taken}
    return {"of": len(wanted), "summary": summary(found), "configurations": found}


def _printed(words: Iterable[str], *, hides: bool = False, **settings: str) -> list[Any]:
    """The lines of JSON that a module prints.

    Args:
        hides: whether it must not see the card.
    """
    environment = {**os.environ, **settings, **({"CUDA_VISIBLE_DEVICES": ""} if hides else {})}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=limited(MATRIX_LIMIT_S),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:4])}: {done.stderr[-800:]}")
    return lines


def beside(predicted: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """One run: each figure predicted, taken and by how many percent the prediction is off, and what went wrong."""
    told: dict[str, Any] = {}
    for figure in ("allocated", "reserved"):
        ours, theirs = predicted.get(figure), taken.get(figure)
        if ours is not None and theirs:
            told[figure] = {"predicted": ours, "measured": theirs, "error_percent": 100 * (ours - theirs) / theirs}
    problems = [one[key] for one in (predicted, taken) for key in ("error", "problem") if one.get(key)]
    return {**told, **({"problems": problems} if problems else {}), "seconds": taken.get("seconds")}


def summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Over all that ran: median, 95th percentile and worst size of the errors, in percent, and how many are exact."""
    from tests.allocator_matrix.comparing import spread

    told: dict[str, Any] = {"runs": len(found), "failed": sum("problems" in one for one in found.values())}
    for figure in ("allocated", "reserved"):
        known = [one[figure]["error_percent"] for one in found.values() if figure in one]
        if known:
            told[figure] = {**spread(known)._asdict(), "exact": sum(error == 0 for error in known), "of": len(known)}
    return told

"""Small models that attend by flash-attn, as dry runs follow them: run in a process of its own, printing JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Target, judge
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.models.steps import follow_model
from gpudash.simulator.refusal import CannotPredictError
from tests.unit.simulator.models.small_models import REQUESTED, written

FLASH = {"attention": "flash_attention_2"}
TURING = Architecture((7, 5), 40)

CASES: dict[str, tuple[str, dict[str, Any], Architecture]] = {
    "llama": ("llama", {}, A100),
    "llama, flash": ("llama", FLASH, A100),
    "llama, checkpointing": ("llama", {"checkpointing": True}, A100),
    "llama, checkpointing, flash": ("llama", {**FLASH, "checkpointing": True}, A100),
    "llama, amp": ("llama", {"precision": "amp"}, A100),
    "llama, amp, flash": ("llama", {**FLASH, "precision": "amp"}, A100),
    "infer": ("llama", {"task": "infer"}, A100),
    "infer, flash": ("llama", {**FLASH, "task": "infer"}, A100),
    "gemma": ("gemma", {}, A100),
    "gemma, flash": ("gemma", FLASH, A100),
    "qlora": ("llama", {"task": "qlora", "quantisation": "nf4"}, A100),
    "qlora, flash": ("llama", {**FLASH, "task": "qlora", "quantisation": "nf4"}, A100),
    "fp32": ("llama", {**FLASH, "precision": "fp32"}, A100),
    "turing": ("llama", FLASH, TURING),
    "t5": ("t5", FLASH, A100),
    "unet": ("unet", FLASH, A100),
}


def found(folder: Path) -> dict[str, Any]:
    """Peak allocated, peak reserved and assumptions of each case, or why it is refused."""
    dry, answers = DryRun(), dict[str, Any]()
    for name, (family, differs, card) in CASES.items():
        asked = {**REQUESTED, **differs, "path": str(written(folder, family))}
        try:
            followed, facts = follow_model(asked, dry, card)
        except CannotPredictError as refused:
            answers[name] = {"refused": f"{refused} {refused.remedy}"}
            continue
        peaks = judge(followed.trace, Target("sim:0"), name)
        answers[name] = {
            "peaks": [peaks.peak_allocated_bytes, peaks.peak_reserved_bytes],
            "assumptions": facts["assumptions"],
        }
    return answers


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        answers = found(Path(place))
    sys.stdout.write(json.dumps(answers))

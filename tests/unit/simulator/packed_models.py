"""Models with packed layers and adapters, as dry runs follow them: run in a process of its own, printing JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from gpudash.memory.predicting.architecture import USUAL_WORKSPACE_BYTES
from gpudash.memory.predicting.estimate import Target, judge
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.models import quantised
from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt, adapt
from gpudash.simulator.models.steps import follow_model
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs import ModelSpec

RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("packed_layers.json").read_text(encoding="utf-8"))
STEP = RECORDED["step"]
OLDER = (0, 49)


def directions(dry: DryRun, make: Callable[[Any], nn.Module], rows: int, inputs: int, dtype: torch.dtype) -> Any:
    """Sizes that a layer's forward and backward pass ask for, and with a minus give back, in order."""

    def run(tracker: Tracker) -> None:
        device = torch.device("sim", 0)
        layer = make(device)
        x = torch.empty(rows, inputs, device=device, dtype=dtype, requires_grad=True)
        tracker.step = 1
        made = layer(x)
        tracker.step = 2
        grad = torch.empty_like(made)
        tracker.step = 3
        made.backward(grad)
        tracker.finish()

    trace = dry.record(run)
    begins = {mark.step: mark.at for mark in reversed(trace.marks)}
    sizes = [trace.sizes[abs(event) - 1] * (1 if event > 0 else -1) for event in trace.events]
    forward, backward = sizes[begins[1] : begins[2]], sizes[begins[3] :]
    workspace = USUAL_WORKSPACE_BYTES  # of the first matrix product in each thread
    return {
        "forward": [size for size in forward if size != workspace],
        "backward": [size for size in backward if size != workspace],
    }


def four_bits(inputs: int, outputs: int, **how: Any) -> Callable[[Any], nn.Module]:
    like = nn.Linear(inputs, outputs, bias=False, device="meta")
    return lambda device: Linear4bit(like, inputs, outputs, device=device, **how)


def recorded_step(dry: DryRun) -> dict[str, Any]:
    """What the recorded model comes to, and what its layers do in each direction."""
    calls = []
    for call in STEP["calls"]:
        make = four_bits(
            call["in"], call["out"], nested=False, unpacked=torch.float16, compute=torch.float32, fused=False
        )
        calls.append(directions(dry, make, STEP["rows"], call["in"], torch.float32)[call["way"]])
    facts: dict[str, Any] = {"calls": calls}

    def build(device: torch.device) -> None:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(LlamaConfig(**STEP["model"]), dtype=torch.float16)
        plain = sum(weight.numel() for weight in model.parameters())
        quantised.quantise(model, quantised.chosen("fp4", torch.float32))
        model = adapt(model, rank=STEP["rank"], targets=STEP["targets"])
        model.to_empty(device=device)
        facts["plain"], facts["counted"] = plain, quantised.parameter_count(model)
        facts["learning"] = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        packed = {id(one): one for one in (*model.parameters(), *model.buffers())}.values()
        facts["weights"] = Counter(one.untyped_storage().nbytes() for one in packed)

    with mock.patch.object(quantised, "_bitsandbytes_version", return_value=OLDER):
        dry.record(lambda _tracker: build(torch.device("sim", 0)))
    return facts


LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SMALL = {**LLAMA_8B, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 512}
CARD = Target("sim:0", capacity_bytes=24 * 2**30, free_bytes=24 * 2**30)


def asked(dry: DryRun, folder: Path, config: Mapping[str, Any], **differs: Any) -> dict[str, Any]:
    """What a model by its config comes to on a card of 24 GiB, or why it cannot be followed."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = ModelSpec(path=str(folder), **{"sequence": 512, **differs})
    try:
        followed, facts = follow_model(spec.options, dry, A100)
    except CannotPredictError as refused:
        return {"kind": refused.kind, "message": str(refused)}
    found = judge(followed.trace, CARD, "model")
    return {**facts, "fits": found.fits, "peak": found.peak_allocated_bytes}


def by_config(dry: DryRun, folder: Path) -> dict[str, Any]:
    gptq = {**SMALL, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}
    unknown = {**SMALL, "quantization_config": {"quant_method": "aqlm"}}
    return {
        "8B train": asked(dry, folder, LLAMA_8B, task="train"),
        "8B qlora": asked(dry, folder, LLAMA_8B, task="qlora", checkpointing=True),
        "plain": asked(dry, folder, SMALL),
        "activations": asked(dry, folder, SMALL, offload="activations"),
        "weights": asked(dry, folder, SMALL, offload="weights"),
        "gptq": asked(dry, folder, gptq, task="infer"),
        "gptq learns": asked(dry, folder, gptq, task="train"),
        "gptq adapted": asked(dry, folder, gptq, task="lora"),
        "unknown": asked(dry, folder, unknown, task="infer"),
        "no such layer": asked(dry, folder, SMALL, task="lora", lora_targets="query"),
    }


def answers() -> dict[str, Any]:
    dry = DryRun()
    with tempfile.TemporaryDirectory() as place:
        models = by_config(dry, Path(place))
    like = nn.Linear(256, 128, bias=False, device="meta")
    return {
        "by config": models,
        "step": recorded_step(dry),
        "nested": directions(dry, four_bits(4096, 1024, nested=True), 32, 4096, torch.bfloat16),
        "few rows": directions(dry, four_bits(4096, 1024, nested=True), 4, 4096, torch.bfloat16),
        "eight bits": directions(
            dry, lambda device: Linear8bitLt(like, 256, 128, device=device), 64, 256, torch.bfloat16
        ),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers()) + "\n")

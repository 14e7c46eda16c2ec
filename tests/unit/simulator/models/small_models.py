"""Small models of current families by their configs: what a dry run predicts of each, and what it takes on a device.

Run in a process of its own, once for each: ``predicted`` without numbers, ``taken`` on ``sim:0`` with them,
``allocated`` on ``cuda:0``; after ``predicted`` may stand the compute capability and the multiprocessors of another
card. Prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**TEXT, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen3": {**TEXT, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "qwen3_moe": {
        **TEXT,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 16,
        "num_experts": 8,
    },
    "mistral": {**TEXT, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "gemma": {
        **TEXT,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 16,
        "sliding_window": 32,
        "tie_word_embeddings": True,
    },
    "deepseek_v3": {
        **TEXT,
        **EXPERTS,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_group": 2,
        "topk_group": 1,
    },
    "bert": {**TEXT, "model_type": "bert", "architectures": ["BertForMaskedLM"], "torch_dtype": "float32"},
    "vit": {
        **TEXT,
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": 32,
        "patch_size": 8,
        "torch_dtype": "float32",
    },
    "whisper": {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "num_mel_bins": 16,
        "max_source_positions": 50,
        "max_target_positions": 64,
        "vocab_size": 512,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_ff": 128,
        "d_kv": 16,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 512,
        "n_positions": 64,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    "unet": {
        "_class_name": "UNet2DConditionModel",
        "block_out_channels": [32, 64],
        "cross_attention_dim": 32,
        "attention_head_dim": 8,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "in_channels": 4,
        "out_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "sample_size": 16,
    },
    "dit": {
        "_class_name": "DiTTransformer2DModel",
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "num_layers": 2,
        "in_channels": 4,
        "out_channels": 8,
        "patch_size": 2,
        "sample_size": 16,
        "num_embeds_ada_norm": 1000,
        "norm_type": "ada_norm_zero",
        "norm_elementwise_affine": False,
    },
}

CONFIGS["sdxl"] = {
    **CONFIGS["unet"],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 16,
    "projection_class_embeddings_input_dim": 128,
    "transformer_layers_per_block": 2,
    "use_linear_projection": True,
}
CONFIGS["flux"] = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 16,
    "axes_dims_rope": [4, 6, 6],
    "guidance_embeds": True,
    "in_channels": 16,
    "joint_attention_dim": 32,
    "num_attention_heads": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "pooled_projection_dim": 24,
}

REQUESTED: dict[str, Any] = {
    "task": "train",
    "batch": 2,
    "sequence": 0,
    "precision": "auto",
    "optimizer": "adamw",
    "checkpointing": False,
    "accumulation": 1,
    "clip": 0.0,
    "attention": "auto",
    "quantisation": "",
    "lora_rank": 4,
    "lora_targets": "all-linear",
    "trust_remote_code": False,
    "offload": "none",
    "devices": "",
    "parallel": "ddp",
}

WAYS: dict[str, dict[str, Any]] = {
    "train": {},
    "infer": {"task": "infer"},
    "checkpointing": {"checkpointing": True, "batch": 4},
    "accumulated in bf16": {"precision": "bf16", "accumulation": 2, "optimizer": "sgd"},
    "lora": {"task": "lora"},
    "amp": {"precision": "amp", "optimizer": "adamw_fused"},
    "eager": {"attention": "eager", "optimizer": "adafactor"},
    "clipped": {"clip": 1.0},
    "scaled and clipped": {"precision": "amp_fp16", "clip": 1.0},
    "scaled, fused": {"precision": "amp_fp16", "optimizer": "adamw_fused", "accumulation": 2},
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "activations on the host": {"offload": "activations"},
}
"""Every family is trained and run, some by adapters; a Llama and a mixture of experts in all of these ways."""

RECIPES: dict[str, dict[str, Any]] = {
    "chunked loss": {"loss": "chunked", "batch": 4},
    "fused loss": {"loss": "fused", "batch": 4},
    "every other product kept": {"checkpointing": True, "keeps": "products", "batch": 4},
    "every other layer kept": {"checkpointing": True, "keeps": "layers", "batch": 4},
    "packed rows": {"packing": True, "batch": 4},
    "packed rows and products kept": {"packing": True, "checkpointing": True, "keeps": "products", "batch": 4},
    "updated in the backward pass": {"optimizer_in_backward": True},
}
"""Ways in which a Llama is trained too; behind all others, whose random numbers choose experts. What updates in the
backward pass is the last: hooks, parameters and optimizers hold each other until they are collected."""

USUAL = ("train", "infer")
ADAPTED = ("vit", "t5", "sdxl", "flux")
THROUGHOUT = ("llama", "qwen3_moe")


def written(folder: Path, name: str) -> Path:
    """The folder of the model ``name``."""
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return made


def cases() -> list[tuple[str, str]]:
    """Family and way."""
    some = {**dict.fromkeys(CONFIGS, USUAL), **dict.fromkeys(ADAPTED, (*USUAL, "lora"))}
    usual = [(name, way) for name in CONFIGS for way in WAYS if way in some[name] or name in THROUGHOUT]
    return [*usual, *(("llama", way) for way in RECIPES)]


def predicted(folder: Path, card: str = "") -> dict[str, int]:
    """Peak allocated of each case, by a dry run."""
    from gpudash.memory.predicting.architecture import Architecture
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.device.simulated_gpu import A100
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model
    from tests.cuda_standin.machine import is_here

    major, minor, multiprocessors = map(int, card.split(",")) if card else (*A100.capability, A100.multiprocessors)
    architecture = Architecture((major, minor), multiprocessors, cudnn_converts=not is_here())
    dry, found = DryRun(), {}
    for name, way in cases():
        asked = {**REQUESTED, **{**WAYS, **RECIPES}[way], "path": str(written(folder, name))}
        followed, _facts = follow_model(asked, dry, architecture)
        found[f"{name}: {way}"] = judge(followed.trace, Target("sim:0"), name).peak_allocated_bytes or 0
    return found


def taken(folder: Path) -> dict[str, int]:
    """Peak allocated of two steps of each case with numbers, from where the model was built."""
    import torch

    from gpudash.simulator.device.backend import register
    from gpudash.simulator.device.simulated_gpu import SimulatedGpu

    torch.set_num_threads(1)
    backend, found = register([SimulatedGpu(0, 2**33)]), {}
    card = backend.cards[0]
    for name, way in cases():
        step = built(folder, name, way, torch.device("sim", 0))
        card.reset_peaks()
        for _ in range(4 if "scaled" in way else 2):  # at first the scaled gradients are too large, and change nothing
            step()
        found[f"{name}: {way}"] = int(card.statistics()["allocated_bytes.all.peak"])
        del step
        backend.engine.drop_workspaces()
    return found


def allocated(folder: Path) -> dict[str, int]:
    """As `taken`, by torch's allocator of CUDA, where large kernels may compute nothing."""
    import torch

    found = {}
    for name, way in cases():
        step = built(folder, name, way, torch.device("cuda", 0))
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            step()
        found[f"{name}: {way}"] = torch.cuda.max_memory_allocated()
        del step
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()  # what a block is rounded up to depends on what is cached
    return found


def built(folder: Path, name: str, way: str, device: Any) -> Any:
    """The function that takes a step of a case whose weights are drawn on ``device``."""
    import torch

    from gpudash.simulator.models.steps import RequestedModel

    torch.manual_seed(0)
    asked = {**REQUESTED, **{**WAYS, **RECIPES}[way], "path": str(written(folder, name))}
    return RequestedModel(asked, draws=True).build(device)


if __name__ == "__main__":
    modes = {"predicted": predicted, "taken": taken, "allocated": allocated}
    with tempfile.TemporaryDirectory() as place:
        peaks = modes[sys.argv[1]](Path(place), *sys.argv[2:])
    sys.stdout.write(json.dumps(peaks))
    sys.stdout.flush()
    os._exit(0)  # Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`

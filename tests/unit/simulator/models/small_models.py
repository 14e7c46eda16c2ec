"""Small models of current families by their configs: what a dry run predicts of each, and what it takes on ``sim:0``.

Run in a process of its own, once for each: ``predicted`` without numbers, ``taken`` with them. Prints JSON.
"""

from __future__ import annotations

import json
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

ASKED: dict[str, Any] = {
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
}
"""Every family is trained and run; a Llama in all of these ways."""


def written(folder: Path, name: str) -> Path:
    """The folder of the model ``name``."""
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return made


def cases() -> list[tuple[str, str]]:
    """Family and way."""
    return [(name, way) for name in CONFIGS for way in WAYS if name == "llama" or way in ("train", "infer")]


UNCOMPUTED = ("qwen3_moe", "deepseek_v3")
"""Those that count the tokens of each expert by torch.histc of integers, which the CPU does not have."""


def predicted(folder: Path) -> dict[str, int]:
    """Peak allocated of each case, by a dry run."""
    from gpudash.memory.predicting.estimate import Target, judge
    from gpudash.simulator.device.simulated_gpu import A100
    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.models.steps import follow_model

    dry, found = DryRun(), {}
    for name, way in cases():
        asked = {**ASKED, **WAYS[way], "path": str(written(folder, name))}
        followed, _facts = follow_model(asked, dry, A100)
        found[f"{name}: {way}"] = judge(followed.trace, Target("sim:0"), name).peak_allocated_bytes or 0
    return found


def taken(folder: Path) -> dict[str, int]:
    """Peak allocated of two steps of each case with numbers, from where the model was built."""
    import torch

    from gpudash.simulator.device.backend import register
    from gpudash.simulator.device.simulated_gpu import SimulatedGpu
    from gpudash.simulator.models.steps import AskedModel

    torch.set_num_threads(1)
    backend, found = register([SimulatedGpu(0, 2**33)]), {}
    card = backend.cards[0]
    for name, way in cases():
        if name in UNCOMPUTED:
            continue
        torch.manual_seed(0)
        asked = {**ASKED, **WAYS[way], "path": str(written(folder, name))}
        step = AskedModel(asked, draws=True).build(torch.device("sim", 0))
        card.reset_peaks()
        for _ in range(4):  # in the first two the scaled gradients of fp16 are too large, and change nothing
            step()
        found[f"{name}: {way}"] = int(card.statistics()["allocated_bytes.all.peak"])
        del step
        backend.engine.drop_workspaces()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = {"predicted": predicted, "taken": taken}[sys.argv[1]](Path(place))
    sys.stdout.write(json.dumps(found))

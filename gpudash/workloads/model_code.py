"""Steps of a model by its config as a plain program on transformers: of a model of text, with random tokens."""

from __future__ import annotations

import json

from gpudash.specs import ModelSpec

_DTYPES = {
    "fp32": "torch.float32",
    "amp": "torch.float32",
    "amp_fp16": "torch.float32",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
}

_AUTOCAST = {"amp": "torch.bfloat16", "amp_fp16": "torch.float16"}

_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(parameters, lr=1e-4)",
    "adamw_fused": "torch.optim.AdamW(parameters, lr=1e-4, fused=True)",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit(parameters, lr=1e-4)",
    "adafactor": "Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)",
    "momentum": "torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)",
    "sgd": "torch.optim.SGD(parameters, lr=1e-4)",
}


def model_code(spec: ModelSpec, device: str) -> list[str]:
    """The lines of the program.

    Raises:
        ValueError: for packed weights, which need the weights themselves, and for several devices.
    """
    if spec.device_names:
        raise ValueError(f"a model over {len(spec.device_names)} devices is not shown; show the program of one device")
    if spec.packed:
        raise ValueError(f"{spec.packed} weights are packed from the weights themselves; show the program without them")
    learns = spec.task != "infer"
    attention = "" if spec.attention == "auto" else f', attn_implementation="{spec.attention}"'
    dtype = _DTYPES.get(spec.precision, "config.dtype or torch.float32")
    length = str(spec.sequence) if spec.sequence else 'min(2048, getattr(text, "max_position_embeddings", 2048))'
    return [
        *(["import bitsandbytes"] if learns and spec.optimizer == "adamw8bit" else []),
        "import torch",
        "import transformers",
        *(["from peft import LoraConfig, get_peft_model"] if spec.task == "lora" else []),
        *(["from transformers.optimization import Adafactor"] if learns and spec.optimizer == "adafactor" else []),
        "",
        f"torch.manual_seed({spec.seed})",
        f'device = torch.device("{device}")',
        f"config = transformers.AutoConfig.from_pretrained({json.dumps(spec.path)})",
        "kind = getattr(transformers, config.architectures[0])",
        "with device:",
        f"    model = kind._from_config(config, dtype={dtype}{attention})",
        "text = config.get_text_config()",
        f"tokens = torch.randint(text.vocab_size, ({spec.batch}, {length}), device=device)",
        *(_learning(spec) if learns else _prompting(spec)),
    ]


def _autocast(spec: ModelSpec) -> str:
    dtype = _AUTOCAST.get(spec.precision, "torch.bfloat16")
    return f"torch.autocast(device.type, {dtype}, enabled={spec.precision in _AUTOCAST})"


def _prompting(spec: ModelSpec) -> list[str]:
    return [
        "model.eval()",
        f"for step in range({spec.steps}):",
        f"    with torch.no_grad(), {_autocast(spec)}:",
        "        model(input_ids=tokens, logits_to_keep=1)",
        '    print(f"step {step + 1}")',
    ]


def _learning(spec: ModelSpec) -> list[str]:
    scaled = spec.precision == "amp_fp16"
    unscale = ["    scaler.unscale_(optimizer)"] if scaled and spec.clip else []
    targets = spec.lora_targets.split(",") if "," in spec.lora_targets else spec.lora_targets or None
    rank = f"r={spec.lora_rank}, lora_alpha={2 * spec.lora_rank}, target_modules={json.dumps(targets)}"
    adapters = [f"model = get_peft_model(model, LoraConfig({rank.replace('null', 'None')}))"]
    return [
        "model.config.use_cache = False",
        *(adapters if spec.task == "lora" else []),
        *(["model.gradient_checkpointing_enable()"] if spec.checkpointing else []),
        "model.train()",
        "parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]",
        f"optimizer = {_OPTIMIZERS[spec.optimizer]}",
        *(["scaler = torch.amp.GradScaler(device.type)"] if scaled else []),
        f"for step in range({spec.steps}):",
        f"    for _ in range({spec.accumulation}):",
        f"        with {_autocast(spec)}:",
        f"            loss = model(input_ids=tokens, labels=tokens).loss / {spec.accumulation}",
        f"        {'scaler.scale(loss)' if scaled else 'loss'}.backward()",
        *unscale,
        *([f"    torch.nn.utils.clip_grad_norm_(parameters, {spec.clip:g})"] if spec.clip else []),
        *(["    scaler.step(optimizer)", "    scaler.update()"] if scaled else ["    optimizer.step()"]),
        "    optimizer.zero_grad()",
        f'    print(f"step {{step + 1}}: loss {{loss.item() * {spec.accumulation}:.4f}}")',
    ]

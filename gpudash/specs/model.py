"""The spec of a model of the user's: a folder in Hugging Face's format, and what to do with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from gpudash.specs.base import NEEDS_CUDA, Devices, Presets, Spec, field, several_devices
from gpudash.specs.model_names import ADAPTER, NAME_IT, find_model

ADAPTED = ("lora", "qlora")
"""Tasks that train adapters and leave the weights unchanged."""

SERVE = "serve"
"""The task of a server: many users share one model, which keeps the keys and values of their tokens."""

BUILT = ("train", "lora", "qlora", "infer")
"""Tasks that run the model itself."""

TASK_NAMES = {"infer": "inference", "train": "training", "lora": "LoRA", "qlora": "QLoRA", SERVE: "serving"}
"""Display names of the tasks."""

LEARNS = ("train", *ADAPTED)
"""Tasks with an optimizer."""

OPTIMIZERS = {
    "adamw": "AdamW",
    "adamw_fused": "fused AdamW",
    "adamw8bit": "8-bit AdamW",
    "paged_adamw": "paged AdamW",
    "paged_adamw8bit": "paged 8-bit AdamW",
    "adafactor": "Adafactor",
    "momentum": "SGD + momentum",
    "sgd": "SGD",
}

PACKED = ("nf4", "nf4-double", "fp4", "int8")
"""Quantisations with which adapters can be trained: those of bitsandbytes."""

OF_SERVERS = ("fp8", "mxfp4", "nvfp4")
"""Quantisations whose layers are only known for servers."""

INTEGERS = "FSDP2 shards floating-point numbers, and bitsandbytes packs weights of {packed} into integers"
"""Unless they are stored in another type on request: its guide, docs/source/fsdp_qlora.md."""

FSDP1 = "FSDP1 with bnb_4bit_quant_storage, as Answer.AI's fsdp_qlora has it, shards them: fsdp1 with --keep-16-bits"

ONE_TYPE = "FSDP1 flattens the weights of a block, which then have one type"
"""See `FlatParamHandle._validate_tensors_to_flatten` in torch/distributed/fsdp/_flat_param.py."""

BITSANDBYTES = ("adamw8bit", "paged_adamw", "paged_adamw8bit")
"""Optimizers of bitsandbytes; the state of paged ones is in unified memory."""

WHOLE_ONLY = (*BITSANDBYTES, "adafactor")
"""Optimizers without support for DTensor: bitsandbytes' kernels, and the Adafactor of transformers."""

PREDICTED_ONLY = (
    "can only be predicted here. To run it, use your own script with the library that has them: My script in the "
    "window, or gpudash watch"
)

SPREAD_ONLY = (
    "a model over {count} devices can only be predicted here. To run it, use your own script under torchrun: My "
    "script in the window, or gpudash watch"
)

SERVED_ONLY = (
    "a server can only be predicted here. To run it, start it as usual, for example with vllm serve, then Run > "
    "Attach to Process in the window, or gpudash watch --attach PID"
)

RECIPES: dict[str, dict[str, object]] = {
    "torchtune": {"checkpointing": True, "loss": "chunked", "keep_16_bits": True, "optimizer": "adamw_fused"},
    "unsloth": {"checkpointing": True, "loss": "fused", "keep_16_bits": True, "optimizer": "adamw8bit"},
}
"""Fields that recipes set: as in torchtune's recipes/configs/llama3_1/8B_qlora_single_device.yaml and similar files
(loss LinearCrossEntropyLoss or CEWithChunkedOutputLoss, enable_activation_checkpointing, dtype bf16), and in Unsloth's
notebooks (use_gradient_checkpointing "unsloth", optim adamw_8bit)."""

USUAL_FIELDS: dict[str, dict[str, object]] = {"qlora": {"checkpointing": True}}
"""Task → what is usual with it, which the window fills in when the task is chosen: prepare_model_for_kbit_training of
peft turns checkpointing on unless it is told otherwise (peft/utils/other.py), and TRL's trainers do."""


class ModelSpec(Spec):
    """Train a model by its config, or run inference with it."""

    name = "model"
    title = "A model of yours"
    summary = "Predicts what a model takes by its config.json, without its weights; a run trains it on random tokens."
    run = "gpudash.workloads.programs.model:run"
    steps_field = "steps"
    alternatives: ClassVar[Mapping[str, str]] = {"users": "steps"}
    presets: ClassVar[Presets] = {
        "Training": {},
        "QLoRA": {"task": "qlora", **USUAL_FIELDS["qlora"]},
        "Inference": {"task": "infer"},
    }

    path: str = field(
        "", "Folder of the model, its config.json, or a name such as Qwen2.5-7B; the weights need not be there"
    )
    task: Literal["train", "lora", "qlora", "infer", "serve"] = field(
        "train",
        "Train all weights, adapters (LoRA), adapters over 4-bit weights (QLoRA), run a prompt through it, or serve it "
        "to many users as vLLM does",
        labels=TASK_NAMES,
    )
    batch: int = field(1, "Samples per forward pass", when={"task": BUILT}, ge=1, le=65536)
    sequence: int = field(
        0,
        "Length of each sequence; 0: 2048, or as many as the model takes. Of a server its longest request "
        "(--max-model-len); 0: as the model has it",
        unit="tokens",
        ge=0,
        le=2**24,
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "amp", "amp_fp16"] = field(
        "auto",
        "Type of the weights and of what is computed: as stored, or another; amp and amp_fp16: fp32 weights under bf16 "
        "autocast, or under fp16 autocast with scaled gradients",
        labels={"auto": "as stored", "amp": "bf16 autocast", "amp_fp16": "fp16 autocast"},
    )
    steps: int = field(3, "Steps of a run", when={"task": BUILT}, ge=1, le=10_000_000)
    users: int = field(
        0,
        "Requests of the longest length that a server is to serve at a time; 0: as many as have room",
        when={"task": (SERVE,)},
        ge=0,
        le=65536,
    )
    optimizer: Literal[
        "adamw", "adamw_fused", "adamw8bit", "paged_adamw", "paged_adamw8bit", "adafactor", "momentum", "sgd"
    ] = field("adamw", "What updates the weights", more="optimizer", labels=OPTIMIZERS, when={"task": LEARNS})
    accumulation: int = field(
        1, "Forward and backward passes per optimizer step", more="optimizer", when={"task": LEARNS}, ge=1, le=65536
    )
    clip: float = field(
        0.0,
        "Norm of all gradients beyond which they are scaled down before each step, as trainers do at 1; 0: never",
        more="optimizer",
        when={"task": LEARNS},
        ge=0,
    )
    lora_rank: int = field(16, "Rank of the adapters", more="optimizer", when={"task": ADAPTED}, ge=1, le=4096)
    lora_targets: str = field(
        "all-linear",
        "Layers with an adapter: their names with commas between, or all-linear; empty: what peft takes for the model",
        more="optimizer",
        when={"task": ADAPTED},
    )
    checkpointing: bool = field(
        False,
        "Keep only each layer's input and compute the layer again in the backward pass",
        more="memory",
        when={"task": LEARNS},
    )
    packing: bool = field(
        False,
        "Each sequence is several texts one after another, with a mask that keeps them apart, as torchtune packs them; "
        "flash-attn needs none",
        more="data",
        when={"task": LEARNS},
    )
    keeps: Literal["nothing", "products", "layers"] = field(
        "nothing",
        "What checkpointing keeps of the layers beside their inputs: nothing, attention and every other matrix product "
        "(torchtitan), or every other layer",
        more="memory",
        labels={"products": "every other product", "layers": "every other layer"},
        when={"task": LEARNS},
    )
    quantisation: Literal["auto", "nf4", "nf4-double", "fp4", "int8", "gptq", "awq", "fp8", "mxfp4", "nvfp4"] = field(
        "auto",
        "How the weights of linear layers are packed; auto: as the config says, and nf4 for QLoRA; fp8, mxfp4 and "
        "nvfp4 of a server alone",
        more="memory",
        labels={
            "auto": "as stored",
            "nf4-double": "nf4, double",
            "int8": "8 bits",
            "gptq": "GPTQ",
            "awq": "AWQ",
            "mxfp4": "MXFP4",
            "nvfp4": "NVFP4",
        },
    )
    engine: str = field(
        "vllm",
        "The server and its version, such as vllm==0.19 or sglang; without a version the newest",
        more="memory",
        when={"task": (SERVE,)},
    )
    loss: Literal["full", "chunked", "fused"] = field(
        "full",
        "Cross entropy over all logits at once, over an eighth of them at a time, or fused with the last layer, which "
        "keeps none (Liger, Unsloth)",
        more="memory",
        labels={"full": "all logits", "chunked": "in chunks", "fused": "fused"},
        when={"task": LEARNS},
    )
    optimizer_in_backward: bool = field(
        False,
        "Update each weight as soon as its gradient is there, so that only one gradient is kept",
        more="memory",
        when={"task": ("train",)},
    )
    keep_16_bits: bool = field(
        False,
        "Keep the adapters, and what is not packed, in 16 bits, as torchtune and Unsloth do; peft makes it float32",
        more="memory",
        when={"task": ADAPTED},
    )
    recipe: Literal["none", "torchtune", "unsloth", "peft"] = field(
        "none",
        "Start from what a library's recipes set, unless it is said otherwise: torchtune: checkpointing, chunked loss, "
        "16 bits; unsloth: checkpointing, fused loss, 8-bit AdamW, 16 bits; peft: nothing",
        more="memory",
        labels={"none": "none", "unsloth": "Unsloth"},
        when={"task": LEARNS},
    )
    offload: Literal["none", "activations", "weights"] = field(
        "none",
        "What lies in the host's memory; weights: with their gradients and the optimizer's state, with task train",
        more="memory",
        labels={"none": "nothing", "activations": "activations (save_on_cpu)", "weights": "weights (FSDP2)"},
        when={"task": LEARNS},
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = field(
        "auto",
        "How transformers computes attention: by torch's fused kernels, with all scores at once, or by flash-attn",
        more="memory",
        when={"task": BUILT},
        labels={"auto": "the model's own", "flash_attention_2": "flash-attn 2"},
    )
    devices: Devices = field(
        "",
        "Several devices, A,B: one rank on each, data parallel; predicted only",
        more="several devices",
        when={"task": LEARNS},
    )
    parallel: Literal["ddp", "fsdp", "fsdp1"] = field(
        "ddp",
        "Every rank keeps the whole model (DistributedDataParallel) or a shard of it (FSDP2, or FSDP1, which shards "
        "4-bit weights too)",
        more="several devices",
        labels={"ddp": "DDP", "fsdp": "FSDP2", "fsdp1": "FSDP1"},
        when={"task": LEARNS},
    )
    tensor_parallel: int = field(
        1,
        "Cards of this kind that share the model of a server",
        more="several devices",
        when={"task": (SERVE,)},
        ge=1,
        le=64,
    )
    trust_remote_code: bool = field(False, "Run the code that comes with the model in its folder", more="data")

    @model_validator(mode="before")
    @classmethod
    def _of_recipe(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("task", "train") not in LEARNS:
            return values
        recipe = RECIPES.get(str(values.get("recipe")))
        if recipe is None:
            return values
        # From here on the fields hold the recipe: if it stayed, it would override explicit fields when the spec is
        # built again from its differences to the defaults.
        return {**recipe, **values, "recipe": "none"}

    @model_validator(mode="after")
    def _can_serve(self) -> ModelSpec:
        if self.task == SERVE and self.precision.startswith("amp"):
            raise ValueError("precision: a server computes in one type; choose bf16, fp16, or as stored")
        if self.task != SERVE and self.quantisation in OF_SERVERS:
            raise ValueError(f"quantisation: {self.quantisation} is of servers alone; choose --task serve, or auto")
        return self

    @model_validator(mode="after")
    def _checkpoints(self) -> ModelSpec:
        if self.task in LEARNS and self.keeps != "nothing" and not self.checkpointing:
            raise ValueError("keeps: it is of what checkpointing leaves; choose --checkpointing too")
        return self

    @model_validator(mode="after")
    def _steps_in_backward(self) -> ModelSpec:
        if self.task != "train" or not self.optimizer_in_backward:
            return self
        for name, is_there in (
            ("clip", self.clip > 0),
            ("accumulation", self.accumulation > 1),
            ("devices", bool(self.device_names)),
            ("offload", self.offload == "weights"),
            ("precision", self.precision == "amp_fp16"),
        ):
            if is_there:
                raise ValueError(f"{name}: no gradient outlives the backward pass with --optimizer-in-backward")
        return self

    @field_validator("attention", mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        if value in ("flash", "flash_attention"):
            return "flash_attention_2"
        return value

    @model_validator(mode="after")
    def _ranks_can_train(self) -> ModelSpec:
        if not self.device_names:
            return self
        if self.task not in LEARNS:
            raise ValueError("devices: several devices train together; choose one for inference, or --task train")
        if self.offload == "weights" and self.parallel != "fsdp":
            raise ValueError("parallel: weights are kept on the host by FSDP2; choose fsdp, or another --offload")
        if self.parallel == "fsdp1":
            return self._flat()
        if self.parallel != "fsdp":
            return self
        if self.packed:
            raise ValueError(f"parallel: {INTEGERS.format(packed=self.packed)}; choose ddp, or --task lora. {FSDP1}")
        if self.optimizer in WHOLE_ONLY:
            raise ValueError(f"parallel: {OPTIMIZERS[self.optimizer]} does not step on shards; choose ddp, or adamw")
        return self

    def _flat(self) -> ModelSpec:
        if self.packed == "int8":
            raise ValueError("parallel: bitsandbytes stores int8 weights as integers alone; choose nf4, or ddp")
        if self.packed and not self.keep_16_bits:
            raise ValueError(f"parallel: {ONE_TYPE}, and peft makes float32 of some; choose --keep-16-bits too")
        return self

    @model_validator(mode="after")
    def _can_learn(self) -> ModelSpec:
        packed = self.packed
        if self.task == "train" and packed:
            raise ValueError(f"quantisation: {packed} weights do not learn; choose --task qlora, or auto")
        if self.task in ADAPTED and packed and packed not in PACKED:
            raise ValueError(f"quantisation: no adapter is trained on {packed} here; choose one of {', '.join(PACKED)}")
        if self.offload == "weights" and self.task in ADAPTED:
            raise ValueError("offload: weights are kept on the host where all of them learn; choose activations")
        if self.offload == "weights" and self.optimizer in (*BITSANDBYTES, "adamw_fused"):
            raise ValueError(f"offload: {self.optimizer} does not step on the CPU; choose adamw")
        if self.offload == "weights" and self.precision == "amp_fp16":
            raise ValueError("offload: weights on the host have no scaled gradients here; choose --precision amp")
        return self

    @property
    def packed(self) -> str:
        """The requested quantisation; "" for none, or that of the config."""
        if self.quantisation != "auto":
            return self.quantisation
        if self.task == "qlora":
            return "nf4"
        return ""

    @property
    def device_names(self) -> tuple[str, ...]:
        return several_devices(self.devices)

    @property
    def options(self) -> dict[str, object]:
        """The options of a `gpudash.simulator.models.steps.RequestedModel`."""
        return {**self.model_dump(mode="json"), "path": self.folder, "quantisation": self.packed}

    @property
    def folder(self) -> str:
        """The folder or config for `path`; `path` itself if nothing exists there."""
        try:
            return str(find_model(self.path))
        except ValueError:
            return self.path

    @property
    def missing(self) -> str:
        if not self.path:
            return f"No model is named. {NAME_IT}"
        try:
            find_model(self.path)
        except ValueError as error:
            place = Path(self.path).expanduser()
            # its reader reports an existing path that is not a model; for an adapter, its base model is missing
            if place.exists() and not (place / ADAPTER).is_file():
                return ""
            return str(error)
        return ""

    def run_problems(self, device: str) -> list[str]:
        found = self.problems(device)
        if self.task == SERVE:
            found.append(SERVED_ONLY)
        if self.missing:
            found.append(self.missing.rstrip("."))
        if self.attention == "flash_attention_2" and not device.startswith("cuda"):
            found.append(f"--attention {self.attention}: {NEEDS_CUDA.format(device=device)}; choose sdpa")
        packed = ""
        if self.packed and self.task != SERVE:
            packed = f"weights packed as {self.packed}"
        rounded = ""
        if self.optimizer in BITSANDBYTES and self.task != "infer":
            rounded = OPTIMIZERS[self.optimizer]
        hosted = ""
        if self.offload == "weights" and self.task != "infer":
            hosted = "weights on the host"
        if packed or rounded or hosted:
            found.append(f"{' and '.join(filter(None, (packed, rounded, hosted)))} {PREDICTED_ONLY}")
        if self.device_names:
            found.append(SPREAD_ONLY.format(count=len(self.device_names)))
        return found

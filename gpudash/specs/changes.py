"""Changes of a spec with which the same work needs less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudash.specs.base import DTYPE_BYTES, Spec
from gpudash.specs.matmul import MatmulSpec
from gpudash.specs.model import ADAPTED, BITSANDBYTES, LEARNS, RECIPES, ModelSpec
from gpudash.specs.pipeline import PipelineSpec
from gpudash.specs.pressure import PressureSpec
from gpudash.specs.training import TrainingSpec
from gpudash.specs.transfer import TransferSpec
from gpudash.units import format_bytes

OPTIMIZER_TEXT = {"sgd": "SGD", "momentum": "SGD + momentum"}

SMALLEST_WIDTH = 8


@dataclass(frozen=True)
class SpecChange:
    """A change of a spec.

    Attributes:
        label: short name: "bf16 autocast".
        fields: fields of the spec and their new values.
        changes_training: whether it may affect convergence.
        note: other differences, as in `gpudash.telemetry.explanation.RunChange`.
    """

    label: str
    fields: Mapping[str, Any]
    changes_training: bool = False
    note: str = ""

    def applied(self, spec: Spec) -> Spec:
        """``spec`` with the change.

        Raises:
            pydantic.ValidationError: if the result is not a valid spec.
        """
        return type(spec).model_validate({**spec.model_dump(exclude_defaults=True), **self.fields})


CHECKPOINTING = SpecChange("activation checkpointing", {"checkpointing": True})

FUSED_LOSS = SpecChange(
    "fused cross entropy", {"loss": "fused"}, note="no logits are kept: Liger's or Unsloth's kernel"
)

IN_16_BITS = SpecChange(
    "16 bits for adapters and what is not packed",
    {"keep_16_bits": True},
    changes_training=True,
    note="as torchtune and Unsloth keep it; peft makes it float32",
)

IN_BACKWARD = SpecChange(
    "optimizer in backward",
    {"optimizer_in_backward": True},
    note="each weight is updated as soon as its gradient is there",
)

FUSED_ADAMW = SpecChange("fused AdamW", {"optimizer": "adamw_fused"}, note="the same update in one kernel")

SELECTIVE = SpecChange(
    "selective checkpointing",
    {"checkpointing": True, "keeps": "products"},
    note="attention and every other matrix product are kept, as torchtitan does",
)

KEEP_NOTHING = SpecChange("checkpointing that keeps no products", {"keeps": "nothing"})

PAGED = SpecChange(
    "paged 8-bit AdamW",
    {"optimizer": "paged_adamw8bit"},
    changes_training=True,
    note="its state is rounded to 8 bits, and in unified memory: what has no room on the card crosses the bus",
)

ACTIVATIONS_ON_HOST = SpecChange("activations on the host (save_on_cpu)", {"offload": "activations"})

RECIPE_NAMES = {"torchtune": "torchtune's recipe", "unsloth": "Unsloth's recipe"}

RECIPE_TEXTS: dict[tuple[str, object], str] = {
    ("checkpointing", True): "checkpointing",
    ("loss", "chunked"): "cross entropy in chunks",
    ("loss", "fused"): "fused cross entropy",
    ("keep_16_bits", True): "16 bits for adapters and what is not packed",
    ("optimizer", "adamw_fused"): "fused AdamW",
    ("optimizer", "adamw8bit"): "8-bit AdamW",
}
"""The settings of a recipe, in words."""


def changes(spec: Spec) -> list[SpecChange]:
    """Possible changes of ``spec`` to reduce memory, the least harmful first."""
    for kind, found in _CHANGES.items():
        if isinstance(spec, kind):
            return list(found(spec))
    return []


def size_field(spec: Spec) -> str | None:
    """The field that determines memory, whose largest fitting value can be searched; ``None`` if there is none."""
    if isinstance(spec, TrainingSpec):
        return "batch"
    return None


UNBOUNDED = 2**31
"""Largest size if a spec has no limit."""


def largest_size(spec: Spec, name: str) -> int:
    """The largest value allowed for a field."""
    bounds = type(spec).model_fields[name].metadata
    return int(next((bound.le for bound in bounds if hasattr(bound, "le")), UNBOUNDED))


def batch_fields(spec: TrainingSpec, size: int) -> dict[str, int]:
    """The fields that set the batch of each forward pass, on each rank, to ``size``."""
    if spec.global_batch and spec.rank_devices:
        return {"global_batch": size * spec.world_size}
    return {"batch": size}


def over_ranks(spec: Spec, devices: Sequence[str], parallel: str) -> SpecChange | None:
    """Data parallel training over several devices, one rank on each, with the same samples per step if possible.

    Args:
        spec: spec of the run on one device.
        devices: devices of the ranks.
        parallel: "ddp" or "fsdp".

    Returns:
        The change, without a label; ``None`` if the run cannot be distributed.
    """
    count, fields = len(devices), {"devices": ",".join(devices), "parallel": parallel}
    if isinstance(spec, TrainingSpec):
        trains = spec.mode == "train" and not spec.move_at_epoch and not spec.batch % count
        if trains:
            return SpecChange("", {**fields, "global_batch": spec.batch})
        return None
    if not isinstance(spec, ModelSpec) or spec.task == "infer":
        return None
    if not spec.batch % count:
        return SpecChange("", {**fields, "batch": spec.batch // count})
    if not spec.accumulation % count:
        return SpecChange("", {**fields, "accumulation": spec.accumulation // count})
    note = f"a step learns from {count} times as many samples"
    return SpecChange("", fields, changes_training=True, note=note)


def batch_text(spec: TrainingSpec | ModelSpec, size: int) -> str:
    """A batch size in words."""
    if isinstance(spec, TrainingSpec):
        ranks = spec.rank_devices
    else:
        ranks = spec.device_names
    if ranks:
        return f"batch {size} on each rank"
    return f"batch {size}"


def recipe_changes(spec: ModelSpec) -> list[SpecChange]:
    """What recipes set and ``spec`` does not: first the libraries' recipes as a whole, then each of their parts.

    Empty for a task without training. Some may contradict ``spec``, for which `SpecChange.applied` raises.
    """
    if spec.task not in LEARNS:
        return []
    return [*_recipes(spec), *_parts(spec)]


def _recipes(spec: ModelSpec) -> Iterator[SpecChange]:
    for name, values in RECIPES.items():
        # A value that the user set overrides --recipe, so only fields with their default values are set.
        said = spec.model_dump(exclude_defaults=True)
        fields = {key: value for key, value in values.items() if key not in said}
        if spec.task not in ADAPTED:
            fields.pop("keep_16_bits", None)
        if not fields:
            continue
        sets = ", ".join(RECIPE_TEXTS[key, value] for key, value in fields.items())
        rounds = fields.get("optimizer") == "adamw8bit"
        yield SpecChange(RECIPE_NAMES[name], fields, changes_training=rounds, note=f"--recipe {name}: {sets}")


def _parts(spec: ModelSpec) -> Iterator[SpecChange]:
    if not spec.checkpointing:
        yield CHECKPOINTING
        yield SELECTIVE
    elif spec.keeps != "nothing":
        yield KEEP_NOTHING
    yield from _less_kept(spec)
    if spec.optimizer in ("adamw", "adamw_fused"):
        note = "its state is rounded to 8 bits"
        yield SpecChange("8-bit AdamW", {"optimizer": "adamw8bit"}, changes_training=True, note=note)
    if spec.optimizer == "adamw":
        yield FUSED_ADAMW
    if spec.optimizer in ("adamw", "adamw_fused", "adamw8bit"):
        yield PAGED
    if spec.offload == "none":
        yield ACTIVATIONS_ON_HOST


def _less_kept(spec: ModelSpec) -> Iterator[SpecChange]:
    """Fewer logits, adapters of 16 bits, and gradients that do not stay."""
    if spec.loss == "full":
        yield FUSED_LOSS
    if spec.task in ADAPTED and not spec.keep_16_bits:
        yield IN_16_BITS
    if spec.task == "train" and not spec.optimizer_in_backward:
        yield IN_BACKWARD


def _of_training(spec: TrainingSpec) -> Iterator[SpecChange]:
    trains = spec.mode == "train"
    if trains and spec.keep_intermediates:
        yield SpecChange("delete intermediates", {"keep_intermediates": False})
    if trains and spec.device_names and spec.parallel == "ddp":
        yield SpecChange("FSDP2 instead of DDP", {"parallel": "fsdp"})
    if trains and not spec.checkpointing:
        yield SpecChange("activation checkpointing", {"checkpointing": True})
    if trains:
        yield from _accumulated(spec)
    if spec.batches == "resident":
        yield SpecChange("batches moved each step", {"batches": "moved"})
    if spec.precision == "fp32":
        yield SpecChange("bf16 autocast", {"precision": "bf16"}, changes_training=True)
        yield SpecChange("fp16 autocast with scaled gradients", {"precision": "fp16"}, changes_training=True)
    if trains:
        yield from _with_smaller_optimizers(spec)
    if spec.depth > 1:
        yield SpecChange(f"depth {spec.depth // 2}", {"depth": spec.depth // 2}, changes_training=True)
    if spec.width // 2 >= SMALLEST_WIDTH:
        yield SpecChange(f"width {spec.width // 2}", {"width": spec.width // 2}, changes_training=True)


def _accumulated(spec: TrainingSpec) -> Iterator[SpecChange]:
    for parts in (2, 4, 8, 16):
        if spec.rank_batch % parts == 0:
            size = spec.rank_batch // parts
            fields = {**batch_fields(spec, size), "accumulation": spec.accumulation * parts}
            yield SpecChange(f"{batch_text(spec, size)}, accumulated over {fields['accumulation']}", fields)


def _with_smaller_optimizers(spec: TrainingSpec) -> Iterator[SpecChange]:
    for optimizer in ("momentum", "sgd"):
        if spec.optimizer not in ("sgd", optimizer):
            text = f"{OPTIMIZER_TEXT[optimizer]} instead of {spec.optimizer}"
            yield SpecChange(text, {"optimizer": optimizer}, changes_training=True)
    if not spec.checkpointing and spec.precision == "fp32":
        both = {"checkpointing": True, "precision": "bf16"}
        yield SpecChange("checkpointing and bf16 autocast", both, changes_training=True)


def _of_model(spec: ModelSpec) -> Iterator[SpecChange]:
    """The most promising first: simulating each takes seconds."""
    learns = spec.task != "infer"
    if spec.device_names and spec.parallel == "ddp" and not spec.packed:
        note = "each block's weights are gathered before they are used"
        yield SpecChange("FSDP2 instead of DDP", {"parallel": "fsdp"}, note=note)
    if learns:
        yield from _of_learning(spec)
    if spec.attention == "eager":
        yield SpecChange("fused attention", {"attention": "sdpa"}, note="the same sums, in another order")
    if spec.task in ("train", "lora"):
        yield from _four_bits(spec)
    if spec.task == "train":
        yield from _smaller_states(spec)
    if spec.precision in ("fp32", "amp", "amp_fp16"):
        rounded = "weights and their updates" if learns else "weights"
        note = f"{rounded} rounded to 16 bits"
        yield SpecChange("weights in bfloat16", {"precision": "bf16"}, changes_training=learns, note=note)
    if not learns and not spec.packed:
        for quantisation, text, bits in (("int8", "weights in 8 bits", 8), ("nf4", "weights in 4 bits (nf4)", 4)):
            note = f"weights rounded to {bits} bits: answers may differ"
            yield SpecChange(text, {"quantisation": quantisation}, note=note)


def _of_learning(spec: ModelSpec) -> Iterator[SpecChange]:
    if not spec.checkpointing:
        yield CHECKPOINTING
    yield from _less_kept(spec)
    yield from _recipes(spec)
    if spec.batch > 1:
        fields = {"batch": 1, "accumulation": spec.accumulation * spec.batch}
        yield SpecChange(f"{batch_text(spec, 1)}, accumulated over {fields['accumulation']}", fields)
    if spec.task == "train" and spec.optimizer == "adamw":
        yield FUSED_ADAMW
    if spec.offload == "none":
        yield from _offloads(spec)


def _four_bits(spec: ModelSpec) -> Iterator[SpecChange]:
    """Adapters on quantised weights."""
    note = f"adapters of rank {spec.lora_rank} learn, over weights rounded to 4 bits and unpacked in each pass"
    yield SpecChange("QLoRA", {"task": "qlora"}, changes_training=True, note=note)
    if not spec.checkpointing:
        both = {"task": "qlora", "checkpointing": True}
        yield SpecChange("QLoRA and checkpointing", both, changes_training=True, note=note)


def _smaller_states(spec: ModelSpec) -> Iterator[SpecChange]:
    """Fewer trained weights, and optimizers with less state for each."""
    note = f"adapters of rank {spec.lora_rank} learn, the weights stay"
    both = {"task": "lora", "checkpointing": True}
    yield SpecChange("LoRA and checkpointing", both, changes_training=True, note=note)
    if spec.optimizer in ("adamw", "adamw_fused"):
        for optimizer, text, note in (
            ("adamw8bit", "8-bit AdamW", "its state is rounded to 8 bits"),
            ("adafactor", "Adafactor", "it keeps means of rows and columns, not of each weight"),
        ):
            fields = {"optimizer": optimizer, "checkpointing": True}
            yield SpecChange(f"{text} and checkpointing", fields, changes_training=True, note=note)


def _offloads(spec: ModelSpec) -> Iterator[SpecChange]:
    """Offloading to host memory."""
    yield ACTIVATIONS_ON_HOST
    if spec.task == "train" and spec.optimizer not in (*BITSANDBYTES, "adamw_fused"):
        text, note = "weights and optimizer on the host (FSDP2)", "the CPU updates the weights"
        fields: dict[str, Any] = {"offload": "weights"} | ({"parallel": "fsdp"} if spec.device_names else {})
        yield SpecChange(text, fields, note=note)
        if not spec.checkpointing:
            yield SpecChange(f"{text}, and checkpointing", {**fields, "checkpointing": True}, note=note)


def _of_matmul(spec: MatmulSpec) -> Iterator[SpecChange]:
    if DTYPE_BYTES[spec.dtype] > 4:
        yield SpecChange("float32", {"dtype": "float32"})
    if DTYPE_BYTES[spec.dtype] > 2:
        yield SpecChange("bfloat16", {"dtype": "bfloat16"})
    for size in (spec.size // 2, spec.size // 4):
        if size >= 1:
            yield SpecChange(f"size {size}", {"size": size})


def _of_pipeline(spec: PipelineSpec) -> Iterator[SpecChange]:
    rows, columns = spec.shape
    for parts in (2, 4):
        if rows // parts >= 1:
            fields = {"rows": rows // parts, "columns": columns, "size": None}
            yield SpecChange(f"{rows // parts} rows", fields)


def _of_transfer(spec: TransferSpec) -> Iterator[SpecChange]:
    sizes = spec.block_sizes
    if len(sizes) > 1:
        yield SpecChange("without the largest block", {"blocks": ",".join(map(str, sizes[:-1]))})


def _of_pressure(spec: PressureSpec) -> Iterator[SpecChange]:
    """For a run that ends at a cap; another cap depends on the available memory: see `capped`."""
    if spec.until == "cap" and spec.cap is not None:
        for parts in (2, 4):
            if spec.cap // parts >= spec.step:
                yield capped(spec.cap // parts)


def capped(cap: int) -> SpecChange:
    """A memory pressure that ends at ``cap`` bytes."""
    return SpecChange(f"stop at {format_bytes(cap)}", {"until": "cap", "cap": cap})


_CHANGES: dict[type[Spec], Callable[[Any], Iterator[SpecChange]]] = {
    TrainingSpec: _of_training,
    ModelSpec: _of_model,
    MatmulSpec: _of_matmul,
    PipelineSpec: _of_pipeline,
    TransferSpec: _of_transfer,
    PressureSpec: _of_pressure,
}

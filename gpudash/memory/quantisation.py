"""How weights of linear layers are packed, as a ``quantization_config`` says: one reader for training and serving.

Which layers of a model with modules are packed, and how they compute, is `gpudash.simulator.models.quantised`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

FOUR_BIT, EIGHT_BIT, GPTQ, AWQ = "4-bit", "8-bit", "gptq", "awq"
FP8, INTEGER, MXFP4, NVFP4 = "fp8", "compressed-tensors", "mxfp4", "nvfp4"
"""Ways to pack: bitsandbytes' two, those with groups of inputs, and those of servers; `INTEGER` is llm-compressor's."""

GPTQ_BITS = (2, 3, 4, 8)

STORAGES = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
"""What `transformers.BitsAndBytesConfig` takes for ``bnb_4bit_quant_storage``."""

BLOCK, BLOCKS_TOGETHER = 64, 256
"""Weights of 4 bits that share a scale, and scales that share one in turn (bitsandbytes' ``quantize_4bit``)."""

MXFP4_INPUTS = 256
"""To a multiple of which vLLM's Triton kernel pads the inputs of 4-bit experts."""

KNOWN = "bitsandbytes, gptq, awq, auto-round, fp8, mxfp4, modelopt and compressed-tensors"
WITHOUT = "Predict the model without its quantization_config, or with another: --quantisation nf4, fp4 or int8."
MEND = "Mend the quantization_config of config.json."

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_proj": ("gate_proj", "gate_up_proj"),
    "in_proj": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"),
}
"""Matrices that a server makes of several, by the names that those have in a checkpoint."""

_ROOTS = {
    "model.": ("language_model.model.", "model.language_model.", "language_model."),
    "vision_tower.": ("visual.", "model.visual.", "vision_model.", "model.vision_tower."),
    "multi_modal_projector.": ("model.multi_modal_projector.", "embed_vision."),
}
"""What a part of a model is called in other checkpoints."""


class QuantisationError(ValueError):
    """A ``quantization_config`` that makes no sense, or is not known.

    Attributes:
        remedy: what to do about it.
    """

    def __init__(self, message: str, remedy: str = MEND) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class Quantisation:
    """How the weights of linear layers are packed.

    Attributes:
        method: `FOUR_BIT` or `EIGHT_BIT` by bitsandbytes, `GPTQ`, `AWQ`, or one of those that only servers have.
        bits: of a weight.
        group: weights that share a scale, of those with groups; below 1 for all of a column.
        nested: whether scales of 4 bits are quantised in turn (double quantisation).
        storage, compute: types that 4-bit weights are packed into, and that are computed in; the latter is the
            input's where it is ``None``.
        threshold: magnitude of outliers, of 8 bits.
        zeros, ordered: as of `gpudash.simulator.models.packed_layers.MarlinLinear`.
        kept: names of modules that stay as they are; ``None`` for those that transformers keeps by itself.
        kept_too: whether those that transformers keeps by itself stay beside `kept`.
        block: outputs and inputs that share a scale of fp8; ``None`` for a scale for the whole.
        eight_bit_inputs: whether a server computes with inputs of 8 bits too.
        name: the method as the config has it.
    """

    method: str
    bits: int
    group: int = -1
    nested: bool = False
    storage: str = "uint8"
    compute: str | None = None
    threshold: float = 6.0
    zeros: bool = False
    ordered: bool = False
    kept: tuple[str, ...] | None = None
    kept_too: bool = False
    block: tuple[int, int] | None = None
    eight_bit_inputs: bool = False
    name: str = ""

    @property
    def learns(self) -> bool:
        """Whether adapters can be trained on it here."""
        return self.method in (FOUR_BIT, EIGHT_BIT)

    def reaches(self, module: str) -> bool:
        """Whether a server packs the matrix of this name."""
        if self.method == MXFP4:
            return ".experts." in module
        return not (self.kept and _is_left_out(self.kept, module))

    def packed_bytes(self, inputs: int, outputs: int) -> float:
        """What a server holds of a matrix: weights, scales and zero points."""
        count = inputs * outputs
        if self.method == FOUR_BIT:
            scale = 1 + 4 / BLOCKS_TOGETHER if self.nested else 4.0
            return count * (1 / 2 + scale / BLOCK)
        if self.method == EIGHT_BIT:
            return count + 4 * outputs
        if self.method == FP8 and self.block:
            high, wide = self.block
            return count + 4 * math.ceil(outputs / high) * math.ceil(inputs / wide)
        if self.method == FP8:
            return count + 4
        if self.method == MXFP4:  # the kernel wants inputs in steps
            return math.ceil(inputs / MXFP4_INPUTS) * MXFP4_INPUTS * outputs / 2 + count / 32
        if self.method == NVFP4:
            return count * self.bits / 8 + count / self.group
        if self.method == INTEGER and self.group < 1:
            return count * self.bits / 8 + 4 * outputs
        groups = 1
        if self.group > 0:
            groups = math.ceil(inputs / self.group)
        if self.method == INTEGER:
            return count * self.bits / 8 + 2 * outputs * groups
        return count * self.bits / 8 + groups * outputs * (2 + self.bits / 8)


CHOICES = {
    "nf4": Quantisation(FOUR_BIT, 4, name="bitsandbytes"),
    "nf4-double": Quantisation(FOUR_BIT, 4, nested=True, name="bitsandbytes"),
    "fp4": Quantisation(FOUR_BIT, 4, name="bitsandbytes"),
    "int8": Quantisation(EIGHT_BIT, 8, name="bitsandbytes"),
    "gptq": Quantisation(GPTQ, 4, group=128, name="gptq"),
    "awq": Quantisation(AWQ, 4, group=128, zeros=True, kept_too=True, name="awq"),
}
"""What ``--quantisation`` offers. Both 4-bit types have the same sizes; GPTQ and AWQ are the usual: 4 bits in groups of
128, symmetric without an order of activations, and with zero points."""

SERVED = {
    **CHOICES,
    "bitsandbytes": CHOICES["nf4"],
    "fp8": Quantisation(FP8, 8, eight_bit_inputs=True, name="fp8"),
    "nvfp4": Quantisation(NVFP4, 4, group=16, name="nvfp4"),
    "mxfp4": Quantisation(MXFP4, 4, name="mxfp4"),
}
"""What a server may be asked about for a model that is not quantised: as vLLM quantises while loading (bitsandbytes and
fp8), or as a checkpoint of it that is packed so."""


def chosen(name: str, choices: Mapping[str, Quantisation], compute: str | None = None) -> Quantisation:
    """One of ``choices``, computing in ``compute``.

    Raises:
        QuantisationError: there is none of that name.
    """
    if name not in choices:
        raise QuantisationError(f"There is no quantisation {name!r}.", f"Choose one of {', '.join(choices)}.")
    return replace(choices[name], compute=compute)


def read(config: Mapping[str, Any]) -> Quantisation:
    """What the ``quantization_config`` of a ``config.json`` asks for.

    Raises:
        QuantisationError: one sentence, when the method is not known, or what it says makes no sense.
    """
    if not isinstance(config, Mapping):
        raise QuantisationError(f"The quantization_config is no object but {shown(config)}.")
    method = config.get("quant_method")
    # Older configs name no method and only say how they were loaded.
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in _READERS:
        reason = "names no quant_method"
        if method is not None:
            reason = f"names the method {shown(method)}"
        raise QuantisationError(f"The quantization_config {reason}; known are {KNOWN}.", WITHOUT)
    return replace(_READERS[method](config), name=method)


def _bitsandbytes(config: Mapping[str, Any]) -> Quantisation:
    four, eight = (_truth(config, f"load_in_{bits}bit") for bits in (4, 8))
    # Both false or both true: neither says how many bits.
    if four is eight:
        reason = "neither load_in_4bit nor load_in_8bit"
        if four:
            reason = "both load_in_4bit and load_in_8bit"
        raise QuantisationError(f"The quantization_config asks for {reason}.")
    kept = _names(config, "llm_int8_skip_modules")
    if eight:
        if _truth(config, "llm_int8_has_fp16_weight"):
            raise QuantisationError(
                "The quantization_config keeps weights in 16 bits (llm_int8_has_fp16_weight), which is not followed.",
                WITHOUT,
            )
        threshold = config.get("llm_int8_threshold", 6.0)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not threshold >= 0:
            raise QuantisationError(f"llm_int8_threshold is a number from 0 on, not {shown(threshold)}.")
        return Quantisation(EIGHT_BIT, 8, threshold=float(threshold), kept=kept)
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if kind not in ("fp4", "nf4"):
        raise QuantisationError(f"bnb_4bit_quant_type is fp4 or nf4, not {shown(kind)}.")
    return Quantisation(
        FOUR_BIT,
        4,
        nested=_truth(config, "bnb_4bit_use_double_quant"),
        storage=_dtype(config, "bnb_4bit_quant_storage", "uint8", STORAGES),
        compute=_dtype(config, "bnb_4bit_compute_dtype", "float32", ("float16", "bfloat16", "float32")),
        kept=kept,
    )


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    bits = config.get("bits", 4)
    if isinstance(bits, bool) or bits not in GPTQ_BITS:
        raise QuantisationError(f"GPTQ packs weights of 2, 3, 4 or 8 bits, not {shown(bits)}.")
    symmetric = config.get("sym", True) is not False
    ordered = _truth(config, "desc_act")
    return Quantisation(GPTQ, bits, group=_group(config), zeros=not symmetric, ordered=ordered)


def _awq(config: Mapping[str, Any]) -> Quantisation:
    bits = config.get("bits", config.get("w_bit", 4))
    if isinstance(bits, bool) or bits != 4:
        raise QuantisationError(f"AWQ packs weights of 4 bits, not {shown(bits)}.")
    return Quantisation(
        AWQ,
        4,
        group=_group(config),
        zeros=config.get("zero_point", True) is not False,
        kept=_names(config, "modules_to_not_convert"),
        kept_too=True,
    )


def _auto_round(config: Mapping[str, Any]) -> Quantisation:
    return replace(_gptq(config), method="auto-round")


def _fp8(config: Mapping[str, Any]) -> Quantisation:
    block = config.get("weight_block_size")
    if block is not None:
        sides = isinstance(block, list) and len(block) == 2 and all(type(side) is int and side > 0 for side in block)
        if not sides:
            raise QuantisationError(f"weight_block_size is two whole numbers, not {shown(block)}.")
        block = (block[0], block[1])
    return Quantisation(FP8, 8, block=block, eight_bit_inputs=True, kept=_left_out(config))


def _fbgemm(config: Mapping[str, Any]) -> Quantisation:
    """A scale for each output."""
    return Quantisation(INTEGER, 8, eight_bit_inputs=True, kept=_left_out(config))


def _mxfp4(config: Mapping[str, Any]) -> Quantisation:
    return Quantisation(MXFP4, 4, group=32, kept=_left_out(config))


def _modelopt(config: Mapping[str, Any]) -> Quantisation:
    algorithm = config.get("quant_algo")
    if algorithm == "FP8":
        return Quantisation(FP8, 8, eight_bit_inputs=True, kept=_left_out(config))
    if algorithm == "NVFP4":
        return Quantisation(NVFP4, 4, group=16, kept=_left_out(config))
    raise QuantisationError(
        f"The quantization_config is modelopt's {shown(algorithm)}; FP8 and NVFP4 are known.", WITHOUT
    )


def _compressed(config: Mapping[str, Any]) -> Quantisation:
    """llm-compressor's: one group of layers, with a scale for a tensor, a row or a stretch of inputs."""
    groups = _object(config, "config_groups")
    weights: Mapping[str, Any] = {}
    if groups:
        weights = _object(_object(groups, next(iter(groups))), "weights")
    bits = weights.get("num_bits", 8)
    if type(bits) is not int or not 1 <= bits <= 16:
        raise QuantisationError(f"num_bits is a number of bits up to 16, not {shown(bits)}.")
    group = weights.get("group_size")
    if group is None:
        group = -1
    if type(group) is not int or group == 0 or group < -1:
        raise QuantisationError(f"group_size is -1 or a whole number of weights such as 128, not {shown(group)}.")
    kept = _left_out(config)
    if weights.get("strategy") == "tensor_group":
        return Quantisation(NVFP4, bits, group=max(group, 16), kept=kept)
    if weights.get("strategy") != "group":
        group = -1
    return Quantisation(INTEGER, bits, group=group, eight_bit_inputs=_computes_in_8_bits(groups), kept=kept)


def _computes_in_8_bits(groups: Mapping[str, Any]) -> bool:
    """Whether compressed-tensors stores weights in 8 bits and computes with inputs of 8 bits too.

    Whole numbers of 8 bits count as fp8: both have the same rate on every card that has both.
    """
    for name in groups:
        group = _object(groups, name)
        weights = group.get("weights")
        # Null where the inputs stay as they are; left out by some exporters, which then follow the weights.
        inputs = group.get("input_activations", weights)
        if not all(isinstance(stored, Mapping) and stored.get("num_bits") == 8 for stored in (weights, inputs)):
            return False
    return bool(groups)


_READERS = {
    "bitsandbytes": _bitsandbytes,
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "awq": _awq,
    "awq_marlin": _awq,
    "auto-round": _auto_round,
    "auto_round": _auto_round,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}


def _left_out(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names or patterns of modules that stay as they are, under all of the names that servers know."""
    return tuple(
        name for field in ("ignore", "modules_to_not_convert", "ignored_layers") for name in _names(config, field) or ()
    )


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise QuantisationError(f"{name} is an object, not {shown(value)}.")
    return value


def _group(config: Mapping[str, Any]) -> int:
    group = config.get("group_size", config.get("q_group_size", 128))
    # Multiples of 8; -1, a column as one group, has the remainder 7.
    if isinstance(group, bool) or not isinstance(group, int) or group == 0 or group < -1 or group % 8 not in (0, 7):
        raise QuantisationError(f"group_size is -1 or a whole number of weights such as 128, not {shown(group)}.")
    return group


def _truth(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise QuantisationError(f"{name} is true or false, not {shown(value)}.")
    return bool(value)


def _names(config: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise QuantisationError(f"{name} is a list of names of modules, not {shown(value)}.")
    return tuple(value)


def _dtype(config: Mapping[str, Any], name: str, usual: str, known: Collection[str]) -> str:
    value = config.get(name) or usual
    if not isinstance(value, str) or value.replace("torch.", "", 1) not in known:
        raise QuantisationError(f"{name} is one of {', '.join(known)}, not {shown(value)}.")
    return value.replace("torch.", "", 1)


def shown(value: object) -> str:
    """A value that is not ours, short enough for a sentence."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


# A server's answer asks for each matrix again with each number of cards, and configs name hundreds of modules.
@lru_cache(maxsize=2**16)
def _is_left_out(patterns: tuple[str, ...], module: str) -> bool:
    """Whether one of some patterns is about a matrix, under any of its names."""
    names = tuple(_names_of(module))
    return any(_matches(pattern, name) for pattern in patterns for name in names)


def _names_of(module: str) -> Iterator[str]:
    """What a matrix of a server may be called in a checkpoint."""
    before, _, last = module.rpartition(".")
    for end in (last, *_FUSED.get(last, ())):
        name = f"{before}.{end}".removeprefix(".")
        yield name
        for root, others in _ROOTS.items():
            if name.startswith(root):
                yield from (other + name[len(root) :] for other in others)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern of a config is about a matrix: ``re:…``, with ``*``, or a part of its path."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            raise QuantisationError(f"{shown(pattern)} is no regular expression.") from None
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, f"{pattern}*")
    _, found, after = name.rpartition(pattern)
    # "layers.1" is not about layer 10
    return bool(found) and not after[:1].isdigit()

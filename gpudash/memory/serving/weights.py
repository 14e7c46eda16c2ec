"""Bytes of a model's weights on each card of a server."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpudash.memory.serving.served_model import Matrix, ServedModel, part, whole

VOCABULARY_PADDING = 64
"""vLLM rounds the rows of embedding and output up to a multiple (``DEFAULT_VOCAB_PADDING_SIZE``)."""

MXFP4_INPUTS = 256
"""To a multiple of which vLLM's Triton kernel pads the inputs of 4-bit experts."""

MARLIN_HIDDEN, MARLIN_WIDTH = 256, 128
"""To multiples of which its Marlin kernel, that of cards before Hopper, pads both sides of them."""

MIB = 2**20

Stored = Callable[[int, int], float]
"""Bytes of a matrix with so many inputs and outputs."""


def weight_bytes(
    model: ServedModel,
    ranks: int = 1,
    dtype_bytes: int | None = None,
    quantization: str | None = None,
    *,
    marlin: bool = False,
) -> int:
    """Weights on one rank of tensor parallelism, with the rotary table that the server keeps beside them.

    Args:
        model: of whose config they are.
        ranks: cards that share it.
        dtype_bytes: of a number that is not quantised; ``None`` as the config says.
        quantization: "fp8" where the server quantises while loading; ``None`` as the config says.
        marlin: whether 4-bit experts are laid out for the kernel of cards before Hopper.

    Raises:
        ValueError: one sentence, for a family or a quantisation that is not known.
    """
    number = dtype_bytes or model.dtype_bytes
    method = quantisation(model.whole, quantization, marlin=marlin)
    total = model.rotary_bytes(number)
    for matrix in model.matrices():
        inputs, outputs = _part(matrix, model, ranks)
        stored = None
        if matrix.quantisable:
            stored = method(matrix)
        size = inputs * outputs * number if stored is None else stored(inputs, outputs)
        total += _allocated(round(matrix.count * size))
    return total


def _part(matrix: Matrix, model: ServedModel, ranks: int) -> tuple[int, int]:
    """The sides of a rank's part."""
    if matrix.split == "vocabulary":
        return matrix.inputs, math.ceil(_up(matrix.outputs, VOCABULARY_PADDING) / ranks)
    if matrix.split == "whole":
        return matrix.inputs, matrix.outputs
    if matrix.split == "rows":
        return math.ceil(matrix.inputs / ranks), matrix.outputs
    copied = matrix.copied // min(ranks, model.kv_heads)
    return matrix.inputs, math.ceil((matrix.outputs - matrix.copied) / ranks) + copied


def _allocated(size: int) -> int:
    """What torch's allocator counts of a tensor: it asks for large ones in steps of 2 MiB and does not part with a
    remainder of 1 MiB or less (``should_split`` of CUDACachingAllocator)."""
    rest = -size % (2 * MIB)
    if size >= 10 * MIB and rest <= MIB:
        return size + rest
    return size


def quantisation(
    config: Mapping[str, Any], at_load: str | None = None, *, marlin: bool = False
) -> Callable[[Matrix], Stored | None]:
    """How each matrix is stored; ``None`` for one that is not quantised.

    Args:
        config: whose ``quantization_config`` says it.
        at_load: vLLM's ``--quantization`` for a checkpoint that is not quantised.
        marlin: as of `weight_bytes`.

    Raises:
        ValueError: when the method is not known.
    """
    said = part(config, "quantization_config") or part(part(config, "text_config"), "quantization_config")
    if at_load and not said:
        said = {"quant_method": at_load}
    method = str(said.get("quant_method") or "")
    if not method:
        return lambda _matrix: None
    stored = _stored(method, said)
    listed = [said.get(name) or [] for name in ("ignore", "modules_to_not_convert", "ignored_layers")]
    left_out = [str(pattern) for names in listed if isinstance(names, list) for pattern in names]
    only_experts = method == "mxfp4"

    def of(matrix: Matrix) -> Stored | None:
        if only_experts and ".experts." not in matrix.name:
            return None
        if only_experts and marlin:
            if matrix.split == "columns":
                steps = (MARLIN_HIDDEN, MARLIN_WIDTH)
            else:
                steps = (MARLIN_WIDTH, MARLIN_HIDDEN)
            return lambda i, o: _up(i, steps[0]) * _up(o, steps[1]) * (1 / 2 + 1 / 32)
        if any(_names(pattern, matrix.name) for pattern in left_out):
            return None
        return stored

    return of


def _up(size: int, step: int) -> int:
    return math.ceil(size / step) * step


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern of a config is about a matrix: ``re:…``, with ``*``, or a part of its path."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            raise ValueError(f"config.json: {pattern!r} is no regular expression.") from None
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, f"{pattern}*")
    return pattern in name


def _stored(method: str, said: Mapping[str, Any]) -> Stored:
    if method == "fp8":
        block = said.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block):
            high, wide = block
            return lambda i, o: i * o + 4 * math.ceil(o / high) * math.ceil(i / wide)
        return lambda i, o: i * o + 4
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "auto_round"):
        bits = whole(said, "bits", "w_bit") or 4
        group = said.get("group_size")
        # -1: of a whole row
        size = None
        if isinstance(group, int) and group > 0:
            size = group
        return lambda i, o: i * o * bits / 8 + math.ceil(i / (size or i)) * o * (2 + bits / 8)
    if method == "compressed-tensors":
        return _compressed(said)
    if method == "mxfp4":  # the kernel wants inputs in steps
        return lambda i, o: _up(i, MXFP4_INPUTS) * o / 2 + i * o / 32
    if method == "modelopt" and said.get("quant_algo") in ("FP8", "NVFP4"):
        if said["quant_algo"] == "FP8":
            return lambda i, o: i * o + 4
        return lambda i, o: i * o * (1 / 2 + 1 / 16)
    if method == "bitsandbytes":
        if said.get("load_in_8bit"):
            return lambda i, o: i * o + 4 * o
        return lambda i, o: i * o * (1 / 2 + 4 / 64)
    raise ValueError(
        f"config.json: weights quantised by {method!r} are not known here; with the safetensors files or their index "
        "beside it their bytes are."
    )


def _compressed(said: Mapping[str, Any]) -> Stored:
    """llm-compressor's: one group of layers, with a scale for a tensor, a row or a stretch of inputs."""
    groups = part(said, "config_groups")
    weights = part(part(groups, next(iter(groups))), "weights") if groups else {}
    bits, strategy, group = whole(weights, "num_bits") or 8, weights.get("strategy"), whole(weights, "group_size")
    if strategy == "tensor_group":  # NVFP4
        return lambda i, o: i * o * bits / 8 + i * o / (group or 16)
    if strategy == "group" and group:
        return lambda i, o: i * o * bits / 8 + 2 * o * math.ceil(i / group)
    return lambda i, o: i * o * bits / 8 + 4 * o


def checkpoint_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], model: ServedModel, ranks: int = 1) -> int:
    """Weights on one rank by what safetensors headers say, for any family and quantisation.

    Matrices are shared among the ranks, vectors are copied; heads that predict further tokens are not loaded.

    Args:
        tensors: name, dtype as safetensors calls it, and shape of each.
        model: whose they are.
        ranks: cards that share it.
    """
    total = float(model.rotary_bytes(model.dtype_bytes))
    for name, dtype, shape in tensors:
        layer = re.search(r"layers\.(\d+)\.", name)
        extra = name.startswith("mtp.") or ".mtp." in name or (layer and int(layer[1]) >= model.layers)
        if extra or (model.tied and name.startswith("lm_head.")):
            continue
        stored = math.prod(shape) * SAFETENSORS_BYTES.get(dtype, 2)
        total += stored / ranks if len(shape) > 1 else stored
    return round(total)


SAFETENSORS_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of a number, by what safetensors calls its dtype."""

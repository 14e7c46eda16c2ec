"""Bytes of a model's weights on each card of a server."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpudash.memory.quantisation import MXFP4, SERVED, Quantisation, chosen, read
from gpudash.memory.serving.served_model import Matrix, ServedModel, part

VOCABULARY_PADDING = 64
"""vLLM rounds the rows of embedding and output up to a multiple (``DEFAULT_VOCAB_PADDING_SIZE``)."""

MARLIN_HIDDEN, MARLIN_WIDTH = 256, 128
"""To multiples of which its Marlin kernel, that of cards before Hopper, pads both sides of them."""

MIB = 2**20


def weight_bytes(
    model: ServedModel,
    ranks: int = 1,
    dtype_bytes: int | None = None,
    quantization: str | None = None,
    *,
    marlin: bool = False,
    nested: bool = False,
) -> int:
    """Weights on one rank of tensor parallelism, with the rotary table that the server keeps beside them.

    Args:
        model: of whose config they are.
        ranks: cards that share it.
        dtype_bytes: of a number that is not quantised; ``None`` as the config says.
        quantization: one of `gpudash.memory.quantisation.SERVED` for a model that is not quantised; ``None`` as the
            config says.
        marlin: whether 4-bit experts are laid out for the kernel of cards before Hopper.
        nested: whether scales that are quantised in turn stay so, as in vLLM up to 0.8; later ones unpack them while
            loading (``_dequantize_dq`` of its bitsandbytes_loader.py).

    Raises:
        ValueError: one sentence, for a family or a quantisation that is not known.
    """
    number = dtype_bytes or model.dtype_bytes
    how = quantisation(model.whole, quantization)
    if how is not None and not nested:
        how = replace(how, nested=False)
    total = model.rotary_bytes(number)
    for matrix in model.matrices():
        inputs, outputs = _part(matrix, model, ranks)
        size = float(inputs * outputs * number)
        if how is not None and matrix.quantisable and how.reaches(matrix.name):
            size = how.packed_bytes(inputs, outputs)
            if marlin and how.method == MXFP4:
                size = _for_marlin(matrix, inputs, outputs)
        total += _allocated(round(matrix.count * size))
    return total


def _for_marlin(matrix: Matrix, inputs: int, outputs: int) -> float:
    """4-bit experts as the kernel of cards before Hopper has them."""
    steps = (MARLIN_WIDTH, MARLIN_HIDDEN)
    if matrix.split == "columns":
        steps = (MARLIN_HIDDEN, MARLIN_WIDTH)
    return _up(inputs, steps[0]) * _up(outputs, steps[1]) * (1 / 2 + 1 / 32)


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


def quantisation(config: Mapping[str, Any], at_load: str | None = None) -> Quantisation | None:
    """How the weights of a server are packed; ``None`` where they are not.

    Args:
        config: whose ``quantization_config`` says it.
        at_load: vLLM's ``--quantization``, for a checkpoint that is not quantised.

    Raises:
        ValueError: when the method is not known, or the checkpoint is quantised by another.
    """
    packing = _packing(config)
    if not packing and at_load:
        return chosen(at_load, SERVED)
    if not packing:
        return None
    how = read(packing)
    if at_load and at_load not in (how.name, how.method) and SERVED[at_load].method != how.method:
        raise ValueError(f"--quantization {at_load}: the checkpoint is quantised by {how.name} already.")
    return how


def method_of(config: Mapping[str, Any], at_load: str | None = None) -> str:
    """What packs the weights, known here or not; "" where nothing does. Arguments as of `quantisation`.

    Raises:
        ValueError: when the config has something else in its place.
    """
    packing = _packing(config)
    if not packing:
        return at_load or ""
    # Older configs name no method and only say how they were loaded.
    return str(packing.get("quant_method") or "bitsandbytes")


def _packing(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return part(config, "quantization_config") or part(part(config, "text_config"), "quantization_config")


def _up(size: int, step: int) -> int:
    return math.ceil(size / step) * step


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

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
"""vLLM pads the rows of embedding and output to a multiple of this (``DEFAULT_VOCAB_PADDING_SIZE``)."""

MARLIN_HIDDEN, MARLIN_WIDTH = 256, 128
"""The Marlin kernel, for cards before Hopper, pads both sides of experts to multiples of these."""

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
    """Bytes of the weights on one tensor-parallel rank, including the rotary table that the server keeps with them.

    Args:
        model: the model they belong to.
        ranks: number of cards that share it.
        dtype_bytes: of a number that is not quantised; ``None`` takes it from the config.
        quantization: one of `gpudash.memory.quantisation.SERVED` for a model that is not quantised; ``None`` takes it
            from the config.
        marlin: whether 4-bit experts are laid out for the kernel for cards before Hopper.
        nested: whether scales that are themselves quantised stay so, as in vLLM up to 0.8; later versions dequantise
            them while loading (``_dequantize_dq`` in its bitsandbytes_loader.py).

    Raises:
        ValueError: in one sentence, if the family or the quantisation is unknown.
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
    """Bytes of 4-bit experts in the layout of the kernel for cards before Hopper."""
    steps = (MARLIN_WIDTH, MARLIN_HIDDEN)
    if matrix.split == "columns":
        steps = (MARLIN_HIDDEN, MARLIN_WIDTH)
    return _up(inputs, steps[0]) * _up(outputs, steps[1]) * (1 / 2 + 1 / 32)


def _part(matrix: Matrix, model: ServedModel, ranks: int) -> tuple[int, int]:
    """Dimensions of a rank's part of a matrix."""
    if matrix.split == "vocabulary":
        return matrix.inputs, math.ceil(_up(matrix.outputs, VOCABULARY_PADDING) / ranks)
    if matrix.split == "whole":
        return matrix.inputs, matrix.outputs
    if matrix.split == "rows":
        return math.ceil(matrix.inputs / ranks), matrix.outputs
    copied = matrix.copied // min(ranks, model.kv_heads)
    return matrix.inputs, math.ceil((matrix.outputs - matrix.copied) / ranks) + copied


def _allocated(size: int) -> int:
    """Bytes that torch's allocator counts for a tensor: it requests large ones in steps of 2 MiB and does not split
    off a remainder of 1 MiB or less (``should_split`` of CUDACachingAllocator)."""
    rest = -size % (2 * MIB)
    if size >= 10 * MIB and rest <= MIB:
        return size + rest
    return size


def quantisation(config: Mapping[str, Any], at_load: str | None = None) -> Quantisation | None:
    """How the weights of a server are packed; ``None`` if they are not.

    Args:
        config: the config with the ``quantization_config``.
        at_load: vLLM's ``--quantization``, for a checkpoint that is not quantised.

    Raises:
        ValueError: the method is unknown, or the checkpoint is quantised with another.
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
    """The method that packs the weights, known here or not; "" if none does. Arguments are those of `quantisation`.

    Raises:
        ValueError: the config has something else in its place.
    """
    packing = _packing(config)
    if not packing:
        return at_load or ""
    # Older configs name no method and only list how they were loaded.
    return str(packing.get("quant_method") or "bitsandbytes")


def _packing(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return part(config, "quantization_config") or part(part(config, "text_config"), "quantization_config")


def _up(size: int, step: int) -> int:
    return math.ceil(size / step) * step


def checkpoint_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], model: ServedModel, ranks: int = 1) -> int:
    """Bytes of the weights on one rank by the safetensors headers, for any family and quantisation.

    Ranks share matrices and copy vectors; heads for multi-token prediction are not loaded.

    Args:
        tensors: name, dtype as safetensors names it, and shape of each.
        model: the model they belong to.
        ranks: number of cards that share it.
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
"""Bytes of a number, by the dtype's name in safetensors."""

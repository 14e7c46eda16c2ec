"""Server memory besides weights and KV cache: activations of the profiling pass, CUDA graphs and CUDA libraries.

vLLM measures them when it starts (``Worker.determine_available_memory``): a forward pass over
``--max-num-batched-tokens`` tokens, then sampling for ``--max-num-seqs`` requests; what is left of
``--gpu-memory-utilization`` is the KV cache. Which tensors are alive at the two peaks follows from the model's shapes.
How many of each was fitted to logs of vLLM 0.19 on an H100, and the form was chosen with all logs in view; the guide's
page on serving has every log and its error. Differences between engines and versions are in `engines.py`.
"""

from __future__ import annotations

from gpudash.memory.quantisation import MXFP4
from gpudash.memory.serving.engines import ServerEngine
from gpudash.memory.serving.served_model import ServedModel
from gpudash.memory.serving.weights import method_of

GIB = 2**30

HIDDEN_AT_SAMPLING = 1.5
"""The batch's hidden states that are still alive while sampling, in multiples of their size."""

MLP_TENSORS, HIDDEN_AT_MLP = 3.0, 4.25
"""At the peak of the forward pass: the outputs of gate and up projection with their product, and hidden states."""

ENCODED = 2.5
"""What an image encoder leaves, in multiples of the hidden states, if there is one."""

BETWEEN_RANKS_BYTES = {True: round(2.1 * GIB), False: round(0.3 * GIB)}
"""Several ranks take this in place of the memory of one: with buffers mapped by all, on data-centre cards since
Hopper, or without."""

GRAPHS_BYTES, GRAPHS_OF_A_LAYER_BYTES, GRAPHS_OF_EXPERTS_BYTES = round(0.2 * GIB), round(0.02 * GIB), round(0.5 * GIB)
"""CUDA graphs of all batch sizes: a constant, an amount per layer, and one for models with experts."""

MOST_CAPTURED = 512
"""The largest batch that is captured, and at most twice ``--max-num-seqs``."""

LORA_OVERHEAD = 1.25
"""Adapter slots take this multiple of the bytes of their matrices: 79.0 MiB each for 63.0 in the only log that has
them (vLLM 0.27, Qwen3-4B, rank 16, 1 to 64 slots)."""


def activation_bytes(
    model: ServedModel,
    engine: ServerEngine,
    *,
    batched_tokens: int,
    requests: int,
    ranks: int = 1,
    dtype_bytes: int | None = None,
    quantization: str | None = None,
) -> int:
    """The peak of the profiling pass on one rank, above what was allocated before it.

    Args:
        model: the profiled model.
        engine: the engine that profiles it.
        batched_tokens: vLLM's ``--max-num-batched-tokens``.
        requests: vLLM's ``--max-num-seqs``.
        ranks: of tensor parallelism, which share the MLP but not the logits.
        dtype_bytes: of the model's numbers.
        quantization: vLLM's ``--quantization``.
    """
    number = dtype_bytes or model.dtype_bytes
    hidden = batched_tokens * model.hidden * number
    logits = requests * model.vocabulary
    sampling = 0.0
    if engine.sampler_copies:
        sampling = logits * (4 * engine.sampler_copies + number) + HIDDEN_AT_SAMPLING * hidden
    if not model.experts:
        width = model.width
    else:
        width = model.expert_width * model.experts_of_a_token
    forward = batched_tokens * width // ranks * number * MLP_TENSORS + HIDDEN_AT_MLP * hidden
    workspace = 0
    if model.experts and method_of(model.whole, quantization) != MXFP4:  # kept for the next pass
        row = 2 * model.expert_width // ranks + model.hidden
        workspace = batched_tokens * model.experts_of_a_token * row * number
    encoded = ENCODED * hidden if "vision_config" in model.whole else 0
    return round(max(sampling + workspace, forward) + encoded + engine.compiling_gib * GIB)


def non_torch_bytes(engine: ServerEngine, ranks: int, *, shared_buffers: bool) -> int:
    """Memory of the CUDA libraries, and of what ranks exchange.

    Args:
        engine: the server's engine.
        ranks: of tensor parallelism.
        shared_buffers: whether the cards map each other's memory, as data-centre cards since Hopper do.
    """
    if ranks == 1:
        return round(engine.non_torch_gib * GIB)
    return BETWEEN_RANKS_BYTES[shared_buffers]


def graph_bytes(model: ServedModel, requests: int) -> int:
    """CUDA graphs for batches of 1, 2, 4, every 8 to 256 and every 16 to 512, as far as ``requests`` reach."""
    largest = min(2 * requests, MOST_CAPTURED)
    captured = _sizes(largest) / _sizes(MOST_CAPTURED)
    experts = 0
    if model.experts:
        experts = GRAPHS_OF_EXPERTS_BYTES
    return round(captured * (GRAPHS_BYTES + GRAPHS_OF_A_LAYER_BYTES * model.layers + experts))


def _sizes(largest: int) -> int:
    return sum(size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, MOST_CAPTURED + 1, 16)))


def adapter_bytes(model: ServedModel, slots: int, rank: int, ranks: int, dtype_bytes: int) -> int:
    """The slots that a server reserves on each card for LoRA adapters, whether any is loaded or not.

    Args:
        model: the model the adapters belong to.
        slots: vLLM's ``--max-loras``.
        rank: vLLM's ``--max-lora-rank``.
        ranks: of tensor parallelism, which share them.
        dtype_bytes: of the model's numbers.

    Raises:
        ValueError: in one sentence, if the matrices of the family are unknown.
    """
    if not slots:
        return 0
    numbers = 0
    for matrix in model.matrices():
        if matrix.name.startswith("model.layers.") and matrix.quantisable and "experts." not in matrix.name:
            # a fused matrix, such as q, k and v, has an A of its own for each part
            parts = matrix.count
            if matrix.copied:
                parts = 3
            numbers += parts * matrix.inputs + matrix.count * matrix.outputs
    return round(slots * rank * numbers * dtype_bytes * LORA_OVERHEAD / ranks)

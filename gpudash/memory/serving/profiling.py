"""What a server takes beside weights and KV cache: activations of its profiling pass, CUDA graphs, the libraries' part.

vLLM measures them when it starts (``Worker.determine_available_memory``): a forward pass over
``--max-num-batched-tokens`` tokens, then a sampling of ``--max-num-seqs`` requests; what is left of
``--gpu-memory-utilization`` is the KV cache. Which tensors live at the two peaks follows from the model's shapes. How
many of each was fitted to logs of vLLM 0.19 on an H100, its form with all of them in view; the guide's page on serving
has every log and its error. Engines up to vLLM 0.16 took more.
"""

from __future__ import annotations

from gpudash.memory.quantisation import MXFP4
from gpudash.memory.serving.served_model import ServedModel
from gpudash.memory.serving.weights import quantisation

GIB = 2**30

SAMPLER_COPIES = 3.16
"""Copies in float32 of the logits of all requests at the sampler's peak, beside the logits themselves."""

HIDDEN_AT_SAMPLING = 1.5
"""Hidden states of the batch that are still there then."""

MLP_TENSORS, HIDDEN_AT_MLP = 3.0, 4.25
"""At the peak of the forward pass: outputs of gate and up projection and their product, and hidden states."""

ENCODED = 2.5
"""Hidden states' worth of what an encoder of images leaves, where there is one."""

NON_TORCH_BYTES = round(0.25 * GIB)
"""Of CUDA's libraries, taken while profiling."""

BETWEEN_RANKS_BYTES = {True: round(2.1 * GIB), False: round(0.3 * GIB)}
"""The same of several ranks: with buffers that all see, on data-centre cards since Hopper, or without."""

GRAPHS_BYTES, GRAPHS_OF_A_LAYER_BYTES, GRAPHS_OF_EXPERTS_BYTES = round(0.2 * GIB), round(0.02 * GIB), round(0.5 * GIB)
"""CUDA graphs of all sizes: in any case, for each layer, and where there are experts."""

MOST_CAPTURED = 512
"""The largest batch that is captured, twice ``--max-num-seqs`` at the most."""

MARGIN_BYTES = round(0.35 * GIB)
"""What the sum of the three was off by in nine of ten logs; with experts it was more."""


def activation_bytes(
    model: ServedModel, *, batched_tokens: int, requests: int, ranks: int = 1, dtype_bytes: int | None = None
) -> int:
    """The peak of the profiling pass over what was there before it, on one rank.

    Args:
        model: that is profiled.
        batched_tokens: vLLM's ``--max-num-batched-tokens``.
        requests: vLLM's ``--max-num-seqs``.
        ranks: of tensor parallelism, which share the MLP but not the logits.
        dtype_bytes: of the model's numbers.
    """
    number = dtype_bytes or model.dtype_bytes
    hidden = batched_tokens * model.hidden * number
    logits = requests * model.vocabulary
    sampling = logits * (4 * SAMPLER_COPIES + number) + HIDDEN_AT_SAMPLING * hidden
    if not model.experts:
        width = model.width
    else:
        width = model.expert_width * model.experts_of_a_token
    forward = batched_tokens * width // ranks * number * MLP_TENSORS + HIDDEN_AT_MLP * hidden
    workspace = 0
    how = quantisation(model.whole)
    if model.experts and (how is None or how.method != MXFP4):  # kept for the next pass
        row = 2 * model.expert_width // ranks + model.hidden
        workspace = batched_tokens * model.experts_of_a_token * row * number
    encoded = ENCODED * hidden if "vision_config" in model.whole else 0
    return round(max(sampling + workspace, forward) + encoded)


def non_torch_bytes(ranks: int, *, shared_buffers: bool) -> int:
    """Of CUDA's libraries and of what ranks exchange.

    Args:
        ranks: of tensor parallelism.
        shared_buffers: whether the cards map one another's memory, as data-centre cards since Hopper do.
    """
    if ranks == 1:
        return NON_TORCH_BYTES
    return BETWEEN_RANKS_BYTES[shared_buffers]


def graph_bytes(model: ServedModel, requests: int) -> int:
    """CUDA graphs, of batches of 1, 2, 4, every 8 to 256 and every 16 to 512, as far as ``requests`` reach."""
    largest = min(2 * requests, MOST_CAPTURED)
    captured = _sizes(largest) / _sizes(MOST_CAPTURED)
    experts = 0
    if model.experts:
        experts = GRAPHS_OF_EXPERTS_BYTES
    return round(captured * (GRAPHS_BYTES + GRAPHS_OF_A_LAYER_BYTES * model.layers + experts))


def _sizes(largest: int) -> int:
    return sum(size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, MOST_CAPTURED + 1, 16)))

"""What the first step of a training allocates, estimated from its spec before there is a model to look at."""

from __future__ import annotations

import math

from gpudash.specs import TrainingSpec
from gpudash.specs.training import IMAGE_SIDE

OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Tensors of a parameter's size that each optimizer keeps for it."""

BLOCK_ACTIVATIONS = 17
"""Values of the width's size that a block's backward pass keeps per character: both norms' inputs and outputs (4),
query, key and value (3), attention's output and its projection (2), the feed-forward's hidden layer before and after
GELU (8)."""

CONVOLUTION_ACTIVATIONS = 3
"""Values of the width's size that a CNN's block keeps per pixel it puts out: what the convolution put out, ReLU's
result and the sum."""

LAYER_ACTIVATIONS = 2
"""Values of the width's size that an MLP's layer takes per sample: what the product put out and ReLU's result."""


def step_bytes(spec: TrainingSpec, weights_bytes: int, outputs: int) -> int:
    """Estimate of what the first step allocates: gradients, optimizer state, activations; in bytes.

    Autocast keeps half of the activations in 16 bits and a copy of the weights in 16 bits; checkpointing keeps each
    layer's input and, while its gradients are computed, one layer's activations.
    """
    layers = _layer_values(spec)
    kept = sum(layers)
    if spec.checkpointing and layers:
        kept = _checkpointed_values(spec, layers)
    rows = spec.batch * (spec.sequence if spec.model == "transformer" else 1)
    stem = IMAGE_SIDE**2 * spec.width if spec.model == "cnn" else 0
    each = 4 if spec.precision == "fp32" else 3
    activations = spec.batch * (kept + stem) * each + 4 * rows * 3 * outputs
    casts = 0 if spec.precision == "fp32" else weights_bytes // 2
    return (1 + OPTIMIZER_STATES[spec.optimizer]) * weights_bytes + casts + activations


def _layer_values(spec: TrainingSpec) -> list[int]:
    """Values that each hidden layer keeps per sequence or sample."""
    if spec.model == "cnn":
        return [CONVOLUTION_ACTIVATIONS * spec.width * side**2 for side in spec.sides]
    if spec.model == "mlp":
        return [LAYER_ACTIVATIONS * spec.width] * spec.depth
    return [BLOCK_ACTIVATIONS * spec.width * spec.sequence] * spec.depth


def _checkpointed_values(spec: TrainingSpec, layers: list[int]) -> int:
    """Values kept per sequence or sample with checkpointing: inputs of the layers, or of an MLP's groups of them."""
    if spec.model == "mlp":
        groups = max(2, math.isqrt(spec.depth))
        return groups * spec.width + -(-spec.depth // groups) * layers[0]
    if spec.model == "cnn":
        inputs = [IMAGE_SIDE**2, *(side**2 for side in spec.sides)]
        return spec.width * sum(inputs[1:-1]) + max(layers)
    return spec.depth * spec.width * spec.sequence + layers[0]

"""Predictions of runs that are made up: the dry run is left out, all that is made of it is the real thing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Trace, TraceMark
from gpudash.memory.predicting.estimate import Estimate, Target, judge
from gpudash.specs import TrainingSpec
from gpudash.units import GIB, MIB
from gpudash.workloads.predicting import estimate as predicting

LAYER = 6 * MIB
PER_ITEM = 3 * MIB // 2


def training(spec: TrainingSpec, *_: Any, **__: Any) -> Trace:
    """Three steps of layers whose activations differ in size, with gradients and state that come after the first
    forward pass: near a full card the cache has to be released."""
    trace = Trace(followed=3)
    layers = spec.depth
    layer_bytes, item_bytes = (size * spec.width // 128 for size in (LAYER, PER_ITEM))

    def make(size: int, category: str) -> int:
        trace.sizes.append(size)
        trace.categories.append(category)
        trace.events.append(len(trace.sizes))
        return len(trace.sizes)

    weights = [make(layer_bytes, WEIGHTS) for _ in range(layers)]
    state: list[int] = []
    for step in (1, 2, 3):
        trace.marks.append(TraceMark(len(trace.events), step, "forward"))
        batch = spec.rank_batch // spec.accumulation
        kept = [make(item_bytes * batch * (3 + layer % 3) // 3, ACTIVATIONS) for layer in range(layers)]
        gradients = []
        for layer in reversed(range(layers)):
            scratch = make(2 * item_bytes * batch + layer * MIB, ACTIVATIONS)
            gradients.append(make(layer_bytes, GRADIENTS))
            trace.events.extend([-scratch, -kept[layer]])
        if not state and spec.optimizer != "sgd":
            state = [make(2 * layer_bytes, OPTIMIZER_STATE) for _ in weights]
        trace.events.extend(-block for block in gradients)
    return trace


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs that take no time."""
    monkeypatch.setattr(predicting, "trace_of", training)
    monkeypatch.setattr(predicting, "flops_of", lambda spec, *_: 4 if spec.checkpointing else 3)


def predicted(spec: TrainingSpec, target: Target, elsewhere: tuple[Target, ...] = ()) -> Estimate:
    return list(predicting.estimate(predicting.Question(spec, target, None, elsewhere), None))[-1]  # type: ignore[arg-type]


SPECS = st.builds(
    TrainingSpec,
    batch=st.integers(1, 64),
    depth=st.integers(1, 4),
    width=st.sampled_from([128, 128, 136, 2048, 16384]),
    optimizer=st.sampled_from(["sgd", "adamw"]),
)

CARDS = st.builds(
    lambda capacity, others, overhead, margin, device, share: Target(
        device,
        capacity,
        max(0, capacity - others),
        0 if device == "cpu" else overhead,
        margin_ratio=margin,
        settings=AllocatorSettings(per_process_memory_fraction=share),
    ),
    capacity=st.one_of(st.integers(8 * MIB, GIB), st.integers(GIB, 64 * GIB)),
    others=st.sampled_from([0, 0, 64 * MIB]),
    overhead=st.sampled_from([0, 100 * MIB]),
    margin=st.sampled_from([0.0, 0.01, 0.2]),
    device=st.sampled_from(["sim:0", "cuda:0", "cpu"]),
    share=st.sampled_from([1.0, 1.0, 0.5]),
)


def near(spec: TrainingSpec, target: Target, more: int) -> Target:
    """``target`` with about as much as the run reserves, where what fits is decided."""
    reserved = judge(training(spec), Target("sim:0"), "x").peak_reserved_bytes or 0
    free = max(0, reserved + target.overhead_bytes + more)
    return Target(target.device, free, free, target.overhead_bytes, margin_ratio=target.margin_ratio)


EDGES = st.builds(
    lambda spec, target, mib, odd: near(spec, target, mib * MIB + odd),
    SPECS,
    CARDS,
    st.integers(-48, 8),
    st.sampled_from([0, 0, -1, 1, 300_000]),
)

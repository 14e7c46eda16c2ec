"""The configurations: every pair of choices occurs together at least once, and the rest is filled at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

FAMILIES = ("decoder", "llama", "bert", "vit", "mlp", "cnn", "unet", "lstm")

ATTENDING = ("decoder", "llama", "bert", "vit")
"""Families whose attention is torch's own; the U-Net writes its own out."""

CAPABILITIES = {"8.0": ((8, 0), 108), "9.0": ((9, 0), 132), "12.0": ((12, 0), 170)}
"""Compute capability and number of multiprocessors of an A100, an H100 (SXM) and an RTX 5090."""

ALLOCATORS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max_split": "max_split_size_mb:64",
    "roundup": "roundup_power2_divisions:[64:8,256:4,>:2]",
    "garbage": "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5",
}
"""Name → ``PYTORCH_CUDA_ALLOC_CONF``."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "family": FAMILIES,
    "size": ("small", "odd", "large"),
    "mode": ("train", "train", "train", "no_grad", "inference_mode"),
    "precision": ("fp32", "bf16", "fp16", "pure_bf16"),
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
    "implementation": ("for-loop", "foreach", "fused"),
    "accumulation": (1, 3),
    "checkpointing": (False, True),
    "clipping": (False, True),
    "set_to_none": (True, False),
    "attention": ("math", "efficient", "flash", "cudnn", "default"),
    "allocator": tuple(ALLOCATORS),
    "capability": tuple(CAPABILITIES),
}

OF_TRAINING = ("optimizer", "implementation", "accumulation", "checkpointing", "clipping", "set_to_none")

COUNT = 240
"""Configurations that are looked at while the prediction is worked on."""

SEED = 11

KEPT_BACK = 24
"""Configurations that are only looked at when the work is done."""

KEPT_BACK_SEED = 2026


@dataclass(frozen=True)
class Configuration:
    """One run. Where a choice does not apply it has its first value.

    Attributes:
        family, size: which model, and which of its three sizes.
        mode: "train", or inference under "no_grad" or "inference_mode".
        precision: "fp32", autocast to "bf16" or "fp16" (then with a gradient scaler), or "pure_bf16" weights.
        optimizer, implementation: of torch.optim, and torch's word for how it works.
        accumulation: backward passes a step.
        checkpointing: whether blocks are computed again in the backward pass.
        clipping: whether gradients are clipped by their norm.
        set_to_none: of ``zero_grad``.
        attention: the backend that is asked for; "default" leaves the choice to torch.
        allocator: one of `ALLOCATORS`.
        capability: one of `CAPABILITIES`.
    """

    family: str
    size: str
    mode: str
    precision: str
    optimizer: str
    implementation: str
    accumulation: int
    checkpointing: bool
    clipping: bool
    set_to_none: bool
    attention: str
    allocator: str
    capability: str

    @property
    def name(self) -> str:
        """All that is chosen, in words between slashes: unique, and to be read back by `named`."""
        return "/".join(str(value) for value in asdict(self).values())


def named(name: str) -> Configuration:
    """The configuration that `Configuration.name` names."""
    values: dict[str, Any] = {}
    for field, text in zip(fields(Configuration), name.split("/"), strict=True):
        values[field.name] = next(value for value in CHOICES[field.name] if str(value) == text)
    return Configuration(**values)


def configurations(count: int = COUNT, seed: int = SEED) -> list[Configuration]:
    """The configurations, in an order that is always the same: first those in which every pair occurs."""
    draw = random.Random(seed)
    found = dict.fromkeys(_every_pair(draw, count))
    more = _possible(draw, 100 * count)
    while len(found) < count:
        found[next(more)] = None
    return list(found)


def every_pair() -> list[Configuration]:
    """The configurations in which every pair of choices occurs, without those that are filled up at random."""
    return _every_pair(random.Random(SEED), COUNT)


def pairs(one: Configuration) -> Iterator[tuple[Any, ...]]:
    """Every two of its choices."""
    return itertools.combinations(vars(one).items(), 2)


def kept_back() -> list[Configuration]:
    """Configurations of another seed that are none of `configurations`."""
    known = set(configurations())
    return [one for one in configurations(2 * KEPT_BACK, KEPT_BACK_SEED) if one not in known][:KEPT_BACK]


def _every_pair(draw: random.Random, most: int) -> list[Configuration]:
    wanted = {pair for one in _possible(draw, 20_000) for pair in pairs(one)}
    found: dict[Configuration, None] = {}
    while wanted and len(found) < most:
        best = max(_possible(draw, 60), key=lambda one: len(wanted.intersection(pairs(one))))
        wanted.difference_update(pairs(best))
        found[best] = None
    return list(found)


def _possible(draw: random.Random, count: int) -> Iterator[Configuration]:
    for _ in range(count):
        yield _sensible(Configuration(**{name: draw.choice(values) for name, values in CHOICES.items()}))


def _sensible(one: Configuration) -> Configuration:
    """The nearest configuration that torch runs; of what does not apply, the first choice."""
    if one.mode != "train":
        one = replace(one, **{name: CHOICES[name][0] for name in OF_TRAINING})
    if one.optimizer in ("sgd", "momentum") and one.precision == "fp16" and one.implementation == "fused":
        one = replace(one, implementation="foreach")
    if one.family not in ATTENDING:
        return replace(one, attention="default")
    if one.attention in ("flash", "cudnn") and one.precision == "fp32":
        one = replace(one, attention="efficient")
    if one.family == "bert" and one.attention == "flash":
        one = replace(one, attention="efficient")  # flash attention takes no mask
    if one.attention == "cudnn" and one.capability == "8.0":
        one = replace(one, attention="flash" if one.family != "bert" else "math")
    return one

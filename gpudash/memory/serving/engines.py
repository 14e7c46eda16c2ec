"""Server engines by version: how they profile, what they reserve, and how far the prediction may be off.

The values are in ``engines.toml``, which states their sources.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("engines.toml")

GIB = 2**30

FORM = "Write vllm, vllm==0.19 or sglang."


@dataclass(frozen=True)
class ServerEngine:
    """How a server engine accounts for a card's memory.

    Attributes:
        name: "vllm" or "sglang".
        since: the first version that does so, major and minor.
        sampler_copies: float32 copies of the logits of all requests at the sampler's peak, in addition to the logits
            themselves; 0 if profiling does not sample.
        non_torch_gib: memory of the CUDA libraries on one card, GiB.
        graphs_reserved: whether CUDA graphs reduce the KV cache.
        margin_gib, margin_share, margin_ranks_gib: parts of the margin: a constant, a share of what is predicted
            besides the weights, and an addition for several cards.
        activations_reserved: whether the profiled peak reduces the KV cache.
        batch_of_longest: whether a step computes the longest request as a whole, as before chunked prefill.
        compiling_gib: what a compiled profiling pass takes besides its tensors, averaged over first and later starts,
            GiB.
        plain: whether it applies only to dense models that are not quantised.
        nested_scales: whether bitsandbytes scales that are themselves quantised stay so; later versions dequantise
            them while loading.
    """

    name: str
    since: tuple[int, ...]
    sampler_copies: float
    non_torch_gib: float
    graphs_reserved: bool
    margin_gib: float
    margin_share: float
    margin_ranks_gib: float
    activations_reserved: bool = True
    batch_of_longest: bool = False
    compiling_gib: float = 0.0
    plain: bool = False
    nested_scales: bool = False

    @property
    def label(self) -> str:
        """The engine's name for people."""
        title = {"vllm": "vLLM", "sglang": "SGLang"}[self.name]
        if not any(self.since):
            return title
        return f"{title} since {'.'.join(map(str, self.since))}"

    def margin_bytes(self, profiled_bytes: int, ranks: int) -> int:
        """How far the KV cache's memory may be off, in either direction, in nine out of ten starts.

        Args:
            profiled_bytes: predicted activations, graphs and libraries.
            ranks: of tensor parallelism.
        """
        between = self.margin_ranks_gib
        if ranks == 1:
            between = 0.0
        return round(self.margin_share * profiled_bytes + (self.margin_gib + between) * GIB)


def engine(requested: str, *, plain: bool) -> ServerEngine:
    """The engine for a name and version, such as "vllm==0.19"; the newest without a version.

    Args:
        requested: the value of ``--engine``.
        plain: whether the model is dense and not quantised.

    Raises:
        ValueError: in one sentence, if there is no such engine or the version is invalid.
    """
    name, pinned, version = requested.strip().lower().partition("==")
    known = [row for row in _engines() if row.name == name and (plain or not row.plain)]
    if not known:
        raise ValueError(f"--engine {requested!r} is no server that is known here. {FORM}")
    if not pinned:
        return known[-1]
    parts = version.removeprefix("v").split(".")
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts[:2]):
        raise ValueError(f"--engine {requested!r}: {version!r} is no version. {FORM}")
    numbers = tuple(map(int, parts[:2]))
    return next(row for row in reversed(known) if row.since <= numbers)


@cache
def _engines() -> tuple[ServerEngine, ...]:
    """All engines, each name from its oldest version on."""
    rows: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["engine"]
    known = {field.name for field in fields(ServerEngine)}
    return tuple(ServerEngine(**{**{k: v for k, v in row.items() if k in known}, "since": _since(row)}) for row in rows)


def _since(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, row["since"].split(".")))

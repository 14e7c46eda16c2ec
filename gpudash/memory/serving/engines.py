"""Engines of servers by version: how they profile, what they reserve, and how far the prediction may be off.

The values lie in ``engines.toml``, which says what they come from.
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
    """One way in which servers account for a card's memory.

    Attributes:
        name: "vllm" or "sglang".
        since: the first version of it, major and minor.
        sampler_copies: copies in float32 of the logits of all requests at the sampler's peak, beside the logits
            themselves; 0 where profiling does not sample.
        non_torch_gib: of CUDA's libraries on one card.
        graphs_reserved: whether CUDA graphs are taken off the KV cache.
        margin_gib, margin_share, margin_ranks_gib: of the margin, what holds anyway, the share of what was predicted
            beside the weights, and what several cards add.
        activations_reserved: whether the profiled peak is taken off the KV cache.
        batch_of_longest: whether a step computes the longest request whole, as before chunked prefill.
        compiling_gib: what the pass takes beside its tensors when it is compiled, on an average of first and later
            starts.
        plain: whether it is for dense models alone that are not quantised.
        nested_scales: whether scales of bitsandbytes that are quantised in turn stay so, where later versions unpack
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
        """In words, for people."""
        title = {"vllm": "vLLM", "sglang": "SGLang"}[self.name]
        if not any(self.since):
            return title
        return f"{title} since {_dotted(self.since)}"

    def margin_bytes(self, profiled_bytes: int, ranks: int) -> int:
        """How far the KV cache's memory may be off, either way, in nine of ten starts.

        Args:
            profiled_bytes: activations, graphs and libraries, as predicted.
            ranks: of tensor parallelism.
        """
        between = self.margin_ranks_gib
        if ranks == 1:
            between = 0.0
        return round(self.margin_share * profiled_bytes + (self.margin_gib + between) * GIB)


def engine(requested: str, *, plain: bool) -> ServerEngine:
    """The engine of a name and version, such as "vllm==0.19"; without a version the newest.

    Args:
        requested: as ``--engine`` has it.
        plain: whether the model is dense and not quantised.

    Raises:
        ValueError: one sentence, when there is no such engine or the version is none.
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
    """All of them, of each name from the oldest version on."""
    rows: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["engine"]
    known = {field.name for field in fields(ServerEngine)}
    return tuple(ServerEngine(**{**{k: v for k, v in row.items() if k in known}, "since": _since(row)}) for row in rows)


def _since(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, row["since"].split(".")))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))

"""The KV cache of a server: how many blocks it has, and how many tokens and requests they hold.

The computation is vLLM's (``vllm/v1/core/kv_cache_utils.py`` and ``vllm/v1/kv_cache_interface.py``). Memory consists
of blocks of pages, with one page for each layer of a group. Layers that keep the same (all tokens, a window, a state)
form groups of equal size, which allocate from the same blocks; a request takes blocks from each group.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from gpudash.memory.serving.served_model import CHUNKED, FULL, SLIDING, STATE, ServedModel

BLOCK_TOKENS = 16
"""Tokens in a block unless a state needs more (``CacheConfig.DEFAULT_BLOCK_SIZE``)."""

MANY_MORE = 1.5
"""If the numbers of layers of two kinds differ by less, groups are padded to the larger, else split by the smaller."""

FP8_KV = ("fp8", "fp8_e4m3", "fp8_e5m2")

INDEXER_BYTES = 132
"""Per token in a layer of DeepSeek's sparse attention: 128 numbers in fp8 and their scale."""


@dataclass(frozen=True)
class Group:
    """Layers that keep the same kind of data.

    Attributes:
        kind: FULL, SLIDING, CHUNKED or STATE.
        count: groups of this kind.
        block_tokens: tokens in one of its blocks.
    """

    kind: str
    count: int
    block_tokens: int


@dataclass(frozen=True)
class KvCache:
    """The blocks for requests on each rank.

    Attributes:
        groups: by kind of layer.
        block_bytes: size of one block over the layers of a group.
        blocks: how many there are.
        token_bytes: size of one more token over all layers that keep every token.
        window: tokens that a sliding-window layer attends to.
        chunk: tokens in a chunk of local attention.
        batched_tokens: the most tokens computed in one step, which are kept in addition to the window.
        prefix_caching: whether prefixes are cached; a state is then also kept at the end of a block.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    blocks: int
    token_bytes: int
    window: int | None
    chunk: int | None
    batched_tokens: int
    prefix_caching: bool

    def blocks_of_a_request(self, length: int) -> int:
        """Blocks that the server reserves for a request of ``length`` tokens."""
        return sum(group.count * self._blocks(group, length) for group in self.groups)

    def _blocks(self, group: Group, length: int) -> int:
        if group.kind == STATE:
            if self.prefix_caching:
                return 2
            return 1
        if group.kind == SLIDING and self.window:
            kept = min(self.window - 1 + self.batched_tokens, length)
            return math.ceil(kept / group.block_tokens) + 1  # the window may start inside a block
        if group.kind == CHUNKED and self.chunk:
            return math.ceil(min(self.chunk + self.batched_tokens, length) / group.block_tokens)
        return math.ceil(length / group.block_tokens)

    def concurrency(self, length: int) -> float:
        """How many requests of ``length`` tokens fit at once: vLLM's "Maximum concurrency"."""
        return self.blocks / max(self.blocks_of_a_request(length), 1)

    def tokens(self, length: int) -> int:
        """Tokens held in requests of ``length``: vLLM's "GPU KV cache size" since 0.20."""
        return int(self.concurrency(length) * length)

    def longest(self, most: int) -> int:
        """Length of the longest single request that fits, at most ``most``; 0 if none does."""
        # invariant: a request of `low` fits, and one longer than `high` does not
        low = 0
        high = most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_of_a_request(middle) <= self.blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_number_bytes(kv_dtype: str, dtype_bytes: int) -> int:
    """Bytes of a number in the cache.

    Raises:
        ValueError: the dtype is unknown.
    """
    if kv_dtype == "auto":
        return dtype_bytes
    if kv_dtype in FP8_KV:
        return 1
    if kv_dtype in ("float16", "bfloat16"):
        return 2
    raise ValueError(f"--kv-dtype {kv_dtype!r} is none of auto, bfloat16, float16, {', '.join(FP8_KV)}.")


def kv_cache(
    model: ServedModel,
    available_bytes: int,
    *,
    ranks: int = 1,
    kv_dtype: str = "auto",
    dtype_bytes: int | None = None,
    batched_tokens: int = 2048,
    prefix_caching: bool = False,
) -> KvCache:
    """The cache that fits into ``available_bytes`` on each rank.

    Args:
        model: the model whose tokens it keeps.
        available_bytes: on one rank.
        ranks: of tensor parallelism; they share the heads of keys and values as far as there are enough.
        kv_dtype: as vLLM's ``--kv-cache-dtype``.
        dtype_bytes: of the model's numbers, used for "auto".
        batched_tokens: vLLM's ``--max-num-batched-tokens``.
        prefix_caching: vLLM's ``--enable-prefix-caching``, which affects states only.
    """
    number = dtype_bytes or model.dtype_bytes
    kept = kv_number_bytes(kv_dtype, number)
    counts = Counter(model.kinds)
    of_a_token = {kind: _token_bytes(model, kind, ranks, kept) for kind in counts}
    blocks_of = dict.fromkeys(counts, BLOCK_TOKENS)
    if STATE in counts:
        # all groups share one page size: a block gets as many tokens as it needs to be as large as a state
        state = model.state_bytes(ranks, number)
        widest = max((size for kind, size in of_a_token.items() if kind != STATE), default=0)
        steps = 1
        if widest:
            steps = math.ceil(state / (BLOCK_TOKENS * widest))
        blocks_of = dict.fromkeys(counts, BLOCK_TOKENS * steps)
        page = state
        if widest:
            page = BLOCK_TOKENS * steps * widest
    else:
        # the same without states: kinds with fewer bytes per token have more tokens in a block
        page = max(of_a_token.values()) * BLOCK_TOKENS
        blocks_of = {kind: page // size for kind, size in of_a_token.items()}
    few = min(counts.values())
    many = max(counts.values())
    size = few
    if many < MANY_MORE * few:
        size = many
    order = sorted(counts, key=(FULL, SLIDING, CHUNKED, STATE).index)
    return KvCache(
        groups=tuple(Group(kind, math.ceil(counts[kind] / size), blocks_of[kind]) for kind in order),
        block_bytes=page * size,
        blocks=max(0, available_bytes // (page * size)),
        token_bytes=counts[FULL] * of_a_token.get(FULL, 0),
        window=model.window,
        chunk=model.chunk,
        batched_tokens=batched_tokens,
        prefix_caching=prefix_caching,
    )


def _token_bytes(model: ServedModel, kind: str, ranks: int, number: int) -> int:
    """Bytes of a token in a layer of a rank: keys and values of its heads, or the latent, whole on every rank."""
    if kind == STATE:
        return 0
    if model.latent:
        size = (model.latent + model.rotary_head) * number
        if model.indexed:
            size += INDEXER_BYTES
        return size
    heads, width = model.kv_shape(kind)
    return 2 * max(1, heads // ranks) * width * number

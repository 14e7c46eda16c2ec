"""What llama.cpp allocates on a card for a GGUF file: weights of the layers there, their KV cache, a compute buffer.

The computation is llama.cpp's: ``llama-model.cpp`` (which layers go where), ``llama-kv-cache.cpp`` (cells of each
layer) and ``llama-hparams.cpp`` (widths and states). The guide's page on serving has the logs it is compared with.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.serving.gguf import Gguf

CELLS = 256
"""The context is padded to a multiple of this."""

CACHE_TYPES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
"""Bytes of a number in the cache, by the type's name in ``--cache-type-k``."""

PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
"""One of so many layers sees the whole context, for architectures whose files do not state it."""

ATTENDS = re.compile(r"blk\.(\d+)\.(attn_k|attn_qkv|attn_kv_a_mqa|attn_kv_b)\.weight")
RECURS = re.compile(r"blk\.(\d+)\.ssm_")
LAYER = re.compile(r"blk\.(\d+)\.")

LIBRARIES_BYTES = round(0.4 * 2**30)
"""Memory of the driver and of cuBLAS, which llama.cpp's log does not list: an assumption."""

MOST_CONTEXT = 2**24
MOST_LAYERS = 4096


@dataclass(frozen=True)
class LlamaFlags:
    """Flags named as in llama.cpp; ``None`` stands for all there is.

    Attributes:
        gpu_layers: layers on the card, the last ones first; one more than the model has puts the output there too.
        context: tokens; by default the length the model was trained with.
        cache_type: of keys and values.
        ubatch: tokens computed at a time.
    """

    gpu_layers: int | None = None
    context: int | None = None
    cache_type: str = "f16"
    ubatch: int = 512


@dataclass(frozen=True)
class LlamaService:
    """How llama.cpp would place a model, in bytes on the card and on the host.

    Attributes:
        gpu_layers: layers on the card, out of `layers`; the output counts as one more.
        context: tokens.
    """

    layers: int
    gpu_layers: int
    context: int
    weights_bytes: int
    host_weights_bytes: int
    kv_bytes: int
    host_kv_bytes: int
    compute_bytes: int
    total_bytes: int
    libraries_bytes: int = LIBRARIES_BYTES

    @property
    def card_bytes(self) -> int:
        """Bytes on the card."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.libraries_bytes

    @property
    def fits(self) -> bool:
        return self.card_bytes <= self.total_bytes


class LlamaModel:
    """A model described by its GGUF header.

    Args:
        file: the model.

    Raises:
        ValueError: in one sentence, if the header lacks what a language model has.
    """

    def __init__(self, file: Gguf) -> None:
        self._file = file
        self.layers = self._number("block_count")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"The GGUF file says block_count {self.layers:,}; at most {MOST_LAYERS:,} is taken.")
        self.longest = self._number("context_length")
        self.hidden = self._number("embedding_length")
        heads = self._value("attention.head_count")
        self._head = self.hidden // max(_each(heads, 0), 1)
        places = [(int(found[1]), tensor) for tensor in file.tensors if (found := LAYER.match(tensor.name))]
        # Layers for multi-token prediction come after the others and are not loaded.
        self._of_layer: Counter[int] = Counter()
        for place, tensor in places:
            if place < self.layers:
                self._of_layer[place] += tensor.bytes
        inside = {tensor.name for _place, tensor in places}
        self._outside = {tensor.name: tensor.bytes for tensor in file.tensors if tensor.name not in inside}
        self._attends = {int(found[1]) for tensor in file.tensors if (found := ATTENDS.match(tensor.name))}
        self._recurs = {int(found[1]) for tensor in file.tensors if (found := RECURS.match(tensor.name))}
        if "token_embd.weight" not in self._outside:
            raise ValueError("The GGUF file has no token_embd.weight, which a language model has.")

    def _value(self, name: str) -> Any:
        return self._file.metadata.get(f"{self._file.architecture}.{name}")

    def _number(self, name: str) -> int:
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**31:
            raise ValueError(f"The GGUF file does not say {name}, which a language model has.")
        return value

    def _optional(self, name: str, otherwise: int = 0) -> int:
        value = self._value(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**31:
            return value
        return otherwise

    @property
    def vocabulary(self) -> int:
        """Tokens in the vocabulary, from the size of the embedding."""
        embedding = next(tensor for tensor in self._file.tensors if tensor.name == "token_embd.weight")
        return embedding.numbers // self.hidden

    def on(self, total_bytes: int, flags: LlamaFlags) -> LlamaService:
        """How the model would be placed on a card with this much memory.

        Raises:
            ValueError: in one sentence, if a flag is invalid.
        """
        context = flags.context or self.longest
        if not 0 < context <= MOST_CONTEXT or not 0 < flags.ubatch <= MOST_CONTEXT:
            raise ValueError(f"--context and --ubatch are whole numbers from 1 to {MOST_CONTEXT:,}.")
        if flags.cache_type not in CACHE_TYPES:
            raise ValueError(f"--kv-dtype {flags.cache_type!r} is none of {', '.join(CACHE_TYPES)}.")
        wanted = flags.gpu_layers
        if wanted is None:
            wanted = self.layers + 1
        if wanted < 0:
            raise ValueError(f"--gpu-layers {wanted} is less than 0.")
        on_card = min(wanted, self.layers + 1)
        # The output counts as the last layer and leaves the card first: it stays on the host if only the layers fit
        first = max(self.layers - on_card, 0)
        has_output = on_card > self.layers
        there = range(first, self.layers)
        weights = sum(self._of_layer[place] for place in there)
        host = sum(self._of_layer[place] for place in range(first)) + self._outside["token_embd.weight"]
        rest = {name: size for name, size in self._outside.items() if name != "token_embd.weight"}
        if has_output:
            # A tied output is a second copy of the embedding, which itself stays on the host.
            weights += sum(rest.values())
            if "output.weight" not in rest:
                weights += self._outside["token_embd.weight"]
        else:
            host += sum(rest.values())
        number = CACHE_TYPES[flags.cache_type]
        kept = [self._kept_bytes(place, context, flags.ubatch, number) for place in range(self.layers)]
        compute = flags.ubatch * 4 * self.hidden
        if has_output:
            compute += flags.ubatch * 4 * self.vocabulary
        libraries = LIBRARIES_BYTES
        if not on_card:
            compute = 0
            libraries = 0
        return LlamaService(
            self.layers,
            on_card,
            context,
            weights,
            host,
            sum(kept[first:]),
            sum(kept[:first]),
            compute,
            total_bytes,
            libraries,
        )

    def _kept_bytes(self, place: int, context: int, ubatch: int, number: float) -> int:
        """Bytes that a layer keeps: keys and values of its cells, or its state."""
        if place in self._recurs:
            return self._state_bytes()
        if place not in self._attends:
            return 0
        cells = -(-context // CELLS) * CELLS
        window = self._optional("attention.sliding_window")
        if window and self._is_windowed(place):
            cells = min(cells, -(-(window + ubatch) // CELLS) * CELLS)
        latent = self._optional("attention.kv_lora_rank")
        if latent:
            return round(cells * (latent + self._optional("rope.dimension_count")) * number)
        heads = _each(self._value("attention.head_count_kv"), place)
        heads = heads or _each(self._value("attention.head_count"), place)
        key = self._optional("attention.key_length", self._head)
        value = self._optional("attention.value_length", self._head)
        return round(cells * heads * (key + value) * number)

    def _is_windowed(self, place: int) -> bool:
        pattern = self._value("attention.sliding_window_pattern")
        if isinstance(pattern, list) and place < len(pattern):
            return bool(pattern[place])
        period = PERIODS.get(self._file.architecture, 1)
        if isinstance(pattern, int) and pattern > 0:
            period = pattern
        # If nothing says which layers have a window, all are counted with the whole context.
        return period > 1 and (place + 1) % period != 0

    def _state_bytes(self) -> int:
        """Last inputs of the convolution and the state, in float32 (``n_embd_r`` and ``n_embd_s``)."""
        inner = self._optional("ssm.inner_size")
        state = self._optional("ssm.state_size")
        groups = self._optional("ssm.group_count")
        kernel = self._optional("ssm.conv_kernel", 1)
        return 4 * (max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner)

    def most_layers(self, total_bytes: int, flags: LlamaFlags) -> int:
        """The most layers that fit on a card; the output counts as one more."""
        # invariant: `low` layers fit, and more than `high` do not
        low = 0
        high = self.layers + 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.on(total_bytes, replace(flags, gpu_layers=middle)).fits:
                low = middle
            else:
                high = middle - 1
        return low

    def longest_context(self, total_bytes: int, flags: LlamaFlags) -> int:
        """The longest context in tokens with this many layers on the card; 0 if none fits."""
        # invariant: `low` steps fit, and more than `high` do not
        low = 0
        high = self.longest // CELLS
        while low < high:
            middle = (low + high + 1) // 2
            if self.on(total_bytes, replace(flags, context=middle * CELLS)).fits:
                low = middle
            else:
                high = middle - 1
        return low * CELLS


def _each(value: Any, place: int) -> int:
    """A number of heads, which may be a list with one number for each layer."""
    if isinstance(value, list):
        value = dict(enumerate(value)).get(place)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**20:
        return value
    return 0

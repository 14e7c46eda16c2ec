"""Plans a server: the memory it needs, how many requests it serves, and what would serve as many as requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from gpudash.devices.known_gpus import KNOWN_GPUS, KnownGpu, find
from gpudash.devices.names import SimulatedCard
from gpudash.memory.quantisation import SERVED
from gpudash.memory.serving.engines import ServerEngine, engine
from gpudash.memory.serving.kv_cache import KvCache, kv_cache, kv_number_bytes
from gpudash.memory.serving.profiling import activation_bytes, adapter_bytes, graph_bytes, non_torch_bytes
from gpudash.memory.serving.served_model import DTYPES, FULL, SLIDING, Matrix, ServedModel
from gpudash.memory.serving.weights import checkpoint_bytes, method_of, weight_bytes
from gpudash.units import format_bytes

GIB = 2**30

LARGE_BYTES = 70 * GIB
"""From this size on a card gets larger batches, unless it is an A100 (vLLM's ``EngineArgs.get_batch_defaults``)."""

LONGEST_WHOLE = 32_768
"""Tokens in the longest request that vLLM's first engine processed in one step."""

UTILISATIONS = tuple(hundredths / 100 for hundredths in range(5, 100))
"""The values of ``--gpu-memory-utilization`` that a search tries."""

RANKS = (1, 2, 4, 8)
"""Numbers of cards in one machine that a search tries."""

LEAST_CAPABILITY = (8, 0)
"""Lowest compute capability of a card that computes in bfloat16, as most models are stored."""

DISAGREEMENT = 0.05
"""If config and safetensors headers differ by more, the headers are used."""


@dataclass(frozen=True)
class ServerCard:
    """The GPU model that every rank uses.

    Attributes:
        name: for people.
        total_bytes: memory as programs see it.
        shares_buffers: whether several of them map each other's memory.
        marlin: whether it computes 4-bit experts with the kernel for cards before Hopper.
        key: the name to request it by; "" if it is not known by name.
    """

    name: str
    total_bytes: int
    shares_buffers: bool = False
    marlin: bool = False
    key: str = ""

    @classmethod
    def named(cls, card: SimulatedCard) -> ServerCard:
        """The card of a request: a known one, or an amount of memory in bytes."""
        if isinstance(card, KnownGpu):
            return cls.known(card)
        return cls(f"a card of {format_bytes(card)}", card)

    @classmethod
    def known(cls, gpu: KnownGpu) -> ServerCard:
        return cls(gpu.name, gpu.total_bytes, gpu.capability[0] in (9, 10), gpu.capability < (9, 0), gpu.key)

    @classmethod
    def found(cls, product: str, total_bytes: int) -> ServerCard:
        """The card for the driver's product name: if known, with its properties, but with the size given here."""
        known = find(product)
        if known is None:
            return cls(product, total_bytes)
        return replace(cls.known(known), total_bytes=total_bytes)

    @property
    def is_alone(self) -> bool:
        """Whether no machine has more than one of them."""
        return self.key.endswith("-laptop")

    def why_not(self, ranks: int) -> str:
        """Why ``ranks`` of these cards cannot share a model; "" if they can."""
        if ranks > 1 and self.is_alone:
            return f"no machine has several {self.name}"
        return ""

    @property
    def takes_large_batches(self) -> bool:
        return self.total_bytes >= LARGE_BYTES and "a100" not in self.name.lower()


@dataclass(frozen=True)
class ServerFlags:
    """Flags named as in vLLM; ``None`` leaves the choice to vLLM.

    Attributes:
        gpu_memory_utilization: share of the card that the server may use.
        max_model_len: length of the longest request, in tokens.
        max_num_batched_tokens: tokens computed in one step.
        max_num_seqs: requests in one step.
        tensor_parallel: number of cards that share the model.
        dtype: of the model's numbers; "auto" takes it from the config.
        kv_dtype: of the cache's numbers.
        quantization: of a model that is not quantised. fp8 and bitsandbytes quantise it while loading; awq, gptq,
            mxfp4 and nvfp4 stand for a checkpoint that is packed that way.
        enforce_eager: no CUDA graphs.
        prefix_caching: keep the prefixes that requests share.
        allow_long_max_model_len: allow requests longer than the model has positions, as vLLM's environment variable
            ``VLLM_ALLOW_LONG_MAX_MODEL_LEN=1`` does.
        max_loras: slots for LoRA adapters, 0 for none.
        max_lora_rank: the largest rank of an adapter.
        engine: the server and its version, such as "vllm==0.19"; the newest without a version.
    """

    gpu_memory_utilization: float = 0.92
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel: int = 1
    dtype: str = "auto"
    kv_dtype: str = "auto"
    quantization: str | None = None
    enforce_eager: bool = False
    prefix_caching: bool = False
    allow_long_max_model_len: bool = False
    max_loras: int = 0
    max_lora_rank: int = 16
    engine: str = "vllm"

    def check(self, model: ServedModel) -> None:
        """Reject flags that no server would start with.

        Raises:
            ValueError: in one sentence.
        """
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"--gpu-memory-utilization {self.gpu_memory_utilization} is no share between 0 and 1.")
        for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value} is less than 1.")
        if not self.allows(model, self.max_model_len or 0):
            raise ValueError(
                f"--max-model-len {self.max_model_len} is more than the model's {model.positions:,} positions, which "
                "vLLM refuses; --allow-long-max-model-len, its VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, overrides it."
            )
        if model.heads % self.tensor_parallel:
            raise ValueError(
                f"--tensor-parallel {self.tensor_parallel} does not divide the model's {model.heads} attention heads."
            )
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ValueError(f"--dtype {self.dtype!r} is none of auto, {', '.join(DTYPES)}.")
        if self.quantization is not None and self.quantization not in SERVED:
            raise ValueError(f"--quantization {self.quantization!r} is none of {', '.join(SERVED)}.")
        if self.max_loras < 0 or self.max_lora_rank < 1:
            raise ValueError("--max-loras is 0 or more, and --max-lora-rank 1 or more.")
        kv_number_bytes(self.kv_dtype, 2)

    def allows(self, model: ServedModel, length: int) -> bool:
        """Whether requests may be ``length`` tokens long."""
        return self.allow_long_max_model_len or model.positions is None or length <= model.positions


@dataclass(frozen=True)
class Service:
    """A server as it would start; bytes are those of each card.

    Attributes:
        flags: with vLLM's choices filled in.
        weights_from: "config" or "safetensors".
        engine: the engine that accounts for the memory.
        activation_bytes: the peak of the profiling pass.
        graph_bytes: CUDA graphs; 0 without them.
        adapter_bytes: slots for LoRA adapters.
        non_torch_bytes: the CUDA libraries, and what ranks exchange.
        kv_bytes: what is left for the KV cache; if negative, how much is missing.
        cache: the KV cache in that memory.
    """

    card: ServerCard
    flags: ServerFlags
    weights_bytes: int
    weights_from: str
    activation_bytes: int
    graph_bytes: int
    non_torch_bytes: int
    adapter_bytes: int
    kv_bytes: int
    cache: KvCache
    max_model_len: int
    engine: ServerEngine

    @property
    def fits(self) -> bool:
        """Whether it starts: one request of the longest length fits."""
        return self.kv_bytes > 0 and self.concurrency >= 1

    @property
    def shortage(self) -> str:
        """A sentence on why it does not start; "" if it does."""
        if self.kv_bytes <= 0:
            return f"does not start, {format_bytes(-self.kv_bytes)} short before there is a KV cache"
        if not self.fits:
            longest = self.cache.longest(self.max_model_len)
            return f"does not start: a request of {self.max_model_len:,} tokens has no room, one of {longest:,} has"
        return ""

    @property
    def certain(self) -> bool:
        """Whether `fits` also holds within the margin."""
        need = self.cache.blocks_of_a_request(self.max_model_len) * self.cache.block_bytes
        return abs(self.kv_bytes - need) > self.margin_bytes

    @property
    def margin_bytes(self) -> int:
        """How far `kv_bytes` may be off, in either direction."""
        profiled_bytes = self.activation_bytes + self.reserved_graph_bytes + self.non_torch_bytes
        return self.engine.margin_bytes(profiled_bytes, self.flags.tensor_parallel)

    @property
    def reserved_graph_bytes(self) -> int:
        """By how much CUDA graphs reduce the KV cache."""
        if self.engine.graphs_reserved:
            return self.graph_bytes
        return 0

    @property
    def concurrency(self) -> float:
        return self.cache.concurrency(self.max_model_len)

    def users(self, length: int) -> int:
        """How many requests of ``length`` tokens fit at once, by memory and by ``--max-num-seqs``."""
        return min(int(self.cache.concurrency(length)), self.flags.max_num_seqs or 0)


@dataclass(frozen=True)
class Way:
    """A change of flags or another card, and what the server would serve with it.

    Attributes:
        change: the flag, or the name of the card.
        service: the server with the change.
        length: tokens of each request: as many as requested, or the most that fit.
        users: how many requests of that length fit at once.
        enough: whether number and length of the requests are those asked for.
    """

    change: str
    service: Service
    length: int
    users: int
    enough: bool

    @classmethod
    def of(cls, change: str, service: Service, users: int, length: int) -> Way:
        """How many of ``users`` requests of ``length`` tokens ``service`` serves."""
        possible = min(length, service.max_model_len)
        served = 0
        if service.fits:
            served = service.users(possible)
        return cls(change, service, possible, served, possible == length and served >= users)


def _usual_requests(card: ServerCard, server: ServerEngine) -> int:
    """vLLM's default for ``--max-num-seqs``."""
    if card.takes_large_batches and not server.batch_of_longest:
        return 1024
    return 256


def _usual_tokens(card: ServerCard, server: ServerEngine, requests: int, length: int) -> int:
    """vLLM's default for ``--max-num-batched-tokens``."""
    usual = 2048
    if server.batch_of_longest:
        # its first engine chunked only prompts beyond 32,768 tokens (EngineArgs.create_engine_config)
        if length <= LONGEST_WHOLE:
            usual = max(usual, length)
    elif card.takes_large_batches:
        usual = 8192
    return max(requests, usual)


class ModelServer:
    """A model to be served.

    Args:
        config: the whole ``config.json``.
        tensors: name, dtype and shape of every tensor in its safetensors files; empty if there are none.
        built: as in `ServedModel`.

    Raises:
        ValueError: in one sentence, if the config is not that of a language model.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Iterable[tuple[str, str, tuple[int, ...]]] = (),
        built: Sequence[Matrix] = (),
    ) -> None:
        self.model = ServedModel(config, built)
        self._tensors = tuple(tensors)
        self._weights: dict[tuple[int, int, str | None, bool, bool], tuple[int, str]] = {}

    def on(self, card: ServerCard, flags: ServerFlags) -> Service:
        """How the server would start on `ServerFlags.tensor_parallel` cards.

        Raises:
            ValueError: in one sentence, if flags are invalid or the weights are unknown.
        """
        model = self.model
        flags.check(model)
        if reason := card.why_not(flags.tensor_parallel):
            raise ValueError(f"--tensor-parallel {flags.tensor_parallel}: {reason}.")
        length = flags.max_model_len or model.longest
        if length is None:
            raise ValueError("config.json does not say how long requests may be; say it with --max-model-len.")
        server = self.engine(flags)
        requests = flags.max_num_seqs or _usual_requests(card, server)
        batched = flags.max_num_batched_tokens or _usual_tokens(card, server, requests, length)
        # a step computes at most the tokens of all requests together
        batched = min(batched, requests * length)
        filled = replace(flags, max_num_seqs=requests, max_num_batched_tokens=batched)
        number = model.dtype_bytes
        if flags.dtype != "auto":
            number = DTYPES[flags.dtype]
        ranks = flags.tensor_parallel
        weights, source = self._weights_of(ranks, number, flags, marlin=card.marlin, nested=server.nested_scales)
        sampled = requests
        if server.batch_of_longest and length > LONGEST_WHOLE:
            sampled = 0  # with chunked prefill no prompt of the profiled batch is completed
        activation = activation_bytes(
            model,
            server,
            batched_tokens=batched,
            requests=sampled,
            ranks=ranks,
            dtype_bytes=number,
            quantization=flags.quantization,
        )
        adapters = adapter_bytes(model, flags.max_loras, flags.max_lora_rank, ranks, number)
        graphs = 0
        if not flags.enforce_eager:
            graphs = graph_bytes(model, requests)
        non_torch = non_torch_bytes(server, ranks, shared_buffers=card.shares_buffers)
        left = int(card.total_bytes * flags.gpu_memory_utilization) - weights - adapters - non_torch
        if server.activations_reserved:
            left -= activation
        if server.graphs_reserved:
            left -= graphs
        cache = kv_cache(
            model,
            max(left, 0),
            ranks=ranks,
            kv_dtype=flags.kv_dtype,
            dtype_bytes=number,
            batched_tokens=batched,
            prefix_caching=flags.prefix_caching,
        )
        return Service(
            card,
            filled,
            weights,
            source,
            activation,
            graphs,
            non_torch,
            adapters,
            left,
            cache,
            length,
            server,
        )

    def _weights_of(
        self, ranks: int, number: int, flags: ServerFlags, *, marlin: bool, nested: bool
    ) -> tuple[int, str]:
        key = (ranks, number, flags.quantization, marlin, nested)
        if key not in self._weights:
            self._weights[key] = self._weigh(*key)
        return self._weights[key]

    def _weigh(self, ranks: int, number: int, quantization: str | None, marlin: bool, nested: bool) -> tuple[int, str]:
        stored = None
        if self._tensors:
            stored = checkpoint_bytes(self._tensors, self.model, ranks)
        try:
            computed = weight_bytes(self.model, ranks, number, quantization, marlin=marlin, nested=nested)
        except ValueError:
            if stored is None:
                raise
            return stored, "safetensors"
        requested_otherwise = quantization is not None or number != self.model.dtype_bytes
        if stored is None or requested_otherwise or abs(computed - stored) <= DISAGREEMENT * stored:
            return computed, "config"
        return stored, "safetensors"

    def ways(self, service: Service, users: int, length: int) -> list[Way]:
        """Changes of flags that serve more, and which of them serve ``users`` requests of ``length`` tokens."""
        flags = service.flags
        changes: dict[str, ServerFlags] = {}
        if (most := self.least_utilisation(service.card, flags, users, length)) is not None:
            changes[f"--gpu-memory-utilization {most:.2f}"] = replace(flags, gpu_memory_utilization=most)
        if flags.kv_dtype == "auto":
            changes["--kv-dtype fp8"] = replace(flags, kv_dtype="fp8")
        if not method_of(self.model.whole, flags.quantization):
            for method in ("fp8", "awq"):
                changes[f"--quantization {method}"] = replace(flags, quantization=method)
        for ranks in RANKS:
            if ranks > flags.tensor_parallel and self.model.heads % ranks == 0 and not service.card.is_alone:
                changes[f"--tensor-parallel {ranks}"] = replace(flags, tensor_parallel=ranks)
        if not service.fits and (longest := service.cache.longest(service.max_model_len)):
            shorter = min(length, longest)
            changes[f"--max-model-len {shorter}"] = replace(flags, max_model_len=shorter)
        if length > service.max_model_len and flags.allows(self.model, length):
            changes[f"--max-model-len {length}"] = replace(flags, max_model_len=length)
        if users > (flags.max_num_seqs or users):
            changes[f"--max-num-seqs {users}"] = replace(flags, max_num_seqs=users)
        now = self._way("", service.card, flags, users, length).users
        found = [self._way(change, service.card, changed, users, length) for change, changed in changes.items()]
        none = service.kv_bytes <= 0  # then any change that leaves room for a cache is worth listing
        return [way for way in found if way.users > now or way.enough or (none and way.service.kv_bytes > 0)]

    def _way(self, change: str, card: ServerCard, flags: ServerFlags, users: int, length: int) -> Way:
        return Way.of(change, self.on(card, flags), users, length)

    def least_utilisation(self, card: ServerCard, flags: ServerFlags, users: int, length: int) -> float | None:
        """The smallest share of the card that serves ``users`` requests of ``length`` tokens, if any."""
        flags = replace(flags, max_num_seqs=flags.max_num_seqs or self._requests(card, flags, users))
        for share in UTILISATIONS:
            if self._way("", card, replace(flags, gpu_memory_utilization=share), users, length).enough:
                return share
        return None

    def _requests(self, card: ServerCard, flags: ServerFlags, users: int) -> int:
        return max(users, _usual_requests(card, self.engine(flags)))

    def engine(self, flags: ServerFlags) -> ServerEngine:
        """The engine for these flags and this model."""
        dense = not self.model.experts and not self.model.latent and {*self.model.kinds} <= {FULL, SLIDING}
        return engine(flags.engine, plain=dense and not method_of(self.model.whole, flags.quantization))

    def cards(self, flags: ServerFlags, users: int, length: int) -> list[Way]:
        """For each card known by name, the fewest that serve ``users`` requests of ``length`` tokens, the least memory
        first. `ServerFlags.tensor_parallel` of `Way.service` is their number."""
        found = []
        for gpu in KNOWN_GPUS:
            if gpu.capability < LEAST_CAPABILITY:
                continue
            card = ServerCard.known(gpu)
            for ranks in RANKS:
                if self.model.heads % ranks or (ranks > 1 and card.is_alone):
                    continue
                sized = replace(flags, tensor_parallel=ranks, max_num_seqs=self._requests(card, flags, users))
                way = self._way(gpu.name, card, sized, users, length)
                if way.enough:
                    found.append(way)
                    break
        return sorted(found, key=lambda way: way.service.card.total_bytes * way.service.flags.tensor_parallel)


class ServingAnswer:
    """A planned server, and the changes that would serve as many users as requested, which are computed on first use.

    Args:
        path: of the model.
        server: the model.
        service: as requested.
        length: tokens of each request.
        users: how many should be served; ``None`` if not given.
    """

    def __init__(self, path: str, server: ModelServer, service: Service, length: int, users: int | None) -> None:
        self.path = path
        self.server = server
        self.service = service
        self.length = length
        self.users = users
        self.way = Way.of("", service, users or 1, length)
        self.served = self.way.users
        self.enough = self.way.enough

    @cached_property
    def ways(self) -> list[Way]:
        """Changes of flags that would serve more."""
        if self._suffices:
            return []
        return self.server.ways(self.service, self.users or 1, self.length)

    @cached_property
    def cards(self) -> list[Way]:
        """Cards that would serve as many users as requested."""
        if self._suffices:
            return []
        return self.server.cards(self.service.flags, self.users or 1, self.length)

    @cached_property
    def utilisation(self) -> float | None:
        """The smallest share of the card that would."""
        return self.server.least_utilisation(self.service.card, self.service.flags, self.users or 1, self.length)

    @property
    def _suffices(self) -> bool:
        # a server that starts needs no change unless more users were requested
        return self.users is None and self.service.fits

    def to_json(self) -> dict[str, Any]:
        """The answer in the format that ``resources/guide/json.md`` describes."""
        service = self.service
        cache = service.cache
        fits = None
        if service.certain:
            fits = service.fits
        return {
            "status": "finished",
            "model": self.path,
            "family": self.server.model.family,
            "card": service.card.name,
            "cards": service.flags.tensor_parallel,
            "card_bytes": service.card.total_bytes,
            "flags": {flag.name: getattr(service.flags, flag.name) for flag in fields(ServerFlags)},
            "fits": fits,
            "weights_bytes": service.weights_bytes,
            "weights_from": service.weights_from,
            "activation_bytes": service.activation_bytes,
            "non_torch_bytes": service.non_torch_bytes,
            "graph_bytes": service.graph_bytes,
            "kv_bytes": service.kv_bytes,
            "adapter_bytes": service.adapter_bytes,
            "margin_bytes": service.margin_bytes,
            "token_bytes": cache.token_bytes,
            "block_tokens": cache.groups[0].block_tokens,
            "blocks": cache.blocks,
            "max_model_len": service.max_model_len,
            "tokens": cache.tokens(service.max_model_len),
            "concurrency": service.concurrency,
            "length": self.length,
            "users": self.served,
            "users_asked": self.users,
            "enough": self.enough,
            "least_utilization": self.utilisation,
            "ways": list(map(_way, self.ways)),
            "cards_that_serve": list(map(_way, self.cards)),
        }


def _way(way: Way) -> dict[str, Any]:
    service = way.service
    return {
        "change": way.change,
        "card": service.card.key or None,
        "cards": service.flags.tensor_parallel,
        "card_bytes": service.card.total_bytes,
        "kv_bytes": service.kv_bytes,
        "length": way.length,
        "users": way.users,
        "enough": way.enough,
    }

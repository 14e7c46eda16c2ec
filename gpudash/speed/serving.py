"""How fast a language model server answers: time to the first token, tokens per second for each user and in total.

A decoding step reads all weights once, however many requests share it, and the keys and values of each request; its
products take longer than reading the weights only for many requests. A prompt is computed at once, so it is limited by
arithmetic. With tensor parallelism each layer needs two sums over the ranks.

The constants were fitted on 2026-11-29 to the 18 rows for GPT-J in NVIDIA's table for TensorRT-LLM 0.5 and 0.6.1
(December 2023; H100 and L40S in fp8, A100 in fp16, 1 to 1024 requests, one and two cards): median error 5 %, the
largest 15 % (``python -m tests.speed.serving_rows fit``, rounded). That of the bandwidth was fixed beforehand, as
PyTorch's kernels reach it. Nothing else was fitted; ``resources/guide/serving.md`` says how well it does on Llama 2,
Falcon and Llama 3, other cards, up to eight of them, and other servers. Not included: time in a queue, on the network,
and for tokenizing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpudash.devices.card_performance import CardPerformance


@dataclass(frozen=True)
class ServingConstants:
    """Constants that turn a card's figures into times.

    Attributes:
        bandwidth_share: share of the memory bandwidth reached when reading weights, keys and values.
        products_share: share of the tensor cores' peak reached by large products.
        generating_layer_s: additional time of a layer's kernels, beyond reading and computing, in a decoding step.
        reading_layer_s: the same for reading prompts, where the host launches the kernels one by one.
        sum_s: additional time of a sum over ranks, beyond its bytes; based on a single pair of rows.
    """

    bandwidth_share: float = 0.82
    products_share: float = 0.66
    generating_layer_s: float = 50e-6
    reading_layer_s: float = 170e-6
    sum_s: float = 50e-6


FITTED = ServingConstants()

SPREAD = 1.35
"""Factor from the median to either end of the interval: twice the fit's residuals, to cover models and servers other
than those in the fit."""

WIDE_SPREAD = 1.6
"""The same if the card's figures are guesses, weights are in formats that must be unpacked, or several cards share the
model."""


@dataclass(frozen=True)
class ServedWork:
    """What each card of a server reads and computes.

    Attributes:
        layers: number of layers.
        hidden: width between layers.
        weights_bytes: bytes on each card.
        expert_bytes: the part of them that belongs to experts, of which a token uses a few.
        experts: number per layer, 0 for a dense model.
        experts_of_a_token: number that a token uses.
        parameters: number on each card that a token is multiplied with.
        token_bytes: bytes of keys and values on each card for one more token, in layers that keep all tokens.
        window_token_bytes: the same in layers that keep a window.
        window: number of tokens that these keep.
        state_bytes: bytes of a request's state on each card, whatever its length.
        attention_width: width of all heads on each card together, times the layers that keep all tokens.
        arithmetic: kind of the products, as in `CardPerformance.flops`.
        ranks: number of cards that share the model.
        unpacked: whether weights are in a format that kernels unpack, such as 4 bits.
    """

    layers: int
    hidden: int
    weights_bytes: float
    parameters: float
    token_bytes: float
    attention_width: float
    arithmetic: str = "float16"
    ranks: int = 1
    expert_bytes: float = 0.0
    experts: int = 0
    experts_of_a_token: int = 1
    window_token_bytes: float = 0.0
    window: int = 0
    state_bytes: float = 0.0
    unpacked: bool = False

    def weight_bytes(self, tokens: int) -> float:
        """Bytes of weights read by a step over so many tokens: of experts those that any of the tokens uses."""
        if not self.experts:
            return self.weights_bytes
        # Assume that tokens choose at random: each one leaves out a given expert with the same probability.
        alone = (1 - self.experts_of_a_token / self.experts) ** tokens
        return self.weights_bytes - self.expert_bytes * alone

    def kept_bytes(self, length: float) -> float:
        """Bytes of keys and values of a request of ``length`` tokens on each card."""
        return self.token_bytes * length + self.window_token_bytes * min(length, self.window) + self.state_bytes


@dataclass(frozen=True)
class ServingTime:
    """How fast a server is predicted to answer. Times in seconds.

    Attributes:
        users: concurrent requests.
        prompt: tokens read per request.
        answer: tokens generated per request.
        first_token_s: time from the start of a request to its first token, while the others generate.
        together_first_token_s: the same for the last request, if all arrive at once.
        tokens_per_s: tokens generated in total, with new prompts in between.
        alone_first_token_s: time to the first token of a single request.
        alone_tokens_per_s: tokens generated for a single request.
        bound: what limits generation for so many: "memory bandwidth", "compute", "launches" or "communication".
        spread: factor from each figure to either end of its interval.
        source: basis of the constants, in a sentence.
    """

    users: int
    prompt: int
    answer: int
    first_token_s: float
    together_first_token_s: float
    tokens_per_s: float
    alone_first_token_s: float
    alone_tokens_per_s: float
    bound: str
    spread: float
    source: str

    @property
    def tokens_per_s_user(self) -> float:
        """Tokens generated for each of the users."""
        return self.tokens_per_s / self.users

    def to_dict(self) -> dict[str, Any]:
        """The JSON key ``time`` of ``gpudash estimate --task serve``."""
        document: dict[str, Any] = {"predicted": True}
        for name in ("users", "prompt", "answer"):
            document[name] = getattr(self, name)
        for name in (
            "first_token_s",
            "together_first_token_s",
            "tokens_per_s_user",
            "tokens_per_s",
            "alone_first_token_s",
            "alone_tokens_per_s",
        ):
            value = getattr(self, name)
            document[name] = value
            document[f"{name}_low"] = value / self.spread
            document[f"{name}_high"] = value * self.spread
        return {**document, "bound": self.bound, "source": self.source}


@dataclass(frozen=True)
class _Parts:
    """A step's time, by what limits it."""

    memory_s: float
    compute_s: float
    launches_s: float
    communication_s: float

    @property
    def total_s(self) -> float:
        return self.memory_s + self.compute_s + self.launches_s + self.communication_s

    @property
    def bound(self) -> str:
        by_name = {
            "memory bandwidth": self.memory_s,
            "compute": self.compute_s,
            "launches": self.launches_s,
            "communication": self.communication_s,
        }
        return max(by_name, key=by_name.__getitem__)


def serving_time(
    work: ServedWork, card: CardPerformance, users: int, prompt: int, answer: int, constants: ServingConstants = FITTED
) -> ServingTime:
    """Predict how fast a server on ``card`` answers.

    Args:
        users: concurrent requests.
        prompt: tokens read per request.
        answer: tokens generated per request.

    Raises:
        ValueError: if one of them is less than 1.
    """
    if min(users, prompt, answer) < 1:
        raise ValueError("A request has a prompt and an answer of at least one token each.")
    middle = prompt + answer / 2
    step = generating(work, card, users, middle, constants)
    # For every finished answer one prompt has to be read.
    together = reading(work, card, users, prompt, constants).total_s
    whole_s = together + answer * step.total_s
    alone = reading(work, card, 1, prompt, constants).total_s
    first = alone
    if users > 1:
        first += step.total_s
    return ServingTime(
        users=users,
        prompt=prompt,
        answer=answer,
        first_token_s=first,
        together_first_token_s=together,
        tokens_per_s=users * answer / whole_s,
        alone_first_token_s=alone,
        alone_tokens_per_s=1 / generating(work, card, 1, middle, constants).total_s,
        bound=step.bound,
        spread=spread_of(work, card),
        source=f"{card.source}; constants fitted on TensorRT-LLM's published GPT-J rows (December 2023)",
    )


def spread_of(work: ServedWork, card: CardPerformance) -> float:
    """The factor from each figure to either end of its interval.

    The one for several cards was widened after the blind rows: the table's release read grouped keys once for each
    query head, which no later release does.
    """
    if card.derived or work.unpacked or work.ranks > 1:
        return WIDE_SPREAD
    return SPREAD


def generating(
    work: ServedWork, card: CardPerformance, requests: int, length: float, constants: ServingConstants = FITTED
) -> _Parts:
    """A step that generates one token for each request with ``length`` kept tokens."""
    weights = _products(work, card, requests, constants)
    kept_s = requests * work.kept_bytes(length) / (card.bytes_per_s * constants.bandwidth_share)
    return replace(
        weights,
        memory_s=weights.memory_s + kept_s,
        launches_s=work.layers * constants.generating_layer_s,
        communication_s=_sums_s(work, card, requests, constants),
    )


def reading(
    work: ServedWork, card: CardPerformance, requests: int, prompt: int, constants: ServingConstants = FITTED
) -> _Parts:
    """The step that reads the prompts of so many requests at once."""
    tokens = requests * prompt
    products = _products(work, card, tokens, constants)
    # Each token attends to those before it, half of all on average; a multiplication and an addition for scores and
    # values.
    # In 16 bits, like keys and values: attention in fp8 was not common.
    flops = requests * 2 * 2 * prompt * prompt / 2 * work.attention_width
    attention_s = flops / (_peak(card, "float16") * constants.products_share)
    return replace(
        products,
        compute_s=products.compute_s + attention_s,
        launches_s=work.layers * constants.reading_layer_s,
        communication_s=_sums_s(work, card, tokens, constants),
    )


def _products(work: ServedWork, card: CardPerformance, tokens: int, constants: ServingConstants) -> _Parts:
    """Time of all matrices for so many tokens: reading them or computing, whichever takes longer."""
    read_s = work.weight_bytes(tokens) / (card.bytes_per_s * constants.bandwidth_share)
    compute_s = 2 * work.parameters * tokens / (_peak(card, work.arithmetic) * constants.products_share)
    if read_s >= compute_s:
        return _Parts(read_s, 0.0, 0.0, 0.0)
    return _Parts(0.0, compute_s, 0.0, 0.0)


def _peak(card: CardPerformance, arithmetic: str) -> float:
    """Peak for the requested kind, else for the next wider one that the card supports."""
    widening = ["float8", "float16", "float32"]
    if arithmetic == "bfloat16":
        widening = ["bfloat16", "float32"]
    kinds = widening[widening.index(arithmetic) :]
    return next(card.flops[kind] for kind in kinds if kind in card.flops)


def _sums_s(work: ServedWork, card: CardPerformance, tokens: int, constants: ServingConstants) -> float:
    """Time of two sums per layer of 16-bit numbers, in a ring of ranks."""
    if work.ranks == 1:
        return 0.0
    sent = 2 * (work.ranks - 1) / work.ranks * tokens * work.hidden * 2
    return 2 * work.layers * (constants.sum_s + sent / card.peer_bytes_per_s)

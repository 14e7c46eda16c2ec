"""How fast a server of a language model answers: time to the first token, tokens a second for each user and in all.

A step that generates reads all weights once, however many requests share it, and the keys and values of each request;
its products take longer than its weights only for many requests. Prompts are computed at once, so that arithmetic is
what they wait for. Between ranks of tensor parallelism two sums go around in each layer.

The constants are fitted on the 18 rows of GPT-J of NVIDIA's table for TensorRT-LLM 0.5 and 0.6.1 (December 2023; H100
and L40S in fp8, A100 in fp16, 1 to 1024 requests, one and two cards), on 2026-11-29: median error 5 %, the largest 15 %
(``python -m tests.speed.serving_rows fit``, rounded). That of the bandwidth is fixed beforehand, as reached by kernels
of PyTorch. Nothing else was fitted; how well it does on Llama 2, Falcon and Llama 3, other cards, up to eight of them,
and other servers, is in ``resources/guide/serving.md``. No time is known here of waiting in a queue, of the network, or
of splitting words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpudash.devices.card_performance import CardPerformance


@dataclass(frozen=True)
class ServingConstants:
    """What turns a card's figures into times.

    Attributes:
        bandwidth_share: of the memory's bandwidth that reading weights, keys and values reaches.
        products_share: of the tensor cores' peak that large products reach.
        generating_layer_s: a layer's kernels take so much more than reading and computing, in a step that generates.
        reading_layer_s: the same where prompts are read, whose kernels the host starts one by one.
        sum_s: a sum over ranks takes so much more than its bytes; known of one pair of rows alone.
    """

    bandwidth_share: float = 0.82
    products_share: float = 0.66
    generating_layer_s: float = 50e-6
    reading_layer_s: float = 170e-6
    sum_s: float = 50e-6


FITTED = ServingConstants()

SPREAD = 1.35
"""The interval goes from the median by this factor either way: twice the fit's residuals, for models and servers other
than those fitted on."""

WIDE_SPREAD = 1.6
"""The same where the card's figures are guessed, weights are stored in formats that have to be unpacked, or several
cards share the model."""


@dataclass(frozen=True)
class ServedWork:
    """What each card of a server reads and computes.

    Attributes:
        layers: of the model.
        hidden: width between layers.
        weights_bytes: on each card.
        expert_bytes: of those, what belongs to experts of which a token takes a few.
        experts: of a layer, 0 for a dense model.
        experts_of_a_token: how many a token takes.
        parameters: on each card, that a token is multiplied with.
        token_bytes: of keys and values on each card, of one more token in layers that keep all.
        window_token_bytes: the same in layers that keep a window.
        window: tokens that these keep.
        state_bytes: of a request on each card, whatever its length.
        attention_width: of all heads on each card together, times layers that keep all.
        arithmetic: kind of the products, of `CardPerformance.flops`.
        ranks: cards that share the model.
        unpacked: whether weights are stored in a format that kernels unpack, such as 4 bits.
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
        """Weights that a step over so many tokens reads: of experts those that any of them takes."""
        if not self.experts:
            return self.weights_bytes
        # Tokens pick as if at random: an expert is left alone by each with the same chance.
        alone = (1 - self.experts_of_a_token / self.experts) ** tokens
        return self.weights_bytes - self.expert_bytes * alone

    def kept_bytes(self, length: float) -> float:
        """Keys and values that a request of ``length`` tokens has on each card."""
        return self.token_bytes * length + self.window_token_bytes * min(length, self.window) + self.state_bytes


@dataclass(frozen=True)
class ServingTime:
    """How fast a server is predicted to answer. Times in seconds.

    Attributes:
        users: requests at a time.
        prompt: tokens of each that are read.
        answer: tokens of each that are generated.
        first_token_s: from a request's start to its first token, while the others generate.
        together_first_token_s: the same of the last one, when all of them come at once.
        tokens_per_s: generated in all, new prompts between them.
        alone_first_token_s: the same of a request that is alone.
        alone_tokens_per_s: generated for a request that is alone.
        bound: what generating for so many waits for: "memory bandwidth", "compute", "launches" or "communication".
        spread: the interval goes from each figure by this factor either way.
        source: what the constants come from, in a sentence.
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
        """Generated for each of the users."""
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
    """A step's time by what it waits for."""

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
    """How fast a server on ``card`` answers.

    Args:
        users: requests at a time.
        prompt: tokens of each that are read.
        answer: tokens of each that are generated.

    Raises:
        ValueError: when one of them is less than 1.
    """
    if min(users, prompt, answer) < 1:
        raise ValueError("A request has a prompt and an answer of at least one token each.")
    middle = prompt + answer / 2
    step = generating(work, card, users, middle, constants)
    # As many prompts have to be read as answers are finished.
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
    """The factor by which the interval goes from each figure, either way.

    That of several cards was widened after the blind rows: the table's release read the keys of heads in groups once
    for each head of queries, which no later one does.
    """
    if card.derived or work.unpacked or work.ranks > 1:
        return WIDE_SPREAD
    return SPREAD


def generating(
    work: ServedWork, card: CardPerformance, requests: int, length: float, constants: ServingConstants = FITTED
) -> _Parts:
    """A step that generates one token for each request, of which ``length`` tokens are kept."""
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
    # Each token looks at those before it, half of all on average; a product and an addition for scores and values.
    # In the width that keys and values have: attention in fp8 was not common.
    flops = requests * 2 * 2 * prompt * prompt / 2 * work.attention_width
    attention_s = flops / (_peak(card, "float16") * constants.products_share)
    return replace(
        products,
        compute_s=products.compute_s + attention_s,
        launches_s=work.layers * constants.reading_layer_s,
        communication_s=_sums_s(work, card, tokens, constants),
    )


def _products(work: ServedWork, card: CardPerformance, tokens: int, constants: ServingConstants) -> _Parts:
    """Of all matrices with so many tokens: whichever takes longer, reading them or computing."""
    read_s = work.weight_bytes(tokens) / (card.bytes_per_s * constants.bandwidth_share)
    compute_s = 2 * work.parameters * tokens / (_peak(card, work.arithmetic) * constants.products_share)
    if read_s >= compute_s:
        return _Parts(read_s, 0.0, 0.0, 0.0)
    return _Parts(0.0, compute_s, 0.0, 0.0)


def _peak(card: CardPerformance, arithmetic: str) -> float:
    """Of the kind that is asked for, else of the next wider one that the card has."""
    widening = ["float8", "float16", "float32"]
    if arithmetic == "bfloat16":
        widening = ["bfloat16", "float32"]
    kinds = widening[widening.index(arithmetic) :]
    return next(card.flops[kind] for kind in kinds if kind in card.flops)


def _sums_s(work: ServedWork, card: CardPerformance, tokens: int, constants: ServingConstants) -> float:
    """Two sums in each layer, around a ring of ranks, of numbers of 16 bits."""
    if work.ranks == 1:
        return 0.0
    sent = 2 * (work.ranks - 1) / work.ranks * tokens * work.hidden * 2
    return 2 * work.layers * (constants.sum_s + sent / card.peer_bytes_per_s)

"""How fast a server of a model answers: from what it would take of its cards to `gpudash.speed.serving`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudash.devices.card_performance import CardPerformance, performance_of
from gpudash.memory.quantisation import QuantisationError
from gpudash.memory.serving.kv_cache import kv_number_bytes
from gpudash.memory.serving.plan import Service, ServingAnswer, Way
from gpudash.memory.serving.served_model import DTYPES, FULL, KNOWN, STATE, Matrix, ServedModel
from gpudash.memory.serving.weights import quantisation
from gpudash.speed.serving import ServedWork, ServingTime, serving_time

USUAL_ANSWER = 0.25
"""Of a request's tokens, where nobody says how many are its answer."""


@dataclass(frozen=True)
class ServerTimes:
    """How fast a server and what would serve more are predicted to answer; ``None`` of one that does not start, or of
    which it is not known what its card can do, or how many matrices its model has.

    Attributes:
        requested: of the server that was asked for.
        ways: in the order of `ServingAnswer.ways`.
        cards: in the order of `ServingAnswer.cards`.
    """

    requested: ServingTime | None
    ways: tuple[ServingTime | None, ...] = ()
    cards: tuple[ServingTime | None, ...] = ()

    def joined(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`ServingAnswer.to_json` with a ``time`` in it, and in each way and card."""
        whole = {**document, "time": _time_json(self.requested)}
        for name, times in (("ways", self.ways), ("cards_that_serve", self.cards)):
            rows = zip(document[name], times, strict=True)
            whole[name] = [{**row, "time": _time_json(time)} for row, time in rows]
        return whole


def _time_json(time: ServingTime | None) -> dict[str, Any] | None:
    if time is None:
        return None
    return time.to_dict()


def server_times(
    answer: ServingAnswer, own: Mapping[str, CardPerformance], answer_tokens: int | None = None
) -> ServerTimes:
    """How fast a server, and each of what would serve more, answers as many as it serves of those asked for.

    Args:
        answer: what each takes.
        own: cards of the user's, by name.
        answer_tokens: of each request; ``None`` for a quarter.

    Raises:
        ValueError: one sentence, when an answer leaves no prompt.
    """

    def of_way(way: Way) -> ServingTime | None:
        # A way may be shorter requests, of which such an answer leaves no prompt.
        if answer_tokens is not None and answer_tokens >= way.length:
            return None
        return time_of(answer, way, own, answer_tokens)

    requested = time_of(answer, answer.way, own, answer_tokens)
    return ServerTimes(requested, tuple(map(of_way, answer.ways)), tuple(map(of_way, answer.cards)))


def time_of(
    answer: ServingAnswer, way: Way, own: Mapping[str, CardPerformance], answer_tokens: int | None = None
) -> ServingTime | None:
    """How fast a server answers as many as it serves of those asked for; arguments and errors of `server_times`.

    ``None`` of one that does not start, or of which it is not known what its card can do, how many matrices its model
    has or how these are packed.
    """
    card = performance_of(way.service.card.key or way.service.card.name, own)
    if card is None or way.users < 1 or way.length < 2 or answer.server.model.family not in KNOWN:
        return None
    users = min(answer.users or way.users, way.users)
    try:
        return server_time(answer.server.model, way.service, card, users, way.length, answer_tokens)
    except QuantisationError:
        return None  # the files' headers say what such weights take, and nothing how they are multiplied


def server_time(
    model: ServedModel, service: Service, card: CardPerformance, users: int, length: int, answer: int | None = None
) -> ServingTime:
    """How fast ``service`` answers, on cards that can do so much.

    Args:
        users: requests at a time.
        length: tokens of each, prompt and answer.
        answer: how many of these are generated; ``None`` for a quarter.

    Raises:
        ValueError: one sentence, when the model's matrices are not known, or an answer leaves no prompt.
    """
    if answer is None:
        answer = max(int(length * USUAL_ANSWER), 1)
    if not 0 < answer < length:
        raise ValueError(f"--answer {answer:,} leaves no prompt of requests of {length:,} tokens.")
    return serving_time(_work(model, service), card, users, length - answer, answer)


def _work(model: ServedModel, service: Service) -> ServedWork:
    flags = service.flags
    ranks = flags.tensor_parallel
    multiplied = 0.0
    stored = 0
    of_experts = 0
    for matrix in model.matrices():
        numbers = matrix.count * matrix.inputs * matrix.outputs
        if ".experts." in matrix.name:
            of_experts += numbers
            multiplied += numbers * model.experts_of_a_token / model.experts
        elif _is_multiplied(matrix, model):
            multiplied += numbers
        stored += numbers
    number = model.dtype_bytes
    if flags.dtype != "auto":
        number = DTYPES[flags.dtype]
    windows = [kind for kind in model.kinds if kind not in (FULL, STATE)]
    window_token_bytes = 0
    for kind in windows:
        heads, width = model.kv_shape(kind)
        window_token_bytes += 2 * max(heads // ranks, 1) * width * kv_number_bytes(flags.kv_dtype, number)
    state_bytes = 0
    if STATE in model.kinds:
        state_bytes = model.kinds.count(STATE) * model.state_bytes(ranks, number)
    attending = len(model.kinds) - model.kinds.count(STATE)
    arithmetic, unpacked = _arithmetic(model, service)
    return ServedWork(
        layers=model.layers,
        hidden=model.hidden,
        weights_bytes=service.weights_bytes,
        expert_bytes=service.weights_bytes * of_experts / stored,
        experts=model.experts if of_experts else 0,
        experts_of_a_token=model.experts_of_a_token,
        parameters=multiplied / ranks,
        token_bytes=0 if FULL not in model.kinds else service.cache.token_bytes,
        window_token_bytes=window_token_bytes,
        window=model.window or model.chunk or 0,
        state_bytes=state_bytes,
        attention_width=attending * model.heads * model.head_dim / ranks,
        arithmetic=arithmetic,
        ranks=ranks,
        unpacked=unpacked,
    )


def _is_multiplied(matrix: Matrix, model: ServedModel) -> bool:
    """Whether each token is multiplied with a matrix: not with what sees, nor with a copy, nor with an embedding that
    is not the output too."""
    if matrix.name == "model.embed_tokens":
        return model.tied
    if matrix.name.endswith(".absorbed"):
        return False
    return not matrix.name.startswith(("vision_tower", "multi_modal"))


def _arithmetic(model: ServedModel, service: Service) -> tuple[str, bool]:
    """The kind of a server's products, and whether its weights have to be unpacked for them."""
    how = quantisation(model.whole, service.flags.quantization)
    if how is not None and how.eight_bit_inputs:
        return "float8", False
    name = service.flags.dtype
    if name == "auto":
        name = str(model.text.get("dtype") or model.text.get("torch_dtype") or model.whole.get("torch_dtype"))
    if name == "float32" and service.flags.dtype == "float32":
        return "float32", how is not None
    if name == "float16":
        return "float16", how is not None
    return "bfloat16", how is not None

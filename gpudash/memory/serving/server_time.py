"""How fast a model server answers: passes what it needs on its cards to `gpudash.speed.serving`."""

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
"""The part of a request's tokens that is its answer, unless given."""


@dataclass(frozen=True)
class ServerTimes:
    """Predicted speed of a server and of its alternatives. ``None`` for one that does not start, or if the performance
    of its card or the number of its model's matrices is unknown.

    Attributes:
        requested: of the requested server.
        ways: in the order of `ServingAnswer.ways`.
        cards: in the order of `ServingAnswer.cards`.
    """

    requested: ServingTime | None
    ways: tuple[ServingTime | None, ...] = ()
    cards: tuple[ServingTime | None, ...] = ()

    def joined(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`ServingAnswer.to_json` with a ``time`` added to it and to each way and card."""
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
    """Predict how fast a server, and each of its alternatives, answers as many of the requested users as it serves.

    Args:
        answer: the server and its alternatives.
        own: the user's own cards, by name.
        answer_tokens: tokens generated per request; ``None`` for a quarter of the request.

    Raises:
        ValueError: in one sentence, if an answer leaves no tokens for the prompt.
    """

    def of_way(way: Way) -> ServingTime | None:
        # An alternative may have shorter requests, in which such an answer leaves no prompt.
        if answer_tokens is not None and answer_tokens >= way.length:
            return None
        return time_of(answer, way, own, answer_tokens)

    requested = time_of(answer, answer.way, own, answer_tokens)
    return ServerTimes(requested, tuple(map(of_way, answer.ways)), tuple(map(of_way, answer.cards)))


def time_of(
    answer: ServingAnswer, way: Way, own: Mapping[str, CardPerformance], answer_tokens: int | None = None
) -> ServingTime | None:
    """Predict how fast a server answers as many of the requested users as it serves; see `server_times`.

    ``None`` if it does not start, or if the performance of its card, the number of its model's matrices or how they
    are packed is unknown.
    """
    card = performance_of(way.service.card.key or way.service.card.name, own)
    if card is None or way.users < 1 or way.length < 2 or answer.server.model.family not in KNOWN:
        return None
    users = min(answer.users or way.users, way.users)
    try:
        return server_time(answer.server.model, way.service, card, users, way.length, answer_tokens)
    except QuantisationError:
        return None  # the files' headers give the size of such weights, but not how they are multiplied


def server_time(
    model: ServedModel, service: Service, card: CardPerformance, users: int, length: int, answer: int | None = None
) -> ServingTime:
    """Predict how fast ``service`` answers on cards of this performance.

    Args:
        users: requests at a time.
        length: tokens of each request, prompt and answer together.
        answer: how many of these are generated; ``None`` for a quarter.

    Raises:
        ValueError: in one sentence, if the model's matrices are unknown, or an answer leaves no tokens for the prompt.
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
    """Whether each token is multiplied with the matrix. False for the vision part, copies, and embeddings that are not
    also the output."""
    if matrix.name == "model.embed_tokens":
        return model.tied
    if matrix.name.endswith(".absorbed"):
        return False
    return not matrix.name.startswith(("vision_tower", "multi_modal"))


def _arithmetic(model: ServedModel, service: Service) -> tuple[str, bool]:
    """The arithmetic of a server's matrix products, and whether its weights must be unpacked for them."""
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

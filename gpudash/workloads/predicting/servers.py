"""What a model server needs on many cards: the model is read once, and each card takes only arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpudash.devices.card_performance import CardPerformance
from gpudash.devices.known_gpus import SIMULATED_PREFIX
from gpudash.devices.simulated_cards import card_called
from gpudash.memory.predicting.estimate import CardRequest
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags, ServingAnswer
from gpudash.memory.serving.served_model import ServedModel
from gpudash.memory.serving.server_time import time_of
from gpudash.simulator.models.config import read
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs.model import ModelSpec
from gpudash.system.own_cards import own_cards
from gpudash.workloads.running.installed import missing_torch

DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision of a model → the server's name for it."""

SAY_WEIGHTS = "Put its safetensors files or their index beside config.json: they say its weights."

NEEDS_GPU = "a server needs a GPU"


def model_server(path: str) -> ModelServer:
    """The model in a folder or its ``config.json``, to be served.

    Raises:
        CannotPredictError: in one sentence, if there is none.
        ValueError: in one sentence, if it is not a language model.
    """
    found = read(path)
    stored = found.stored
    if stored is None and not ServedModel(found.values).is_known:
        # build it with transformers, because nothing else describes its weights
        try:
            from gpudash.simulator.models.matrices import matrices_of

            return ModelServer(found.values, (), matrices_of(found))
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise CannotPredictError("request", f"{missing_torch(error)}.", SAY_WEIGHTS) from None
        except CannotPredictError as error:
            raise CannotPredictError(error.kind, str(error), SAY_WEIGHTS) from None
    if stored is None:
        return ModelServer(found.values)
    tensors = [(name, stored.dtypes[name], shape) for name, shape in stored.shapes.items()]
    # Only the bytes matter to a server: if the files' index gives only a total, one tensor of bytes stands for all.
    return ModelServer(found.values, tensors or [("the index's total", "U8", (stored.total_bytes, 1))])


def servers_on(spec: ModelSpec, requested: Iterable[CardRequest], first: str) -> list[dict[str, Any]]:
    """A `ServerOnCard` for each card, in plain values.

    Args:
        spec: the model, and the users it should serve.
        requested: the cards.
        first: key of the card for which changes that would serve more are listed too.

    Raises:
        CannotPredictError: in one sentence, if there is no such model, or it cannot be served.
    """
    try:
        server = model_server(spec.folder)
        known = own_cards().performance
        return [asdict(_on_card(spec, server, card, known, ways=card.key == first)) for card in requested]
    except ValueError as error:
        raise CannotPredictError("request", str(error), "Change the fields named in the message.") from None


def _on_card(
    spec: ModelSpec,
    server: ModelServer,
    request: CardRequest,
    known: Mapping[str, CardPerformance],
    *,
    ways: bool,
) -> ServerOnCard:
    target = request.target
    if target.device == "cpu" or target.capacity_bytes is None:
        return ServerOnCard(request.key, reason=NEEDS_GPU)
    card = _server_card(target.product, target.capacity_bytes)
    if reason := card.why_not(spec.tensor_parallel):
        return ServerOnCard(request.key, reason=reason)
    service = server.on(card, flags_of(spec))
    answer = ServingAnswer(spec.path, server, service, service.max_model_len, spec.users or None)
    return ServerOnCard.of(request.key, answer, time_of(answer, answer.way, known), ways=ways)


def _server_card(product: str, size: int) -> ServerCard:
    if not product or product.startswith(SIMULATED_PREFIX):
        return ServerCard.named(card_called(product, size))
    return ServerCard.found(product, size)


def flags_of(spec: ModelSpec) -> ServerFlags:
    """The flags the server is started with."""
    quantization = None
    if spec.quantisation != "auto":
        quantization = spec.quantisation
    return ServerFlags(
        max_model_len=spec.sequence or None,
        tensor_parallel=spec.tensor_parallel,
        dtype=DTYPES[spec.precision],
        quantization=quantization,
        engine=spec.engine or ServerFlags.engine,
    )

"""What is answered about a server of a model: as asked for, and what would serve as many as asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpudash.memory.serving.plan import ModelServer, Service, Way
from gpudash.memory.serving.profiling import MARGIN_BYTES


class ServingAnswer:
    """A service, and what would serve as many as asked.

    Args:
        path: of the model.
        server: the model.
        service: as asked for.
        length: tokens of each request.
        users: requests that are to be served; ``None`` when nobody asked.
    """

    def __init__(self, path: str, server: ModelServer, service: Service, length: int, users: int | None) -> None:
        self.path, self.server, self.service, self.length, self.users = path, server, service, length, users
        self.served = service.users(min(length, service.max_model_len)) if service.fits else 0
        self.enough = service.fits and length <= service.max_model_len and self.served >= (users or 1)
        wanted = users or 1
        looked_for = users is not None or not service.fits
        self.ways: list[Way] = server.ways(service, wanted, length) if looked_for else []
        self.cards: list[Way] = server.cards(service.flags, wanted, length) if looked_for else []
        self.utilisation = server.least_utilisation(service.card, service.flags, wanted, length)

    def to_json(self) -> dict[str, Any]:
        """As ``resources/guide/json.md`` has it."""
        service, cache = self.service, self.service.cache
        return {
            "status": "finished",
            "model": self.path,
            "family": self.server.model.family,
            "card": service.card.name,
            "cards": service.flags.tensor_parallel,
            "card_bytes": service.card.total_bytes,
            "flags": asdict(service.flags),
            "fits": service.fits if service.certain else None,
            "weights_bytes": service.weights_bytes,
            "weights_from": service.weights_from,
            "activation_bytes": service.activation_bytes,
            "non_torch_bytes": service.non_torch_bytes,
            "graph_bytes": service.graph_bytes,
            "kv_bytes": service.kv_bytes,
            "margin_bytes": MARGIN_BYTES,
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
            "ways": [_way(way) for way in self.ways],
            "cards_that_serve": [_way(way) for way in self.cards],
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

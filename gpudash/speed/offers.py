"""Cards beside each other: whether a run or a server fits each, how fast it would be there, at what energy and for how
much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gpudash.speed.prices import watt_hours
from gpudash.speed.serving import ServingTime
from gpudash.speed.work import StepTime

Order = Literal["time", "price", "memory", "energy"]

STEPS_WITHOUT_EPOCHS = 1000
"""Number of steps for energy and cost if the length of an epoch is unknown."""


TOKENS = 1e6
"""Number of generated tokens for a server's energy and cost."""


@dataclass(frozen=True)
class HardwareOffer:
    """What cards of one kind would offer.

    Attributes:
        key: key of the card.
        name: name of the card.
        fits: as in an estimate; ``None`` within the margin.
        spare_bytes: memory left, negative if it is too small; ``None`` if unknown.
        time: predicted time; ``None`` if the card's speed, or the work, is unknown.
        reason: why something is missing, in words; "" if nothing is.
        power_w: power of one board; ``None`` if unknown.
        cost: cost; ``None`` without a price or a time.
        currency: currency of the cost; "" if none was given.
        cards: number of cards.
    """

    key: str
    name: str
    fits: bool | None = None
    spare_bytes: int | None = None
    time: StepTime | ServingTime | None = None
    reason: str = ""
    power_w: float | None = None
    cost: float | None = None
    currency: str = ""
    cards: int = 1

    @property
    def seconds(self) -> float | None:
        """Predicted time of everything that energy and cost are for."""
        raise NotImplementedError

    @property
    def energy_wh(self) -> float | None:
        """Energy in watt-hours at the boards' full power: the most that the cards use."""
        if self.seconds is None or self.power_w is None:
            return None
        return watt_hours(self.power_w, self.seconds, self.cards)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; all times in it are predictions."""
        time = None
        if self.time is not None:
            time = self.time.to_dict()
        return {
            "predicted": True,
            "card": self.key,
            "name": self.name,
            "fits": self.fits,
            "time": time,
            "currency": self.currency or None,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class CardOffer(HardwareOffer):
    """What a card would offer for a run.

    Attributes:
        time: of a step.
        steps: number of steps for energy and cost: those of an epoch, else `STEPS_WITHOUT_EPOCHS`.
        largest_batch: largest batch that fits, as in an estimate.
    """

    time: StepTime | None = None
    steps: int = STEPS_WITHOUT_EPOCHS
    largest_batch: int | None = None

    @property
    def seconds(self) -> float | None:
        if self.time is None:
            return None
        return self.steps * self.time.median_s

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "spare_bytes": self.spare_bytes,
            "largest_batch_size": self.largest_batch,
            "steps": self.steps,
            "energy_wh": self.energy_wh,
            "cost": self.cost,
        }


@dataclass(frozen=True)
class ServerOffer(HardwareOffer):
    """What a server on cards of one kind would offer; spare bytes are each card's, for the KV cache.

    Attributes:
        time: how fast it answers; also ``None`` if it does not start.
        users: concurrent requests of the given length.
    """

    time: ServingTime | None = None
    users: int = 0

    @property
    def seconds(self) -> float | None:
        """Predicted time for `TOKENS`, generated for all users together."""
        if self.time is None:
            return None
        return TOKENS / self.time.tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "cards": self.cards,
            "kv_bytes": self.spare_bytes,
            "users": self.users,
            "energy_wh_per_million_tokens": self.energy_wh,
            "cost_per_million_tokens": self.cost,
        }


_Any = TypeVar("_Any", bound=HardwareOffer)

_MEASURES: Mapping[Order, Callable[[HardwareOffer], float | None]] = {
    "time": lambda offer: offer.seconds,
    "price": lambda offer: offer.cost,
    "energy": lambda offer: offer.energy_wh,
    "memory": lambda offer: None if offer.spare_bytes is None else -offer.spare_bytes,
}
"""Sort keys, smallest first; for memory, most to spare."""

_STANDING: Mapping[bool | None, int] = {True: 0, None: 1, False: 2}


def in_order(offers: Iterable[_Any], by: Order) -> list[_Any]:
    """The offers, the best first: those that fit, sorted by the given quantity; unknown ones last."""
    measure = _MEASURES[by]

    def place(offer: _Any) -> tuple[int, bool, float]:
        value = measure(offer)
        return _STANDING[offer.fits], value is None, value or 0.0

    return sorted(offers, key=place)

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
"""Steps for which energy and money are told where the length of an epoch is not known."""


TOKENS = 1e6
"""Tokens generated for which a server's energy and money are told."""


@dataclass(frozen=True)
class HardwareOffer:
    """What cards of one kind would do.

    Attributes:
        key: what the card is asked for by.
        name: what it is called.
        fits: as of an estimate; ``None`` within the margin.
        spare_bytes: memory that is left there, negative for what is short; ``None`` where that is not known.
        time: predicted; ``None`` where nothing is known of the card's speed, or of what is done.
        reason: why something is missing, in words; "" where nothing is.
        power_w: of one board; ``None`` where it is not known.
        cost: ``None`` without a price, or a time.
        currency: of it; "" where none was said.
        cards: how many there are.
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
        """Predicted, of all that energy and cost are told for."""
        raise NotImplementedError

    @property
    def energy_wh(self) -> float | None:
        """Watt-hours meanwhile at the boards' full power: the most that the cards take."""
        if self.seconds is None or self.power_w is None:
            return None
        return watt_hours(self.power_w, self.seconds, self.cards)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; every time in it is predicted."""
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
    """What a card would do for a run.

    Attributes:
        time: of a step.
        steps: for which energy and price are told: of an epoch, else `STEPS_WITHOUT_EPOCHS`.
        largest_batch: that fits, as of an estimate.
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
    """What a server on cards of one kind would do; its spare bytes are those of each card for the KV cache.

    Attributes:
        time: how fast it answers; ``None`` where it does not start, too.
        users: requests of the length in question at a time.
    """

    time: ServingTime | None = None
    users: int = 0

    @property
    def seconds(self) -> float | None:
        """Of `TOKENS`, generated for all users together, predicted."""
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
"""What is smallest of the first: of memory most to spare."""

_STANDING: Mapping[bool | None, int] = {True: 0, None: 1, False: 2}


def in_order(offers: Iterable[_Any], by: Order) -> list[_Any]:
    """The offers, the best first: those that fit, and of them by what is asked; what is not known last."""
    measure = _MEASURES[by]

    def place(offer: _Any) -> tuple[int, bool, float]:
        value = measure(offer)
        return _STANDING[offer.fits], value is None, value or 0.0

    return sorted(offers, key=place)

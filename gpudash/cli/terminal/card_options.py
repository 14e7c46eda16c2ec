"""Which cards a prediction is told for beside its own, at what prices and in which order.

Annotations are evaluated, as in `gpudash.cli.terminal.flags`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.flags import Simulated
from gpudash.cli.terminal.output import RequestError
from gpudash.devices.names import SimulatedCard
from gpudash.devices.simulated_cards import card_label, exact_text
from gpudash.speed.offers import STEPS_WITHOUT_EPOCHS, CardOffer, Order, in_order

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import CardEstimate
    from gpudash.speed.prices import Price
    from gpudash.speed.work import StepTime

CARDS = Parameter(group="Other cards, and money")

CARDS_FORM = "Write for example: --cards rtx3060,rtx4090,h100 --price rtx4090=0.44/h"


@Parameter(name="*")
@dataclass(kw_only=True)
class CardOptions:
    """What is asked of other cards than the one in question."""

    cards: Annotated[Simulated, CARDS] = field(default_factory=list)
    """Answer for these cards as well: names with commas between them (rtx3060,rtx4090,h100), or sizes."""

    price: Annotated[list[str], Parameter(negative="", metavar="CARD=PRICE/h"), CARDS] = field(default_factory=list)
    """What an hour of a card costs (rtx4090=0.44/h, or h100=2.49EUR/h). May be repeated."""

    prices: Annotated[Path | None, Parameter(negative=""), CARDS] = None
    """File with such prices, one a line."""

    sort: Annotated[Order | None, Parameter(negative=""), CARDS] = None
    """What the cards are sorted by; left out: as they were named."""

    epoch_steps: Annotated[int | None, Parameter(validator=Number(gte=1)), CARDS] = None
    """Steps of an epoch, for its time, energy and price; left out: the workload's own, else 1,000 steps are told."""

    def card_table(self) -> "CardTable":
        """What was asked for, with the prices read.

        Raises:
            RequestError: when a price, a file or the order cannot be.
        """
        if not self.cards and (self.price or self.prices is not None or self.sort is not None):
            given = {"--price": self.price, "--prices": self.prices, "--sort": self.sort}
            flag = next(name for name, value in given.items() if value)
            raise RequestError(f"{flag} is for the cards of --cards, and none is given.", CARDS_FORM)
        prices = self._prices()
        if self.sort == "price" and not prices:
            raise RequestError("--sort price needs prices, and none is given.", CARDS_FORM)
        distinct = {exact_text(card): card for card in self.cards}
        return CardTable(tuple(distinct.values()), prices, self.sort)

    def refuse_cards(self, why: str) -> None:
        """Say that other cards cannot be asked for, where any were.

        Args:
            why: the beginning of a sentence.

        Raises:
            RequestError: when one was.
        """
        given = {
            "--cards": self.cards,
            "--price": self.price,
            "--prices": self.prices,
            "--sort": self.sort,
            "--epoch-steps": self.epoch_steps,
        }
        named = [flag for flag, value in given.items() if value]
        if named:
            raise RequestError(f"{why}, so that {named[0]} does not apply.", f"Leave {named[0]} out.")

    def _prices(self) -> "Mapping[str, Price]":
        if not self.price and self.prices is None:
            return {}
        from gpudash.speed.prices import parse_prices, read_prices

        try:
            found: dict[str, Price] = {}
            if self.prices is not None:
                found |= read_prices(self.prices)
            return parse_prices(self.price, found)
        except ValueError as error:
            raise RequestError(str(error), CARDS_FORM) from None


@dataclass(frozen=True)
class CardTable:
    """The cards that are asked about.

    Attributes:
        cards: each once, in the order in which they were named.
        prices: by the cards' keys.
        order: what they are sorted by; ``None``: as they were named.
    """

    cards: Sequence[SimulatedCard] = ()
    prices: "Mapping[str, Price]" = field(default_factory=dict)
    order: Order | None = None

    def offers(
        self, answers: "Mapping[str, CardEstimate]", times: "Mapping[str, StepTime]", epoch_steps: int | None
    ) -> list[CardOffer]:
        """What each card would do, in the order that was asked for.

        Args:
            answers: whether the run fits, by the cards' keys.
            times: of a step, by the same.
            epoch_steps: of an epoch; ``None`` where that is not known.
        """
        from gpudash.devices.names import simulated_product
        from gpudash.session.predicting.step_times import performance_of, reason_for

        found = []
        for card in self.cards:
            key = exact_text(card)
            product = simulated_product(card)
            performance = performance_of(product)
            answer = answers.get(key)
            time = times.get(key)
            reasons = []
            if answer is None:
                reasons.append("this run is predicted on its own devices only")
            elif answer.reason:
                reasons.append(answer.reason.rstrip("."))
            if time is None and performance is None:
                reasons.append(reason_for(product))
            price = self.prices.get(key)
            offer = CardOffer(
                key,
                card_label(key),
                fits=None if answer is None else answer.fits,
                spare_bytes=None if answer is None else answer.spare_bytes,
                time=time,
                reason="; ".join(reasons),
                power_w=None if performance is None else performance.power_w,
                hourly=None if price is None else price.hourly,
                currency="" if price is None else price.currency,
                steps=epoch_steps or STEPS_WITHOUT_EPOCHS,
                largest_batch=None if answer is None else answer.largest_batch_size,
            )
            found.append(offer)
        if self.order is None:
            return found
        return in_order(found, self.order)

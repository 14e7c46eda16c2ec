"""Flags for predicting other cards too: which ones, their prices and their order.

Annotations are evaluated at run time, as in `gpudash.cli.terminal.flags`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.output import RequestError
from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import SimulatedCard, parse_simulated, simulated_product
from gpudash.devices.simulated_cards import card_label, exact_text
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.card_text import NOT_ANSWERED
from gpudash.memory.serving.plan import ServerCard, ServerFlags, ServingAnswer, Way
from gpudash.speed.offers import STEPS_WITHOUT_EPOCHS, CardOffer, Order, ServerOffer, in_order
from gpudash.speed.prices import Prices
from gpudash.system.foreign_files import read_regular_text
from gpudash.system.own_cards import OwnCards, own_cards, own_cards_file

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import CardEstimate
    from gpudash.speed.work import StepTime

LARGEST_FILE_BYTES = 64 * 2**10
"""Maximum size of a file of prices; a single price takes 30 bytes."""

CARDS = Parameter(group="Other cards, and money")

CARDS_FORM = "Write for example: --cards rtx3060,rtx4090,h100 --price rtx4090=0.44/h"


def _parsed_cards(_type: Any, tokens: Any) -> list[SimulatedCard]:
    own = own_cards()
    return [_own_card(part, own) or parse_simulated(part) for token in tokens for part in token.value.split(",")]


def _own_card(text: str, own: OwnCards) -> KnownGpu | None:
    """A card of the user's own by its name; ``None`` if there is none.

    Raises:
        ValueError: one sentence, if its file lacks the size of its memory.
    """
    name = next((name for name in own.performance if name.casefold() == text.strip().casefold()), None)
    if name is None:
        return None
    size = own.total_bytes.get(name)
    if size is None:
        raise ValueError(f'{own_cards_file()} does not say the memory of {name}; add memory = "24GiB" to it.')
    usual = Architecture()
    return KnownGpu(
        name, name, name, size, usual.capability, own.performance[name].multiprocessors, str(own_cards_file())
    )


RequestedCards = Annotated[
    list[SimulatedCard],
    Parameter(
        converter=_parsed_cards,
        metavar="GPU|SIZE",
        show_default=False,
        negative="",
        allow_leading_hyphen=True,
        n_tokens=1,
        json_list=False,
    ),
]
"""Cards to predict for; a flag that may be repeated."""


@Parameter(name="*")
@dataclass(kw_only=True)
class CardOptions:
    """Flags about other cards than the run's own."""

    cards: Annotated[RequestedCards, CARDS] = field(default_factory=list)
    """Predict for these cards as well, also a server: names separated by commas (rtx3060,rtx4090,h100), sizes, or
    cards of your own."""

    price: Annotated[list[str], Parameter(negative="", metavar="CARD=PRICE/h", show_default=False), CARDS] = field(
        default_factory=list
    )
    """Price of an hour of a card (rtx4090=0.44/h, or h100=2.49EUR/h). May be repeated."""

    prices: Annotated[Path | None, Parameter(negative=""), CARDS] = None
    """TOML file of such prices: currency = "EUR", and a table [prices] with lines such as rtx4090 = 0.44."""

    sort: Annotated[Order | None, Parameter(negative=""), CARDS] = None
    """What the cards are sorted by; default: as they were named."""

    epoch_steps: Annotated[int | None, Parameter(validator=Number(gte=1)), CARDS] = None
    """Steps of an epoch, to compute its time, energy and price; default: the workload's own, else 1,000 steps."""

    def card_table(self) -> "CardTable":
        """The cards that were named, with the prices loaded.

        Raises:
            RequestError: if a price, a file or the order is invalid.
        """
        if not self.cards and (self.price or self.prices is not None or self.sort is not None):
            given = {"--price": self.price, "--prices": self.prices, "--sort": self.sort}
            flag = next(name for name, value in given.items() if value)
            raise RequestError(f"{flag} is for the cards of --cards, and none is given.", CARDS_FORM)
        prices = self._prices()
        if self.sort == "price" and not prices.by_card:
            raise RequestError("--sort price needs prices, and none is given.", CARDS_FORM)
        distinct = {exact_text(card): card for card in self.cards}
        if self.price and (unasked := [card for card in prices.by_card if card not in distinct]):
            raise RequestError(f"A price is given for {unasked[0]}, which --cards does not name.", CARDS_FORM)
        return CardTable(tuple(distinct.values()), prices, self.sort)

    def _prices(self) -> Prices:
        try:
            if self.prices is None:
                return Prices.parse(self.price, own_cards().performance)
            if self.price:
                raise RequestError("--price and --prices are given together.", "Leave one of them out.")
            return Prices.read(read_regular_text(self.prices, LARGEST_FILE_BYTES), own_cards().performance)
        except OSError as error:
            raise RequestError(f"{self.prices} cannot be read: {error.strerror or error}.") from None
        except ValueError as error:
            raise RequestError(str(error), CARDS_FORM) from None


@dataclass(frozen=True)
class CardTable:
    """The cards to predict for.

    Attributes:
        cards: without duplicates, in the order in which they were named.
        prices: price of an hour of each.
        order: sort order; ``None``: as they were named.
    """

    cards: Sequence[SimulatedCard] = ()
    prices: Prices = field(default_factory=Prices)
    order: Order | None = None

    @property
    def remark(self) -> str:
        """Which cards have no price, if any price was given; "" if there is nothing to say."""
        if not self.prices.by_card:
            return ""
        return self.prices.missing(map(exact_text, self.cards))

    def offers(
        self, answers: "Mapping[str, CardEstimate]", times: "Mapping[str, StepTime]", epoch_steps: int | None
    ) -> list[CardOffer]:
        """What each card offers, in the requested order.

        Args:
            answers: whether the run fits, by card key.
            times: time of a step, by card key.
            epoch_steps: steps of an epoch; ``None`` if unknown.
        """
        steps = epoch_steps or STEPS_WITHOUT_EPOCHS
        found = []
        for card in self.cards:
            key = exact_text(card)
            found.append(self._offer(card, answers.get(key), times.get(key), steps))
        if self.order is None:
            return found
        return in_order(found, self.order)

    def server_offers(
        self, answer: ServingAnswer, flags: ServerFlags, answer_tokens: int | None = None
    ) -> list[ServerOffer]:
        """What a server with ``flags`` would do on the same number of each card, in the requested order.

        Args:
            answer: answer for the requested server.
            flags: flags as given.
            answer_tokens: answer tokens of each request; ``None`` for a quarter.
        """
        found = []
        for card in self.cards:
            service = answer.server.on(ServerCard.named(card), flags)
            found.append(
                self._server_offer(card, answer, Way.of("", service, answer.users or 1, answer.length), answer_tokens)
            )
        if self.order is None:
            return found
        return in_order(found, self.order)

    def _server_offer(
        self, card: SimulatedCard, answer: ServingAnswer, way: Way, answer_tokens: int | None
    ) -> ServerOffer:
        from gpudash.devices.card_performance import performance_of
        from gpudash.memory.serving.server_time import time_of
        from gpudash.session.predicting.step_times import reason_for

        own = own_cards().performance
        service = way.service
        fits = None
        if service.certain:
            fits = service.fits
        key = exact_text(card)
        offer = ServerOffer(
            key=key,
            name=service.card.name,
            cards=service.flags.tensor_parallel,
            fits=fits,
            spare_bytes=service.kv_bytes,
            users=way.users,
            time=time_of(answer, way, own, answer_tokens),
        )
        performance = performance_of(service.card.key or service.card.name, own)
        if performance is not None:
            offer = replace(offer, power_w=performance.power_w)
        if offer.seconds is not None:
            cost = self.prices.money(key, offer.seconds, offer.cards)
            return replace(offer, cost=cost, currency=self.prices.currency)
        if not service.fits:
            return replace(offer, reason=service.shortage)
        if performance is None:
            return replace(offer, reason=reason_for(simulated_product(card)))
        return replace(offer, reason="how fast its model is computed is not known")

    def _offer(
        self, card: SimulatedCard, answer: "CardEstimate | None", time: "StepTime | None", steps: int
    ) -> CardOffer:
        from gpudash.memory.predicting.estimate import Target
        from gpudash.session.predicting.step_times import performance_on, reason_for

        product = simulated_product(card)
        performance = performance_on(Target("sim:0", product=product))
        offer = CardOffer(exact_text(card), card_label(exact_text(card)), time=time, steps=steps)
        reasons = []
        if time is None and performance is None:
            reasons.append(reason_for(product))
        if performance is not None:
            offer = replace(offer, power_w=performance.power_w)
        if offer.seconds is not None:
            cost = self.prices.money(offer.key, offer.seconds)
            offer = replace(offer, cost=cost, currency=self.prices.currency)
        if answer is None:
            reasons.insert(0, NOT_ANSWERED)
        elif answer.reason:
            reasons.insert(0, answer.reason.rstrip("."))
        if answer is not None:
            offer = replace(
                offer, fits=answer.fits, spare_bytes=answer.spare_bytes, largest_batch=answer.largest_batch_size
            )
        return replace(offer, reason="; ".join(reasons))

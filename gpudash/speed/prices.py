"""The user's prices for an hour of a card, and the resulting cost of a time: money and electricity."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudash.devices.known_gpus import find, nearest

HOUR_S = 3600.0

MOST = 1e6
"""Largest credible price for an hour, in any currency."""

_SYMBOLS = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}

_AMOUNT = re.compile(
    r"(?P<before>[€$£¥]|[A-Za-z]{3})?\s*"
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*"
    r"(?P<after>[€$£¥]|[A-Za-z]{3})?\s*"
    r"(?:/\s*(?P<unit>h|hour|hr))?"
)

_FILE = 'A price file reads: currency = "EUR", and below [prices] lines such as rtx4090 = 0.44.'


@dataclass(frozen=True)
class Prices:
    """Price of an hour of each card.

    Attributes:
        by_card: prices by `KnownGpu.key`, or by the name of a user's own card.
        currency: currency of all of them, such as "EUR"; "" if none was given.
    """

    by_card: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""

    @classmethod
    def parse(cls, texts: Iterable[str], own: Iterable[str] = ()) -> Prices:
        """Parse texts such as ``4090=0.44/h`` or ``h100=2.10€/h``, separated by commas.

        Args:
            own: names of the user's own cards.

        Raises:
            ValueError: one sentence, for an invalid price, or several currencies.
        """
        read: list[tuple[str, float, str]] = []
        for text in texts:
            parts = text.split(",")
            # Check all of them before any amount: 0,44 would otherwise be a price of 0.
            if not all("=" in part for part in parts):
                raise ValueError(f"{text!r} is no price; say it as 4090=0.44/h, with a point in the number.")
            for part in parts:
                card, _, amount = part.partition("=")
                read.append((card, *_amount(card.strip(), amount)))
        return cls._of(read, own)

    @classmethod
    def read(cls, text: str, own: Iterable[str] = ()) -> Prices:
        """Read a TOML text with ``currency``, and a table ``[prices]`` by card.

        Raises:
            ValueError: one sentence, with line and column if it is not TOML.
        """
        try:
            document = tomllib.loads(text)
        except RecursionError:
            raise ValueError("The price file is nested too deep.") from None
        except ValueError as error:
            raise ValueError(f"The price file is no TOML: {error}.") from None
        currency = document.get("currency", "")
        if not isinstance(currency, str):
            raise ValueError(f"The price file's currency is {currency!r}, which is no text. {_FILE}")
        prices = document.get("prices")
        if not isinstance(prices, dict) or not prices:
            raise ValueError(f"The price file has no prices. {_FILE}")
        return cls._of([_row(card, value, currency) for card, value in prices.items()], own)

    @classmethod
    def _of(cls, read: Iterable[tuple[str, float, str]], own: Iterable[str]) -> Prices:
        by_card: dict[str, float] = {}
        currencies: dict[str, str] = {}
        names = {name.casefold(): name for name in own}
        for card, amount, currency in read:
            key = _key(card.strip(), names)
            if by_card.get(key, amount) != amount:
                raise ValueError(f"{key} has two prices, {by_card[key]:g} and {amount:g}; leave one.")
            by_card[key] = amount
            currencies.setdefault(currency, card.strip())
        if len(currencies) > 1:
            said = " and ".join(f"{card} in {currency or 'none'}" for currency, card in currencies.items())
            raise ValueError(f"Prices are in several currencies, {said}; say all of them in one.")
        return cls(by_card, next(iter(currencies), ""))

    def money(self, card: str, seconds: float, cards: int = 1) -> float | None:
        """Cost of a time on a number of cards; ``None`` if the price is unknown.

        Args:
            card: key, or name of a user's own card.
        """
        hour = self.by_card.get(card)
        if hour is None:
            return None
        return hour * cards * seconds / HOUR_S

    def missing(self, cards: Iterable[str]) -> str:
        """A sentence that names the cards without a price; "" if there are none."""
        unpriced = [card for card in cards if card not in self.by_card]
        if not unpriced:
            return ""
        return f"No price was given for {', '.join(unpriced)}."

    def text(self, money: float) -> str:
        """An amount for display, with as many digits as necessary: "0.44 EUR", "0.0012"."""
        digits = 2
        if 0 < money < 0.1:
            digits = 1 - math.floor(math.log10(money))
        return f"{money:.{digits}f} {self.currency}".rstrip()


def watt_hours(power_w: float, seconds: float, cards: int = 1) -> float:
    """Upper limit for the cards' electricity in a time: their boards' full power, without the computer.

    A card that waits, or is limited by its memory, uses less.
    """
    return power_w * cards * seconds / HOUR_S


def _row(card: str, value: Any, currency: str) -> tuple[str, float, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"The price of {card} is {value!r}, which is no number. {_FILE}")
    return card, _checked(card, float(value)), _currency(currency)


def _amount(card: str, text: str) -> tuple[float, str]:
    """Number and currency in ``0.44€/h``."""
    if not text.strip():
        raise ValueError(f"{card} has no price behind the =; say it as {card}=0.44/h.")
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or (found["before"] and found["after"]):
        raise ValueError(f"{text.strip()!r} is no price for an hour of {card}; say it as {card}=0.44/h or 0.44€/h.")
    return _checked(card, float(found["number"])), _currency(found["before"] or found["after"] or "")


def _checked(card: str, amount: float) -> float:
    if not math.isfinite(amount) or amount > MOST:
        raise ValueError(f"The price of {card}, {amount:g} an hour, cannot be meant.")
    if amount < 0:
        raise ValueError(f"The price of {card} is negative, {amount:g}.")
    if amount == 0:
        raise ValueError(f"The price of {card} is 0; leave it out where a card costs nothing.")
    return amount


def _currency(text: str) -> str:
    return _SYMBOLS.get(text, text.upper())


def _key(card: str, own: Mapping[str, str]) -> str:
    """The key of a card: "rtx4090" for "4090"."""
    if card.casefold() in own:
        return own[card.casefold()]
    for prefix in ("", "rtx", "gtx"):
        known = find(prefix + card)
        if known is not None:
            return known.key
    near = nearest(card)
    if near:
        raise ValueError(f"A price is given for {card!r}, which is no known card; did you mean {' or '.join(near)}?")
    raise ValueError(f"A price is given for {card!r}, which is no known card; gpudash devices --known lists them.")

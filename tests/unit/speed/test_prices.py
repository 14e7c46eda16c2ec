"""Prices of cards, and what a time on them costs."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.speed.prices import Prices, watt_hours

CARDS = st.sampled_from([gpu.key for gpu in KNOWN_GPUS])
AMOUNTS = st.decimals(min_value="0.001", max_value="9999", places=3).map(float)


@pytest.mark.parametrize(
    ("text", "card", "amount", "currency"),
    [
        ("4090=0.44/h", "rtx4090", 0.44, ""),
        ("h100=2.10€/h", "h100", 2.1, "EUR"),
        ("RTX 3060 = $.08 / hour", "rtx3060", 0.08, "USD"),
        ("t4=0.35 eur", "t4", 0.35, "EUR"),
        ("1080ti=CHF 0.1", "gtx1080ti", 0.1, "CHF"),
    ],
)
def test_a_price_is_read_as_people_write_it(text: str, card: str, amount: float, currency: str) -> None:
    assert Prices.parse([text]) == Prices({card: amount}, currency)


@given(st.dictionaries(CARDS, AMOUNTS, min_size=1), st.sampled_from(["", "€", " USD"]), st.booleans())
def test_prices_are_the_same_one_by_one_in_one_text_and_from_a_file(
    amounts: dict[str, float], currency: str, joined: bool
) -> None:
    texts = [f"{card}={amount}{currency}/h" for card, amount in amounts.items()]
    if joined:
        texts = [", ".join(texts)]
    name = {"": "", "€": "EUR", " USD": "USD"}[currency]
    lines = [f"currency = '{name}'", "[prices]", *(f"{card} = {amount}" for card, amount in amounts.items())]
    assert Prices.parse(texts) == Prices.read("\n".join(lines)) == Prices(amounts, name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("4090", "'4090' is no price; say it as 4090=0.44/h, with a point in the number."),
        ("4090=", "4090 has no price behind the =; say it as 4090=0.44/h."),
        ("4090=0,44/h", "'4090=0,44/h' is no price; say it as 4090=0.44/h, with a point in the number."),
        ("4090=-1/h", "The price of 4090 is negative, -1."),
        ("4090=0/h", "The price of 4090 is 0; leave it out where a card costs nothing."),
        ("4090=1e9/h", "The price of 4090, 1e+09 an hour, cannot be meant."),
        ("4090=cheap", "'cheap' is no price for an hour of 4090; say it as 4090=0.44/h or 0.44€/h."),
        ("4090=$1€/h", "'$1€/h' is no price for an hour of 4090; say it as 4090=0.44/h or 0.44€/h."),
        ("a100=1/h", "A price is given for 'a100', which is no known card; did you mean a100-80gb or a100-40gb?"),
        ("abacus=1/h", "A price is given for 'abacus', which is no known card; gpudash devices --known lists them."),
        ("4090=1/h,rtx4090=2/h", "rtx4090 has two prices, 1 and 2; leave one."),
        ("4090=1€/h,t4=1$/h", "Prices are in several currencies, 4090 in EUR and t4 in USD; say all of them in one."),
        ("4090=1€/h,t4=1/h", "Prices are in several currencies, 4090 in EUR and t4 in none; say all of them in one."),
    ],
)
def test_what_is_no_price_is_said_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Prices.parse([text])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[prices\n", "line 1, column"),
        ("currency = 'EUR'", "has no prices"),
        ("prices = 3", "has no prices"),
        ("[prices]\nt4 = '1'", "t4 is '1', which is no number"),
        ("[prices]\nt4 = true", "no number"),
        ("[prices]\nt4 = inf", "cannot be meant"),
        ("[prices]\nt4 = nan", "cannot be meant"),
        ("[prices]\nt4 = -0.5", "negative"),
        ("currency = 1\n[prices]\nt4 = 1", "currency is 1"),
    ],
)
def test_what_is_wrong_in_a_price_file_is_said_in_a_sentence(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Prices.read(text)


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_is_prices_or_a_sentence(text: str) -> None:
    sentence = ""
    prices = Prices()
    try:
        prices = Prices.parse([text])
    except ValueError as error:
        sentence = str(error)
    assert bool(prices.by_card) != sentence.endswith((".", "?"))
    assert all(0 < amount <= 1e6 for amount in prices.by_card.values())


@given(CARDS, AMOUNTS, st.floats(0, 1e7), st.integers(1, 64))
def test_money_and_electricity_go_by_time_and_by_cards(card: str, amount: float, seconds: float, cards: int) -> None:
    prices = Prices({card: amount})
    money = prices.money(card, seconds, cards)
    assert money == pytest.approx(amount * cards * seconds / 3600)
    assert watt_hours(450, seconds, cards) == pytest.approx(450 * cards * seconds / 3600)


def test_a_card_without_a_price_costs_nothing_known_and_is_named() -> None:
    prices = Prices.parse(["t4=0.35/h"])
    assert prices.money("l4", 3600) is None
    assert prices.missing(["t4", "l4", "h100"]) == "No price was given for l4, h100."
    assert prices.missing(["t4"]) == ""


def test_a_card_of_one_s_own_has_a_price_too() -> None:
    assert Prices.parse(["my card=1/h"], ["My Card"]).by_card == {"My Card": 1.0}


def test_an_amount_is_written_with_as_many_digits_as_it_needs() -> None:
    assert Prices(currency="EUR").text(12.345) == "12.35 EUR"
    assert Prices().text(0.00123) == "0.0012"
    assert Prices(currency="USD").text(0) == "0.00 USD"

"""Cards beside each other."""

from __future__ import annotations

import pytest

from gpudash.speed.offers import CardOffer, Order, in_order
from tests.unit.speed.made_up_times import made_up_time

FAST = made_up_time()
SLOW = made_up_time(median_s=0.93, low_s=0.8, high_s=1.1)

LARGE = CardOffer("h100", "H100", True, 60, FAST, power_w=700, cost=0.26, currency="USD", largest_batch=512)
SMALL = CardOffer("rtx3060", "RTX 3060", True, 2, SLOW, power_w=170, cost=0.05, currency="USD")
SHORT = CardOffer("t4", "T4", False, -5, FAST, power_w=70, cost=0.01, currency="USD")
UNKNOWN = CardOffer("24GiB", "24 GiB", True, 10, None, "nothing is known of its speed")


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("time", ["h100", "rtx3060", "24GiB", "t4"]),
        ("price", ["rtx3060", "h100", "24GiB", "t4"]),
        ("energy", ["rtx3060", "h100", "24GiB", "t4"]),
        ("memory", ["h100", "24GiB", "rtx3060", "t4"]),
    ],
)
def test_cards_are_sorted_by_what_is_asked_and_those_that_do_not_fit_come_last(by: Order, keys: list[str]) -> None:
    assert [offer.key for offer in in_order((SHORT, UNKNOWN, SMALL, LARGE), by)] == keys


def test_energy_follows_from_the_predicted_time_of_all_steps() -> None:
    assert LARGE.seconds == pytest.approx(310)
    assert LARGE.energy_wh == pytest.approx(310 * 700 / 3600)
    assert (UNKNOWN.seconds, UNKNOWN.energy_wh, UNKNOWN.cost) == (None, None, None)


def test_an_offer_as_json_says_that_it_is_predicted_and_keeps_the_interval() -> None:
    document = LARGE.to_dict()
    assert document["predicted"] is True
    assert (document["time"]["predicted"], document["time"]["low_s"], document["time"]["high_s"]) == (True, 0.26, 0.38)
    assert document["energy_wh"] == pytest.approx(310 * 700 / 3600)
    assert UNKNOWN.to_dict()["time"] is None
    assert UNKNOWN.to_dict()["reason"] == "nothing is known of its speed"

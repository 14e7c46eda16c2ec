"""Printing predicted times for a person: of a step, and of several cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Column, Table
from rich.text import Text

from gpudash.cli.terminal.output import numbers, one_line, plain_table, print_table, stdout
from gpudash.memory.predicting.card_text import spare_text
from gpudash.speed.offers import CardOffer, ServerOffer
from gpudash.speed.prices import HOUR_S, Prices
from gpudash.speed.time_text import rate_text, span_text, time_lines
from gpudash.units import format_count, format_duration, format_energy

if TYPE_CHECKING:
    from gpudash.speed.work import StepTime

FITS: dict[bool | None, tuple[str, str]] = {True: ("yes", "green"), False: ("no", "red"), None: ("perhaps", "yellow")}


def print_time(time: StepTime, epoch_steps: int | None) -> None:
    """Print the predicted time of a step, below the prediction of its memory.

    Args:
        epoch_steps: steps of an epoch; ``None`` if unknown.
    """
    console = stdout()
    console.print()
    for place, line in enumerate(time_lines(time, epoch_steps)):
        style = ""
        if not place:
            style = "bold"
        console.print(Text(one_line(line), style=style), soft_wrap=True)


def print_offers(offers: Sequence[CardOffer], prices: Prices, *, by_epoch: bool) -> None:
    """Print a table of cards.

    Args:
        offers: the cards in order; at least one.
        prices: price of an hour of each.
        by_epoch: whether the figures are per epoch.
    """
    span = f"{format_count(offers[0].steps)} steps"
    if by_epoch:
        span = f"the {span} of an epoch"
    units = [offer.time.unit for offer in offers if offer.time is not None]
    rate = f"{units[0] if units else 'items'}/s"
    table = plain_table(
        Column("card", no_wrap=True),
        Column("fits", no_wrap=True),
        Column("step, predicted", justify="right", no_wrap=True),
        *numbers(rate, "energy", "price"),
    )
    for offer in offers:
        table.add_row(*_cells(offer, prices))
    note = ""
    if any(offer.time is not None for offer in offers):
        note = PREDICTED.format(span=span)
    _print_offers(table, (rate, "energy"), note, offers)


def print_server_offers(offers: Sequence[ServerOffer], prices: Prices) -> None:
    """Print a table of cards for a server.

    Args:
        offers: the cards in order; at least one.
        prices: price of an hour of each.
    """
    table = plain_table(
        Column("card", no_wrap=True),
        *numbers("requests", "first token", "tokens/s each", "in all, predicted", "energy", "price"),
    )
    for offer in offers:
        table.add_row(*_server_cells(offer, prices))
    time = next((offer.time for offer in offers if offer.time is not None), None)
    note = ""
    if time is not None:
        requests = f"prompts of {time.prompt:,} and answers of {time.answer:,} tokens, as many as are served"
        note = f"predicted for {requests} of those asked for; energy at most and price are of a million tokens"
    _print_offers(table, ("energy", "tokens/s each"), note, offers)


def _print_offers(
    table: Table, spared: Sequence[str], note: str, offers: Sequence[CardOffer] | Sequence[ServerOffer]
) -> None:
    """Print a table of cards, what it is predicted for, and why some have no figures."""
    console = stdout()
    console.print()
    print_table(table, console, spared=spared)
    if note:
        console.print(note, soft_wrap=True)
    for offer in offers:
        if offer.reason:
            console.print(f"{one_line(offer.name)}: {offer.reason}", soft_wrap=True)


def _server_cells(offer: ServerOffer, prices: Prices) -> list[str | Text]:
    name = one_line(offer.name)
    if offer.cards > 1:
        name = f"{offer.cards} × {name}"
    users = Text(format_count(offer.users), style=FITS[offer.fits][1])
    time = offer.time
    if time is None:
        return [name, users, "", "", "", "", ""]
    low = format_count(round(time.tokens_per_s / time.spread))
    high = format_count(round(time.tokens_per_s * time.spread))
    energy = ""
    if offer.energy_wh is not None:
        energy = _energy_text(offer.energy_wh)
    cost = ""
    if offer.cost is not None:
        cost = prices.text(offer.cost)
    first = format_duration(time.first_token_s)
    each = format_count(round(time.tokens_per_s_user))
    together = f"{format_count(round(time.tokens_per_s))} ({low} to {high})"
    return [name, users, first, each, together, energy, cost]


PREDICTED = "energy at most (the board's full power) and price are of the predicted time of {span}"


def _cells(offer: CardOffer, prices: Prices) -> list[str | Text]:
    fits, style = FITS[offer.fits]
    if offer.spare_bytes is not None:
        fits = f"{fits}, {spare_text(offer.spare_bytes)}"
    elif offer.fits is None:
        fits = ""
    step = ""
    rate = ""
    energy = ""
    cost = ""
    time = offer.time
    if time is not None:
        step = span_text(time.median_s, time.low_s, time.high_s)
        rate = rate_text(time).partition(f" {time.unit}/s")[0]
    if offer.energy_wh is not None:
        energy = _energy_text(offer.energy_wh)
    if offer.cost is not None:
        cost = prices.text(offer.cost)
    return [one_line(offer.name), Text(fits, style=style), step, rate, energy, cost]


def _energy_text(watt_hours: float) -> str:
    if watt_hours < 1:
        return f"{watt_hours:.2g} Wh"
    return format_energy(watt_hours * HOUR_S)

"""Identity of a simulated card, and its name next to others with the same address.

Only the standard library, for Python 3.9: the simulator runs in Pythons of any age.
"""

from __future__ import annotations

import re

from gpudash.devices.known_gpus import SIMULATED_PREFIX, KnownGpu, find

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("GB", 10**9), ("MB", 10**6), ("B", 1))

_EXACT = re.compile(r"([0-9]+)(GiB|MiB|GB|MB|B)")

_CARD_MARK = "@"
"""Separates the address of a program's own card, which others may have too, from its kind."""


def exact_text(card: int | KnownGpu) -> str:
    """A unique text for a card, in one word: "24GiB", "1536MiB", "12GB", "25769803777B", "h100"."""
    if isinstance(card, KnownGpu):
        return card.key
    # The largest unit that divides it, to keep all digits.
    return next(f"{card // size}{unit}" for unit, size in _UNITS if card % size == 0)


def card_called(product: str, size: int) -> int | KnownGpu:
    """The card of ``size`` bytes with this product name: a known GPU if it matches, else its size."""
    known = None
    if product.startswith(SIMULATED_PREFIX):
        known = find(product[len(SIMULATED_PREFIX) :])
    # The name is not enough: a known name with another size is another card.
    if known is not None and known.total_bytes == size:
        return known
    return size


def simulated_uuid(index: int, card: int | KnownGpu) -> str:
    """The UUID of the card ``sim:index``: "SIM-0-24GiB". A different size is a different card."""
    return f"SIM-{index}-{exact_text(card)}"


def program_card_name(index: int, card: int | KnownGpu) -> str:
    """The name of a program's own card if the session has another ``sim:index``: "sim:0@24GiB"."""
    return f"sim:{index}{_CARD_MARK}{exact_text(card)}"


def is_program_card(name: str) -> bool:
    """Whether a name is of a program's own simulated card, which nothing else can use."""
    return _CARD_MARK in name


def address_of(name: str) -> str:
    """The program's name for its device: "sim:0" for "sim:0@24GiB"; others unchanged."""
    return name.partition(_CARD_MARK)[0]


def card_of_name(name: str) -> str:
    """The kind of a program's own card for display: "24 GiB" or "H100 80GB"; "" if the name lacks it."""
    return card_label(name.partition(_CARD_MARK)[2])


def card_label(text: str) -> str:
    """The output of `exact_text` for display; other texts unchanged."""
    known = find(text)
    if known is not None:
        return known.name
    size = _EXACT.fullmatch(text)
    if size is None:
        return text
    return " ".join(size.groups())

"""What makes one simulated card another than the next: its identity, and its name beside others of the same address.

Standard library alone, Python 3.9: the simulator runs in Pythons of any age.
"""

from __future__ import annotations

import re

from gpudash.devices.known_gpus import SIMULATED_PREFIX, KnownGpu, find

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("B", 1))

_EXACT = re.compile(r"([0-9]+)(GiB|MiB|B)")

_CARD_MARK = "@"
"""Between the address of a program's own card, which others may have too, and what it is."""


def exact_text(card: int | KnownGpu) -> str:
    """A card in one word that no other card has: "24GiB", "1536MiB", "25769803777B", "h100"."""
    if isinstance(card, KnownGpu):
        return card.key
    # The largest unit that divides it, so that no digit is lost.
    return next(f"{card // size}{unit}" for unit, size in _UNITS if card % size == 0)


def card_called(product: str, size: int) -> int | KnownGpu:
    """The card of ``size`` bytes whose product is called so: a known GPU where it is one, else its size."""
    known = None
    if product.startswith(SIMULATED_PREFIX):
        known = find(product[len(SIMULATED_PREFIX) :])
    # The name alone does not make the card: a known name with another size is another card.
    if known is not None and known.total_bytes == size:
        return known
    return size


def simulated_uuid(index: int, card: int | KnownGpu) -> str:
    """The identity of the card behind ``sim:index``: "SIM-0-24GiB". One of another size is another card."""
    return f"SIM-{index}-{exact_text(card)}"


def program_card_name(index: int, card: int | KnownGpu) -> str:
    """The name of a program's own card where the session has another ``sim:index``: "sim:0@24GiB"."""
    return f"sim:{index}{_CARD_MARK}{exact_text(card)}"


def is_program_card(name: str) -> bool:
    """Whether a device's name is that of a program's own simulated card, on which nothing else can run."""
    return _CARD_MARK in name


def address_of(name: str) -> str:
    """What a program calls its device: "sim:0" for "sim:0@24GiB", any other as it is."""
    return name.partition(_CARD_MARK)[0]


def card_of_name(name: str) -> str:
    """What the card of a program's own is, for a person: "24 GiB" or "H100 80GB"; "" where the name does not say."""
    return card_label(name.partition(_CARD_MARK)[2])


def card_label(text: str) -> str:
    """What `exact_text` wrote, for a person; any other text as it is."""
    known = find(text)
    if known is not None:
        return known.name
    size = _EXACT.fullmatch(text)
    if size is None:
        return text
    return " ".join(size.groups())

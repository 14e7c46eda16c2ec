"""What a run comes to on one card of several, in the few words that a chip has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpudash.memory.predicting.estimate import CardEstimate
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.speed.time_text import bound_text, rate_text, step_text
from gpudash.speed.work import StepTime
from gpudash.units import GIB, format_bytes

Standing = Literal["fits", "uncertain", "short", "refused", "asking", "stale", "unasked"]
"""What is known of a card: whether the run fits it; that nothing can be said; that an answer is awaited; that the
answer is to other values; that nothing was asked."""

SIGNS: Mapping[Standing, str] = {
    "fits": "✓",
    "uncertain": "≈",
    "short": "✕",
    "refused": "–",
    "asking": "…",
    "stale": "↻",
    "unasked": "",
}
"""Standing → its sign: never colour alone."""

FILLS = "fills whatever there is"
"""Of a run that is meant to take all memory."""

RAN_OUT_HERE = "out of memory"
"""Of a card that a run filled before it was refused more: how much is short is not known."""

NOT_ANSWERED = "this run is predicted on its own devices only"

NOT_READ = "its free memory is not known"


@dataclass(frozen=True)
class CardsAnswer:
    """What is known of all cards.

    Attributes:
        known: the answers to what is asked now, by the cards' keys.
        before: those to the question before it.
        times: of a step of what is asked now, by the same keys.
        asked: whether anything is asked.
        awaited: whether more is to come.
        reason: why nothing can be said; "" where something can.
    """

    known: Mapping[str, CardEstimate | ServerOnCard] = field(default_factory=dict)
    before: Mapping[str, CardEstimate | ServerOnCard] = field(default_factory=dict)
    requested: bool = False
    awaited: bool = False
    reason: str = ""
    times: Mapping[str, StepTime] = field(default_factory=dict)

    def of(self, key: str) -> CardText:
        """What is known of one card."""
        found = self.known.get(key)
        earlier = self.before.get(key)
        if not self.requested:
            return CardText("unasked")
        if found is not None:
            standing = _standing(found)
            # The card itself is followed next: until then another card's margin is no verdict.
            if self.awaited and standing == "uncertain" and _is_borrowed(found):
                return CardText("asking", found)
            time = None
            # Where it does not fit, no step is ever taken.
            if standing in ("fits", "uncertain"):
                time = self.times.get(key)
            return CardText(standing, found, _reason_of(found), time)
        if self.awaited:
            return CardText("asking", earlier)
        if earlier is not None and not self.reason:
            return CardText("stale", earlier)
        return CardText("refused", reason=self.reason or NOT_ANSWERED)


@dataclass(frozen=True)
class CardText:
    """What is known of one card.

    Attributes:
        standing: what.
        estimate: the answer, or the one to the question before; ``None`` without one.
        reason: why there is none.
        time: of a step; ``None`` where it is not known.
    """

    standing: Standing
    estimate: CardEstimate | ServerOnCard | None = None
    reason: str = ""
    time: StepTime | None = None

    @property
    def sign(self) -> str:
        """Its sign; "" where nothing was asked."""
        return SIGNS[self.standing]

    @property
    def size(self) -> str:
        """What is spare or short: "12.8 GiB", or whom a server serves; "" where that is not known."""
        if isinstance(self.estimate, ServerOnCard):
            return self.estimate.verdict
        if self._spare is None:
            return ""
        return _size_text(self._spare)

    @property
    def verdict(self) -> str:
        """The verdict in words: "12.8 GiB spare", "3.1 GiB short", "no answer"."""
        if isinstance(self.estimate, ServerOnCard):
            return self.estimate.verdict
        if self.standing == "short" and self._spare == 0:
            return RAN_OUT_HERE
        if self._spare is not None:
            return spare_text(self._spare)
        if self.estimate is not None and self.estimate.fills_memory:
            return FILLS
        if self.standing in ("asking", "unasked"):
            return ""
        return "no answer"

    @property
    def headline(self) -> str:
        """The sign with the verdict, or with the reason why there is none: "✓ 12.8 GiB spare", "– fp8 layers …"."""
        if self.reason:
            return f"{self.sign} {self.detail}"
        return f"{self.sign} {self.verdict}".strip()

    @property
    def detail(self) -> str:
        """The largest batch, what is awaited, or the reason; "" for nothing."""
        found = self.estimate
        if self.standing == "asking":
            return "predicting…"
        if self.standing == "stale":
            return "for other values"
        if self.reason == NOT_ANSWERED:
            return "its own devices only"  # what a chip has room for
        if found is None or self.reason:
            return self.reason
        if isinstance(found, ServerOnCard):
            return found.detail
        if found.largest_batch_size is None:
            if found.released_bytes and found.fits:
                return "after releasing its cache"
            return found.source
        if not found.largest_batch_size:
            return "even batch 1 does not fit"
        if found.largest_batch_capped:
            return f"batch {found.largest_batch_size} or more"
        if found.by_line:
            return f"up to batch ≈ {_roughly(found.largest_batch_size)}"
        return f"up to batch {found.largest_batch_size}"

    @property
    def share(self) -> float | None:
        """The share of the card that is needed, of others' memory too: 0 to 1; ``None`` where it is not known."""
        found = self.estimate
        if isinstance(found, ServerOnCard):
            return found.share
        if found is None or found.needed_bytes is None or not found.capacity_bytes or found.free_bytes is None:
            return None
        taken = found.capacity_bytes - found.free_bytes + found.needed_bytes
        return min(1.0, max(0.0, taken / found.capacity_bytes))

    @property
    def sentence(self) -> str:
        """All of it for who hears it or points at it."""
        if isinstance(self.estimate, ServerOnCard) and self.standing in ("fits", "uncertain", "short"):
            return "; ".join((self.estimate.headline, *self.estimate.lines))
        meaning = {"fits": "fits", "uncertain": "may fit", "short": "does not fit", "stale": "not for these values"}
        if self._spare is not None and self._spare < 0:
            meaning["uncertain"] = "may not fit"
        parts = [meaning.get(self.standing, ""), self.verdict, self._doubt, self.reason or self.detail]
        if self.time is not None:
            parts += [step_text(self.time), rate_text(self.time), bound_text(self.time)]
        return ", ".join(dict.fromkeys(filter(None, parts)))

    @property
    def _doubt(self) -> str:
        """Why it is not sure whether the run fits; "" where it is."""
        found = self.estimate
        if self.standing != "uncertain" or not isinstance(found, CardEstimate) or not found.margin_bytes:
            return ""
        error = format_bytes(found.margin_bytes)
        if found.borrowed:
            return f"as followed on another card, whose kernels may take {error} more or less"
        return f"the prediction may be off by {error}"

    @property
    def _spare(self) -> int | None:
        found = self.estimate
        if found is None or isinstance(found, ServerOnCard):
            return None
        return found.spare_bytes


def spare_text(spare: int) -> str:
    """What is spare, or short where it is below 0: "12.8 GiB spare"."""
    if spare < 0:
        return f"{_size_text(spare)} short"
    return f"{_size_text(spare)} spare"


def _size_text(spare: int) -> str:
    if abs(spare) >= GIB / 10:
        return f"{abs(spare) / GIB:.1f} GiB"
    return format_bytes(abs(spare))


def _roughly(size: int) -> int:
    """A size that is known to about 2 %, with two digits that count."""
    unit = int(10 ** max(0, len(str(size)) - 2))
    return size // unit * unit


def _is_borrowed(found: CardEstimate | ServerOnCard) -> bool:
    return isinstance(found, CardEstimate) and found.borrowed


def _reason_of(found: CardEstimate | ServerOnCard) -> str:
    """Why nothing can be said of a card; "" where something can."""
    if found.reason or isinstance(found, ServerOnCard) or found.fills_memory:
        return found.reason
    if found.free_bytes is None:
        return NOT_READ
    return ""


def _standing(found: CardEstimate | ServerOnCard) -> Standing:
    if isinstance(found, ServerOnCard):
        return found.standing
    if found.reason or found.peak_allocated_bytes is None or found.free_bytes is None:
        return "refused"
    if found.fits is None:
        return "uncertain"
    if found.fits:
        return "fits"
    return "short"

"""A comparison in words: one sentence above, and the cells of its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpudash.telemetry.comparing.comparison import Comparison, FieldPair
from gpudash.telemetry.comparing.differences import FigureDifference
from gpudash.units import format_bytes, format_duration, format_scaled, format_throughput

MINUS = "B minus A"
"""What the column of differences is called: the sign, spelt out."""

OVER = "B over A"

NO_VALUE = "-"

UNCLEAR = "too noisy to tell"
"""The verdict on a difference that would matter, and that equal runs may have as well."""

_NAMED = 3
"""Figures or fields that a sentence names; more are counted."""


def headline(comparison: Comparison) -> str:
    """What differs, in one or two sentences."""
    words = [_asked(comparison.changed)]
    found = comparison.differences
    for judgement in ("worse", "better"):
        named = [difference for difference in found if difference.judgement == judgement]
        if named:
            words.append(f"{judgement.capitalize()} in B: {_listed([_change(d) for d in named])}.")
    same, unclear = (sum(difference.verdict == verdict for difference in found) for verdict in ("same", "unclear"))
    if not found:
        words.append("They have no figure in common.")
    elif same == len(found):
        words.append(f"All {same} figures are the same within the noise.")
    else:
        words.append(f"{same} of {len(found)} figures are the same within the noise.")
    if unclear:
        words.append(f"{unclear} {'is' if unclear == 1 else 'are'} too noisy to tell.")
    return " ".join(words)


def _asked(changed: Sequence[FieldPair]) -> str:
    if not changed:
        return "Both were asked the same."
    pairs = [f"{pair.field} ({field_words(pair.a)} in A, {field_words(pair.b)} in B)" for pair in changed]
    return f"They differ in {_listed(pairs)}."


def _change(difference: FigureDifference) -> str:
    return f"{difference.a.title} ({signed(difference.a.unit, difference.difference)})"


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def value_words(unit: str, value: float | None) -> str:
    """``value`` with its unit, as everywhere else (`gpudash.units`)."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_duration(value)
    if unit == "items/s":
        return format_throughput(value)
    if unit == "ratio":
        return f"{value * 100:.1f} %"
    if unit == "times":
        return f"{value:.2f} times"
    if unit in ("nats", ""):
        digits = f"{value:.4f}" if 1e-3 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"
        return f"{digits} {unit}".strip()
    return format_scaled(value, unit)


def signed(unit: str, value: float) -> str:
    """A difference with its sign: "+12 MiB", "−3.1 ms", "0" for none. That of a ratio is in percentage points."""
    if value == 0:
        return "0"
    words = f"{abs(value) * 100:.1f} points" if unit == "ratio" else value_words(unit, abs(value))
    return f"{'+' if value > 0 else '−'}{words}"


def ratio_words(ratio: float | None) -> str:
    """A ratio: "1.20×", from ten on without decimals; "-" where there is none."""
    if ratio is None:
        return NO_VALUE
    return f"{ratio:.0f}×" if abs(ratio) >= 9.995 else f"{ratio:.2f}×" if abs(ratio) >= 0.0995 else f"{ratio:.2g}×"


def verdict_words(difference: FigureDifference) -> str:
    """ "same", "more", "less", "too noisy to tell", and whether that is better or worse."""
    if difference.verdict == "unclear":
        return UNCLEAR
    judgement = difference.judgement
    return difference.verdict if judgement is None else f"{difference.verdict}, {judgement}"


def field_words(value: Any) -> str:
    """The value of a field of a spec; "-" where the run has no such field."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def figure_row(difference: FigureDifference) -> list[str]:
    """Title, A, B, B minus A, B over A, verdict, noise: the cells of a row of figures."""
    unit = difference.a.unit
    return [
        difference.a.title,
        value_words(unit, difference.a.value),
        value_words(unit, difference.b.value),
        signed(unit, difference.difference),
        ratio_words(difference.ratio),
        verdict_words(difference),
        f"± {signed(unit, difference.noise).lstrip('+')}",
    ]


FIGURE_TITLES = ("figure", "A", "B", MINUS, OVER, "verdict", "noise")


def specs_row(pair: FieldPair) -> list[str]:
    """Field, whether both differ in it, A and B."""
    return [pair.field, "differs" if pair.differs else "same", field_words(pair.a), field_words(pair.b)]


SPEC_TITLES = ("asked and where", "", "A", "B")

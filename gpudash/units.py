"""Parsing and formatting of quantities: the one place that turns numbers into text.

Memory is binary (GiB, MiB), rates are decimal (GB/s), as the tools around PyTorch print them.
An unknown quantity is ``None`` or NaN and reads "not reported", never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Protocol, TypeVar

_Size = TypeVar("_Size", int, float)
_Size_co = TypeVar("_Size_co", int, float, covariant=True)

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

NOT_REPORTED = "not reported"

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_FACTORS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "m": MIB,
    "mib": MIB,
    "g": GIB,
    "gib": GIB,
    "t": TIB,
    "tib": TIB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}

_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""Not the locale's month names, so that all text is in one language."""

MAX_SIZE = 2**50
"""Largest size accepted anywhere: 1 PiB, far above any machine, far below int64."""


class _Held(Protocol[_Size_co]):
    @property
    def bytes(self) -> _Size_co: ...


def summed_bytes(parts: Iterable[_Held[_Size]]) -> _Size:
    """Bytes of some blocks, owners, processes or files together."""
    return sum(part.bytes for part in parts)


def parse_size(text: str | int) -> int:
    """Bytes in ``text``, such as ``8GiB``, ``512 MiB``, ``1.5GiB``, ``200MB`` or ``4096``.

    Raises:
        ValueError: one sentence, when the text is not a size or exceeds 1 PiB.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _SIZE.fullmatch(str(text))
        factor = None
        if match:
            factor = _FACTORS.get(match[2].lower())
        if match is None or factor is None:
            raise ValueError(f"{text!r} is not a size; write for example 512MiB or 8GiB")
        size = round(min(float(match[1]) * factor, 2.0 * MAX_SIZE))  # a long row of digits becomes an infinite float
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"{text!r} is outside 0 to 1 PiB")
    return size


def read_size(value: object) -> object:
    """`parse_size` for text; anything else is returned unchanged: a validator for model fields that hold sizes.

    Raises:
        ValueError: as for `parse_size`.
    """
    if isinstance(value, str):
        return parse_size(value)
    return value


def parse_share(text: str) -> float:
    """A share from ``10%`` or ``0.1``.

    Raises:
        ValueError: one sentence with what to write instead, when the text is neither, is negative, or is above 1
            without being a percentage.
    """
    if text.strip().endswith("%"):
        number, percent = (text.strip().removesuffix("%"), 100.0)
    else:
        number, percent = (text, 1.0)
    try:
        share = float(number) / percent
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise ValueError(f"{text} is no share; write 10% or 0.1")
    if percent == 1.0 and share > 1:
        raise ValueError(f"{text} would be {share * 100:.0f} %; write {text}% or {share / 100:g}")
    return share


def format_bytes(size: float | None, *, unit: str | None = None) -> str:
    """``size`` bytes as text: whole MiB below 1 GiB, two decimals up to 10 GiB, then one.

    Args:
        size: bytes; ``None`` or NaN gives "not reported".
        unit: force one of B, KiB, MiB, GiB, TiB, so that a sentence or column uses one unit.
    """
    if size is None or math.isnan(size):
        return NOT_REPORTED
    unit = unit or memory_unit(size)
    return f"{format_number(size, unit)} {unit}"


def format_change(size: float) -> str:
    """A change by ``size`` bytes, with its sign: "+1.10 GiB", "−3 MiB"."""
    return f"{'−' if size < 0 else '+'}{format_bytes(abs(size))}"


def memory_unit(size: float) -> str:
    """The unit in which ``size`` bytes is written."""
    magnitude = abs(size)
    for limit, unit in ((KIB, "B"), (MIB, "KiB"), (GIB - MIB / 2, "MiB"), (TIB, "GiB")):
        if magnitude < limit:
            return unit
    return "TiB"


def format_number(size: float, unit: str) -> str:
    """``size`` bytes as a number of ``unit``, without the unit."""
    value = size / _UNITS[unit]
    if unit in ("B", "MiB") or (unit == "KiB" and (abs(value) >= 10 or value == round(value))):
        return f"{value:.0f}"
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}"


def format_like(size: float | None, other: float | None) -> str:
    """``size`` in the unit of ``other``, if that is larger; in its own unit if too few digits would remain."""
    if size is None or other is None or math.isnan(size) or math.isnan(other):
        return format_bytes(size)
    unit = memory_unit(max(abs(size), abs(other)))
    return format_bytes(size, unit=unit if _has_digits(size, unit) else None)


def _has_digits(size: float, unit: str) -> bool:
    """Whether ``size`` bytes keep two digits when written in ``unit``, or one if it is written as a whole number."""
    return not size or abs(size) / _UNITS[unit] >= (1 if unit in ("B", "MiB") else 0.095)


def format_pair(used: float | None, total: float | None) -> str:
    """Two sizes in the larger one's unit: "19.8 of 24.0 GiB"."""
    if used is None or total is None or math.isnan(used) or math.isnan(total):
        return f"{format_bytes(used)} of {format_bytes(total)}"
    unit = memory_unit(max(used, total))
    return f"{format_number(used, unit)} of {format_number(total, unit)} {unit}"


def needed(size: int) -> str:
    """Required bytes, never rounded down."""
    unit, digits = _precision(size)
    return f"{-(-size * 10**digits // _UNITS[unit]) / 10**digits:.{digits}f} {unit}"


def available(size: int) -> str:
    """Available bytes, never rounded up."""
    unit, digits = _precision(size)
    return f"{size * 10**digits // _UNITS[unit] / 10**digits:.{digits}f} {unit}"


def _precision(size: int) -> tuple[str, int]:
    """Unit and decimals, as in `format_bytes`."""
    unit = memory_unit(size)
    if unit in ("B", "MiB"):
        return unit, 0
    if size < 10 * _UNITS[unit]:
        return unit, 2
    return unit, 1


@dataclass(frozen=True)
class SizeScale:
    """How to write sizes that are compared, so that the text preserves their order.

    A larger size never reads as less. `of` chooses enough digits that two different sizes read differently and that
    their difference has two digits, or one if it is in whole MiB or a smaller unit. Sizes in one sentence use one
    unit, the larger one's, unless too few digits of a size would remain.

    Attributes:
        unit: for all sizes; "" gives each its own.
    """

    unit: str = ""

    @classmethod
    def of(cls, need: int, free: int) -> SizeScale:
        """The coarsest scale that distinguishes ``need`` from ``free``, both in bytes."""
        for scale in (cls(memory_unit(max(abs(need), abs(free)))), cls("GiB"), cls("MiB"), cls("KiB")):
            large = {scale.unit_of(need), scale.unit_of(free)} & {"GiB", "TiB"}
            apart = abs(scale.shown(free) - scale.shown(need))
            if need == free or apart >= max((Fraction(_UNITS[unit], 10) for unit in large), default=1):
                return scale
        return cls("B")

    def unit_of(self, size: int) -> str:
        """The unit in which ``size`` bytes are written."""
        if self.unit and _has_digits(size, self.unit):
            return self.unit
        return memory_unit(size)

    def label(self, size: int) -> str:
        """``size`` bytes, with two decimals from 1 GiB on."""
        unit = self.unit_of(size)
        return f"{_comparable(size / _UNITS[unit], unit)} {unit}"

    def shown(self, size: int) -> Fraction:
        """The bytes that a reader of `label` takes ``size`` for."""
        unit = self.unit_of(size)
        return Fraction(_comparable(size / _UNITS[unit], unit)) * _UNITS[unit]

    def apart(self, need: int, free: int) -> str:
        """The distance between two sizes: the difference of the values shown, in the larger one's unit."""
        unit = self.unit_of(max(need, free))
        return f"{_comparable(abs(self.shown(free) - self.shown(need)) / _UNITS[unit], unit)} {unit}"


def _comparable(value: float | Fraction, unit: str) -> str:
    return f"{float(value):.{2 if unit in ('GiB', 'TiB') else 0}f}"


def format_energy(joules: float) -> str:
    """Energy as it is billed: 0.4 Wh, 12 Wh, 3.4 kWh."""
    hours = joules / 3600
    if hours < 10:
        return f"{hours:.1f} Wh"
    if hours < 1000:
        return f"{hours:.0f} Wh"
    return f"{hours / 1000:.1f} kWh"


def format_scaled(value: float | None, unit: str) -> str:
    """``value`` with a decimal prefix and three digits: 24.6 GB/s, 141 TFLOP/s."""
    if value is None or math.isnan(value):
        return NOT_REPORTED
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}∞ {unit}"
    magnitude = abs(value)
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if magnitude >= factor * 0.9995:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def format_rate(bytes_per_second: float | None) -> str:
    """A data rate in decimal units: 24.6 GB/s."""
    return format_scaled(bytes_per_second, "B/s")


def format_throughput(items_per_second: float | None, item: str = "items") -> str:
    """Items per second: 9 830 items/s, 12.5 items/s, or another unit."""
    if items_per_second is None or math.isnan(items_per_second):
        return NOT_REPORTED
    if abs(items_per_second) >= 99.95 and math.isfinite(items_per_second):
        return f"{format_count(round(items_per_second))} {item}/s"
    return format_scaled(items_per_second, f"{item}/s")


def format_percent(ratio: float | None) -> str:
    """``ratio`` (0 to 1) as a whole percentage; "< 1 %" for a trace; 100 % only when full."""
    if ratio is None or math.isnan(ratio):
        return NOT_REPORTED
    if 0 < ratio < 0.01:
        return "< 1 %"
    percent = round(ratio * 100)
    if percent == 100 and ratio < 1:
        percent = 99
    return f"{percent} %"


def format_duration(seconds: float | None) -> str:
    """A duration: 4.1 µs, 412 ms, 12.4 s, 3 min 05 s, 2 h 10 min."""
    if seconds is None or math.isnan(seconds):
        return NOT_REPORTED
    if math.isinf(seconds):
        return "∞"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_age(seconds: float) -> str:
    """An age or a duration so far in one whole unit: "40 s", "12 min", "3 h", "2 days"."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        count = int(seconds // unit)
        if count == 1 and name == "days":
            return "1 day"
        if count:
            return f"{count} {name}"
    return f"{int(max(0.0, seconds))} s"


def format_left(seconds: float) -> str:
    """The remaining time, formatted the same everywhere: 24 s, 3 min 05 s; 1 s during the last second."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    return format_duration(max(60.0, seconds))


def format_clock(seconds: float) -> str:
    """A time within a session: 0:41, 12:05, 1:02:03."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def format_moment(seconds: float) -> str:
    """`format_clock` to a tenth of a second: 0:41.3, 1:02:03.0."""
    tenths = max(0, int(seconds * 10 + 1e-6))
    return f"{format_clock(tenths // 10)}.{tenths % 10}"


def format_date(seconds: float) -> str:
    """A date from seconds since the epoch: "today 14:05", "yesterday 18:02", "3 Mar 09:30", "3 Mar 2025"."""
    moment = _local_time(seconds)
    now = datetime.now().astimezone()
    clock = f"{moment:%H:%M}"
    for text, day in (("today", now), ("yesterday", now - timedelta(days=1))):
        if moment.date() == day.date():
            return f"{text} {clock}"
    if moment.year == now.year:
        return f"{_day(moment)} {clock}"
    return f"{_day(moment)} {moment.year}"


def format_dates(moments: Sequence[float]) -> list[str] | None:
    """Each of several moments, as short as keeps them distinct; ``None`` if two are the same."""
    local = list(map(_local_time, moments))
    dates = [""] * len(local)
    if len({moment.date() for moment in local}) > 1:
        dates = [f"{_day(moment)} " for moment in local]
    if len({moment.year for moment in local}) > 1:
        dates = [f"{_day(moment)} {moment.year} " for moment in local]
    for form in ("%H:%M", "%H:%M:%S"):
        texts = [f"{date}{moment.strftime(form)}" for date, moment in zip(dates, local, strict=True)]
        if len(set(texts)) == len(texts):
            return texts
    return None


def _day(moment: datetime) -> str:
    return f"{moment.day} {_MONTHS[moment.month - 1]}"


def _local_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def listed(names: Sequence[str], most: int, noun: str = "") -> str:
    """The first ``most`` names, separated by commas, and how many more there are: "a, b and 3 more".

    Args:
        names: at least one.
        most: how many are named.
        noun: what the others are, after "more".
    """
    named = ", ".join(names[:most])
    if len(names) <= most:
        return named
    return f"{named} and {len(names) - most} more{noun and f' {noun}'}"


def format_count(number: int) -> str:
    """An integer with thin spaces between groups of three digits: 18 053."""
    return f"{number:,}".replace(",", "\u202f")


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"

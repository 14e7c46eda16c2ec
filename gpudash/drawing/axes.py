"""The axes of a plot: how a value reads, how far the y axis reaches, where its ticks go.

A y axis grows at once and shrinks only after a calm while or on request. Ticks are binary steps for memory, 1-2-5
elsewhere, and whole minutes for time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from gpudash.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_clock,
    format_duration,
    format_percent,
    format_rate,
    format_scaled,
    format_throughput,
    memory_unit,
)

Unit = Literal["bytes", "rate", "ratio", "number", "nats", "loss"]
"""What is drawn; a loss of unknown unit is a "loss"."""

Style = Literal["solid", "dash", "dot", "dashdot", "dashdotdot"]
"""Of a line."""

Origin = Literal["", "now", "the start"]
"""What times on an axis count from; "" for the beginning of the session."""

NO_VALUE = "-"

MOST_TICKS = 10
"""Ticks of an axis of values however high it is: more are not read."""


BYTE_POWERS = ((1, "1 B"), (KIB, "1 KiB"), (MIB, "1 MiB"), (GIB, "1 GiB"), (TIB, "1 TiB"))
"""Ticks of a logarithmic axis of sizes."""


def format_value(unit: Unit, value: float | None, unit_name: str = "") -> str:
    """``value`` with its unit, as everywhere else (`gpudash.units`); "-" where there is none."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if unit == "bytes":
        return format_bytes(value)
    if unit == "rate":
        return format_rate(value)
    if math.isinf(value):
        # Infinite values come from diverged losses and must not reach the rounding below.
        return f"{'∞' if value > 0 else '-∞'} {unit_name}".strip()
    if unit == "ratio":
        return format_percent(value)
    if unit in ("nats", "loss"):
        if abs(value) < 1000:
            return f"{value:.3f}"
        return f"{value:.4g}"
    if unit_name == "s":
        return format_duration(value)
    if unit_name in ("items/s", "steps/s"):
        return format_throughput(value, unit_name.removesuffix("/s"))
    return format_scaled(value, unit_name).strip()


CALM_S = 3.0
"""How long the data must need clearly less of the axis before it shrinks."""

_SHRINK_BELOW = 0.6
"""Share of the axis that must suffice before it may shrink at all."""

_LEAST = 1e-9
"""Narrowest axis."""

_LEAST_BYTES = 16 * 2.0**20
"""Narrowest axis of a memory: one that is empty has no ticks within a mebibyte."""


@dataclass(slots=True)
class Autoscale:
    """The range of one y axis, in drawn coordinates (decimal logarithms where `log`).

    Attributes:
        unit: memory, rates and numbers begin at 0; ratios are 0 to 1.
        log: logarithmic; only where 0 cannot occur.
        manual: a range the user chose; kept until `reset`.
    """

    unit: Unit
    log: bool = False
    manual: tuple[float, float] | None = None
    _low: float = 0.0
    _high: float = 0.0
    _fresh: bool = True
    _calm_since: float | None = None

    def range(self) -> tuple[float, float]:
        """The range in force; low < high."""
        if self.manual is not None:
            return self.manual
        if self._fresh:
            # A plot without data still has an axis, with which a first value does not jump.
            return 0.0, _LEAST_BYTES if self.unit == "bytes" else 1.0
        return self._low, self._high

    def reset(self) -> None:
        """Fit to the data again at the next `update`."""
        self.manual = None
        self.refit()

    def refit(self) -> None:
        """Fit to the data again at the next `update`, and keep a range the user chose."""
        self._fresh = True
        self._calm_since = None

    def update(self, low: float, high: float, now_s: float, most: float = math.inf) -> tuple[float, float]:
        """Take in the data's extremes.

        Args:
            low, high: in drawn coordinates; NaN for no data.
            now_s: when, in seconds that only go forward.
            most: highest that the data can be: an axis that reaches farther, for what was in view before, shrinks after
                the calm while however much of it would suffice.
        """
        if math.isnan(low) or math.isnan(high):
            return self.range()
        target = self._target(low, high)
        if self._fresh:
            self._low, self._high = target
            self._fresh = False
        # An axis grows at once: a value beyond its end could not be seen.
        if target[0] < self._low or target[1] > self._high:
            self._low, self._high = min(target[0], self._low), max(target[1], self._high)
        # Only where what was in view before has left can nothing that is there need the height.
        needless = most < math.inf and high <= most and self._high > self._target(low, most)[1]
        # Any moment that needs the height starts the calm anew, so that a curve that swings does not pump the axis.
        if target[1] - target[0] >= (self._high - self._low) * _SHRINK_BELOW and not needless:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s
        elif now_s - self._calm_since >= CALM_S:
            self._low, self._high = target
            self._calm_since = None
        return self.range()

    def zoom(self, factor: float, anchor: float) -> None:
        """Make the range ``factor`` times as high around ``anchor``; axes that begin at 0 keep doing so."""
        low, high = self.range()
        # An axis that begins at 0 is stretched from there: 0 stays where the eye expects it.
        if self.unit in ("bytes", "rate", "number", "ratio") and low >= 0:
            self.manual = (low, low + (high - low) * factor)
        else:
            self.manual = (anchor - (anchor - low) * factor, anchor + (high - anchor) * factor)

    def _target(self, low: float, high: float) -> tuple[float, float]:
        # A logarithm or a loss has no 0 to begin at: the data with some air is the range.
        if self.log or self.unit in ("nats", "loss"):
            pad = max((high - low) * 0.08, abs(high) * 0.02, 1e-6)
            return self._rounded(low - pad, high + pad)
        if self.unit == "ratio":
            return min(0.0, low), max(1.04, high * 1.04)
        if self.unit == "bytes":
            return min(0.0, low), max(high * 1.12, _LEAST_BYTES)
        return self._rounded(min(0.0, low), high * 1.08 if high > 0 else 1.0)

    def _rounded(self, low: float, high: float) -> tuple[float, float]:
        """Ends on a coarse raster, so that noise does not move the axis at every frame."""
        high = max(high, low + _LEAST)
        raster = 10.0 ** math.floor(math.log10(high - low)) / 5
        # 1e-9 lets a value that lies on the raster be its own end, whatever floating point made of it.
        return math.floor(low / raster + 1e-9) * raster, math.ceil(high / raster - 1e-9) * raster


_BINARY = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Ticks:
    """Positions (in drawn coordinates) with labels, and the name of the axis; it begins with `prefix`, by which the
    labels are shortened: k, M.
    """

    marks: tuple[tuple[float, str], ...]
    name: str
    prefix: str = ""

    @property
    def marks_without_name(self) -> tuple[tuple[float, str], ...]:
        """The marks for an axis without room for its name: each with the prefix, 10k."""
        return tuple((place, f"{text}{self.prefix}" if place else text) for place, text in self.marks)

    @property
    def named_marks(self) -> tuple[tuple[float, str], ...]:
        """The marks, the last one with the name of the axis behind it."""
        if not self.marks:
            return ()
        place, text = self.marks[-1]
        return *self.marks[:-1], (place, f"{text} {self.name}")


def value_ticks(unit: Unit, low: float, high: float, count: int, *, log: bool = False, unit_name: str = "") -> Ticks:
    """About ``count`` ticks from ``low`` to ``high``.

    Args:
        unit: what is drawn.
        low, high: range of the axis; of the decimal logarithm where ``log``.
        count: how many ticks there is room for.
        log: whether the axis is logarithmic.
        unit_name: what a "number" counts.
    """
    # A recording may hold anything, and an axis without extent has no step.
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return Ticks((), "")
    if log and unit == "bytes":
        marks = ((math.log10(size), name) for size, name in BYTE_POWERS)
        return Ticks(tuple(mark for mark in marks if low <= mark[0] <= high), "")
    if log:
        return Ticks(_log_marks(low, high, count), "nats" if unit == "nats" else unit_name)
    if unit == "bytes":
        return _byte_ticks(low, high, count)
    if unit == "ratio":
        return _ratio_ticks(low, high, count)
    step = _step(high - low, count)
    if unit in ("nats", "loss"):
        return Ticks(tuple((v, _plain(v, step)) for v in _multiples(low, high, step)), "nats" if unit == "nats" else "")
    largest = max(abs(low), abs(high))
    factor, prefix = next(((f, p) for f, p in _DECIMAL if largest >= f), (1.0, ""))
    # Up to ten thousand the number itself is shorter to read than thousands with decimals.
    if unit == "number" and factor == 1e3 and largest < 1e4:
        factor, prefix = 1.0, ""
    name = f"{prefix} {unit_name}".strip()
    if unit == "rate":
        name = f"{prefix}B/s"
    shortened = tuple((v, _plain(v / factor, step / factor)) for v in _multiples(low, high, step))
    return Ticks(shortened, name, prefix)


def _ratio_ticks(low: float, high: float, count: int) -> Ticks:
    """Ticks in per cent.

    A share reads best in tenths, fifths, quarters or halves; only where all of 0 to 1 is in view is there room for
    these.
    """
    step = _step(high - low, count)
    if 0.5 <= high - low <= 1.2:
        step = next((s for s in (0.1, 0.2, 0.25, 0.5) if (high - low) / s <= max(count, 2)), 0.5)
    return Ticks(tuple((v, f"{v * 100:.{int(step < 0.01)}f}") for v in _multiples(low, high, step)), "%")


def time_ticks(start: float, end: float, width_px: float, *, relative_to: Origin = "") -> Ticks:
    """Ticks of the time axis.

    Args:
        start, end: range in seconds, relative to ``relative_to`` or in session time.
        width_px: length of the axis.
        relative_to: what the labels count from.
    """
    span = end - start
    if not span > 0 or width_px <= 0:
        return Ticks((), "")
    step = _time_step(span, width_px)
    positions = _multiples(start, end, step)
    if not relative_to:
        return Ticks(tuple((t, _session_label(t, step)) for t in positions), "session time")
    unit, name = _unit_of_span(span)
    marks = tuple((t, _plain(t / unit, step / unit)) for t in positions)
    if relative_to == "now":
        return Ticks(marks, f"{name} before now")
    return Ticks(marks, f"{name} since {relative_to}")


def _unit_of_span(span: float) -> tuple[float, str]:
    """Seconds of the unit in which so many seconds are counted, and its name."""
    if span <= 300:
        return 1.0, "seconds"
    if span <= 3 * 3600:
        return 60.0, "minutes"
    return 3600.0, "hours"


def clock_ticks(start: float, end: float, width_px: float) -> Ticks:
    """Ticks of a time axis that tells times by the user's clock, whole hours and minutes of it; a new day by its date.

    Args:
        start, end: range, in seconds since the epoch.
        width_px: length of the axis.
    """
    if not end > start or width_px <= 0:
        return Ticks((), "")
    step = _time_step(end - start, width_px)
    # steps of hours begin at the clock's midnight, also where it is not that of UTC
    # The zone's offset at the beginning serves for the whole axis, so that steps stay even across a change of the
    # clock.
    ahead_s = (_moment(start).utcoffset() or timedelta()).total_seconds()
    positions = [t - ahead_s for t in _multiples(start + ahead_s, end + ahead_s, step)]
    return Ticks(tuple((t, _clock_label(t, step)) for t in positions), f"clock time, from {_date(_moment(start))} on")


def _moment(wall_s: float) -> datetime:
    return datetime.fromtimestamp(wall_s, UTC).astimezone()


def _date(moment: datetime) -> str:
    return f"{moment.day} {moment:%b}"


def _clock_label(wall_s: float, step: float) -> str:
    moment = _moment(round(wall_s, 3))
    if step >= 86400 or (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0):
        return _date(moment)
    if step >= 60:
        return f"{moment:%H:%M}"
    if step >= 1:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 100_000}"


def _time_step(span: float, width_px: float) -> float:
    """Seconds between ticks."""
    count = max(2, int(width_px / 80))
    if span / count < 1:
        return _step(span, count)
    # Beyond a day, whole days.
    return next((float(s) for s in _TIME_STEPS if span / s <= count), 0.0) or 86400.0 * math.ceil(span / 86400 / count)


def _session_label(time_s: float, step: float) -> str:
    if step >= 1:
        if time_s < 0:
            return f"-{format_clock(-time_s)}"
        return format_clock(time_s)
    digits = max(1, -math.floor(math.log10(step) + 1e-9))
    minutes, seconds = divmod(time_s, 60)
    return f"{int(minutes)}:{seconds:0{3 + digits}.{digits}f}"


def _byte_ticks(low: float, high: float, count: int) -> Ticks:
    unit = memory_unit(high)
    size = _BINARY[unit]
    # The power of two that is nearest in ratio, not in difference.
    step = 2.0 ** round(math.log2((high - low) / size / max(count, 1)))
    positions = _multiples(low, high, step * size)
    return Ticks(tuple((v, _plain(v / size, step)) for v in positions), unit)


LEAST_LOG_TICKS = 3
"""Labelled ticks without which a logarithmic axis cannot be told from a linear one."""


def _log_marks(low: float, high: float, count: int) -> tuple[tuple[float, str], ...]:
    """Parts of powers of ten where they fit, every so many powers where there are many, else even steps within one."""
    count = max(count, LEAST_LOG_TICKS)
    first, last = math.floor(low), math.ceil(high)
    # Fewer parts of each power, until they fit.
    for leads in ((1, 2, 5), (1, 3), (1,)):
        values = [lead * 10.0**decade for decade in range(first, last + 1) for lead in leads]
        marks = [value for value in values if low <= math.log10(value) <= high]
        if LEAST_LOG_TICKS <= len(marks) <= count:
            return tuple((math.log10(value), _log_label(value)) for value in marks)
    powers = [decade for decade in range(first, last + 1) if low <= decade <= high]
    if len(powers) >= LEAST_LOG_TICKS:
        # The stride keeps at least three of them, which is what shows that the axis is logarithmic.
        stride = max(1, min(math.ceil(len(powers) / count), (len(powers) - 1) // (LEAST_LOG_TICKS - 1)))
        return tuple((float(decade), _log_label(10.0**decade)) for decade in powers[::stride])
    # Within one power even steps; finer ones, until three of them lie in view.
    for wanted in range(count, count + 8):
        step = _step(10.0**high - 10.0**low, wanted)
        marks = [value for value in _multiples(10.0**low, 10.0**high, step) if value > 0]
        if len(marks) >= LEAST_LOG_TICKS:
            break
    return tuple((math.log10(value), _plain(value, step)) for value in marks)


def _log_label(value: float) -> str:
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    lead = f"{value / 10.0**power:.0f}·".removeprefix("1·")
    return f"{lead}10{str(power).translate(_SUPERSCRIPTS)}"


def _step(span: float, count: int) -> float:
    rough = span / max(count, 1)
    power: float = 10.0 ** math.floor(math.log10(rough))
    # Nearest by ratio, as the eye takes steps on an axis.
    return min((lead * power for lead in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))


def _multiples(low: float, high: float, step: float) -> list[float]:
    # The tolerance keeps ticks at the very ends, which floating point would push outside.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # However small the step, an axis has no more than can be drawn.
    return [i * step for i in range(first, min(last, first + 200) + 1)]


def _plain(value: float, step: float) -> str:
    digits = 0
    if step > 0:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
    # Steps such as 0.25 need one digit more than their power of ten says.
    if step < 1 and round(step * 10**digits) * 10**-digits != step:
        digits = next((d for d in range(digits, digits + 12) if abs(round(step, d) - step) < step * 1e-6), digits)
    text = f"{value:.{digits}f}"
    # No "-0".
    if text.startswith("-") and not text.strip("-0."):
        return text[1:]
    return text

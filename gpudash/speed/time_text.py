"""A predicted time as text, which always says that it is predicted."""

from __future__ import annotations

from collections.abc import Iterator

from gpudash.speed.sentence import gain_text, held_back
from gpudash.speed.work import StepTime
from gpudash.units import format_count, format_duration, format_percent, format_throughput

MOST_GAINS = 3

LEAST_GAIN = 1.02
"""A change that gains less is not worth its line: the prediction itself is less accurate."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def span_text(median: float, low: float, high: float) -> str:
    """A time and its interval in one unit: "0.31 s (0.26 to 0.38)". Seconds; from two minutes on each in its own."""
    if high >= 120:
        return f"{format_duration(median)} ({format_duration(low)} to {format_duration(high)})"
    factor, unit, digits = _scale(low)
    shown = [f"{value / factor:,.{digits}f}" for value in (median, low, high)]
    return f"{shown[0]} {unit} ({shown[1]} to {shown[2]})"


def _scale(low: float) -> tuple[float, str, int]:
    """Unit for an interval that starts at ``low``: its length in seconds, its name, and the number of decimals."""
    # Including a tenth of a unit: 0.31 s is read beside 1.2 s, and 0.02 s becomes 20 ms.
    factor, unit = next((known for known in _UNITS if low >= 0.0995 * known[0]), _UNITS[-1])
    # As many digits as distinguish the ends of the interval from the middle: two of the lowest.
    digits = 0
    while digits < 3 and low / factor < 10 ** (1 - digits) * 0.995:
        digits += 1
    return factor, unit, digits


def short_text(time: StepTime) -> str:
    """A step as short as possible: "0.31 s"."""
    return span_text(time.median_s, time.low_s, time.high_s).partition(" (")[0]


def about_text(time: StepTime) -> str:
    """A step with its uncertainty: "0.31 s ± 0.06"; half the interval, which need not be symmetric."""
    factor, unit, digits = _scale(time.low_s)
    half = (time.high_s - time.low_s) / 2
    return f"{time.median_s / factor:,.{digits}f} {unit} ± {half / factor:,.{digits}f}"


def step_text(time: StepTime) -> str:
    """A step with its interval: "predicted 0.31 s a step (0.26 to 0.38)"."""
    median, _, rest = span_text(time.median_s, time.low_s, time.high_s).partition(" (")
    return f"predicted {median} a step ({rest}"


def rate_text(time: StepTime) -> str:
    """Items per second: "206 samples/s"."""
    return format_throughput(time.items_per_s, time.unit)


def passes_text(time: StepTime, steps: int, name: str) -> str:
    """Several steps with their interval: "predicted 2.1 s for the 300 steps of an epoch (1.8 to 2.6)".

    Args:
        time: time of one step.
        steps: number of steps.
        name: name of what they make up: "an epoch".
    """
    spread = (value * steps for value in (time.median_s, time.low_s, time.high_s))
    whole, _, rest = span_text(*spread).partition(" (")
    return f"predicted {whole} for the {format_count(steps)} steps of {name} ({rest}"


def bound_text(time: StepTime) -> str:
    """What limits the step, within a sentence: "launch-bound: for 71 % of the step the GPU waits for Python"."""
    text = held_back(time)
    return f"{text[0].lower()}{text[1:]}"


def unknown_text(time: StepTime) -> str:
    """Operations that count only by their bytes; "" if there are none."""
    if not time.unknown:
        return ""
    share = 0.0
    if time.device_s:
        share = time.unknown_s / time.device_s
    many = f"{format_count(time.unknown)} operations"
    if time.unknown == 1:
        many = "1 operation"
    return f"{many} a step unknown, {format_percent(share)} of the GPU's time: counted by the bytes they move"


def gain_texts(time: StepTime) -> list[str]:
    """The changes that would help most, each with its factor: "batch 64: predicted 2.6× samples/s"."""
    worth = [gain for gain in time.gains if gain.factor >= LEAST_GAIN]
    return [gain_text(gain, f"predicted {gain.factor:.2g}× {time.unit}/s") for gain in worth[:MOST_GAINS]]


def time_lines(time: StepTime, epoch_steps: int | None = None) -> Iterator[str]:
    """Everything to show about a predicted step, one line each.

    Args:
        epoch_steps: steps of an epoch; ``None`` if not known.
    """
    yield f"{step_text(time)}, {rate_text(time)}"
    if epoch_steps is not None and epoch_steps > 1:
        hourly = 3600 / (time.median_s * epoch_steps)
        yield f"{passes_text(time, epoch_steps, 'an epoch')}, {_count_text(hourly)} epochs an hour"
    yield bound_text(time)
    if text := unknown_text(time):
        yield text
    yield from (f"would help: {text}" for text in gain_texts(time))
    if time.source:
        # The document for programs says where the data come from.
        basis = time.source.partition(" (")[0]
        yield f"nothing was measured on this card; the prediction rests on {basis}"


def _count_text(value: float) -> str:
    if value >= 99.5:
        return format_count(round(value))
    return f"{value:.2g}"

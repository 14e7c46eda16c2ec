"""A workload's result in words: the rows of the window's result table and of the terminal's report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpudash.telemetry.comparison_outcome import comparison_rows
from gpudash.units import (
    NOT_REPORTED,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_scaled,
    format_throughput,
)

Row = Sequence[str]
"""What, and how much or how."""


FIRST_VALUES = 3
"""Values of a tensor that are enough to recognise it by."""


def outcome_rows(result: Mapping[str, Any]) -> list[Row]:
    """The result of any workload, most telling first; keys nobody has words for are left to the JSON document."""
    rows = [row for tell in (comparison_rows, _pipeline, _transfer, _figures) for row in tell(result)]
    return [*rows, ("remark", str(result["remark"]))] if "remark" in result else rows


def stage_remark(stage: Mapping[str, Any]) -> str:
    """What else is known of a stage, by the keys of `StageView.summary`."""
    parts = [stage["remark"] or ""]
    for key, yes, no in (
        ("same_object", "same object", "new object"),
        ("is_cuda", "is_cuda", "not is_cuda"),
        ("is_leaf", "leaf", "not a leaf"),
    ):
        if stage[key] is not None:
            parts.append(yes if stage[key] else no)
    if stage["first_values"]:
        parts.append(f"first values {', '.join(f'{value:g}' for value in stage['first_values'][:FIRST_VALUES])}")
    told = [part for part in parts if part]
    return "; ".join([*(part.rstrip(".") for part in told[:-1]), *told[-1:]])


def _pipeline(result: Mapping[str, Any]) -> Iterator[Row]:
    if "values" in result:
        yield "values", str(result["values"])
        yield "as expected", "yes" if result["equal"] else f"no, expected {result['expected']}"
        yield "original unchanged", "yes" if result["original_unchanged"] else "no"
    pitfall = result.get("pitfall")
    if isinstance(pitfall, Mapping):
        for name in ("message", "explanation", "remedy"):
            if pitfall.get(name):
                yield f"pitfall, {name}", str(pitfall[name])


def _transfer(result: Mapping[str, Any]) -> Iterator[Row]:
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for rate in result.get("rates", ()):
        way = f"{rate['from']} → {rate['to']}, {rate['memory']}"
        if rate["bytes_per_second_median"] is None:
            if way not in left_out[rate["reason"]]:
                left_out[rate["reason"]].append(way)
        else:
            spread = format_percent(rate["bytes_per_second_iqr"] / rate["bytes_per_second_median"])
            how = "" if rate["blocking"] else ", overlapped"
            yield (
                f"{way}{how}, {format_bytes(rate['block_bytes'])}",
                f"{format_rate(rate['bytes_per_second_median'])}, spread {spread}",
            )
    if result.get("copy_once_seconds") and result.get("copy_every_step_seconds"):
        every, once = result["copy_every_step_seconds"], result["copy_once_seconds"]
        yield "copied every step and back", f"{format_duration(every)}, {every / once:.1f} times as long as copied once"
    for reason, ways in left_out.items():
        yield "not possible", f"{'; '.join(ways)}: {reason}"


def _figures(result: Mapping[str, Any]) -> Iterator[Row]:
    for name, title, write in _FIGURES:
        value = result.get(name)
        if value is not None:
            yield title, write(value)
    corpus = result.get("corpus")
    if isinstance(corpus, Mapping):
        yield "text", f"{corpus['source']}, {format_bytes(corpus['bytes'])}, SHA-256 {str(corpus['sha256'])[:16]}…"
    placement = result.get("placement")
    if isinstance(placement, Mapping):
        yield "placement", _placement(placement)


def _placement(placement: Mapping[str, Any]) -> str:
    parts = []
    for group, devices in placement["groups"].items():
        held = [f"{device} ({format_bytes(facts['bytes'])})" for device, facts in devices.items()]
        if held:
            parts.append(f"{group} on {', '.join(held)}")
    strays: Sequence[str] = placement.get("strays") or ()
    return "; ".join(parts) + (f"; elsewhere: {', '.join(map(str, strays))}" if strays else "")


_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("flops_per_second", "arithmetic rate", lambda value: format_scaled(value, "FLOP/s")),
    ("seconds_median", "one product, median", format_duration),
    ("seconds_iqr", "spread", format_duration),
    ("steps_per_second", "steps a second", lambda value: f"{value:.3g}"),
    ("items_per_second", "throughput", format_throughput),
    ("latency_p50_seconds", "latency, median", format_duration),
    ("latency_p95_seconds", "latency, 95 of 100 below", format_duration),
    ("unigram_entropy", "unigram entropy", lambda value: f"{value:.3f} nats"),
    ("most_frequent_share", "share of the most frequent", format_percent),
    ("parameters", "parameters", format_count),
    ("cap_bytes", "cap", format_bytes),
    ("allocated_bytes", "allocated", format_bytes),
    ("allocations", "allocations", format_count),
    ("link_bytes_per_second", "the link on paper", format_rate),
    ("threads", "threads", lambda value: NOT_REPORTED if value is None else str(value)),
)

"""A workload's result in words: rows for the window's result table and the terminal's report.

For comparisons, also the cells of the verdict's table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpudash.devices.names import shown_devices, shown_name
from gpudash.drawing.axes import Style, Unit
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.records import Topic
from gpudash.telemetry.runs import WATCH, RunView, whose_peak
from gpudash.units import (
    NOT_REPORTED,
    format_bytes,
    format_count,
    format_duration,
    format_like,
    format_pair,
    format_percent,
    format_rate,
    format_scaled,
    format_throughput,
)

Row = Sequence[str]
"""Title and value."""


FIRST_VALUES = 3
"""How many values of a tensor are enough to recognise it."""


PROMPT_SHOWN = 24
"""How many of a prompt's last characters are shown before the generated text."""

FIRST_WRITTEN = 12
"""How many characters of a text fit in a large figure."""

LEFT_OUT = "left out"


def outcome_rows(result: Mapping[str, Any]) -> list[Row]:
    """The result of any workload, most important first; keys without a wording appear only in the JSON document."""
    compared = (comparison_rows, predicted_rows)
    kinds = (_stop, *compared, prediction_rows, _pipeline, _transfer, _figures, _device_peaks)
    rows = [row for rows_of in kinds for row in _sensible(rows_of, result)]
    if "remark" in result:
        return [*rows, ("remark", str(result["remark"]))]
    return rows


FEWEST_STEPS = 4
"""Steps from which the time of a step is reported: the first is warm-up, and two or three say little."""


def predicted_step(run: RunView) -> Iterator[Row]:
    """The predicted time of a step on the run's device, next to the measured one.

    Nothing for a simulated card, whose steps the CPU computes.
    """
    if run.simulated or run.running:
        return
    took = run.step_times.median_s()
    if took is None or run.step < FEWEST_STEPS:
        return
    for note in reversed(run.notes):
        step = note.details.get("step") if note.topic == Topic.PREDICTED else None
        if isinstance(step, Mapping) and isinstance(step.get("words"), str):
            yield "time of a step", f"predicted {step['words']}, took {format_duration(took)}"
            return


def run_figures(run: RunView) -> list[Row]:
    """A few figures of a run, its subject first: names and values."""
    if run.error is not None and run.error.explanation is not None:
        return [*_memory_figures(run.error.explanation), *_cost_figures(run)]
    rows = (row for row in _sensible(lambda result: _main_figures(run, result), run.result) if row[0] != LEFT_OUT)
    return [*rows, *_cost_figures(run)]


def without_figures(rows: Iterable[Row], figures: Collection[Row]) -> list[tuple[str, str]]:
    """The rows that are not already among a run's figures, such as "throughput, median" with the same value."""
    return [(name, value) for name, value in rows if (name.partition(",")[0], value) not in figures]


def ended_badly(run: RunView) -> str:
    """That a run failed or ran out of memory, and where; its result, shown above, has the reason. "" for other runs."""
    if run.error is None:
        return ""
    if run.workload == WATCH:
        what = "The program"
    else:
        what = run.workload.capitalize()
    how = "failed"
    if run.status == "out_of_memory":
        how = "ran out of memory"
    if run.error.error == "guard":
        how = "was stopped by the guard"
    step = ""
    if run.step:
        step = f" at step {format_count(run.step)}"
    return f"{what} on {shown_devices(run.device, run.spec)} {how}{step}; see why above."


def is_put_forward(run: RunView) -> bool:
    """Whether a run's result says more than its plots: why it failed, or, if it finished, a figure of its own."""
    if run.status != "finished":
        return run.status in ("failed", "out_of_memory")
    return has_verdict(run.result) or any(_sensible(lambda result: _main_figures(run, result), run.result))


def _main_figures(run: RunView, result: Mapping[str, Any]) -> Iterator[Row]:
    for name, title, write in _MAIN_METRICS:
        metric = run.metrics.get(name)
        if metric is not None and metric.count:
            yield title, write(metric.last)
    for predicted in result.get("predictions", ())[:1]:
        if "text" in predicted:
            yield "writes", _quoted(predicted["text"][:FIRST_WRITTEN])
        else:
            yield "predicts", _class_text(predicted)
    yield from _rates(result)
    if result.get("flops_per_second") is not None:
        yield "arithmetic rate", format_scaled(result["flops_per_second"], "FLOP/s")
        yield "one product", format_duration(result["seconds_median"])


_MAIN_METRICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "final loss", lambda value: f"{value:.4g}"),
    ("val_loss", "validation loss", lambda value: f"{value:.4g}"),
    ("accuracy", "accuracy", format_percent),
)
"""Metrics whose last value is a figure of the run: name, title and format."""


def _rates(result: Mapping[str, Any]) -> Iterator[Row]:
    """The rate of copies between each two memories."""
    rates: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for rate in result.get("rates", ()):
        if rate["bytes_per_second_median"] is not None:
            rates[rate["from"], rate["to"]].append(rate["bytes_per_second_median"])
    for (source, target), found in rates.items():
        way = f"{shown_name(source)} → {shown_name(target)}"
        # No link bounds a copy within one memory: its best rate is that of a cache, or chance.
        if source == target:
            yield f"median {way}", format_rate(median(found))
        else:
            yield f"best {way}", format_rate(max(found))


def _memory_figures(found: Explanation) -> Iterator[Row]:
    """The state of memory when it ran out."""
    if found.allowed_bytes is None:
        yield "memory in use", format_pair(found.used_bytes, found.capacity_bytes)
    else:
        held = found.part_bytes("category", "idle", "pending", "private", "unattributed")
        yield "held by PyTorch", f"{format_pair(held, found.allowed_bytes)} allowed"
    if found.requested_bytes is not None:
        yield "asked for", found.request_size


def _cost_figures(run: RunView) -> Iterator[Row]:
    if run.seconds is not None:
        yield "time", format_duration(run.seconds)
    allocated, used = run.peak_allocated_bytes, run.peak_used_bytes
    if run.error is not None and run.error.explanation is not None:
        pass  # the memory figures are listed already
    elif run.result.get("devices"):
        yield from _sensible(_device_peaks, run.result)
    elif allocated is not None:
        yield "peak allocated", format_bytes(allocated)
    elif used is not None:
        yield f"peak {whose_peak(run.device)}", format_bytes(used)
    if run.step:
        yield "steps", format_count(run.step)


@dataclass(frozen=True, slots=True)
class SizeLine:
    """A line of a chart over sizes: name, curve colour, line style, and (size, value) in ascending order."""

    name: str
    colour: str
    style: Style
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class SizeChart:
    """A chart of rates by size.

    Attributes:
        title: heading.
        unit: how values are written, as in `CurveSpec`.
        unit_name: unit of a "number".
        lines: one or more lines.
        size_text: formats a size.
        limit: name and value of an upper limit.
    """

    title: str
    unit: Unit
    lines: tuple[SizeLine, ...]
    size_text: Callable[[float], str]
    unit_name: str = ""
    limit: tuple[str, float] | None = None


def size_chart(run: RunView, runs: Iterable[RunView]) -> SizeChart | None:
    """A run's result by size: a transfer's rates by block, or matrix products' by matrix.

    ``None`` for other workloads, and for a single size: a point is not a curve, and is among the figures.

    Args:
        run: the run with the result.
        runs: the session's runs; a chart of products has a point for each of them up to this one.
    """
    try:
        if run.workload == "transfer":
            chart = _transfer_chart(run.result)
        elif run.workload == "matmul":
            chart = _matmul_chart(run, runs)
        else:
            return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # the result may come from an untrusted recording
    if len({size for line in chart.lines for size, _value in line.points}) > 1:
        return chart
    return None


_DIRECTIONS = {(True, False): "h2d", (False, True): "d2h", (True, True): "h2h", (False, False): "d2d"}
"""Colour for each pair (from the CPU, to the CPU)."""


def _stroke(memory: str, blocking: bool) -> Style:
    if not blocking:
        return "dot"
    if memory == "pageable":
        return "dash"
    return "solid"


def _transfer_chart(result: Mapping[str, Any]) -> SizeChart:
    found: defaultdict[tuple[str, str, str, bool], dict[float, float]] = defaultdict(dict)
    for rate in result["rates"]:
        if rate["bytes_per_second_median"] is not None:
            way = rate["from"], rate["to"], rate["memory"], bool(rate["blocking"])
            found[way][float(rate["block_bytes"])] = float(rate["bytes_per_second_median"])
    lines = []
    for (source, target, memory, blocking), points in found.items():
        name = f"{shown_name(source)} → {shown_name(target)}, {memory}"
        if not blocking:
            name = f"{name}, overlapped"
        direction = _DIRECTIONS[source == "cpu", target == "cpu"]
        lines.append(SizeLine(name, direction, _stroke(memory, blocking), tuple(sorted(points.items()))))
    link = result.get("link_bytes_per_second")
    limit = None
    if link:
        limit = ("the link on paper", float(link))
    return SizeChart("RATE BY BLOCK SIZE", "rate", tuple(lines), format_bytes, limit=limit)


_TYPES = ("gpu", "loss", "accuracy", "d2h", "power", "idle")
"""Colours of data types, in the order in which they were first used."""


def _matmul_chart(run: RunView, runs: Iterable[RunView]) -> SizeChart:
    found: defaultdict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for other in (*(one for one in runs if one is not run and one.began_s <= run.began_s), run):
        if other.workload == "matmul" and other.result.get("flops_per_second"):
            key = str(other.result["dtype"]), other.device
            found[key][float(other.result["size"])] = float(other.result["flops_per_second"])
    types = list(dict.fromkeys(dtype for dtype, _device in found))
    styles: tuple[Style, ...] = ("solid", "dash", "dot", "dashdot")
    devices = list(dict.fromkeys(device for _dtype, device in found))
    lines = []
    for (dtype, device), points in found.items():
        colour = _TYPES[types.index(dtype) % len(_TYPES)]
        style = styles[devices.index(device) % len(styles)]
        lines.append(SizeLine(f"{dtype} on {shown_name(device)}", colour, style, tuple(sorted(points.items()))))
    title = "ARITHMETIC RATE BY SIZE"
    return SizeChart(title, "number", tuple(lines), lambda size: f"{size:g}", unit_name="FLOP/s")


def _sensible(rows_of: Callable[[Mapping[str, Any]], Iterable[Row]], result: Mapping[str, Any]) -> Iterator[Row]:
    """The valid rows of ``rows_of``: a result may come from an untrusted recording."""
    try:
        yield from rows_of(result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        yield LEFT_OUT, "a part of the result that makes no sense"


STAGE_COLUMNS = (
    *((title, False) for title in ("stage", "device", "shape", "type")),
    *((title, True) for title in ("count", "bytes", "time in all", "rate")),
    ("remark", False),
)
"""Columns of a table of stages: title, and whether it contains numbers."""


def stage_cells(stage: Mapping[str, Any]) -> list[str]:
    """The row of `STAGE_COLUMNS` for a stage, from the keys of `StageView.summary`."""
    return [
        stage["name"],
        " → ".join(shown_name(end) for end in dict.fromkeys((stage["from"], stage["to"])) if end),
        " × ".join(map(str, stage["shape"] or ())),
        stage["dtype"] or "",
        format_count(stage["count"]),
        "" if stage["bytes"] is None else format_bytes(stage["bytes"]),
        format_duration(stage["seconds"]),
        "" if stage["bytes_per_second"] is None else format_rate(stage["bytes_per_second"]),
        stage_remark(stage),
    ]


def stage_remark(stage: Mapping[str, Any]) -> str:
    """Other facts about a stage, from the keys of `StageView.summary`."""
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
    known = list(filter(None, parts))
    return "; ".join([*(part.rstrip(".") for part in known[:-1]), *known[-1:]])


def prediction_rows(result: Mapping[str, Any]) -> Iterator[Row]:
    """The output of a model at inference: the generated text, or the class and its probability."""
    predictions = result.get("predictions", ())
    for number, predicted in enumerate(predictions, 1):
        if "text" in predicted:
            value = f"after {_quoted(predicted['prompt'][-PROMPT_SHOWN:])} it writes {_quoted(predicted['text'])}"
        else:
            expected = predicted["expected"]
            if predicted["class"] == expected:
                right = "right"
            else:
                right = f"it is class {expected}"
            value = f"{_class_text(predicted)}, {right}"
        yield f"prediction {number}", value
    if predictions and not result.get("pretraining", 1):
        yield "learnt", "nothing, its weights are random"


def _device_peaks(result: Mapping[str, Any]) -> Iterator[Row]:
    """The peaks on each device over which a model is split."""
    for row in result.get("devices", ()):
        allocated, reserved = row["peak_allocated_bytes"], row["peak_reserved_bytes"]
        text = f"{format_like(allocated, reserved)} allocated, {format_like(reserved, allocated)} reserved"
        yield f"peak on {shown_name(row['device'])}", text


def _class_text(predicted: Mapping[str, Any]) -> str:
    return f"class {predicted['class']}, {format_percent(predicted['probability'])} sure"


def _quoted(text: str) -> str:
    """``text`` in quotation marks on one line, with invisible characters escaped."""
    return f"“{''.join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)}”"


def stop_text(result: Mapping[str, Any]) -> str:
    """How a program ended after gpudash sent it signals, in a sentence; "" for other runs."""
    stop = result.get("stop")
    if isinstance(stop, Mapping):
        return str(stop.get("text", ""))
    return ""


def _stop(result: Mapping[str, Any]) -> Iterator[Row]:
    if text := stop_text(result):
        yield "end", text


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
            how = ", overlapped"
            if rate["blocking"]:
                how = ""
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
    (
        "steps_per_second",
        "mean steps a second",
        lambda value: format_throughput(value, "steps").removesuffix(" steps/s"),
    ),
    ("items_per_second", "throughput of the whole run", format_throughput),
    ("latency_p50_seconds", "latency, median", format_duration),
    ("latency_p95_seconds", "latency, 95 of 100 below", format_duration),
    ("unigram_entropy", "unigram entropy", lambda value: f"{value:.3f} nats"),
    ("most_frequent_share", "accuracy by guessing", format_percent),
    ("parameters", "parameters", format_count),
    ("cap_bytes", "cap", format_bytes),
    ("allocated_bytes", "allocated", format_bytes),
    ("allocations", "allocations", format_count),
    ("link_bytes_per_second", "the link on paper", format_rate),
    ("threads", "threads", lambda value: NOT_REPORTED if value is None else str(value)),
)


Side = Mapping[str, Any]

PARTS = {"verdict", "headline", "because", "outcome", "number", "ratio", "interval", "confidence", "repetitions"}
PARTS |= {"what", "sides", "compute_only", "agreement"}
"""Keys of a comparison's result, however early it was stopped."""


def is_comparison(result: Mapping[str, Any]) -> bool:
    """Whether ``result`` is from a comparison, complete or not."""
    return result.keys() >= PARTS and len(result["sides"]) == 2


def comparison_rows(result: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The rows of a comparison, the verdict first."""
    if not is_comparison(result):
        return
    yield "verdict", str(result["verdict"])
    label = result["sides"][1]["label"]
    yield f"speedup of {label}, with transfers", f"{ratio_text(result)}, {trust_text(result)}"
    yield f"speedup of {label}, compute only", ratio_text(result["compute_only"])
    for side in result["sides"]:
        yield f"{side['label']}, a step", f"{format_duration(side['step_seconds'])} = {shares_text(side)}"
        yield f"{side['label']}, peak memory", memory_text(side)
        yield f"{side['label']}, energy", energy_words(side)
    yield "agreement", str(result["agreement"]["words"])
    if result.get("resident"):
        yield "with the data kept on the device", ratio_text(result["resident"])
    for size in sweep_lines(result):
        yield "by size", size
    yield "compared", str(result["what"])
    for note in result.get("notes", ()):
        yield "note", str(note)


PREDICTED_PARTS = {"verdict", "headline", "because", "outcome", "what", "measured", "card"}
"""Keys of the result of a comparison with a predicted card."""


def is_predicted_comparison(result: Mapping[str, Any]) -> bool:
    """Whether ``result`` is from a comparison of a measured CPU with a predicted card."""
    return result.get("predicted") is True and result.keys() >= PREDICTED_PARTS


def has_verdict(result: Mapping[str, Any]) -> bool:
    """Whether ``result`` is from any kind of comparison."""
    return is_comparison(result) or is_predicted_comparison(result)


def predicted_rows(result: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a comparison of a measured CPU with a predicted card, the verdict first."""
    if not is_predicted_comparison(result):
        return
    yield "verdict", str(result["verdict"])
    side = result["measured"]
    card = result["card"]
    yield f"{side['label']}, a step, measured", f"{format_duration(side['step_seconds'])} = {shares_text(side)}"
    yield f"{side['label']}, peak memory, measured", memory_text(side)
    time = card["time"]
    if time is not None:
        low, high = (format_duration(time[key]) for key in ("low_s", "high_s"))
        yield f"{card['name']}, a step, predicted", f"{format_duration(time['median_s'])} ({low} to {high})"
    yield "compared", str(result["what"])


def ratio_text(found: Mapping[str, Any]) -> str:
    """A ratio with its interval: "1.20 (1.18 – 1.22)"."""
    ratio, (low, high) = found["ratio"], found["interval"]
    if low is None or high is None:
        return f"{ratio:.2f}, too few repetitions for an interval"
    digits = 2
    if ratio >= 9.95:
        digits = 1
    return f"{ratio:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def trust_text(result: Mapping[str, Any]) -> str:
    """How trustworthy the interval is, and why."""
    steps = result.get("measured_steps")
    if steps is None:
        each = ""
    else:
        each = f" of {steps} steps"
    if None in result["interval"]:
        sure = ""
    else:
        sure = f"{result['confidence'] * 100:g} % sure, "
    return f"{sure}{result['repetitions']} runs{each} each"


def shares_text(side: Side) -> str:
    """How a step spends its time; parts that take none are left out."""
    names = (("compute", "computing"), ("transfer", "copying"), ("waiting", "waiting"))
    step, shares = side["step_seconds"], side["shares"]
    return " + ".join(
        f"{format_duration(shares[key] * step)} {name} ({format_percent(shares[key])})"
        for key, name in names
        if shares[key] >= 0.005
    )


def memory_text(side: Side) -> str:
    """Peak memory: the allocator's on a GPU, the process's on the CPU."""
    if side["peak_allocated_bytes"] is not None:
        allocated, reserved = side["peak_allocated_bytes"], side["peak_reserved_bytes"]
        return f"{format_like(allocated, reserved)} allocated, {format_like(reserved, allocated)} reserved"
    return f"{format_bytes(side['peak_used_bytes'])} of the process"


def energy_words(side: Side) -> str:
    """A step's energy, or why it is unknown."""
    joules = side["energy_j"]
    if joules is None:
        return str(side["energy"])
    if joules >= 1:
        return f"{joules:.3g} J a step, {side['energy']}"
    return f"{joules * 1e3:.3g} mJ a step, {side['energy']}"


def sweep_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The sizes that were tried, and from which one on the GPU pays off."""
    sweep = result.get("sweep")
    if not sweep:
        return
    for point in sweep["points"]:
        times = " against ".join(map(format_duration, point["seconds"]))
        yield f"{sweep['field']} {point['size']}: {times}"
    if sweep["crossing"] is not None:
        yield f"pays off from about {sweep['field']} {sweep['crossing']:.3g} upward"

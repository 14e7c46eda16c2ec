"""A comparison's result in words: the rows of the table and of the terminal, and the cells of the verdict screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpudash.units import format_bytes, format_duration, format_percent

Side = Mapping[str, Any]

PARTS = {"verdict", "headline", "because", "outcome", "number", "ratio", "interval", "confidence", "repetitions"}
PARTS |= {"what", "sides", "compute_only", "agreement"}
"""What a comparison's result has, however early it was stopped."""


def is_comparison(result: Mapping[str, Any]) -> bool:
    """Whether ``result`` is that of a comparison, as far as it came."""
    return result.keys() >= PARTS and len(result["sides"]) == 2


def comparison_rows(result: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """What was found, the verdict first."""
    if not is_comparison(result):
        return
    yield "verdict", str(result["verdict"])
    label = result["sides"][1]["label"]
    yield f"speedup of {label}, with transfers", f"{ratio_words(result)}, {trust_words(result)}"
    yield f"speedup of {label}, compute only", ratio_words(result["compute_only"])
    for side in result["sides"]:
        yield f"{side['label']}, a step", f"{format_duration(side['step_seconds'])} = {shares_words(side)}"
        yield f"{side['label']}, peak memory", memory_words(side)
        yield f"{side['label']}, energy", energy_words(side)
    yield "agreement", str(result["agreement"]["words"])
    if result.get("resident"):
        yield "with the data kept on the device", ratio_words(result["resident"])
    for size in sweep_words(result):
        yield "by size", size
    yield "compared", str(result["what"])
    for note in result.get("notes", ()):
        yield "note", str(note)


def ratio_words(found: Mapping[str, Any]) -> str:
    """A ratio and its interval: "1.20 (1.18 – 1.22)"."""
    ratio, (low, high) = found["ratio"], found["interval"]
    if low is None or high is None:
        return f"{ratio:.2f}, too few repetitions for an interval"
    digits = 1 if ratio >= 9.95 else 2
    return f"{ratio:.{digits}f} ({low:.{digits}f} – {high:.{digits}f})"


def trust_words(result: Mapping[str, Any]) -> str:
    """How sure the interval is, and by how much."""
    steps = result.get("measured_steps")
    each = "" if steps is None else f" of {steps} steps"
    sure = "" if None in result["interval"] else f"{result['confidence'] * 100:g} % sure, "
    return f"{sure}{result['repetitions']} runs{each} each"


def shares_words(side: Side) -> str:
    """Where a step's time goes; what takes nothing is left out."""
    names = (("compute", "computing"), ("transfer", "copying"), ("waiting", "waiting"))
    step, shares = side["step_seconds"], side["shares"]
    return " + ".join(
        f"{format_duration(shares[key] * step)} {name} ({format_percent(shares[key])})"
        for key, name in names
        if shares[key] >= 0.005
    )


def memory_words(side: Side) -> str:
    """The highest use of memory: the allocator's on a GPU, the process's on the CPU."""
    if side["peak_allocated_bytes"] is not None:
        reserved = format_bytes(side["peak_reserved_bytes"])
        return f"{format_bytes(side['peak_allocated_bytes'])} allocated, {reserved} reserved"
    return f"{format_bytes(side['peak_used_bytes'])} of the process"


def energy_words(side: Side) -> str:
    """A step's energy, or why it is not known."""
    joules = side["energy_j"]
    if joules is None:
        return str(side["energy"])
    return (
        f"{joules:.3g} J a step, {side['energy']}" if joules >= 1 else f"{joules * 1e3:.3g} mJ a step, {side['energy']}"
    )


def sweep_words(result: Mapping[str, Any]) -> Iterator[str]:
    """The sizes that were tried, and from which on the GPU pays."""
    sweep = result.get("sweep")
    if not sweep:
        return
    for point in sweep["points"]:
        times = " against ".join(format_duration(seconds) for seconds in point["seconds"])
        yield f"{sweep['field']} {point['size']}: {times}"
    if sweep["crossing"] is not None:
        yield f"pays off from about {sweep['field']} {sweep['crossing']:.3g} upward"

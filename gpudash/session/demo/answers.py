"""Computes the answer to a scene's question from the results of its acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpudash.session.demo.ladder import CARD_BYTES, RungResult
from gpudash.session.demo.scenes import Result, Run
from gpudash.units import MIB
from gpudash.workloads.lines.trace import LinesTrace

SAME_LOSS = 0.01
"""Relative difference up to which two losses count as the same: the effect of rounding in another order."""

MUCH_FASTER = 5.0
"""Ratio of speeds that separates the second guess from the third."""

ABOUT_AS_FAST = 1.05
"""Ratio of speeds up to which neither device counts as the faster."""

MOVED_BYTES = 64 * MIB
"""Size of the tensor of scene 1."""


def peak_in_tensors(results: Sequence[Result]) -> int | None:
    """The peak, in multiples of the tensor of scene 1: the first choice is one, the last three or more."""
    trace = _trace(results)
    if trace is None or not trace.peak:
        return None
    return min(max(1, round(trace.peak / MOVED_BYTES)), 3) - 1


def where_it_was(results: Sequence[Result]) -> int | None:
    """Where the lines' result is afterwards: 0 on the GPU, 1 still on the CPU, 2 nowhere, because a line failed."""
    trace = _trace(results)
    if trace is None or not trace.moments:
        return None
    if trace.failure is not None:
        return 2
    last = trace.moments[-1]
    return 1 if last.host and not last.blocks else 0


def filled_by(results: Sequence[Result]) -> int | None:
    """What held the most when memory ran out: 0 memory of a variable, 1 memory of no variable."""
    trace = _trace(results)
    if trace is None or not trace.moments:
        return None
    largest = max(trace.moments[-1].blocks, key=lambda block: block.bytes, default=None)
    if largest is None:
        return None
    return 0 if largest.named else 1


def peak_mib(results: Sequence[Result]) -> float | None:
    """The peak of lines that completed, in MiB."""
    trace = _trace(results)
    if trace is None or trace.failure is not None:
        return None
    return trace.peak / MIB


def kept_mib(results: Sequence[Result]) -> float | None:
    """What lines that completed leave on the card, in MiB."""
    trace = _trace(results)
    if trace is None or trace.failure is not None or not trace.moments:
        return None
    return trace.moments[-1].bytes / MIB


def outcome(results: Sequence[Result]) -> int | None:
    """How lines ended: 0 normally, 1 with an error, 2 out of memory."""
    trace = _trace(results)
    if trace is None:
        return None
    if trace.failure is None:
        return 0
    return 2 if trace.failure.out_of_memory else 1


def asserted(choices: Sequence[str], results: Sequence[Result]) -> int | None:
    """The choice that an assertion in the lines reports: the one that its message ends with."""
    trace = _trace(results)
    if trace is None or trace.failure is None:
        return None
    found = [place for place, choice in enumerate(choices) if trace.failure.message.endswith(f" {choice}")]
    return found[0] if found else None


def first_fitting(choices: Sequence[str], results: Sequence[Result]) -> int | None:
    """The choice that names the first rung whose peak fits the card."""
    for result in results:
        if isinstance(result, RungResult) and result.estimate is not None and result.needed <= CARD_BYTES:
            return list(choices).index(result.rung.short) if result.rung.short in choices else None
    return None


def predicted_times(results: Sequence[Result]) -> float | None:
    """How many times as fast as this CPU, which is measured, a card is predicted to be, in the last comparison."""
    if not results or not isinstance(results[-1], Mapping):
        return None
    return speedup(results[-1])


def speedup(run: Run) -> float | None:
    """For a comparison of this CPU with a predicted card: measured time divided by predicted time."""
    outcome_of_run = run["result"]
    try:
        return float(outcome_of_run["measured"]["step_seconds"] / outcome_of_run["card"]["time"]["median_s"])
    except (KeyError, TypeError, ZeroDivisionError):
        return None  # it was stopped, or no prediction was possible


def _trace(results: Sequence[Result]) -> LinesTrace | None:
    """The result of the first lines; ``None`` if they were not played."""
    if not results or not isinstance(results[0], LinesTrace):
        return None
    return results[0]


def copied_bytes(run: Run) -> int:
    """Bytes copied in all stages of a run."""
    return sum(stage["bytes"] or 0 for stage in run["stages"] if stage["copied"])


def copies(results: Sequence[Result]) -> int | None:
    """How much more is copied there and back than one way: as much, about twice, five times."""
    runs = [result for result in results if isinstance(result, Mapping)]
    if len(runs) < 3 or not copied_bytes(runs[1]):
        return None
    ratio = copied_bytes(runs[2]) / copied_bytes(runs[1])
    if ratio < 1.5:
        return 0
    return 1 if ratio < 5 else 2


def trained_answer(results: Sequence[Result]) -> int | None:
    """For a training on the CPU and one on a GPU: the losses are compared for a simulated GPU, else the speeds."""
    runs = [result for result in results if isinstance(result, Mapping)]
    if len(runs) < 2:
        return None
    before, after = run_loss(runs[0]), run_loss(runs[1])
    if before is None or after is None:
        return None
    if not runs[1]["simulated"]:
        ratio = speed_ratio(runs)
        if ratio is None:
            return None
        if ratio <= ABOUT_AS_FAST:
            return 0
        return 1 if ratio <= MUCH_FASTER else 2
    if abs(after - before) <= SAME_LOSS * abs(before):
        return 1
    return 0 if before < after else 2


def fewer_bytes(results: Sequence[Result]) -> int | None:
    """How much of fp32's peak remains in bf16: about half, less than all, all of it."""
    runs = [result for result in results if isinstance(result, Mapping)]
    peaks = [run["memory"]["peak_allocated_bytes"] for run in runs]
    if len(peaks) < 2 or not peaks[0] or peaks[1] is None:
        return None
    share = peaks[1] / peaks[0]
    if share < 0.6:
        return 0
    return 1 if share < 0.95 else 2


def run_loss(run: Run) -> float | None:
    """The loss of the last step of a run, where its curve ends."""
    loss = run["metrics"].get("loss", {}).get("last")
    if loss is None:
        return None
    return float(loss)


def run_speed(run: Run) -> str:
    """The items per second of a run."""
    speed = run["metrics"].get("throughput", {}).get("median")
    if speed is None:
        return "–"
    return f"{speed:,.0f}"


def speed_ratio(runs: Sequence[Run]) -> float | None:
    """How many times as fast the second run was as the first."""
    speeds = [run["metrics"].get("throughput", {}).get("median") for run in runs]
    if not speeds[0] or not speeds[1]:
        return None
    return float(speeds[1] / speeds[0])

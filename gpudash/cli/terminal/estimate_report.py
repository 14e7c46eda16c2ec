"""A prediction as a person reads it in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from gpudash.cli.terminal.output import one_line, print_table, stdout
from gpudash.devices.names import shown_name
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.prediction import COMMUNICATION, CONTEXT, HELD_BACK, Prediction
from gpudash.memory.predicting.rank_estimates import SPLIT
from gpudash.units import format_beside, format_bytes

BAR_WIDTH = 60
"""Characters of the bar."""

LOOKS = {
    CONTEXT: ("c", "bright_black"),
    COMMUNICATION: ("N", "red"),
    "weights": ("W", "cyan"),
    "gradients": ("G", "yellow"),
    "optimizer state": ("O", "magenta"),
    "activations": ("A", "green"),
    "inputs": ("I", "bright_yellow"),
    "temporary": ("T", "blue"),
    "workspace": ("K", "white"),
    HELD_BACK: ("-", "bright_black"),
}
"""Letter of each part of the bar, which stands for it where there are no colours, and its colour."""

_STYLES = {"fits": "bold green", "short": "bold red", "uncertain": "bold yellow", "unknown": "bold"}


def print_estimate(estimate: Estimate, memory_cap: str | None = None) -> None:
    """The verdict, a bar against free memory, the figures and the alternatives.

    Args:
        estimate: what was predicted.
        memory_cap: the most that torch may reserve, in words, which is taken off what is free.
    """
    console, told = stdout(), Prediction(estimate)
    coloured = console.color_system is not None
    verdict = Text(told.headline, style=_STYLES[told.verdict])
    console.print(Text.assemble(one_line(f"{estimate.workload} on {_devices(estimate)}: "), verdict))
    console.print(_bar(told, memory_cap, coloured=coloured))
    for line in _legend(told, coloured=coloured):
        console.print(line)
    if memory_cap is not None:
        console.print(f"memory cap: {memory_cap}")
    for words in _figures(told, memory_cap):
        console.print(words, soft_wrap=True)
    if estimate.alternatives:
        console.print()
        print_table(_ways_out(told), console)


def _devices(estimate: Estimate) -> str:
    names = ", ".join(dict.fromkeys(rank.device for rank in estimate.ranks))
    if estimate.strategy == SPLIT:
        return names
    return f"{len(estimate.ranks)} ranks ({names})" if estimate.ranks else shown_name(estimate.device, estimate.product)


def _bar(told: Prediction, memory_cap: str | None, *, coloured: bool) -> Text:
    """The parts side by side; ``|`` is where free memory ends."""
    free = told.estimate.free_bytes
    whole = max(told.bar_bytes, free or 0, 1)
    bar = Text()
    reached = 0
    for name, size in told.segments:
        letter, colour = LOOKS[name]
        begin, reached = round(reached / whole * BAR_WIDTH), reached + size
        width = round(reached / whole * BAR_WIDTH) - begin
        bar.append("█" * width if coloured else letter * width, style=colour)
    bar.append("·" * (BAR_WIDTH - len(bar)), style="dim")
    if free is not None:
        end = round(free / whole * BAR_WIDTH)
        bar = Text.assemble(bar[:end], ("|", "bold"), bar[end:])
        bar.append(f" {told.scale.words(free)} free{'' if memory_cap is None else ' under the cap'}", style="dim")
    return bar


def _legend(told: Prediction, *, coloured: bool) -> list[Text]:
    """Two parts a line."""
    parts = []
    for name, size in told.segments:
        letter, colour = LOOKS[name]
        mark = "█" if coloured else letter
        parts.append(Text.assemble((mark, colour), f" {name} ", (format_bytes(size), "bold")))
    for part in parts:
        part.pad_right(max(0, 34 - len(part)))
    return [Text.assemble(*parts[place : place + 2]) for place in range(0, len(parts), 2)]


def _figures(told: Prediction, memory_cap: str | None) -> list[str]:
    estimate = told.estimate
    allocated, reserved = estimate.peak_allocated_bytes, estimate.peak_reserved_bytes
    peak = f"peak allocated: {format_beside(allocated, reserved)}"
    if estimate.peak_reserved_bytes is not None:
        peak += f", reserved {format_beside(reserved, allocated)}"
        if estimate.needed_bytes != estimate.peak_reserved_bytes + estimate.overhead_bytes:
            peak += " with room to spare"
    if estimate.margin_bytes:
        peak += f", ±{format_bytes(estimate.margin_bytes)}"
    need = f"{told.need} under the cap" if told.need and memory_cap is not None else told.need
    lines = [*told.model_lines, need, peak, told.release]
    if estimate.first_step_bytes is not None and estimate.steady_bytes is not None:
        first, steady = format_bytes(estimate.first_step_bytes), format_bytes(estimate.steady_bytes)
        lines.append(f"first step: {first}; steady: {steady}")
    if estimate.minimum_capacity_bytes is not None:
        what = "smallest capacity that would do" + (" without the cap" if memory_cap is not None else "")
        lines.append(f"{what}: {told.scale.words(estimate.minimum_capacity_bytes)}")
    lines += [
        told.largest_batch,
        told.largest_batch_remark,
        told.largest_sequence,
        told.untried,
        *told.rank_lines,
        told.assumed,
        *told.assumption_lines,
    ]
    return [line for line in (*lines, f"{estimate.method}; {estimate.seconds:.1f} s") if line]


def _ways_out(told: Prediction) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("change", overflow="fold")
    table.add_column("needs", justify="right")
    table.add_column("fits")
    table.add_column("price", overflow="fold")
    for way in told.ways_out:
        style = {True: "green", False: "red", None: "yellow"}[way.alternative.fits]
        table.add_row(way.change, way.needs, Text(way.fit, style=style), way.price)
    return table

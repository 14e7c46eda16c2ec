"""A prediction as a person reads it in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from gpudash.cli.terminal.output import one_line, stdout
from gpudash.devices.names import shown_name
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.estimate_words import (
    COMMUNICATION,
    CONTEXT,
    HELD_BACK,
    assumed_words,
    assumption_lines,
    bar_bytes,
    change_words,
    fit_words,
    headline,
    largest_batch,
    largest_batch_remark,
    need_words,
    price,
    rank_lines,
    release_words,
    segments,
    verdict,
)
from gpudash.units import format_bytes

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
    console = stdout()
    console.print(Text.assemble(one_line(f"{estimate.workload} on {_devices(estimate)}: "), _verdict(estimate)))
    console.print(_bar(estimate, memory_cap, coloured=console.color_system is not None))
    for line in _legend(estimate, coloured=console.color_system is not None):
        console.print(line)
    if memory_cap is not None:
        console.print(f"memory cap: {memory_cap}")
    for words in _figures(estimate, memory_cap):
        console.print(words, soft_wrap=True)
    if estimate.alternatives:
        console.print()
        console.print(_alternatives(estimate))


def _devices(estimate: Estimate) -> str:
    names = ", ".join(dict.fromkeys(rank.device for rank in estimate.ranks))
    return f"{len(estimate.ranks)} ranks ({names})" if estimate.ranks else shown_name(estimate.device, estimate.product)


def _verdict(estimate: Estimate) -> Text:
    return Text(headline(estimate), style=_STYLES[verdict(estimate)])


def _bar(estimate: Estimate, memory_cap: str | None, *, coloured: bool) -> Text:
    """The parts side by side; ``|`` is where free memory ends."""
    whole = max(bar_bytes(estimate), estimate.free_bytes or 0, 1)
    bar = Text()
    reached = 0
    for name, size in segments(estimate):
        letter, colour = LOOKS[name]
        begin, reached = round(reached / whole * BAR_WIDTH), reached + size
        width = round(reached / whole * BAR_WIDTH) - begin
        bar.append("█" * width if coloured else letter * width, style=colour)
    bar.append("·" * (BAR_WIDTH - len(bar)), style="dim")
    if estimate.free_bytes is not None:
        end = round(estimate.free_bytes / whole * BAR_WIDTH)
        bar = (
            Text.assemble(bar[:end], ("|", "bold"), bar[end:]) if end < BAR_WIDTH else Text.assemble(bar, ("|", "bold"))
        )
        bar.append(
            f" {format_bytes(estimate.free_bytes)} free{'' if memory_cap is None else ' under the cap'}", style="dim"
        )
    return bar


def _legend(estimate: Estimate, *, coloured: bool) -> list[Text]:
    """Two parts a line."""
    parts = []
    for name, size in segments(estimate):
        letter, colour = LOOKS[name]
        mark = "█" if coloured else letter
        parts.append(Text.assemble((mark, colour), f" {name} ", (format_bytes(size), "bold")))
    for part in parts:
        part.pad_right(max(0, 34 - len(part)))
    return [Text.assemble(*parts[place : place + 2]) for place in range(0, len(parts), 2)]


def _figures(estimate: Estimate, memory_cap: str | None) -> list[str]:
    peak = f"peak allocated: {format_bytes(estimate.peak_allocated_bytes)}"
    if estimate.peak_reserved_bytes is not None:
        peak += f", reserved {format_bytes(estimate.peak_reserved_bytes)}"
        if estimate.needed_bytes != estimate.peak_reserved_bytes + estimate.overhead_bytes:
            peak += " with room to spare"
    if estimate.margin_bytes:
        peak += f", ±{format_bytes(estimate.margin_bytes)}"
    need = need_words(estimate)
    lines = [f"{need} under the cap" if need and memory_cap is not None else need, peak, release_words(estimate)]
    if estimate.first_step_bytes is not None and estimate.steady_bytes is not None:
        first, steady = format_bytes(estimate.first_step_bytes), format_bytes(estimate.steady_bytes)
        lines.append(f"first step: {first}; steady: {steady}")
    if estimate.minimum_capacity_bytes is not None:
        what = "smallest capacity that would do" + (" without the cap" if memory_cap is not None else "")
        lines.append(f"{what}: {format_bytes(estimate.minimum_capacity_bytes)}")
    lines += [largest_batch(estimate), largest_batch_remark(estimate), *rank_lines(estimate), assumed_words(estimate)]
    lines += assumption_lines(estimate)
    return [line for line in (*lines, f"{estimate.method}; {estimate.seconds:.1f} s") if line]


def _alternatives(estimate: Estimate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("change", overflow="fold")
    table.add_column("peak", justify="right")
    table.add_column("fits")
    table.add_column("price", overflow="fold")
    for alternative in estimate.alternatives:
        style = {True: "green", False: "red", None: "yellow"}[alternative.fits]
        peak = format_bytes(alternative.peak_reserved_bytes)
        table.add_row(
            change_words(alternative), peak, Text(fit_words(alternative.fits), style=style), price(alternative)
        )
    return table

"""Printing the prediction of a run or a server for a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Column, Table
from rich.text import Text

from gpudash.cli.terminal.estimates.memory_curve import has_room, print_curve
from gpudash.cli.terminal.output import numbers, one_line, plain_table, print_table, stdout
from gpudash.devices.names import shown_name
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.prediction import COMMUNICATION, CONTEXT, HELD_BACK, Prediction
from gpudash.memory.predicting.rank_estimates import SPLIT
from gpudash.memory.serving.plan import RANKS
from gpudash.units import format_bytes, format_duration, format_like, format_throughput, summed_bytes

if TYPE_CHECKING:
    from gpudash.drawing.ghost import Ghost
    from gpudash.memory.serving.plan import Service, ServingAnswer
    from gpudash.memory.serving.server_time import ServerTimes
    from gpudash.speed.serving import ServingTime

BAR_WIDTH = 60
"""Width of the bar, in characters."""

MARKS = {
    CONTEXT: ("c", "bright_black"),
    COMMUNICATION: ("N", "red"),
    "weights": ("W", "cyan"),
    "gradients": ("G", "yellow"),
    "optimizer state": ("O", "magenta"),
    "activations": ("A", "green"),
    "inputs": ("I", "bright_yellow"),
    "temporary": ("T", "blue"),
    "workspace": ("K", "white"),
    HELD_BACK: ("-", "bright_blue"),
}
"""Letter and colour of each part of the bar, a colour for one part only; the letter is used in a terminal without
colours."""

MAY_TAKE = "?"
"""Letter of what convolutions may need beyond what is known."""

VERDICT_STYLES = {"fits": "bold green", "short": "bold red", "uncertain": "bold yellow", "unknown": "bold"}

MOST_LINES = 6
"""Maximum number of program lines listed; ``--json`` has more."""

MOST_CARDS = 8
"""Maximum number of cards listed; ``--json`` has all."""


class _Part(NamedTuple):
    """A part of a bar; its letter represents it without colours."""

    letter: str
    colour: str
    name: str
    bytes: int

    def mark(self, coloured: bool) -> str:
        if coloured and self.letter == MAY_TAKE:
            return "░"
        if coloured:
            return "█"
        return self.letter

    def label(self, coloured: bool) -> Text:
        return Text.assemble((self.mark(coloured), self.colour), f" {self.name} ", (format_bytes(self.bytes), "bold"))


def print_estimate(estimate: Estimate, memory_cap: str | None = None, ghost: Ghost | None = None) -> None:
    """Print the verdict, a bar compared with free memory, figures, the curve of a step if there is room, alternatives,
    and the savings of recipes.

    Args:
        estimate: the prediction.
        memory_cap: text of the memory cap, which reduces the free memory.
        ghost: memory of the run over its requests.
    """
    console, prediction = stdout(), Prediction(estimate)
    coloured = console.color_system is not None
    verdict = Text(prediction.headline, style=VERDICT_STYLES[prediction.verdict])
    console.print(Text.assemble(one_line(f"{estimate.workload} on {_devices(estimate)}: "), verdict))
    console.print(_against_free(prediction, memory_cap, coloured=coloured))
    for line in _legend(prediction, coloured=coloured):
        console.print(line)
    if memory_cap is not None:
        console.print(f"memory cap: {memory_cap}")
    for text in _figures(prediction, memory_cap):
        console.print(text, soft_wrap=True)
    if ghost is not None and has_room(console):
        print_curve(ghost, {name: colour for name, (_letter, colour) in MARKS.items()}, console)
    if estimate.alternatives:
        console.print()
        print_table(_alternatives(prediction), console)
        for row in _edits(estimate):
            console.print(Text(one_line(row)), soft_wrap=True)
    if estimate.savings:
        console.print()
        print_table(_savings(prediction), console)


def _devices(estimate: Estimate) -> str:
    names = ", ".join(dict.fromkeys(rank.device for rank in estimate.ranks))
    if estimate.strategy == SPLIT:
        return names
    if estimate.ranks:
        return f"{len(estimate.ranks)} ranks ({names})"
    return shown_name(estimate.device, estimate.product)


def _bar(parts: Iterable[_Part], whole: int, *, coloured: bool) -> Text:
    """Parts of ``whole`` bytes side by side; ``·`` is the rest."""
    bar, reached = Text(), 0
    for part in parts:
        # Round both ends from the running sum: rounded lengths would not add up to the rounded total.
        begin, reached = round(reached / whole * BAR_WIDTH), reached + part.bytes
        bar.append(part.mark(coloured) * (round(reached / whole * BAR_WIDTH) - begin), style=part.colour)
    return bar.append("·" * (BAR_WIDTH - len(bar)), style="dim")


def _segments(prediction: Prediction) -> list[_Part]:
    parts = [_Part(*MARKS[name], name, size) for name, size in prediction.segments]
    unknown = prediction.estimate.convolutions.unknown_bytes
    if unknown:
        parts.append(_Part(MAY_TAKE, "white", "convolutions, at most", unknown))
    return parts


def _against_free(prediction: Prediction, memory_cap: str | None, *, coloured: bool) -> Text:
    """The bar of a run; ``|`` marks the end of free memory."""
    free = prediction.estimate.free_bytes
    whole = max(prediction.bar_bytes + prediction.estimate.convolutions.unknown_bytes, free or 0, 1)
    bar = _bar(_segments(prediction), whole, coloured=coloured)
    if free is not None:
        end = round(free / whole * BAR_WIDTH)
        # The mark is inserted between parts, shifting what follows by one character.
        bar = Text.assemble(bar[:end], ("|", "bold"), bar[end:])
        bar.append(f" {prediction.scale.label(free)} free{'' if memory_cap is None else ' under the cap'}", style="dim")
    return bar


def _legend(prediction: Prediction, *, coloured: bool) -> list[Text]:
    """The legend, two parts per line."""
    parts = [part.label(coloured) for part in _segments(prediction)]
    for part in parts:
        part.pad_right(max(0, 34 - len(part)))
    return [Text.assemble(*parts[place : place + 2]) for place in range(0, len(parts), 2)]


def _figures(prediction: Prediction, memory_cap: str | None) -> list[str]:
    estimate = prediction.estimate
    allocated, reserved = estimate.peak_allocated_bytes, estimate.peak_reserved_bytes
    peak = f"peak allocated: {format_like(allocated, reserved)}"
    if estimate.peak_reserved_bytes is not None:
        peak += f", reserved {format_like(reserved, allocated)}"
        if estimate.needed_bytes != estimate.peak_reserved_bytes + estimate.overhead_bytes:
            peak += " with room to spare"
    if estimate.margin_bytes:
        peak += f", ±{format_bytes(estimate.margin_bytes)}"
    if prediction.need and memory_cap is not None:
        need = f"{prediction.need} under the cap"
    else:
        need = prediction.need
    lines = [*prediction.model_lines, need, peak, prediction.convolutions, prediction.alone, prediction.release]
    if estimate.first_step_bytes is not None and estimate.steady_bytes is not None:
        first, steady = format_bytes(estimate.first_step_bytes), format_bytes(estimate.steady_bytes)
        lines.append(f"first step: {first}; steady: {steady}")
    if estimate.minimum_capacity_bytes is not None:
        what = "smallest capacity that would do" + (" without the cap" if memory_cap is not None else "")
        lines.append(f"{what}: {prediction.scale.label(estimate.minimum_capacity_bytes)}")
    lines += [
        prediction.largest_batch,
        prediction.largest_batch_remark,
        prediction.largest_sequence,
        prediction.untried,
        *prediction.rank_lines,
        prediction.lower_bound,
        prediction.assumed,
        *_of_growth(estimate),
        *_of_lines(estimate),
        *prediction.assumption_lines,
        estimate.remark,
    ]
    return list(filter(None, (*lines, f"{estimate.method}; {estimate.seconds:.1f} s")))


def _of_growth(estimate: Estimate) -> list[str]:
    """That a program's memory grows from step to step, and at which lines."""
    kept = list(estimate.keeps.items())
    if not kept:
        return []
    shown = [f"  {format_bytes(rate):>10}  {place}" for place, rate in kept[:MOST_LINES]]
    return ["memory grows as long as it runs; kept of every step, by the line that allocated:", *shown]


def _of_lines(estimate: Estimate) -> list[str]:
    """What the lines of a program hold at the peak, one per line of text."""
    held = list(estimate.by_line.items())
    shown = [f"  {format_bytes(size):>10}  {place or 'other code'}" for place, size in held[:MOST_LINES]]
    if shown:
        return ["at the peak, by the line that allocated:", *shown]
    return []


def _alternatives(prediction: Prediction) -> Table:
    table = plain_table(Column("change", overflow="fold"), *numbers("needs"), "fits", Column("price", overflow="fold"))
    for way in prediction.remedies:
        style = {True: "green", False: "red", None: "yellow"}[way.alternative.fits]
        table.add_row(way.change, way.needs, Text(way.fit, style=style), way.price)
    return table


def _edits(estimate: Estimate) -> Iterator[str]:
    """The edits of a program among the alternatives, as diffs, or the commands with them."""
    for way in estimate.alternatives:
        if way.patch:
            yield ""
            yield "The change, for patch -p0 in the program's folder:"
            yield from way.patch.splitlines()
        elif way.command:
            yield ""
            yield f"The command with the change: {shlex.join(way.command)}"


def _savings(prediction: Prediction) -> Table:
    table = plain_table(
        Column("recipes do", overflow="fold"), *numbers("saves", "needs"), Column("price", overflow="fold")
    )
    for way in prediction.savings:
        table.add_row(way.change, format_bytes(way.alternative.saved_bytes), way.needs, way.price)
    return table


def print_serving(answer: ServingAnswer, times: ServerTimes) -> None:
    """Print the verdict, a bar of one card's memory, figures, the speed, and what would serve the requested load."""
    console, service = stdout(), answer.service
    coloured = console.color_system is not None
    console.print(Text.assemble(one_line(f"{answer.path} on {_cards(service)}: "), _verdict(answer)), soft_wrap=True)
    console.print(_of_a_card(service, coloured=coloured), soft_wrap=True)
    for line in [*_served(answer), *_how_fast(times.requested)]:
        console.print(line, soft_wrap=True)
    if answer.ways:
        console.print()
        print_table(_alternatives_table("change", answer, times.ways), console)
    if answer.cards:
        console.print()
        print_table(_alternatives_table("card", answer, times.cards), console)
    elif answer.ways or not answer.enough:
        console.print(f"No card known by name serves them, {RANKS[-1]} in one machine at the most.")


def _cards(service: Service) -> str:
    ranks = service.flags.tensor_parallel
    if ranks == 1:
        return service.card.name
    return f"{ranks} × {service.card.name}"


def _requests(count: int, length: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'} of {length:,} tokens"


def _verdict(answer: ServingAnswer) -> Text:
    service = answer.service
    if service.shortage:
        return Text(service.shortage, style="bold red")
    text = f"serves {_requests(answer.served, answer.length)} at a time"
    if answer.length > service.max_model_len:
        text = f"requests of {answer.length:,} tokens are longer than --max-model-len {service.max_model_len:,}"
    elif answer.users is not None and not answer.enough:
        text += f", not {answer.users:,}"
    if not service.certain:
        text += " (within the margin of not starting)"
    return Text(text, style="bold green" if answer.enough and service.certain else "bold yellow")


def _of_a_card(service: Service, *, coloured: bool) -> Text:
    """The bar of one card of a server, including memory it leaves to others, and its legend."""
    taken = [
        _Part("W", "cyan", "weights", service.weights_bytes),
        _Part("L", "bright_magenta", "adapters", service.adapter_bytes),
        _Part("A", "green", "activations", service.activation_bytes),
        _Part("G", "bright_cyan", "CUDA graphs", service.reserved_graph_bytes),
        _Part("c", "bright_black", "CUDA libraries", service.non_torch_bytes),
        _Part("K", "bright_green", "KV cache", max(service.kv_bytes, 0)),
    ]
    parts = [part for part in taken if part.bytes]
    bar = _bar(parts, max(service.card.total_bytes, summed_bytes(parts)), coloured=coloured)
    ranks = ""
    if service.flags.tensor_parallel > 1:
        ranks = " on each"
    bar.append(f" {format_bytes(service.card.total_bytes)}{ranks}\n", style="dim")
    return bar.append(Text("   ").join(part.label(coloured) for part in parts))


def _served(answer: ServingAnswer) -> list[str]:
    service, flags, cache = answer.service, answer.service.flags, answer.service.cache
    lines = []
    if service.kv_bytes > 0:
        length = service.max_model_len
        tokens = f"KV cache: {cache.tokens(length):,} tokens in {cache.blocks:,} blocks"
        if cache.token_bytes:
            tokens += f", {format_bytes(cache.token_bytes)} a token"
        lines += [tokens, f"maximum concurrency for {length:,} tokens per request: {service.concurrency:.2f}x"]
    if answer.utilisation is not None:
        what = _requests(answer.users or 1, answer.length)
        lines.append(f"least --gpu-memory-utilization for {what}: {answer.utilisation:.2f}")
    lines.append(
        f"with --gpu-memory-utilization {flags.gpu_memory_utilization:g} --max-num-batched-tokens "
        f"{flags.max_num_batched_tokens} --max-num-seqs {flags.max_num_seqs}"
    )
    source = "the safetensors files"
    if service.weights_from == "config":
        source = "the config"
    margin = format_bytes(service.margin_bytes)
    lines.append(f"weights by {source}; the KV cache may be off by {margin}; as {service.engine.label} counts")
    return lines


def _how_fast(time: ServingTime | None) -> list[str]:
    """The predicted speed of a server, in sentences that call it predicted."""
    if time is None:
        return []

    def between(value: float) -> str:
        low, high = (format_throughput(each, "tokens") for each in (value / time.spread, value * time.spread))
        return f"{format_throughput(value, 'tokens')} ({low} to {high})"

    def after(seconds: float) -> str:
        low, high = format_duration(seconds / time.spread), format_duration(seconds * time.spread)
        return f"first token after {format_duration(seconds)} ({low} to {high})"

    lines = [f"predicted, for prompts of {time.prompt:,} and answers of {time.answer:,} tokens, not measured:"]
    if time.users > 1:
        each = f"{between(time.tokens_per_s_user)} for each, {between(time.tokens_per_s)} in all"
        first = f"{after(time.first_token_s)}, {format_duration(time.together_first_token_s)} when all ask at once"
        lines.append(f"  {time.users:,} at a time: {first}; {each}; bound by {time.bound}")
    lines.append(f"  one alone: {after(time.alone_first_token_s)}; {between(time.alone_tokens_per_s)}")
    return lines


def _alternatives_table(title: str, answer: ServingAnswer, times: Sequence[ServingTime | None]) -> Table:
    table = plain_table(
        Column(title, overflow="fold"),
        *numbers("KV cache", "requests", "of tokens"),
        "enough",
        *numbers("predicted"),
    )
    ways = answer.cards[:MOST_CARDS]
    if title == "change":
        ways = answer.ways
    for way, time in zip(ways, times, strict=False):
        ranks, left = way.service.flags.tensor_parallel, way.service.kv_bytes
        if title == "change" or ranks == 1:
            name = way.change
        else:
            name = f"{ranks} × {way.change}"
        if left > 0:
            text = format_bytes(left)
        else:
            text = f"{format_bytes(-left)} short"
        if way.enough:
            enough = Text("yes", style="green")
        else:
            enough = Text("no", style="red")
        speed = ""
        if time is not None:
            speed = format_throughput(time.tokens_per_s, "tokens")
        table.add_row(name, text, f"{way.users:,}", f"{way.length:,}", enough, speed)
    return table

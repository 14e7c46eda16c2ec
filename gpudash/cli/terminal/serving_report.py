"""What a server would take, as a person reads it in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudash.cli.terminal.output import one_line, print_table, stdout
from gpudash.memory.serving.plan import RANKS
from gpudash.memory.serving.profiling import MARGIN_BYTES
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.memory.serving.plan import Service, ServingAnswer

BAR_WIDTH = 60
"""Characters of the bar."""

MOST_CARDS = 8
"""Cards that are named; ``--json`` has all."""


def print_serving(answer: ServingAnswer) -> None:
    """The verdict, a bar over one card's memory, the figures, and what would serve as many as asked."""
    console, service = stdout(), answer.service
    coloured = console.color_system is not None
    console.print(Text.assemble(one_line(f"{answer.path} on {_cards(service)}: "), _verdict(answer)), soft_wrap=True)
    console.print(_bar(service, coloured=coloured), soft_wrap=True)
    for line in _figures(answer):
        console.print(line, soft_wrap=True)
    if answer.ways:
        console.print()
        print_table(_ways("change", answer), console)
    if answer.cards:
        console.print()
        print_table(_ways("card", answer), console)
    elif answer.ways or not answer.enough:
        console.print(f"No card known by name serves them, {RANKS[-1]} in one machine at the most.")


def _cards(service: Service) -> str:
    ranks = service.flags.tensor_parallel
    return service.card.name if ranks == 1 else f"{ranks} × {service.card.name}"


def _requests(count: int, length: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'} of {length:,} tokens"


def _verdict(answer: ServingAnswer) -> Text:
    service = answer.service
    if service.kv_bytes <= 0:
        missing = format_bytes(-service.kv_bytes)
        return Text(f"does not start, {missing} short before there is a KV cache", style="bold red")
    if not service.fits:
        longest = service.cache.longest(service.max_model_len)
        words = f"does not start: a request of {service.max_model_len:,} tokens has no room, one of {longest:,} has"
        return Text(words, style="bold red")
    words = f"serves {_requests(answer.served, answer.length)} at a time"
    if answer.length > service.max_model_len:
        words = f"requests of {answer.length:,} tokens are longer than --max-model-len {service.max_model_len:,}"
    elif answer.users is not None and not answer.enough:
        words += f", not {answer.users:,}"
    if not service.certain:
        words += " (within the margin of not starting)"
    return Text(words, style="bold green" if answer.enough and service.certain else "bold yellow")


def _parts(service: Service) -> list[tuple[str, str, str, int]]:
    graphs = service.graph_bytes if service.flags.graphs_reserved else 0
    parts = [
        ("W", "cyan", "weights", service.weights_bytes),
        ("A", "green", "activations", service.activation_bytes),
        ("G", "magenta", "CUDA graphs", graphs),
        ("c", "bright_black", "CUDA libraries", service.non_torch_bytes),
        ("K", "blue", "KV cache", max(service.kv_bytes, 0)),
    ]
    return [part for part in parts if part[3]]


def _bar(service: Service, *, coloured: bool) -> Text:
    """The parts side by side on one card; ``·`` is what the server leaves alone."""
    whole = max(service.card.total_bytes, sum(size for *_, size in _parts(service)))
    bar, reached, legend = Text(), 0, Text()
    for letter, colour, name, size in _parts(service):
        begin, reached = round(reached / whole * BAR_WIDTH), reached + size
        mark = "█" if coloured else letter
        bar.append(mark * (round(reached / whole * BAR_WIDTH) - begin), style=colour)
        legend.append(mark, style=colour).append(f" {name} ").append(f"{format_bytes(size)}   ", style="bold")
    bar.append("·" * (BAR_WIDTH - len(bar)), style="dim")
    ranks = " on each" if service.flags.tensor_parallel > 1 else ""
    bar.append(f" {format_bytes(service.card.total_bytes)}{ranks}", style="dim")
    return bar.append("\n").append(legend)


def _figures(answer: ServingAnswer) -> list[str]:
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
    source = "the config" if service.weights_from == "config" else "the safetensors files"
    lines.append(
        f"weights by {source}; the KV cache may be off by {format_bytes(MARGIN_BYTES)}; as vLLM counts since 0.21"
    )
    return lines


def _ways(title: str, answer: ServingAnswer) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, overflow="fold")
    for heading in ("KV cache", "requests", "of tokens"):
        table.add_column(heading, justify="right")
    table.add_column("enough")
    for way in answer.ways if title == "change" else answer.cards[:MOST_CARDS]:
        ranks, left = way.service.flags.tensor_parallel, way.service.kv_bytes
        name = way.change if title == "change" or ranks == 1 else f"{ranks} × {way.change}"
        words = format_bytes(left) if left > 0 else f"{format_bytes(-left)} short"
        enough = Text("yes", style="green") if way.enough else Text("no", style="red")
        table.add_row(name, words, f"{way.users:,}", f"{way.length:,}", enough)
    return table

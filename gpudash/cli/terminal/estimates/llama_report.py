"""What llama.cpp would need of a card for a GGUF file, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from gpudash.cli.terminal.output import one_line, print_json, stdout
from gpudash.memory.serving.llama_cpp import LlamaFlags, LlamaModel
from gpudash.memory.serving.plan import ServerCard
from gpudash.units import format_bytes


def print_llama(path: str, model: LlamaModel, card: ServerCard, flags: LlamaFlags, *, as_json: bool) -> None:
    """Print whether it fits, its parts, and how many layers and how long a context fit.

    Raises:
        ValueError: one sentence, if a flag is invalid.
    """
    service = model.on(card.total_bytes, flags)
    most = model.most_layers(card.total_bytes, flags)
    longest = model.longest_context(card.total_bytes, flags)
    if as_json:
        found: dict[str, Any] = {"status": "finished", "model": path, "card": card.name, **asdict(service)}
        print_json(
            {
                **found,
                "card_bytes": service.card_bytes,
                "fits": service.fits,
                "most_gpu_layers": most,
                "longest_context": longest,
            }
        )
        return
    verdict = Text("fits", style="bold green")
    if not service.fits:
        short = format_bytes(service.card_bytes - service.total_bytes)
        verdict = Text(f"does not fit, {short} short", style="bold red")
    console = stdout()
    console.print(Text.assemble(one_line(f"{path} on {card.name} in llama.cpp: "), verdict), soft_wrap=True)
    parts = (
        ("weights", service.weights_bytes),
        ("KV cache", service.kv_bytes),
        ("compute buffer", service.compute_bytes),
        ("CUDA libraries", service.libraries_bytes),
    )
    taken = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts)
    console.print(f"of {format_bytes(card.total_bytes)}: {taken}", soft_wrap=True)
    if service.host_weights_bytes or service.host_kv_bytes:
        kept = f"weights {format_bytes(service.host_weights_bytes)}, KV cache {format_bytes(service.host_kv_bytes)}"
        console.print(f"in the host's memory: {kept}", soft_wrap=True)
    console.print(
        f"with --gpu-layers {service.gpu_layers} of {service.layers + 1} (the output is one), --context "
        f"{service.context}, --kv-dtype {flags.cache_type}",
        soft_wrap=True,
    )
    console.print(f"most --gpu-layers that have room: {most}; longest --context with those asked for: {longest:,}")
    console.print(
        "weights by the file's header, KV cache and compute buffer as llama.cpp counts them with flash attention; of "
        "CUDA's libraries its log says nothing: 0.4 GiB is assumed",
        soft_wrap=True,
    )

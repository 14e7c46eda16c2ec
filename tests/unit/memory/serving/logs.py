"""What servers logged, and the table of the guide that is made of it.

``python -m tests.unit.memory.serving.logs`` writes the table into ``resources/guide/serving.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.memory.serving.kv_cache import KvCache, kv_cache
from gpudash.memory.serving.plan import GIB, ModelServer, ServerCard, ServerFlags, Service
from gpudash.memory.serving.served_model import DTYPES
from gpudash.memory.serving.weights import weight_bytes
from gpudash.system.files import resource

HERE = Path(__file__).parent
BEGIN, END = "<!-- logs -->\n", "<!-- end of logs -->\n"
BATCHED_TOKENS = 8192
"""Of the logs of hybrid models, all of which were on cards of 70 GiB and more or said so."""


@dataclass(frozen=True)
class Log:
    """One log: where it is, what was started, and what it said of each card."""

    source: str
    server: str
    model: str
    card: str | None
    total_gib: float | None
    flags: dict[str, Any]
    logged: dict[str, float]
    note: str = field(default="")

    @property
    def version(self) -> tuple[int, ...] | None:
        """vLLM's, major and minor; ``None`` where the thread does not say it."""
        name, _, numbers = self.server.partition(" ")
        return tuple(int(part) for part in numbers.split(".")[:2]) if name == "vLLM" and numbers else None

    @property
    def served(self) -> ModelServer:
        return ModelServer(configs()[self.model])

    @property
    def ranks(self) -> int:
        return int(self.flags.get("tensor_parallel", 1))

    def weights_error(self) -> float | None:
        said = self.logged.get("weights_gib")
        if said is None:
            return None
        number = DTYPES.get(self.flags.get("dtype", ""))
        marlin = any(gpu.key == self.card and ServerCard.known(gpu).marlin for gpu in KNOWN_GPUS)
        got = weight_bytes(self.served.model, self.ranks, number, self.flags.get("quantization"), marlin=marlin)
        return got / GIB / said - 1

    def cache(self) -> KvCache:
        """Of the memory that the log states."""
        return kv_cache(
            self.served.model,
            int(self.logged["kv_gib"] * GIB),
            ranks=self.ranks,
            kv_dtype=self.flags.get("kv_dtype", "auto"),
            dtype_bytes=DTYPES.get(self.flags.get("dtype", "")),
            batched_tokens=self.flags.get("max_num_batched_tokens", BATCHED_TOKENS),
            prefix_caching=self.flags.get("prefix_caching", False),
        )

    def tokens_error(self) -> float | None:
        """Of "GPU KV cache size", which later servers count by requests and earlier ones by blocks."""
        said = self.logged.get("tokens")
        if said is None or "kv_gib" not in self.logged:
            return None
        cache, length = self.cache(), self.flags.get("max_model_len")
        by_requests = length is not None and self.flags.get("prefix_caching", False)
        if by_requests:
            return cache.tokens(length) / said - 1
        # vLLM up to 0.19 tells the tokens if every layer kept all of them
        groups = sum(group.count for group in cache.groups)
        return cache.blocks // groups * cache.groups[0].block_tokens / said - 1

    def service(self) -> Service | None:
        """From card and flags alone, where the log says all of them."""
        gpu = next((gpu for gpu in KNOWN_GPUS if gpu.key == self.card), None)
        unknown = gpu is None and self.total_gib is None
        if unknown or self.version is None or "gpu_memory_utilization" not in self.flags:
            return None
        card = ServerCard("a card", 0) if gpu is None else ServerCard.known(gpu)
        if self.total_gib is not None:
            card = replace(card, total_bytes=round(self.total_gib * GIB))
        return self.served.on(card, ServerFlags(**self.flags, engine="vllm==" + ".".join(map(str, self.version))))

    def part(self, name: str) -> float:
        """By how many GiB activations or graphs are predicted larger than logged."""
        service = self.service()
        assert service is not None
        predicted = {"activation": service.activation_bytes, "graphs": service.graph_bytes}[name]
        return predicted / GIB - self.logged[f"{name}_gib"]

    def kv_error(self) -> float | None:
        """Of the KV cache's memory from card and flags, of the engine that profiles as today's does."""
        service, said = self.service(), self.logged.get("kv_gib")
        if service is None or said is None or (self.version or ()) < (0, 15):
            return None
        return service.kv_bytes / GIB / said - 1


@cache
def configs() -> dict[str, dict[str, Any]]:
    return dict(json.loads((HERE / "configs.json").read_text(encoding="utf-8")))


@cache
def logs() -> tuple[Log, ...]:
    return tuple(Log(**row) for row in json.loads((HERE / "logs.json").read_text(encoding="utf-8")))


def table() -> str:
    """The guide's, one line a log, under what it comes to."""
    weights, tokens, memory = (
        [error for log in logs() if (error := of(log)) is not None]
        for of in (Log.weights_error, Log.tokens_error, Log.kv_error)
    )
    profiled = [log for log in logs() if "graphs_gib" in log.logged]
    activation = [abs(log.part("activation")) for log in profiled]
    graphs = sorted(abs(log.part("graphs")) for log in profiled)
    lines = [
        f"Of {len(weights)} logs that state weights {_within(weights, 0.01)} are met within 1 %; of {len(tokens)} that",
        f"state the KV cache's memory and its tokens, the tokens of {_within(tokens, 0.05)} within 5 % and of",
        f"{_within(tokens, 0.001)} within 0.1 %. From card and flags alone the KV cache's memory is met within 1 % in",
        f"{_within(memory, 0.01)} of {len(memory)}. Of the {len(profiled)} logs that say what activations and graphs",
        f"took, activations are off by {max(activation):.2f} GiB at most and graphs by {graphs[len(graphs) // 2]:.2f}",
        f"GiB in the middle, {graphs[-1]:.2f} GiB at most. In brackets: predicted less logged.",
        "",
        "| model | server, cards | weights, GiB | KV cache, GiB | tokens in it | log |",
        "|---|---|---|---|---|---|",
        *map(_line, logs()),
    ]
    notes = [f"{place}. {log.model}, {log.server}: {log.note}" for place, log in enumerate(_noted(), 1)]
    return "\n".join([*lines, "", *notes, ""])


def _within(errors: list[float], most: float) -> int:
    return sum(abs(error) <= most for error in errors)


def _noted() -> list[Log]:
    return [log for log in logs() if log.note]


def _line(log: Log) -> str:
    cards = log.card or "?" if log.ranks == 1 else f"{log.ranks} × {log.card or '?'}"
    said = [f"{name} {log.flags[name]}" for name in ("dtype", "quantization", "kv_dtype") if name in log.flags]
    cells = [
        log.model + (f" ({_noted().index(log) + 1})" if log.note else ""),
        ", ".join([log.server, cards, *said]),
        _cell(log.logged.get("weights_gib"), log.weights_error(), ".2f"),
        _cell(log.logged.get("kv_gib"), log.kv_error(), ".2f"),
        _cell(log.logged.get("tokens"), log.tokens_error(), ",.0f"),
        f"[{_site(log.source)}]({log.source})",
    ]
    return f"| {' | '.join(cells)} |"


def _cell(logged: float | None, error: float | None, style: str) -> str:
    if logged is None:
        return ""
    return f"{logged:{style}}" if error is None else f"{logged:{style}} ({error:+.2%})"


def _site(source: str) -> str:
    host, _owner, *rest = source.removeprefix("https://").split("/")
    if host != "github.com":
        return host
    return f"{rest[0]} {rest[2]}" if rest[1] in ("issues", "pull") else rest[0]


def page() -> str:
    return resource("guide", "serving.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    before, _, rest = page().partition(BEGIN)
    after = rest.partition(END)[2]
    resource("guide", "serving.md").write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")

"""Starts of servers with all their flags, against which the margin of the KV cache's memory is held.

Which half a start belongs to was settled before anything was fitted: by the first byte of the SHA-256 of its source,
even for the half that constants were fitted to. ``python -m tests.unit.memory.serving.startups`` writes the table into
``resources/guide/serving.md``.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache

from gpudash.memory.serving.plan import GIB
from gpudash.system.files import resource
from tests.unit.memory.serving.logs import HERE, Log, page

BEGIN, END = "<!-- startups -->\n", "<!-- end of startups -->\n"
ERAS = {"up to 0.9": (0, 10), "0.10 to 0.19": (0, 20), "0.20 and newer": (99,)}
"""What the coverage is told by, and the first version that is beyond."""


@cache
def startups() -> tuple[Log, ...]:
    return tuple(Log(**row) for row in json.loads((HERE / "startups.json").read_text(encoding="utf-8")))


def is_held_out(start: Log) -> bool:
    return hashlib.sha256(start.source.encode()).digest()[0] % 2 == 1


def miss_gib(start: Log) -> float:
    """Predicted less logged KV cache."""
    service = start.service()
    assert service is not None
    return service.kv_bytes / GIB - start.logged["kv_gib"]


def margin_gib(start: Log) -> float:
    service = start.service()
    assert service is not None
    return service.margin_bytes / GIB


def is_inside(start: Log) -> bool:
    return abs(miss_gib(start)) <= margin_gib(start)


def era(start: Log) -> str:
    version = start.version
    assert version is not None
    return next(name for name, beyond in ERAS.items() if version < beyond)


def table() -> str:
    lines = ["| vLLM | fitted half, inside | held out, inside | from sources |", "|---|---|---|---|"]
    for name in ERAS:
        of_era = [start for start in startups() if era(start) == name]
        halves = [[start for start in of_era if is_held_out(start) is held] for held in (False, True)]
        inside = [f"{sum(map(is_inside, half))} of {len(half)}" for half in halves]
        lines.append(f"| {name} | {' | '.join(inside)} | {len({start.source for start in halves[1]})} |")
    head = "| model | vLLM, cards | KV cache, GiB | predicted less logged | margin | half | log |"
    lines += ["", head, "|---|---|---|---|---|---|---|", *map(_line, startups())]
    return "\n".join([*lines, ""])


def _line(start: Log) -> str:
    link = start.source
    if link.startswith("https://"):
        link = f"<{link}>"
    half = "held out" if is_held_out(start) else "fitted"
    slots = f", {start.flags['max_loras']} slots" if "max_loras" in start.flags else ""
    card = start.card or f"{start.total_gib:.2f} GiB"
    figures = f"{start.logged['kv_gib']:.2f} | {miss_gib(start):+.2f} | {margin_gib(start):.2f}"
    return f"| {start.model}{slots} | {start.server}, {start.ranks} × {card} | {figures} | {half} | {link} |"


if __name__ == "__main__":
    before, _, rest = page().partition(BEGIN)
    after = rest.partition(END)[2]
    resource("guide", "serving.md").write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")

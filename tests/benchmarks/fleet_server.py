"""A Prometheus server's answers for generated machines, from a process of its own: ``python -m … MACHINES GPUS``."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping

from tests.prometheus_server.fake import Reply, data, fake_server

METRICS = {
    "DCGM_FI_DEV_FB_USED": (1000.0, 80_000.0),
    "DCGM_FI_DEV_FB_FREE": (80_000.0, 1000.0),
    "DCGM_FI_DEV_GPU_UTIL": (0.0, 100.0),
    "DCGM_FI_DEV_GPU_TEMP": (35.0, 84.0),
    "DCGM_FI_DEV_POWER_USAGE": (70.0, 690.0),
}
"""Name → value in an empty and in a full GPU."""

VARIANTS = 8
"""Answers that follow one another: every poll finds other figures for every GPU."""


def answers(machines: int, gpus: int) -> list[Reply]:
    """The answers about memory, temperature and so on."""
    replies = []
    for variant in range(VARIANTS):
        result = []
        for name, (empty, full) in METRICS.items():
            for place in range(machines * gpus):
                share = ((place * 37 + variant * 5) % 1000) / 1000
                value = empty + (full - empty) * share
                result.append({"metric": {"__name__": name, **_labels(place, gpus)}, "value": [0, f"{value:.0f}"]})
        replies.append(data(result))
    return replies


def _labels(place: int, gpus: int) -> dict[str, str]:
    machine, index = divmod(place, gpus)
    return {
        "gpu": str(index),
        "UUID": f"GPU-{place:08x}-0000-0000-0000-000000000000",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": f"gpu-node-{machine + 1:03d}",
        "instance": f"gpu-node-{machine + 1:03d}:9400",
        "job": "dcgm-exporter",
    }


def serve(machines: int, gpus: int) -> None:
    """Answer on a free port, which is printed, until standard input ends."""
    replies = itertools.cycle(answers(machines, gpus))

    def answer(path: str, asked: Mapping[str, str]) -> Reply:
        query, now = asked.get("query", ""), time.time()
        if "buildinfo" in path:
            return Reply(body=b'{"status": "success", "data": {"version": "2.42.0"}}')
        if "timestamp(" in query or "count_over_time(" in query:
            value = "20" if "count" in query else f"{now:.3f}"
            return data([{"metric": _labels(place, gpus), "value": [now, value]} for place in range(machines * gpus)])
        if "vector(" in query:
            return data([{"metric": {}, "value": [now, "1"]}])
        return next(replies)

    with fake_server(answer) as server:
        sys.stdout.write(f"{server.address.rpartition(':')[2]}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))

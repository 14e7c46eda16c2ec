"""A Prometheus server's answers for generated machines, from a process of its own: ``python -m … MACHINES GPUS``."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

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


def answers(machines: int, gpus: int) -> list[bytes]:
    """Bodies of the answers about memory, temperature and so on."""
    bodies = []
    for variant in range(VARIANTS):
        result = []
        for name, (empty, full) in METRICS.items():
            for place in range(machines * gpus):
                share = ((place * 37 + variant * 5) % 1000) / 1000
                value = empty + (full - empty) * share
                result.append({"metric": {"__name__": name, **_labels(place, gpus)}, "value": [0, f"{value:.0f}"]})
        bodies.append(_body(result))
    return bodies


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


def _body(result: list[dict[str, object]]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def serve(machines: int, gpus: int) -> None:
    """Answer on a free port, which is printed, until standard input ends."""
    bodies = answers(machines, gpus)
    asked = [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode())

        def _answer(self, text: str) -> None:
            query = parse_qs(text).get("query", [""])[0]
            now = time.time()
            if "buildinfo" in self.path:
                body = b'{"status": "success", "data": {"version": "2.42.0"}}'
            elif "timestamp(" in query or "count_over_time(" in query:
                value = "20" if "count" in query else f"{now:.3f}"
                body = _body(
                    [{"metric": _labels(place, gpus), "value": [now, value]} for place in range(machines * gpus)]
                )
            elif "vector(" in query:
                body = _body([{"metric": {}, "value": [now, "1"]}])
            else:
                asked[0] += 1
                body = bodies[asked[0] % VARIANTS]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    sys.stdin.read()
    server.shutdown()
    thread.join()
    server.server_close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))

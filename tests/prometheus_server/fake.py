"""An HTTP server that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client.parser import text_string_to_metric_families

NOW = 1_700_000_000.0
"""The fake server's time, in seconds since the epoch."""


@dataclass
class Reply:
    """An answer; ``hold`` keeps it back until it is set."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


Answering = Callable[[str, Mapping[str, str]], Reply]


@dataclass
class Fake:
    """What a fake server is told and tells.

    Attributes:
        answer: (path, parameters) → reply.
        asked: paths and parameters, in order.
        headers: of the newest request.
    """

    answer: Answering
    address: str = ""
    requested: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)

    def queries(self, path: str = "/api/v1/query") -> list[Mapping[str, str]]:
        return [asked for where, asked in self.requested if where == path]


def data(result: Sequence[Mapping[str, Any]], kind: str = "vector", **beside: Any) -> Reply:
    """An answer of the query API."""
    told = {"status": "success", "data": {"resultType": kind, "result": list(result)}, **beside}
    return Reply(body=json.dumps(told).encode(), headers={"Content-Type": "application/json"})


def vector(page: str, instance: str, job: str = "job", time_s: float = NOW) -> list[dict[str, Any]]:
    """What a server answers of an exporter's page."""
    return [
        {
            "metric": {"__name__": sample.name, **sample.labels, "instance": instance, "job": job},
            "value": [time_s, repr(sample.value)],
        }
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def times(entries: Sequence[Mapping[str, Any]], time_s: float, used: Sequence[str]) -> list[dict[str, Any]]:
    """What a server answers to ``timestamp(...)`` of the memory in such an answer."""
    return [
        {
            "metric": {name: value for name, value in entry["metric"].items() if name != "__name__"},
            "value": [NOW, str(time_s)],
        }
        for entry in entries
        if entry["metric"]["__name__"] in used and "instance" in entry["metric"]
    ]


@contextmanager
def fake_server(answer: Answering) -> Iterator[Fake]:
    """A server on a loopback port."""
    fake = Fake(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            text = parts.query
            if self.command == "POST":
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = {name: values[0] for name, values in parse_qs(text).items()}
            fake.requested.append((parts.path, asked))
            fake.headers = dict(self.headers)
            reply = fake.answer(parts.path, asked)
            if reply.hold is not None:
                reply.hold.wait(30)
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: Any) -> None:
            """A client that went away is what is tested."""

    server = Server(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

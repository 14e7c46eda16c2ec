"""A page of metrics as an exporter shows it, from text that a test may change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Page:
    """What is shown at every path.

    Attributes:
        text: the page; ``None`` answers that nothing is there.
        address: "127.0.0.1:PORT".
    """

    def __init__(self, text: str) -> None:
        self.text: str | None = text
        self.address = ""


@contextmanager
def exporter(text: str) -> Iterator[Page]:
    """A page that is there for a while."""
    page = Page(text)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (page.text or "").encode()
            self.send_response(200 if page.text is not None else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    page.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

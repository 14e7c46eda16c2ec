"""Header fields made of blanks: read in a time that grows with their length, not with its square or cube."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

CPU_S = 10
"""Processor time that the process below may use in all; the system ends it when it has used more."""

SERVER = """
import socket, sys
from gpudash.session.serving.server import HttpResponse, Server

listener = socket.create_server(("127.0.0.1", 0), backlog=128)
server = Server(listener, None, lambda request: HttpResponse(200, b""), lambda error: None)
server.start()
field, requests = sys.argv[1].encode("latin-1").decode("unicode_escape").encode("latin-1"), int(sys.argv[2])
for _ in range(requests):
    with socket.create_connection(listener.getsockname()[:2]) as client:
        client.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\n" + field + b"\\r\\n\\r\\n")
        print(client.recv(4096).split()[1].decode())
assert server.close()
"""


@pytest.mark.parametrize(
    ("field", "requests", "status"),
    [("X: " + " " * 7800 + r"\x01", 1, "400"), ("X: a" + " " * 8000 + "b", 200, "200")],
    ids=["before a control character", "of a legal field, 200 times"],
)
def test_blanks_in_a_header_field_cost_next_to_nothing(field: str, requests: int, status: str) -> None:
    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    ended = subprocess.run(
        [sys.executable, "-c", SERVER, field, str(requests)],
        preexec_fn=bounded,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, [status] * requests), ended.stderr

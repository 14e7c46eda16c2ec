"""The small web server against clients of every kind, over real sockets."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudash.session.serving.server import (
    BadRequestError,
    HttpRequest,
    HttpResponse,
    Server,
    ServerLimits,
)
from tests.programs import python
from tests.unit.session.serving.certificates import certificate

PATIENCE_S = 120.0
"""Longest that a test waits for what must come."""

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

BODY = b"figure 1\n" * 100_000

ENDLESS = b"figure 1\n" * 2_000_000
"""More than a socket's buffers hold."""


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


class Served:
    """A running server that answers every request with `BODY`, and what went wrong in it."""

    def __init__(
        self, limits: ServerLimits | None, tls: ssl.SSLContext | None = None, listener: socket.socket | None = None
    ) -> None:
        listener = listener or socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = listener.getsockname()[1]
        self.troubles: list[Exception] = []
        self.requests: list[HttpRequest] = []
        self.server = Server(listener, tls, self._reply, self.troubles.append, limits)
        self.server.start()

    def _reply(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/wrong":
            raise RuntimeError("wrong")
        if request.path == "/refused":
            raise BadRequestError(421, "Not here.")
        if request.path == "/endless":
            return HttpResponse(200, ENDLESS)
        self.requests.append(request)
        return HttpResponse(200, BODY, fields=(("X-Method", request.method),))

    def client(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, which are closed after the test."""
    running: list[Served] = []

    def start(
        limits: ServerLimits | None = None, tls: ssl.SSLContext | None = None, listener: socket.socket | None = None
    ) -> Served:
        running.append(Served(limits, tls, listener))
        return running[-1]

    yield start
    for served in running:
        assert served.server.close()


def until_end(client: socket.socket) -> bytes:
    """Everything that the server sends; it must end the connection."""
    received = bytearray()
    while piece := client.recv(65536):
        received += piece
    return bytes(received)


def asked(served: Served, sent: bytes) -> bytes:
    with served.client() as client:
        client.sendall(sent)
        return until_end(client)


def code(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_request_is_answered_once_and_the_connection_closed(serve: Serve) -> None:
    answer = asked(serve(), SCRAPE)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(BODY)}".encode() in head
    assert b"Connection: close" in head
    assert b"X-Method: GET" in head
    assert body == BODY


def test_a_head_request_is_answered_without_a_body(serve: Serve) -> None:
    head, _, body = asked(serve(), SCRAPE.replace(b"GET", b"HEAD")).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(BODY)}".encode() in head
    assert body == b""


def test_a_request_may_come_byte_by_byte(serve: Serve) -> None:
    with serve().client() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in SCRAPE:
            client.sendall(bytes([byte]))
        assert code(until_end(client)) == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /refused HTTP/1.0\r\n\r\n", 421),
        (b"GET /wrong HTTP/1.0\r\n\r\n", 500),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (bytes(range(11, 256)) * 8, 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, 431),
        (b"A" * 50_000, 400),
        (b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (SCRAPE + b"x" * 50_000, 200),
    ],
    ids=[
        "refused",
        "failed",
        "no host",
        "TLS",
        "any bytes",
        "endless field",
        "endless word",
        "long path",
        "with a body",
    ],
)
def test_every_request_is_answered_and_heard_out(serve: Serve, sent: bytes, status: int) -> None:
    served = serve()
    assert code(asked(served, sent)) == status
    assert served.server.answers == {status: 1}
    assert code(asked(served, SCRAPE)) == 200


def test_a_scrape_is_read(serve: Serve) -> None:
    served = serve()
    asked(
        served,
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:1\r\nAuthorization:  Bearer abc \r\nX: 1\r\nx: 2\r\n\r\n",
    )
    headers = {"host": "localhost:1", "authorization": "Bearer abc", "x": "1, 2"}
    assert served.requests == [HttpRequest("GET", "/metrics", headers)]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b" ", 400),
        (b"GET /metrics", 400),
        (b"get /metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: a", 400),
        (b"GET /metrics HTTP/1." + b"1" * 5000 + b"\r\nHost: a", 400),
        (b"GET http://a/metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /met rics HTTP/1.1\r\nHost: a", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/1.1", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n folded", 400),
        (b"GET /metrics HTTP/1.1\r\n folded\r\nHost: a", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nNo colon", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nNo colon\r\nX: 1", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n: 1", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX(: 1", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: \x00", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: 1\rAuthorization: Bearer a", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a" + b"\r\nX: 1" * 64, 431),
        (b"GET /metrics HTTP/1.1\r\nHost: a" + b"\r\nX: 1" * 500, 431),
    ],
)
def test_what_is_no_request_is_refused(serve: Serve, head: bytes, status: int) -> None:
    served = serve()
    answer = asked(served, head + b"\r\n\r\n")
    assert (code(answer), served.requests, served.troubles) == (status, [], [])
    assert answer.startswith(b"HTTP/1.1 ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200) | st.builds(lambda rest: b"GET /metrics HTTP/1.0\r\n" + rest, st.binary(max_size=200)))
def test_any_bytes_are_a_request_or_refused(serve: Serve, head: bytes) -> None:
    served = serve()
    assert code(asked(served, head + b"\r\n\r\n")) in (200, 400, 421, 431)
    assert served.troubles == []
    assert all(request.path.startswith("/") for request in served.requests)


def test_an_exception_is_told_and_its_words_stay_here(serve: Serve) -> None:
    served = serve()
    assert b"RuntimeError" not in asked(served, b"GET /wrong HTTP/1.0\r\n\r\n")
    assert [str(error) for error in served.troubles] == ["wrong"]


def test_a_client_that_sends_without_end_is_cut_off(serve: Serve) -> None:
    with serve().client() as client, pytest.raises(OSError, match=r"reset|Broken pipe"):
        client.sendall(b"GET " * 16_000_000)


def test_slow_clients_are_cut_off(serve: Serve) -> None:
    served = serve(ServerLimits(seconds=0.5))
    with served.client() as silent, served.client() as slow, served.client() as reader:
        slow.sendall(b"GET /metr")
        reader.sendall(SCRAPE.replace(b"/metrics", b"/endless"))  # and never reads it
        assert until_end(silent) == b""
        assert until_end(slow) == b""
        while served.server.dropped < 3:
            threading.Event().wait(0.01)
    assert code(asked(served, SCRAPE)) == 200


def test_the_oldest_connection_makes_room_for_a_scrape(serve: Serve) -> None:
    served = serve(ServerLimits(connections=4, seconds=PATIENCE_S))
    idle = [served.client() for _ in range(12)]
    try:
        assert code(asked(served, SCRAPE)) == 200
        assert [client.recv(1) for client in idle[:9]] == [b""] * 9
        idle[-1].sendall(SCRAPE)
        assert code(until_end(idle[-1])) == 200
    finally:
        for client in idle:
            client.close()


def test_more_connections_a_second_than_are_taken_wait_for_the_next(serve: Serve) -> None:
    served = serve(ServerLimits(per_second=5))
    assert [code(asked(served, SCRAPE)) for _ in range(12)] == [200] * 12


def test_clients_that_go_away_leave_nothing_behind(serve: Serve) -> None:
    served = serve()
    asked(served, SCRAPE)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for sent in (b"", b"GET", SCRAPE):
        for _ in range(20):
            with served.client() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leaves with a reset
                client.sendall(sent)
    assert code(asked(served, SCRAPE)) == 200
    while len(os.listdir("/proc/self/fd")) > before:  # noqa: PTH208
        threading.Event().wait(0.01)
    assert served.troubles == []


def test_closing_ends_every_connection(serve: Serve) -> None:
    served = serve(ServerLimits(seconds=PATIENCE_S))
    with served.client() as client:
        client.sendall(b"GET")
        assert code(asked(served, SCRAPE)) == 200
        assert served.server.close()
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        served.client()


def test_a_server_that_was_never_started_closes_its_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener, None, lambda request: HttpResponse(200, b""), lambda error: None)
    assert server.close()
    assert listener.fileno() == -1


class Refusing(socket.socket):
    """A listener that has no descriptor for the second client, after one that left before it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.taken = 0
        self.refusals = [ConnectionAbortedError(103, ""), OSError(24, "Too many open files")]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.taken and self.refusals:
            raise self.refusals.pop(0)
        self.taken += 1
        return super().accept()


def test_without_descriptors_the_oldest_client_gives_its_own(serve: Serve) -> None:
    listener = Refusing()
    served = serve(ServerLimits(per_second=5), listener=listener)
    with served.client() as oldest:
        oldest.sendall(b"GET")
        assert code(asked(served, SCRAPE)) == 200
        assert oldest.recv(1) == b""
    assert listener.refusals == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def server_context(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


@pytest.mark.process
def test_an_encrypted_request_is_answered(serve: Serve, pair: tuple[Path, Path]) -> None:
    served = serve(tls=server_context(pair))
    trusting = ssl.create_default_context(cafile=str(pair[0]))
    with served.client() as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(SCRAPE)
        answer = until_end(client)
    assert answer.endswith(b"\r\n\r\n" + BODY)


@pytest.mark.process
def test_a_handshake_that_is_no_good_disturbs_nobody(serve: Serve, pair: tuple[Path, Path]) -> None:
    served = serve(ServerLimits(seconds=2.0), tls=server_context(pair))
    trusting = ssl.create_default_context(cafile=str(pair[0]))
    distrusting = ssl.create_default_context()
    with served.client() as silent, served.client() as plain, served.client() as doubting:
        silent.sendall(b"\x16\x03\x01")
        plain.sendall(SCRAPE)
        with pytest.raises(ssl.SSLCertVerificationError):
            distrusting.wrap_socket(doubting, server_hostname="127.0.0.1")
        with served.client() as good, trusting.wrap_socket(good, server_hostname="127.0.0.1") as client:
            client.sendall(SCRAPE)
            assert code(until_end(client)) == 200
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in until_end(plain)
        assert until_end(silent) == b""
    assert served.troubles == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("field", "requests", "status"),
    [("X: " + " " * 7800 + r"\x01", 1, "400"), ("X: a" + " " * 8000 + "b", 200, "200")],
    ids=["before a control character", "of a legal field, 200 times"],
)
def test_blanks_in_a_header_field_cost_next_to_nothing(field: str, requests: int, status: str) -> None:
    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    ended = python("-c", SERVER, field, str(requests), preexec_fn=bounded)
    assert (ended.returncode, ended.stdout.split()) == (0, [status] * requests), ended.stderr

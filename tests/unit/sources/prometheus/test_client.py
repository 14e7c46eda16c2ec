"""The client of Prometheus's HTTP API: what it asks, and what it says of every answer that is none."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.sources.prometheus.address import TOKEN, TOKEN_FILE, ServerAddress, read_address
from gpudash.sources.prometheus.client import (
    LONGEST_GET,
    LONGEST_TOKEN,
    Client,
    Kind,
    PrometheusError,
    _of_failure,
    read_token,
)
from tests.prometheus_server.fake import Fake, Reply, data, fake_server

LOCAL = ServerAddress("http", "127.0.0.1", 9090)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:9090", "http://host:9090"),
        ("prometheus:http://host:9090", "http://host:9090"),
        ("  prometheus:HTTPS://Host  ", "https://host:443"),
        ("http://host", "http://host:80"),
        ("http://host:9090/prometheus/", "http://host:9090/prometheus"),
        ("http://host:9090/graph", "http://host:9090"),
        ("http://host:9090/prometheus/api/v1", "http://host:9090/prometheus"),
        ("http://[::1]:9090", "http://[::1]:9090"),
    ],
)
def test_an_address_is_read_with_or_without_its_prefix(text: str, shown: str) -> None:
    assert str(read_address(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "prometheus:",
        "host:9090",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://host:9090/graph?g0=1",
        "http://host:9090#top",
        "http://ho st:9090",
        "http://[::1",
    ],
)
def test_what_is_no_address_is_told_in_one_sentence_with_an_example_or_the_mend(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example|leave out") as told:
        read_address(text)
    assert str(told.value).endswith(".") and "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["http://me:secret@host:9090", "http:/me:secret@host", "me:secret@host:9090"])
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=TOKEN) as told:
        read_address(text)
    assert "secret" not in str(told.value)


@given(st.text(max_size=60) | st.from_regex(r"https?://[^@]{1,40}", fullmatch=True))
def test_whatever_is_typed_is_an_address_or_told(text: str) -> None:
    try:
        address = read_address(text)
    except ValueError as error:
        told = str(error)
    else:
        assert read_address(str(address)) == address
        return
    assert "\n" not in told


def test_the_token_comes_from_the_variable_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    everywhere = {TOKEN: "from-variable", TOKEN_FILE: str(file)}
    assert read_token(LOCAL, everywhere) == "from-variable"
    assert read_token(LOCAL, {TOKEN_FILE: str(file)}) == "from-file"
    assert read_token(LOCAL, {}) is None
    assert read_token(LOCAL, {TOKEN: "  "}) is None


def test_a_token_file_that_cannot_be_read_is_told_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=r"No such file") as told:
        read_token(LOCAL, {TOKEN_FILE: str(missing)})
    assert str(missing) in str(told.value)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match=r"fifo \(it is a FIFO, not a regular file\)"):
        read_token(LOCAL, {TOKEN_FILE: str(tmp_path / "fifo")})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text"):
        read_token(LOCAL, {TOKEN_FILE: str(tmp_path / "bytes")})


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ü", "x" * (LONGEST_TOKEN + 1)])
def test_what_can_be_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match=TOKEN) as told:
        read_token(LOCAL, {TOKEN: token})
    assert token not in str(told.value)


def test_a_token_goes_to_another_machine_only_encrypted() -> None:
    with pytest.raises(ValueError, match="https://") as told:
        read_token(ServerAddress("http", "node1", 9090), {TOKEN: "secret"})
    assert "secret" not in str(told.value)
    assert read_token(ServerAddress("https", "node1", 443), {TOKEN: "secret"}) == "secret"
    for host in ("localhost", "::1", "127.8.8.8"):
        assert read_token(ServerAddress("http", host, 9090), {TOKEN: "secret"}) == "secret"


def refused(fake: Fake, *, check: bool = False, token: str | None = None, limit_bytes: int = 10_000) -> PrometheusError:
    """Ask a fake server once, and say how it was refused."""
    client = Client(read_address(fake.address), token, timeout_s=5.0, limit_bytes=limit_bytes)
    try:
        with pytest.raises(PrometheusError) as told:
            client.check() if check else client.query("vector(1)")
    finally:
        client.drop()
    text = str(told.value)
    assert text.endswith(".") and "\n" not in text
    return told.value


def test_queries_go_over_one_connection_with_their_parameters_and_the_token() -> None:
    with fake_server(lambda path, asked: data([])) as fake:
        client = Client(read_address(fake.address), "secret")
        assert client.query("up", 12.5).result == []
        assert client.query_range("up", 1.0, 2.0, 0.5).result == []
        client.drop()
    assert fake.requested == [
        ("/api/v1/query", {"query": "up", "time": "12.500"}),
        ("/api/v1/query_range", {"query": "up", "start": "1.000", "end": "2.000", "step": "0.500"}),
    ]
    assert fake.headers["Authorization"] == "Bearer secret"


def test_a_path_before_the_interface_is_kept() -> None:
    with fake_server(lambda path, asked: data([])) as fake:
        client = Client(read_address(f"{fake.address}/prometheus/"))
        client.query("up")
        client.drop()
    assert fake.requested[0][0] == "/prometheus/api/v1/query"


def test_a_long_query_is_posted() -> None:
    query = "up or " * (LONGEST_GET // 4) + "up"
    with fake_server(lambda path, asked: data([])) as fake:
        client = Client(read_address(fake.address))
        client.query(query)
        client.drop()
    assert fake.queries() == [{"query": query}]


def test_warnings_of_an_answer_that_is_not_whole_are_kept() -> None:
    with fake_server(lambda path, asked: data([], warnings=["a store is away"], infos=["no counter"])) as fake:
        client = Client(read_address(fake.address))
        assert client.query("up").warnings == ("a store is away", "no counter")
        client.drop()


def test_a_connection_that_the_server_closed_in_between_is_made_anew() -> None:
    with fake_server(lambda path, asked: data([])) as fake:
        client = Client(read_address(fake.address))
        client.query("up")
        assert client._connection is not None and client._connection.sock is not None
        client._connection.sock.shutdown(socket.SHUT_RDWR)
        assert client.query("up").result == []
        client.drop()


def _json(told: object) -> bytes:
    return json.dumps(told).encode()


ANSWERS: list[tuple[Reply, Kind, str]] = [
    (Reply(401, b"Unauthorized"), "protected", "asks for a token; set GPUDASH_PROMETHEUS_TOKEN"),
    (Reply(403, b"no"), "protected", "asks for a token"),
    (Reply(302, b"", {"Location": "/login"}), "protected", "asks for a token"),
    (Reply(407, b""), "protected", "proxy"),
    (Reply(301, b"", {"Location": "https://elsewhere/"}), "other", "sends on to https://elsewhere/"),
    (Reply(200, b"<!doctype html><html>hello"), "other", "web page"),
    (Reply(404, b"<html>not here"), "other", "web page"),
    (Reply(404, b"404 page not found"), "other", "knows no /api/v1/query"),
    (Reply(200, b"<html><title>Grafana</title>"), "other", "is Grafana"),
    (Reply(200, b"# HELP go_goroutines Number\n# TYPE go_goroutines gauge\n"), "other", "is an exporter"),
    (Reply(200, _json({"hello": 1})), "other", "JSON of another kind"),
    (Reply(200, _json([1, 2])), "other", "JSON of another kind"),
    (Reply(200, _json({"status": "success", "data": {"result": 7}})), "other", "JSON of another kind"),
    (Reply(200, b'{"status": "success", "data": {"resu'), "broken", "broken JSON"),
    (Reply(200, b"[" * 9000), "broken", "broken JSON"),
    (Reply(200, b""), "other", "does not answer as a Prometheus server"),
    (Reply(200, b"x" * 20_000), "large", "answers with more than"),
    (Reply(503, b"Service Unavailable"), "down", "HTTP 503"),
    (Reply(400, b"Client sent an HTTP request to an HTTPS server.\n"), "tls", "write https://"),
    (
        Reply(400, _json({"status": "error", "errorType": "bad_data", "error": "parse\n error"})),
        "query",
        "bad_data: parse error",
    ),
    (Reply(503, _json({"status": "error", "errorType": "timeout", "error": "late"})), "slow", "gave up on a query"),
]


@pytest.mark.parametrize(("reply", "kind", "words"), ANSWERS)
def test_an_answer_that_is_none_is_told_in_one_sentence(reply: Reply, kind: Kind, words: str) -> None:
    with fake_server(lambda path, asked: reply) as fake:
        told = refused(fake)
    assert told.kind == kind
    assert words in str(told)


def test_a_token_that_does_not_fit_is_told_without_it() -> None:
    with fake_server(lambda path, asked: Reply(401)) as fake:
        told = refused(fake, token="secret")
    assert "the token does not open it" in str(told) and "secret" not in str(told)


def test_the_page_of_an_exporter_is_recognised_by_its_metrics() -> None:
    def answer(path: str, asked: Mapping[str, str]) -> Reply:
        return Reply(200, b"# HELP a b\n# TYPE a gauge\na 1\n") if path == "/metrics" else Reply(404, b"nothing")

    with fake_server(answer) as fake:
        told = refused(fake, check=True)
    assert "is an exporter, not a Prometheus server" in str(told)


@pytest.mark.parametrize(("version", "old"), [("1.8.2", True), ("2.0.0", False), ("v3.1.0", False), ("", False)])
def test_a_server_from_before_its_second_version_is_too_old(version: str, old: bool) -> None:
    def answer(path: str, asked: Mapping[str, str]) -> Reply:
        told = {"status": "success", "data": {"version": version}}
        return Reply(200, _json(told)) if path.endswith("buildinfo") else data([])

    with fake_server(answer) as fake:
        if old:
            assert refused(fake, check=True).kind == "old"
        else:
            client = Client(read_address(fake.address))
            assert client.check() == version
            client.drop()


def test_a_server_that_tells_no_version_but_answers_is_taken() -> None:
    with fake_server(lambda path, asked: data([]) if path == "/api/v1/query" else Reply(404)) as fake:
        client = Client(read_address(fake.address))
        assert client.check() == ""
        client.drop()


def test_nothing_that_listens_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: the port is nobody else's
        port = held.getsockname()[1]
        client = Client(ServerAddress("http", "127.0.0.1", port))
        with pytest.raises(PrometheusError, match=f"Nothing listens at http://127.0.0.1:{port}") as told:
            client.query("up")
    assert told.value.kind == "down"


def test_a_server_that_does_not_answer_in_time_is_told() -> None:
    hold = threading.Event()
    with fake_server(lambda path, asked: Reply(hold=hold)) as fake:
        client = Client(read_address(fake.address), timeout_s=0.1)
        try:
            with pytest.raises(PrometheusError, match=r"did not answer within 0\.1 s") as told:
                client.query("up")
        finally:
            hold.set()
    assert told.value.kind == "slow"


def test_an_answer_whose_headers_never_end_has_one_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def trickle() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not stop.wait(0.05):  # sooner than any read times out
                    connection.sendall(b"a")

        thread = threading.Thread(target=trickle)
        thread.start()
        client = Client(ServerAddress("http", "127.0.0.1", server.getsockname()[1]), timeout_s=0.4)
        try:
            with pytest.raises(PrometheusError, match=r"did not answer within 0\.4 s") as told:
                client.query("up")
        finally:
            stop.set()
            thread.join()
    assert told.value.kind == "slow"


def test_an_answer_that_is_cut_off_is_told() -> None:
    with fake_server(lambda path, asked: Reply(200, b"{}", {"Content-Length": "10", "Connection": "close"})) as fake:
        assert refused(fake).kind == "broken"


def test_what_speaks_another_language_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        client = Client(ServerAddress("http", "127.0.0.1", port), timeout_s=5.0)
        with pytest.raises(PrometheusError, match="does not speak HTTP"):
            client.query("up")
        thread.join()


def test_plain_text_where_tls_is_expected_is_told() -> None:
    with fake_server(lambda path, asked: data([])) as fake:
        client = Client(read_address(fake.address.replace("http:", "https:")), timeout_s=5.0)
        with pytest.raises(PrometheusError, match="does not speak TLS") as told:
            client.query("up")
    assert told.value.kind == "tls"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "down", "No machine is called"),
        (OSError(113, "No route to host"), "down", "cannot be reached"),
        (OSError(5, "Input/output error"), "down", "Input/output error"),
        (ConnectionResetError(), "down", "broke off the connection"),
        (ssl.SSLError("odd"), "tls", "TLS"),
        (UnicodeError("label too long"), "down", "No machine is called"),
    ],
)
def test_every_failure_of_a_connection_has_its_sentence(error: Exception, kind: Kind, words: str) -> None:
    told = _of_failure(ServerAddress("https", "node1", 9090), error, 10.0)
    assert told.kind == kind and words in str(told) and str(told).endswith(".")


def test_a_certificate_that_does_not_hold_is_told_with_the_mend() -> None:
    error = ssl.SSLCertVerificationError("no")
    error.verify_message = "self-signed certificate"
    told = _of_failure(ServerAddress("https", "node1", 9090), error, 10.0)
    assert "self-signed certificate" in str(told) and "SSL_CERT_FILE" in str(told)


def test_closing_ends_a_question_that_another_thread_waits_for() -> None:
    hold, seen = threading.Event(), []
    with fake_server(lambda path, asked: Reply(hold=hold)) as fake:
        client = Client(read_address(fake.address), timeout_s=60.0)

        def ask() -> None:
            try:
                client.query("up")
            except PrometheusError as error:
                seen.append(error.kind)

        thread = threading.Thread(target=ask)
        thread.start()
        while not fake.requested:
            thread.join(0.01)
        client.close()
        thread.join(10.0)
        hold.set()
        assert not thread.is_alive()
    assert seen == ["closed"]
    with pytest.raises(PrometheusError, match="not asked any more"):
        client.query("up")


def test_closing_breaks_off_a_connection_that_does_not_come_about(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told, find = threading.Event(), [], socket.getaddrinfo

    def found(*arguments: Any, **options: Any) -> Any:
        begun.set()
        return find(*arguments, **options)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(4):  # nobody takes them: the next one is left waiting
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        client = Client(ServerAddress("http", "127.0.0.1", full.getsockname()[1]), timeout_s=240.0)

        def ask() -> None:
            try:
                client.query("up")
            except PrometheusError as error:
                told.append(error.kind)

        monkeypatch.setattr(socket, "getaddrinfo", found)
        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(60)
        client.close()
        thread.join(60)
        assert not thread.is_alive()
        client.drop()
    assert told == ["closed"]

"""Serving a session: who is answered with what, and what keeps anybody from being served at all."""

from __future__ import annotations

import gzip
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpudash.memory.predicting.estimate import Estimate
from gpudash.session.serving import ServeRequest, Serving, ServingError, serve_by_settings
from gpudash.specs.matmul import MatmulSpec
from gpudash.telemetry.records import Note, RunStarted, Warning
from tests.unit.session.serving.certificates import certificate
from tests.unit.session.serving.fake_session import FakeSession

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What Prometheus 2.42 accepts."""

SECRET = "0123456789abcdef0123"

Start = Callable[..., "Client"]


class Client:
    """Asks a served fake session."""

    def __init__(self, fake: FakeSession, serving: Serving, trust: Path | None) -> None:
        self.fake, self.serving, self._trust = fake, serving, trust

    def ask(self, path: str = "/metrics", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        place = self.serving.url.removesuffix("/metrics").partition("://")[2]
        if self._trust is None:
            connection = http.client.HTTPConnection(place, timeout=120)
        else:
            context = ssl.create_default_context(cafile=str(self._trust))
            connection = http.client.HTTPSConnection(place, timeout=120, context=context)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            self.body = answer.read()
            return answer
        finally:
            connection.close()

    def figures(self) -> Mapping[str, str]:
        """The samples of a scrape, by name and labels as they stand there."""
        assert self.ask().status == 200
        lines = [line for line in self.body.decode().splitlines() if not line.startswith("#")]
        return dict(line.rsplit(" ", 1) for line in lines)


@pytest.fixture
def start() -> Iterator[Start]:
    """Serves fake sessions at a free port of this machine."""
    running: list[Serving] = []

    def begin(wish: ServeRequest | None = None, trust: Path | None = None) -> Client:
        fake = FakeSession()
        running.append(Serving(wish or ServeRequest("127.0.0.1:0")))
        running[-1].start(fake.session)
        return Client(fake, running[-1], trust)

    yield begin
    for serving in running:
        assert serving.close()


def token_file(folder: Path) -> Path:
    file = folder / "token"
    file.write_text(SECRET, encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_scrape_has_the_newest_reading(start: Start) -> None:
    client = start()
    client.fake.read("gpu", "GPU-0", used_bytes=5)
    assert client.figures()['gpudash_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"}'] == "5.0"


def test_the_formats_of_a_scrape_are_those_that_prometheus_asks_for(start: Start) -> None:
    client = start()
    answer = client.ask(Accept=PROMETHEUS, Accept_Encoding="br, GZIP;q=0.5")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(client.body).endswith(b"# EOF\n")
    for accepted in ({"Accept": "text/plain;version=0.0.4, */*", "Accept_Encoding": "gzip;q=0"}, {}):
        answer = client.ask(**accepted)
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["Content-Encoding"] is None
        assert client.body.startswith(b"# HELP gpudash_")


ANSWERS = [("GET", "/", 200), ("HEAD", "/metrics", 200), ("GET", "/metrics?x=1", 200), ("GET", "/other", 404)]
ANSWERS += [("GET", "/metrics/", 404), ("POST", "/metrics", 405), ("DELETE", "/", 405)]


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
def test_only_the_figures_are_there_and_only_to_be_read(start: Start, method: str, path: str, status: int) -> None:
    client = start()
    answer = client.ask(path, method)
    assert answer.status == status
    assert (answer.headers["Allow"] == "GET, HEAD") == (status == 405)


@pytest.mark.process
@pytest.mark.parametrize("host", ["evil.example", "evil.example:10950", "localhost.evil.example", "", "[x]:1"])
def test_a_page_of_the_web_cannot_read_the_figures_by_a_name_of_its_own(start: Start, host: str) -> None:
    client = start()
    assert client.ask(Host=host).status == 421
    assert b"gpudash_" not in client.body


@pytest.mark.process
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9500", "127.0.0.1:9500", "[::1]:9500", "10.1.2.3"])
def test_this_machine_is_asked_for_by_address_or_as_localhost(start: Start, host: str) -> None:
    assert start().ask(Host=host).status == 200


@pytest.mark.process
def test_without_the_token_nothing_is_told(start: Start, tmp_path: Path) -> None:
    client = start(ServeRequest("127.0.0.1:0", token_file(tmp_path)))
    for authorization in ("", "Bearer wrong", f"Basic {SECRET}", f"Bearer {SECRET}x"):
        for path in ("/metrics", "/", "/other"):
            answer = client.ask(path, Authorization=authorization)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert SECRET.encode() not in client.body
    assert client.ask(Authorization=f"Bearer {SECRET}", Host="gpu-7.example.org").status == 200


@pytest.mark.process
def test_an_address_for_all_is_served_with_token_and_tls(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    client = start(ServeRequest("127.0.0.1:0", token_file(tmp_path), cert, key), trust=cert)
    assert client.serving.url.startswith("https://127.0.0.1:")
    assert client.ask(Authorization=f"Bearer {SECRET}").status == 200
    assert client.ask().status == 401


def test_an_address_for_all_is_refused_without_token_and_tls(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="needs a token and TLS"):
        Serving(ServeRequest("0.0.0.0:0"))
    with pytest.raises(ServingError, match="needs TLS"):
        Serving(ServeRequest("0.0.0.0:0", token_file(tmp_path)))


def test_a_port_in_use_is_refused_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServingError, match=rf"^Port {port} of 127\.0\.0\.1 is in use$") as refusal:
            Serving(ServeRequest(f":{port}"))
        assert "--serve ADDRESS:PORT" in refusal.value.remedy


@pytest.mark.process
def test_an_address_of_another_machine_is_refused_in_one_sentence(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with pytest.raises(ServingError, match=r"192\.0\.2\.7:9500 cannot be served on"):
        Serving(ServeRequest("192.0.2.7:9500", token_file(tmp_path), cert, key))


def test_a_port_that_was_served_on_can_be_served_on_again_at_once(start: Start) -> None:
    client = start()
    assert client.ask().status == 200
    assert client.serving.close()
    port = client.serving.url.rpartition(":")[2].partition("/")[0]
    assert start(ServeRequest(f":{port}")).ask().status == 200


def test_what_was_never_started_listens_no_longer_once_closed() -> None:
    serving = Serving(ServeRequest(":0"))
    port = int(serving.url.rpartition(":")[2].partition("/")[0])
    assert serving.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_what_goes_wrong_is_told_once_and_answered_in_words(start: Start) -> None:
    client = start()
    client.fake.gpus = None  # type: ignore[assignment]
    for _ in range(2):
        assert client.ask().status == 500
        assert b"TypeError" not in client.body
    (warning,) = client.fake.emitted
    assert isinstance(warning, Warning)
    assert warning.text.startswith("Serving the figures went wrong (TypeError: ")


def test_what_is_answered_is_counted(start: Start) -> None:
    client = start()
    client.ask("/other")
    assert client.figures()['gpudash_serve_answers_total{code="404"}'] == "1.0"
    assert client.figures()["gpudash_serve_dropped_connections_total"] == "0.0"


def test_the_prediction_of_the_run_is_asked_for_once_and_served_when_it_is_there(start: Start) -> None:
    client, spec = start(), MatmulSpec()
    fake = client.fake
    client.serving.predict(spec, "cuda:0")
    assert fake.requested == [(spec, "cuda:0")]
    fake.apply(RunStarted(time_s=1.0, run_id=1, workload="matmul", device="cuda:0", spec={}))
    fake.answer = SimpleNamespace(id=6, estimate=Estimate("cuda:0", workload="matmul", peak_allocated_bytes=9))
    labels = 'device="cuda:0",kind="allocated",run="1",workload="matmul"'
    name = f"gpudash_run_predicted_peak_bytes{{{labels}}}"
    gathered = client.serving._gather()
    assert not [rows for served, rows in gathered.items() if served.name.endswith("predicted_peak_bytes") and rows]
    fake.answer.id = 7
    assert client.figures()[name] == "9.0"


def test_a_run_that_cannot_be_predicted_is_served_without(start: Start) -> None:
    client = start()

    def refuse(*_: object, **__: object) -> int:
        raise ValueError("No prediction.")

    client.fake.estimates.ask = refuse
    client.serving.predict(MatmulSpec(), "cpu")
    assert client.ask().status == 200


def test_the_settings_of_a_window_serve_this_machine() -> None:
    fake = FakeSession()
    serving = serve_by_settings(fake.session, ":0")
    assert serving is not None
    try:
        (note,) = fake.emitted
        assert isinstance(note, Note)
        assert note.text == f"The readings are served at {serving.url}"
        assert Client(fake, serving, None).ask().status == 200
    finally:
        assert serving.close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "nonsense:x"])
def test_settings_that_cannot_be_served_are_told_in_one_sentence(address: str) -> None:
    fake = FakeSession()
    assert serve_by_settings(fake.session, address) is None
    (warning,) = fake.emitted
    assert isinstance(warning, Warning)
    assert warning.text.startswith("The readings are not served: ")

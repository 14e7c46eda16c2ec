"""Serving a session's figures to Prometheus: off until it is asked for."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.session.serving import catalogue as names
from gpudash.session.serving.address import (
    Address,
    ServingError,
    Token,
    is_ip,
    read_address,
    require_guarded,
    resolve,
    take_token,
    tls_context,
)
from gpudash.session.serving.server import (
    BadRequestError,
    HttpRequest,
    HttpResponse,
    Server,
)
from gpudash.system.files import resource
from gpudash.telemetry.records import Note, Topic, Warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.session.live.session import Session
    from gpudash.session.remote.machine import RemoteMachine
    from gpudash.session.serving.catalogue import ServedMetric
    from gpudash.session.serving.figures import Exposition, Rows
    from gpudash.specs import Spec

logger = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that wait to be taken; the system turns more away."""

GREETING = b"gpudash serves its readings for Prometheus at /metrics\n"


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """How a session is to be served.

    Attributes:
        address: ADDRESS:PORT as the user writes it; empty: this machine only, at the usual port.
        token_file, certificate, key: files, as far as they are given.
    """

    address: str = ""
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


class Serving:
    """Listens from its construction on, answers from `start` to `close`.

    Args:
        request: where, and guarded by what.

    Raises:
        ServingError: one sentence, when nobody can or may be served there.

    Attributes:
        url: where the figures are.
    """

    def __init__(self, request: ServeRequest) -> None:
        self._token: Token | None = take_token(request.token_file)
        self._tls: ssl.SSLContext | None = tls_context(request.certificate, request.key)
        if request.address:
            address = read_address(request.address)
        else:
            address = Address()
        where = require_guarded(address, token=self._token is not None, tls=self._tls is not None)
        self._listener = _listener(where)
        bound = Address(where.host, self._listener.getsockname()[1])
        self.url = f"{'http' if self._tls is None else 'https'}://{bound}/metrics"
        self._server: Server | None = None
        self._session: Session | None = None
        self._prediction: int | None = None
        self._reported = False

    def start(self, session: Session) -> None:
        """Answer with the figures of ``session``."""
        from gpudash.session.serving.figures import Exposition, Figures

        self._session = session
        self._figures = Figures(session)
        self._serve(Exposition(self._gather, time.monotonic))

    def start_machines(self, machines: Sequence[RemoteMachine]) -> None:
        """Answer with the figures of machines over ssh."""
        from gpudash.session.serving.figures import Exposition
        from gpudash.session.serving.fleet_figures import FLEET_CATALOGUE, FleetFigures

        figures = FleetFigures(machines)
        self._serve(Exposition(lambda: self._with_own(figures.gather()), time.monotonic, FLEET_CATALOGUE))

    def _serve(self, exposition: Exposition) -> None:
        self._exposition = exposition
        self._server = Server(self._listener, self._tls, self._reply, self._report)
        self._server.start()

    def predict(self, spec: Spec, device: str) -> None:
        """Have predicted what a run of ``spec`` takes, so that it can be served beside what it does take."""
        assert self._session is not None
        with suppress(ValueError, RuntimeError):  # such as a workload that cannot be predicted: nothing is served then
            self._prediction = self._session.estimates.ask(spec, device, alternatives=False)

    def close(self) -> bool:
        """Stop listening and answering; false when the thread could not be joined."""
        if self._server is None:
            self._listener.close()
            return True
        return self._server.close()

    def _gather(self) -> Mapping[ServedMetric, Rows]:
        return self._with_own(self._figures.gather(self._predicted()))

    def _with_own(self, gathered: Mapping[ServedMetric, Rows]) -> Mapping[ServedMetric, Rows]:
        """What was gathered, with the server's own figures."""
        assert self._server is not None
        rows = dict(gathered)
        rows[names.ANSWERS] = [((str(code),), float(count)) for code, count in sorted(self._server.answers.items())]
        rows[names.DROPPED] = [((), float(self._server.dropped))]
        return rows

    def _predicted(self) -> Estimate | None:
        assert self._session is not None
        if self._prediction is None:
            return None
        answer = self._session.estimates.newest()
        if answer is None or answer.id != self._prediction:
            return None
        return answer.estimate

    def _reply(self, request: HttpRequest) -> HttpResponse:
        """The answer to a request.

        Raises:
            BadRequestError: when it is refused.
        """
        if self._token is None and _names_a_domain(request.headers.get("host", "localhost")):
            raise BadRequestError(421, "Ask for this machine by its address or as localhost.")
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, b"Only GET and HEAD are answered.\n", fields=(("Allow", "GET, HEAD"),))
        if self._token is not None and not self._token.admits(request.headers.get("authorization", "")):
            return HttpResponse(401, b"The token is missing or wrong.\n", fields=(("WWW-Authenticate", "Bearer"),))
        if request.path == "/":
            return HttpResponse(200, GREETING)
        if request.path != "/metrics":
            return HttpResponse(404, b"There is nothing here; the figures are at /metrics.\n")
        page = self._exposition.page(as_openmetrics=_takes_openmetrics(request), compressed=_takes_gzip(request))
        coding = (("Content-Encoding", "gzip"),) if page.compressed else ()
        return HttpResponse(200, page.body, page.content_type, (("Vary", "Accept, Accept-Encoding"), *coding))

    def _report(self, error: Exception) -> None:
        """Make a warning of an exception, once; without a session, a line of the log."""
        if self._reported:
            return
        self._reported = True
        text = f"Serving the figures went wrong ({type(error).__name__}: {error})."
        session = self._session
        if session is None:
            logger.error(text, exc_info=error)
            return
        session.emit(Warning(time_s=session.clock(), level="warning", device="serving", text=text))


def companions() -> Path:
    """The folder with the Grafana dashboard, the alert rules and dcgm-exporter's names.

    Raises:
        FileNotFoundError: when an installation lacks it.
    """
    return resource("prometheus")


def _listener(where: Address) -> socket.socket:
    family, _ = resolve(where)
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ServingError(f"{where} cannot be served on ({error.strerror})") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only connections that linger are in the way
        listener.bind((where.host, where.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "Give another port: --serve ADDRESS:PORT, with port 0 any free one."
            raise ServingError(f"Port {where.port} of {where.host} is in use", remedy) from None
        if error.errno == errno.EACCES:
            raise ServingError(f"Port {where.port} is for the administrator only", "Give one from 1024 up.") from None
        raise ServingError(f"{where} cannot be served on ({error.strerror})") from None
    return listener


def setting_problem(address: str) -> str:
    """Why settings cannot name ``address``, as far as that is known without asking for names; empty where they can."""
    if not address:
        return ""
    try:
        parsed = read_address(address)
        if is_ip(parsed.host):
            require_guarded(parsed, token=False, tls=False)
    except ServingError as error:
        return f"{error}; settings can name an address of this machine only, such as :10950"
    return ""


def serve_by_settings(session: Session, address: str) -> Serving | None:
    """Serve ``session`` at ``address``, and say where in a note; ``None`` after a warning where that cannot be.

    Only this machine can be served: settings name neither certificate nor key.
    """
    try:
        serving = Serving(ServeRequest(address))
    except ServingError as error:
        text = f"The readings are not served: {error}."
        session.emit(Warning(time_s=session.clock(), level="warning", device="serving", text=text))
        return None
    serving.start(session)
    session.emit(Note(time_s=session.clock(), topic=Topic.SERVING, text=f"The readings are served at {serving.url}"))
    return serving


def _names_a_domain(host: str) -> bool:
    """Whether a Host field names a domain other than ``localhost``.

    A page of the web reaches a loopback server under a domain of its own, whose address it turns to 127.0.0.1 (DNS
    rebinding); a deliberate request for this machine has an address or ``localhost``.
    """
    if host.startswith("["):
        name = host.rpartition("]")[0].removeprefix("[")
    else:
        name = host.partition(":")[0]
    if name.lower() == "localhost":
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _takes_gzip(request: HttpRequest) -> bool:
    """Whether the answer may be compressed."""
    for part in request.headers.get("accept-encoding", "").split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _takes_openmetrics(request: HttpRequest) -> bool:
    """Whether the answer is wanted in the OpenMetrics format rather than in the older text format."""
    return any(
        part.partition(";")[0].strip().lower() == "application/openmetrics-text"
        for part in request.headers.get("accept", "").split(",")
    )

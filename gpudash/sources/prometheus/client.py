"""Prometheus's HTTP API, as far as it reads: one connection to a server, kept open, for one thread, and why there is no
answer, in one sentence.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import urlencode

from gpudash.sources.prometheus.address import EXAMPLE, TOKEN, TOKEN_FILE, ServerAddress
from gpudash.system.foreign_files import open_regular
from gpudash.system.log import hide

LONGEST_TOKEN = 16_384
"""Characters of a token; web servers refuse longer headers."""

LONGEST_QUOTE = 200
"""Most of a server's own words that are repeated."""

EXPOSITION = ("# HELP ", "# TYPE ")
"""How the page of an exporter begins."""

TIMEOUT_S = 10.0
"""Longest that a whole answer may take."""

LIMIT_BYTES = 64 * 2**20
"""Largest answer that is read: 512 GPUs take about one MiB."""

LONGEST_GET = 1500
"""Characters of a query that still go into the address; a longer one is posted, as the API allows."""

CHUNK = 2**17

POLL_S = 0.1
"""Seconds between two looks whether a connection that does not come about is still wanted."""

FIRST_VERSION = 2
"""Prometheus 2.0 brought ``timestamp`` and markers of staleness."""

_LOST = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""What a kept connection answers when the server has closed it in between."""


def read_token(address: ServerAddress, environment: Mapping[str, str] = os.environ) -> str | None:
    """The bearer token for ``address``, of the environment; ``None`` where there is none.

    Raises:
        ValueError: one sentence without the token, when it cannot be read or sent.
    """
    token = environment.get(TOKEN)
    if token is None and (file := environment.get(TOKEN_FILE)):
        try:
            with open_regular(Path(file).expanduser()) as stream:
                # Two bytes more than is allowed, so that a token that is too long is refused and not cut.
                token = stream.read(LONGEST_TOKEN + 2).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ValueError(f"The token of {TOKEN_FILE} cannot be read from {file} ({why}).") from None
    token = (token or "").strip()
    if not token:
        return None
    # Before anything else can happen to it: from here on no log shows it.
    hide(token)
    # Visible ASCII alone: anything else could end the header and begin another.
    if len(token) > LONGEST_TOKEN or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(f"The token of {TOKEN} has characters or a length that no token has; set the right one.")
    # On this machine nothing is in between.
    if address.scheme == "http" and not address.local:
        raise ValueError(f"A token sent to {address} could be read on the way; use https:// or unset {TOKEN}.")
    return token


Kind = Literal["down", "slow", "protected", "other", "old", "tls", "broken", "large", "query", "empty", "closed"]


class PrometheusError(Exception):
    """A question to a server that was not answered; the text is one sentence for the user.

    Attributes:
        kind: what went wrong.
    """

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _of_failure(address: ServerAddress, error: BaseException, timeout_s: float) -> PrometheusError:
    """A connection that did not come about, or broke."""
    # The order matters: each of these is an OSError, and the certificate's an SSLError as well.
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "not trusted"
        fix = "add its authority to the system's certificates, or name it in SSL_CERT_FILE"
        return PrometheusError("tls", f"The certificate of {address} does not hold ({why}); {fix}.")
    if isinstance(error, ssl.SSLError):
        why = (getattr(error, "reason", None) or "no TLS").lower().replace("_", " ")
        return PrometheusError("tls", f"{address} does not speak TLS as it should ({why}); try http:// instead.")
    if isinstance(error, TimeoutError):
        message = f"{address} did not answer within {timeout_s:g} s; look whether the server is overloaded or shielded."
        return PrometheusError("slow", message)
    # A name that cannot be encoded for DNS counts as unknown.
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return PrometheusError("down", f"No machine is called {address.host!r}; correct the address or the network.")
    if isinstance(error, ConnectionRefusedError):
        return PrometheusError("down", f"Nothing listens at {address}; start the server there or correct the port.")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return PrometheusError("down", f"{address} broke off the connection; check the server's log.")
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return PrometheusError("down", f"{address.host} cannot be reached from here; check the network.")
    if isinstance(error, OSError):
        return PrometheusError("down", f"{address} cannot be reached ({error.strerror or error}); correct the address.")
    return PrometheusError("broken", f"{address} does not speak HTTP ({type(error).__name__}); correct the address.")


def _of_status(address: ServerAddress, status: int, location: str, body: bytes, *, token: bool) -> PrometheusError:
    """An answer with an HTTP status that is not of the query API."""
    text = body[:4096].decode("utf-8", "replace").strip()
    # A proxy that guards a server answers with its login page.
    if status in (401, 403) or (status in (301, 302, 303, 307, 308) and _asks_for_login(location)):
        held = "it asks for a token"
        if token:
            held = "the token does not open it"
        fix = f"set {TOKEN} or {TOKEN_FILE} to one that may read"
        return PrometheusError("protected", f"{address} is protected: {held}; {fix}.")
    if status == 407:
        return PrometheusError("protected", f"A proxy before {address} asks for a password; name the server itself.")
    if status in (301, 302, 303, 307, 308):
        return PrometheusError("other", f"{address} sends on to {_short(location)}; give that address if it is right.")
    # Go's and nginx's own words to a plain request at a TLS port.
    if "HTTPS server" in text or "plain HTTP request was sent to HTTPS" in text:
        return PrometheusError("tls", f"{address} speaks TLS; write https:// instead.")
    if status in (429, 502, 503, 504):
        return PrometheusError("down", f"{address} is not able to answer now (HTTP {status}); check its log.")
    return _of_other(address, body, status)


def _of_other(address: ServerAddress, body: bytes, status: int = 200) -> PrometheusError:
    """An answer that is not one of Prometheus's query API."""
    text = body[:4096].decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    example = f"give the server's own address, such as {EXAMPLE}"
    # From the most telling mark to the least.
    if "grafana" in text.lower():
        return PrometheusError("other", f"{address} is Grafana, not a Prometheus server; {example}.")
    if text.startswith(EXPOSITION):
        fault = "is an exporter, not a Prometheus server; give the address of the server that scrapes it"
        return PrometheusError("other", f"{address} {fault}.")
    if text.startswith("<"):
        return PrometheusError("other", f"{address} answers with a web page, not as a Prometheus server; {example}.")
    if status == 404:
        return PrometheusError("other", f"{address} knows no /api/v1/query: no Prometheus server is there; {example}.")
    if _is_json(body):
        return PrometheusError("other", f"{address} answers in JSON of another kind than Prometheus's; {example}.")
    if text.startswith(("{", "[")):
        return PrometheusError(
            "broken", f"{address} answers with broken JSON; check the server, or a proxy in front of it."
        )
    fault = f"does not answer as a Prometheus server (HTTP {status})"
    return PrometheusError("other", f"{address} {fault}; {example}.")


def _of_query(address: ServerAddress, kind: object, message: object) -> PrometheusError:
    """An error that the query API tells."""
    reason = _short(f"{kind}: {message}")
    if kind in ("timeout", "canceled"):
        return PrometheusError("slow", f"{address} gave up on a query ({reason}); ask for a shorter range.")
    return PrometheusError("query", f"{address} cannot answer a query ({reason}); check the server's limits and log.")


def of_unreadable(address: ServerAddress, error: Exception) -> PrometheusError:
    """An answer of the query API that holds something else than it should."""
    why = _short(f"{type(error).__name__}: {error}")
    return PrometheusError(
        "broken", f"What {address} answers cannot be read ({why}); check the server, or a proxy in front of it."
    )


def _too_large(address: ServerAddress, limit_bytes: int) -> PrometheusError:
    """An answer beyond what is read."""
    message = f"{address} answers with more than {limit_bytes // 2**20} MiB"
    return PrometheusError("large", f"{message}; ask a server that knows fewer GPUs, or for a shorter range.")


def _too_old(address: ServerAddress, version: str) -> PrometheusError:
    """A server from before the interface that is spoken."""
    return PrometheusError("old", f"{address} is Prometheus {_short(version)}; version 2.0 or a newer one is needed.")


def _asks_for_login(location: str) -> bool:
    return any(word in location.lower() for word in ("login", "signin", "sign_in", "oauth", "auth"))


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _short(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= LONGEST_QUOTE:
        return line
    return f"{line[:LONGEST_QUOTE]}…"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a query brought.

    Attributes:
        result: series as the API gives them: ``metric`` (labels) with ``value`` or ``values``.
        warnings: what the server says of an answer that is not whole, a sentence each.
    """

    result: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()


class Client:
    """One server. Not for several threads, apart from `close`, which any may call.

    Args:
        address: of the server.
        token: bearer token, sent with every question and shown nowhere.
        timeout_s: longest that a whole answer may take.
        limit_bytes: largest answer that is read.
    """

    def __init__(
        self,
        address: ServerAddress,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.address = address
        self._headers = {"Accept": "application/json", "User-Agent": "gpudash"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    def query(self, query: str, time_s: float | None = None) -> HttpAnswer:
        """The answer at one moment, in seconds since the epoch; ``None`` is now.

        Raises:
            PrometheusError: one sentence.
        """
        if time_s is None:
            parameters = {"query": query}
        else:
            parameters = {"query": query, "time": f"{time_s:.3f}"}
        return self._ask("/api/v1/query", parameters)

    def query_range(self, query: str, start_s: float, end_s: float, step_s: float) -> HttpAnswer:
        """The answers at every ``step_s`` from ``start_s`` to ``end_s``, in seconds since the epoch.

        Raises:
            PrometheusError: one sentence.
        """
        parameters = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self._ask("/api/v1/query_range", parameters)

    def check(self) -> str:
        """Make sure that a Prometheus server is there, and say its version; empty where it tells none.

        Raises:
            PrometheusError: one sentence, also when it is too old.
        """
        status, _location, body = self._fetch("/api/v1/status/buildinfo", {})
        data = None
        if status == 200:
            data = _data(body)
        version = ""
        if data is not None:
            version = str(data.get("version", ""))
        major = re.match(r"v?(\d+)\.", version)
        if major is not None and int(major[1]) < FIRST_VERSION:
            raise _too_old(self.address, version)
        try:
            # A server without build information may yet answer queries: only the query decides.
            self.query("vector(1)")
        except PrometheusError as error:
            # Only a foreign answer is worth a second look at what is there.
            if error.kind != "other":
                raise
            self._raise_other(error)
        return version

    def close(self) -> None:
        """Break off what is being asked, and ask nothing more."""
        # The flag first: the thread that asks may be between two connections, and looks at it before it begins one.
        self._closed = True
        self._break_off()

    def _break_off(self) -> None:
        # Read once: the other thread may let go of it meanwhile.
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError, ValueError):
                # not TLS's own, which would take away what the other thread reads with
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def drop(self) -> None:
        """Let go of the connection; for the thread that asks. The next question makes a new one."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def _raise_other(self, error: PrometheusError) -> NoReturn:
        """Raise what says what is there instead of a server: an exporter's own page is the usual mistake."""
        for page in ("/metrics", "/"):
            try:
                status, _location, body = self._fetch(page, {})
            except PrometheusError:
                continue
            if status == 200 and body[:4096].lstrip().startswith(b"# "):
                raise _of_other(self.address, body.lstrip()) from None
        raise error

    def _ask(self, path: str, parameters: Mapping[str, str]) -> HttpAnswer:
        status, location, body = self._fetch(path, parameters)
        data = _object(body)
        # Its own errors come with statuses such as 400 and 422; the body says more than the status.
        if data is not None and data.get("status") == "error" and "errorType" in data and status not in (401, 403):
            raise _of_query(self.address, data.get("errorType"), data.get("error"))
        if status != 200:
            held = "Authorization" in self._headers
            raise _of_status(self.address, status, location, body, token=held)
        found = None
        if not (data is None or data.get("status") != "success"):
            found = data.get("data")
        result = None
        if isinstance(found, dict):
            result = found.get("result")
        if data is None or not isinstance(result, list):
            raise _of_other(self.address, body)
        notices = [found for name in ("warnings", "infos") if isinstance(found := data.get(name), list)]
        return HttpAnswer(result, tuple(str(notice) for several in notices for notice in several))

    def _fetch(self, path: str, parameters: Mapping[str, str]) -> tuple[int, str, bytes]:
        """Status, Location and body of an answer; a kept connection that was closed meanwhile is made anew."""
        kept = self._connection is not None
        try:
            return self._exchange(path, parameters)
        # A server may close a kept connection at any time; that is no failure of this question, which is asked once
        # more.
        except _LOST as error:
            self.drop()
            if not kept or self._closed:
                raise self._failure(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.drop()
            raise self._failure(error) from None
        # Whatever it was, what is left of this answer must not be taken for the next one's.
        except BaseException:
            self.drop()
            raise
        try:
            return self._exchange(path, parameters)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.drop()
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> PrometheusError:
        if self._closed:
            return PrometheusError("closed", f"{self.address} is not asked any more.")
        return _of_failure(self.address, error, self._timeout_s)

    def _exchange(self, path: str, parameters: Mapping[str, str]) -> tuple[int, str, bytes]:
        """An answer within the time that it may take as a whole: a socket's own timeout is for each read, and a line of
        a header that comes byte by byte is many.
        """
        passed = threading.Event()

        def expire() -> None:
            passed.set()
            self._break_off()

        # A thread of its own, for the socket's timeout counts from each byte anew.
        timer = threading.Timer(self._timeout_s, expire)
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchanged(path, parameters)
        except (OSError, http.client.HTTPException, ValueError):
            if passed.is_set():
                # The break makes the read fail in any of these ways; it was the time that ran out.
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            # Joined: a timer that fires now would break off the next question.
            timer.join()
        if passed.is_set():
            raise TimeoutError
        return answer

    def _exchanged(self, path: str, parameters: Mapping[str, str]) -> tuple[int, str, bytes]:
        until = time.monotonic() + self._timeout_s
        connection = self._connected()
        written = urlencode(parameters)
        target = f"{self.address.path}{path}"
        if len(written) > LONGEST_GET:
            headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
            connection.request("POST", target, written, headers)
        else:
            connection.request("GET", f"{target}?{written}" if written else target, headers=self._headers)
        body = bytearray()
        # Closed whatever happens: of an answer after which the server hangs up, it alone holds the socket.
        with contextlib.closing(connection.getresponse()) as response:
            # In pieces, with a bound on size and time after each: what Content-Length says need not be true.
            while chunk := response.read1(CHUNK):
                body += chunk
                if len(body) > self._limit_bytes:
                    self.drop()
                    raise _too_large(self.address, self._limit_bytes)
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                if connection.sock is not None:
                    # No read may wait longer than is left of the whole.
                    connection.sock.settimeout(left_s)
            if response.length:  # less came than was announced
                raise http.client.IncompleteRead(bytes(body[:1]), response.length)
        if response.will_close:
            self.drop()
        return response.status, response.getheader("Location", ""), bytes(body)

    def _connected(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ConnectionAbortedError
        if self._connection is None:
            address = self.address
            kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
            made = kind(address.host, address.port, timeout=self._timeout_s)
            # Given to http.client ready made, which connects only where it has no socket.
            made.sock = self._opened()
            self._connection = made
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout_s)
        return self._connection

    def _opened(self) -> socket.socket:
        """A connected socket; `close` ends the connecting, too, which it could not if http.client did it."""
        address = self.address
        failure: Exception = OSError("it has no address")
        # Every address of a name is tried in turn, as some are of a network that does not work.
        for family, kind, protocol, _name, where in socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        ):
            self._socket = opened = socket.socket(family, kind, protocol)
            try:
                return self._begun(opened, where)
            except (OSError, ValueError) as error:
                failure = error
                self._socket.close()
        raise failure

    def _begun(self, opened: socket.socket, where: Any) -> socket.socket:
        self._connect(opened, where)
        opened.settimeout(self._timeout_s)
        # Questions are small and one at a time: waiting for more to send would only delay them.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.address.scheme == "https":
            context = ssl.create_default_context()
            self._socket = opened = context.wrap_socket(
                # The handshake is put off until `close` could reach the socket.
                opened,
                server_hostname=self.address.host,
                do_handshake_on_connect=False,
            )
        if self._closed:  # before anybody could break off what is begun now
            raise ConnectionAbortedError
        if isinstance(opened, ssl.SSLSocket):
            opened.do_handshake()
        return opened

    def _connect(self, opened: socket.socket, where: Any) -> None:
        """Connect, and look in between whether that is still wanted."""
        # Not blocking: a connection to a machine that swallows packets is noticed at the next look, not minutes
        # later.
        opened.setblocking(False)
        until = time.monotonic() + self._timeout_s
        failure = opened.connect_ex(where)
        with selectors.DefaultSelector() as waiting:
            waiting.register(opened, selectors.EVENT_WRITE)
            while failure in (errno.EINPROGRESS, errno.EWOULDBLOCK):
                if self._closed:
                    raise ConnectionAbortedError
                if time.monotonic() > until:
                    raise TimeoutError
                if waiting.select(POLL_S):
                    # Writable means decided, either way; the error says which (connect(2)).
                    failure = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in ``body``; ``None`` when it is none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict):
        return data
    return None


def _data(body: bytes) -> dict[str, Any] | None:
    found = _object(body)
    data = None
    if not (found is None or found.get("status") != "success"):
        data = found.get("data")
    if isinstance(data, dict):
        return data
    return None

"""The reading part of Prometheus's HTTP API: one persistent connection to a server, for one thread. Failures are
explained in one sentence.

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
from gpudash.system.foreign_text import json_object
from gpudash.system.log import hide

LONGEST_TOKEN = 16_384
"""Longest token, in characters; web servers refuse longer headers."""

LONGEST_QUOTE = 200
"""How many characters of a server's own message are quoted."""

EXPOSITION = ("# HELP ", "# TYPE ")
"""How an exporter's page begins."""

TIMEOUT_S = 10.0
"""Time limit for a whole answer."""

LIMIT_BYTES = 64 * 2**20
"""Largest answer that is read: 512 GPUs need about one MiB."""

LONGEST_GET = 1500
"""Longest query in characters that is sent in the address; longer ones are posted, as the API allows."""

CHUNK = 2**17

POLL_S = 0.1
"""Interval in seconds at which a pending connection is checked for `close`."""

FIRST_VERSION = 2
"""Prometheus 2.0 introduced ``timestamp`` and staleness markers."""

_LOST = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""Errors of a persistent connection that the server has closed."""


def read_token(address: ServerAddress, environment: Mapping[str, str] = os.environ) -> str | None:
    """The bearer token for ``address`` from the environment; ``None`` if there is none.

    Raises:
        ValueError: one sentence without the token, if it cannot be read or sent.
    """
    token = environment.get(TOKEN)
    if token is None and (file := environment.get(TOKEN_FILE)):
        try:
            with open_regular(Path(file).expanduser()) as stream:
                # Two bytes more than allowed, so that a token that is too long is refused, not cut off.
                token = stream.read(LONGEST_TOKEN + 2).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ValueError(f"The token of {TOKEN_FILE} cannot be read from {file} ({why}).") from None
    token = (token or "").strip()
    if not token:
        return None
    # Before anything else: from here on no log shows the token.
    hide(token)
    # Only visible ASCII: other characters could end the header and start another one.
    if len(token) > LONGEST_TOKEN or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ValueError(f"The token of {TOKEN} has characters or a length that no token has; set the right one.")
    # On this machine nobody can listen in between.
    if address.scheme == "http" and not address.local:
        raise ValueError(f"A token sent to {address} could be read on the way; use https:// or unset {TOKEN}.")
    return token


Kind = Literal["down", "slow", "protected", "other", "old", "tls", "broken", "large", "query", "empty", "closed"]


class PrometheusError(Exception):
    """A server did not answer a request; the text is one sentence for the user.

    Attributes:
        kind: what went wrong.
    """

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _of_failure(address: ServerAddress, error: BaseException, timeout_s: float) -> PrometheusError:
    """A connection that failed or broke."""
    # The order matters: all of these are an OSError, and a certificate's error is an SSLError too.
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
    """An answer with an HTTP status that the query API does not use."""
    text = body[:4096].decode("utf-8", "replace").strip()
    # A proxy in front of the server redirects to its login page.
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
    # What Go and nginx answer to a plain request at a TLS port.
    if "HTTPS server" in text or "plain HTTP request was sent to HTTPS" in text:
        return PrometheusError("tls", f"{address} speaks TLS; write https:// instead.")
    if status in (429, 502, 503, 504):
        return PrometheusError("down", f"{address} is not able to answer now (HTTP {status}); check its log.")
    return _of_other(address, body, status)


def _of_other(address: ServerAddress, body: bytes, status: int = 200) -> PrometheusError:
    """An answer that is not from Prometheus's query API."""
    text = body[:4096].decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    example = f"give the server's own address, such as {EXAMPLE}"
    # The most distinctive mark first.
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
    """An error reported by the query API."""
    reason = _short(f"{kind}: {message}")
    if kind in ("timeout", "canceled"):
        return PrometheusError("slow", f"{address} gave up on a query ({reason}); ask for a shorter range.")
    return PrometheusError("query", f"{address} cannot answer a query ({reason}); check the server's limits and log.")


def of_unreadable(address: ServerAddress, error: Exception) -> PrometheusError:
    """An answer of the query API with unexpected content."""
    why = _short(f"{type(error).__name__}: {error}")
    return PrometheusError(
        "broken", f"What {address} answers cannot be read ({why}); check the server, or a proxy in front of it."
    )


def _too_large(address: ServerAddress, limit_bytes: int) -> PrometheusError:
    """An answer larger than the limit."""
    message = f"{address} answers with more than {limit_bytes // 2**20} MiB"
    return PrometheusError("large", f"{message}; ask a server that knows fewer GPUs, or for a shorter range.")


def _too_old(address: ServerAddress, version: str) -> PrometheusError:
    """A server that is too old for this API."""
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
    """The answer to a query.

    Attributes:
        result: series as the API gives them: ``metric`` (labels) with ``value`` or ``values``.
        warnings: the server's warnings about an incomplete answer, one sentence each.
    """

    result: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()


class Client:
    """A server. For a single thread, except `close`, which any thread may call.

    Args:
        address: address of the server.
        token: bearer token, sent with every request and shown nowhere.
        timeout_s: time limit for a whole answer.
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
        """The answer at one time, in seconds since the epoch; ``None`` for now.

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
        """Check that a Prometheus server is there, and return its version; "" if it reports none.

        Raises:
            PrometheusError: one sentence; also if it is too old.
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
            # A server without build information may still answer queries, so try one.
            self.query("vector(1)")
        except PrometheusError as error:
            # Only an unexpected answer is worth asking what is there.
            if error.kind != "other":
                raise
            self._raise_other(error)
        return version

    def close(self) -> None:
        """Cancel the request in progress, and send no more."""
        # The flag first: the other thread may be between two connections, and checks it before the next one.
        self._closed = True
        self._break_off()

    def _break_off(self) -> None:
        # Read once: the other thread may drop it meanwhile.
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError, ValueError):
                # Not the TLS socket's own shutdown, which would remove what the other thread reads with.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close the connection; for the thread that sends requests. The next one opens a new connection."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def _raise_other(self, error: PrometheusError) -> NoReturn:
        """Raise an error that names what is there instead of a server: usually an exporter's own page."""
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
        data = json_object(body)
        # Its own errors have statuses such as 400 and 422; the body says more than the status.
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
        """Status, Location and body of an answer; reconnects if the server has closed the connection."""
        kept = self._connection is not None
        try:
            return self._exchange(path, parameters)
        # A server may close a persistent connection at any time. That is not an error: send the request again.
        except _LOST as error:
            self.drop()
            if not kept or self._closed:
                raise self._failure(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.drop()
            raise self._failure(error) from None
        # After any error, the rest of this answer must not be read as the next one's.
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
        """An answer within the time limit for the whole: a socket's own timeout applies to each read, so a header that
        arrives byte by byte would exceed it.
        """
        passed = threading.Event()

        def expire() -> None:
            passed.set()
            self._break_off()

        # On a thread of its own, since the socket's timeout restarts with each byte.
        timer = threading.Timer(self._timeout_s, expire)
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchanged(path, parameters)
        except (OSError, http.client.HTTPException, ValueError):
            if passed.is_set():
                # The shutdown makes the read fail in any of these ways; the cause is the timeout.
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            # Joined, so that a timer that fires now cannot break the next request.
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
        # Close it in any case: if the server hangs up after an answer, only the response holds the socket.
        with contextlib.closing(connection.getresponse()) as response:
            # In chunks, checking size and time after each: Content-Length need not be true.
            while chunk := response.read1(CHUNK):
                body += chunk
                if len(body) > self._limit_bytes:
                    self.drop()
                    raise _too_large(self.address, self._limit_bytes)
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                if connection.sock is not None:
                    # No read may wait longer than the time left for the whole.
                    connection.sock.settimeout(left_s)
            if response.length:  # less than announced
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
            # http.client only connects if it has no socket, so give it one.
            made.sock = self._opened()
            self._connection = made
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout_s)
        return self._connection

    def _opened(self) -> socket.socket:
        """A connected socket. Unlike http.client's, the attempt to connect can be ended by `close`."""
        address = self.address
        failure: Exception = OSError("it has no address")
        # Try each address of the name, as some may be in a network that does not work.
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
        # Requests are small and sent one at a time: waiting for more data would only delay them.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.address.scheme == "https":
            context = ssl.create_default_context()
            self._socket = opened = context.wrap_socket(
                # Delay the handshake until `close` can reach the socket.
                opened,
                server_hostname=self.address.host,
                do_handshake_on_connect=False,
            )
        if self._closed:  # `close` came before it could reach this socket
            raise ConnectionAbortedError
        if isinstance(opened, ssl.SSLSocket):
            opened.do_handshake()
        return opened

    def _connect(self, opened: socket.socket, where: Any) -> None:
        """Connect, checking for `close` in between."""
        # Non-blocking: if a machine drops the packets, `close` takes effect at the next check, not minutes later.
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
                    # Writable means decided; SO_ERROR says which way (connect(2)).
                    failure = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))


def _data(body: bytes) -> dict[str, Any] | None:
    found = json_object(body)
    data = None
    if not (found is None or found.get("status") != "success"):
        data = found.get("data")
    if isinstance(data, dict):
        return data
    return None

"""Prometheus's HTTP API, as far as it reads: one connection, kept open, for one thread.

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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlencode

from gpudash.sources.prometheus import refusals
from gpudash.sources.prometheus.address import ServerAddress
from gpudash.sources.prometheus.refusals import PrometheusError

TIMEOUT_S = 10.0
"""Longest that a whole answer may take."""

LIMIT_BYTES = 64 * 2**20
"""Largest answer that is read: 512 GPUs take about one MiB."""

LONGEST_GET = 1500
"""Characters of a query that still go into the address; a longer one is posted, as the API allows."""

CHUNK = 2**17

LOOK_S = 0.1
"""Seconds between two looks whether a connection that does not come about is still wanted."""

FIRST_VERSION = 2
"""Prometheus 2.0 brought ``timestamp`` and markers of staleness."""

_LOST = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""What a kept connection answers when the server has closed it in between."""


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
        asked = {"query": query} if time_s is None else {"query": query, "time": f"{time_s:.3f}"}
        return self._ask("/api/v1/query", asked)

    def query_range(self, query: str, start_s: float, end_s: float, step_s: float) -> HttpAnswer:
        """The answers at every ``step_s`` from ``start_s`` to ``end_s``, in seconds since the epoch.

        Raises:
            PrometheusError: one sentence.
        """
        asked = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self._ask("/api/v1/query_range", asked)

    def check(self) -> str:
        """Make sure that a Prometheus server is there, and say its version; empty where it tells none.

        Raises:
            PrometheusError: one sentence, also when it is too old.
        """
        status, _location, body = self._fetch("/api/v1/status/buildinfo", {})
        data = _data(body) if status == 200 else None
        version = str(data.get("version", "")) if data is not None else ""
        major = re.match(r"v?(\d+)\.", version)
        if major is not None and int(major[1]) < FIRST_VERSION:
            raise refusals.too_old(self.address, version)
        try:
            self.query("vector(1)")
        except PrometheusError as error:
            if error.kind != "other":
                raise
            self._tell_other(error)
        return version

    def close(self) -> None:
        """Break off what is being asked, and ask nothing more."""
        self._closed = True
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

    def _tell_other(self, error: PrometheusError) -> NoReturn:
        """Say what is there instead of a server: an exporter's own page is the usual mistake."""
        for page in ("/metrics", "/"):
            try:
                status, _location, body = self._fetch(page, {})
            except PrometheusError:
                continue
            if status == 200 and body[:4096].lstrip().startswith(b"# "):
                raise refusals.of_other(self.address, body.lstrip()) from None
        raise error

    def _ask(self, path: str, asked: Mapping[str, str]) -> HttpAnswer:
        status, location, body = self._fetch(path, asked)
        data = _object(body)
        if data is not None and data.get("status") == "error" and "errorType" in data and status not in (401, 403):
            raise refusals.of_query(self.address, data.get("errorType"), data.get("error"))
        if status != 200:
            held = "Authorization" in self._headers
            raise refusals.of_status(self.address, status, location, body, token=held)
        found = None if data is None or data.get("status") != "success" else data.get("data")
        result = found.get("result") if isinstance(found, dict) else None
        if data is None or not isinstance(result, list):
            raise refusals.of_other(self.address, body)
        told = [text for name in ("warnings", "infos") if isinstance(text := data.get(name), list)]
        return HttpAnswer(result, tuple(str(text) for texts in told for text in texts))

    def _fetch(self, path: str, asked: Mapping[str, str]) -> tuple[int, str, bytes]:
        """Status, Location and body of an answer; a kept connection that was closed meanwhile is made anew."""
        kept = self._connection is not None
        try:
            return self._exchange(path, asked)
        except _LOST as error:
            self.drop()
            if not kept or self._closed:
                raise self._failure(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.drop()
            raise self._failure(error) from None
        except BaseException:
            self.drop()
            raise
        try:
            return self._exchange(path, asked)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.drop()
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> PrometheusError:
        if self._closed:
            return PrometheusError("closed", f"{self.address} is not asked any more.")
        return refusals.of_failure(self.address, error, self._timeout_s)

    def _exchange(self, path: str, asked: Mapping[str, str]) -> tuple[int, str, bytes]:
        until = time.monotonic() + self._timeout_s
        connection = self._connected()
        written = urlencode(asked)
        target = f"{self.address.path}{path}"
        if len(written) > LONGEST_GET:
            headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
            connection.request("POST", target, written, headers)
        else:
            connection.request("GET", f"{target}?{written}" if written else target, headers=self._headers)
        response = connection.getresponse()
        body = bytearray()
        while chunk := response.read1(CHUNK):
            body += chunk
            if len(body) > self._limit_bytes:
                self.drop()
                raise refusals.too_large(self.address, self._limit_bytes)
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
        if response.length:  # less came than was announced
            raise http.client.IncompleteRead(bytes(body[:1]), response.length)
        response.close()  # else the connection takes no other question
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
            made.sock = self._opened()
            self._connection = made
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout_s)
        return self._connection

    def _opened(self) -> socket.socket:
        """A connected socket; `close` ends the connecting, too, which it could not if http.client did it."""
        address = self.address
        failure: Exception = OSError("it has no address")
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
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.address.scheme == "https":
            context = ssl.create_default_context()
            self._socket = opened = context.wrap_socket(
                opened, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        if self._closed:  # before anybody could break off what is begun now
            raise ConnectionAbortedError
        if isinstance(opened, ssl.SSLSocket):
            opened.do_handshake()
        return opened

    def _connect(self, opened: socket.socket, where: Any) -> None:
        """Connect, and look in between whether that is still wanted."""
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
                if waiting.select(LOOK_S):
                    failure = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in ``body``; ``None`` when it is none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _data(body: bytes) -> dict[str, Any] | None:
    found = _object(body)
    data = None if found is None or found.get("status") != "success" else found.get("data")
    return data if isinstance(data, dict) else None

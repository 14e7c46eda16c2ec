"""Why a server's answer is none, in one sentence: what was wrong, where, what to do."""

from __future__ import annotations

import errno
import json
import socket
import ssl
from typing import Literal

from gpudash.sources.prometheus.address import EXAMPLE, TOKEN, TOKEN_FILE, ServerAddress

Kind = Literal["down", "slow", "protected", "other", "old", "tls", "broken", "large", "query", "empty", "closed"]

TOLD_CHARACTERS = 200
"""Most of a server's own words that are repeated."""

EXPOSITION = ("# HELP ", "# TYPE ")
"""How the page of an exporter begins."""


class PrometheusError(Exception):
    """A question to a server that was not answered; the text is one sentence for the user.

    Attributes:
        kind: what went wrong.
    """

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def of_failure(address: ServerAddress, error: BaseException, timeout_s: float) -> PrometheusError:
    """A connection that did not come about, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "not trusted"
        mend = "add its authority to the system's certificates, or name it in SSL_CERT_FILE"
        return PrometheusError("tls", f"The certificate of {address} does not hold ({why}); {mend}.")
    if isinstance(error, ssl.SSLError):
        why = (getattr(error, "reason", None) or "no TLS").lower().replace("_", " ")
        return PrometheusError("tls", f"{address} does not speak TLS as it should ({why}); try http:// instead.")
    if isinstance(error, TimeoutError):
        words = f"{address} did not answer within {timeout_s:g} s; look whether the server is overloaded or shielded."
        return PrometheusError("slow", words)
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


def of_status(address: ServerAddress, status: int, location: str, body: bytes, *, token: bool) -> PrometheusError:
    """An answer with an HTTP status that is not of the query API."""
    text = body[:4096].decode("utf-8", "replace").strip()
    if status in (401, 403) or (status in (301, 302, 303, 307, 308) and _asks_for_login(location)):
        held = "the token does not open it" if token else "it asks for a token"
        mend = f"set {TOKEN} or {TOKEN_FILE} to one that may read"
        return PrometheusError("protected", f"{address} is protected: {held}; {mend}.")
    if status == 407:
        return PrometheusError("protected", f"A proxy before {address} asks for a password; name the server itself.")
    if status in (301, 302, 303, 307, 308):
        return PrometheusError("other", f"{address} sends on to {_short(location)}; give that address if it is right.")
    if "HTTPS server" in text or "plain HTTP request was sent to HTTPS" in text:
        return PrometheusError("tls", f"{address} speaks TLS; write https:// instead.")
    if status in (429, 502, 503, 504):
        return PrometheusError("down", f"{address} is not able to answer now (HTTP {status}); check its log.")
    return of_other(address, body, status)


def of_other(address: ServerAddress, body: bytes, status: int = 200) -> PrometheusError:
    """An answer that is not one of Prometheus's query API."""
    text = body[:4096].decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    example = f"give the server's own address, such as {EXAMPLE}"
    if "grafana" in text.lower():
        return PrometheusError("other", f"{address} is Grafana, not a Prometheus server; {example}.")
    if text.startswith(EXPOSITION):
        words = "is an exporter, not a Prometheus server; give the address of the server that scrapes it"
        return PrometheusError("other", f"{address} {words}.")
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
    words = f"does not answer as a Prometheus server (HTTP {status})"
    return PrometheusError("other", f"{address} {words}; {example}.")


def of_query(address: ServerAddress, kind: object, told: object) -> PrometheusError:
    """An error that the query API tells."""
    words = _short(f"{kind}: {told}")
    if kind in ("timeout", "canceled"):
        return PrometheusError("slow", f"{address} gave up on a query ({words}); ask for a shorter range.")
    return PrometheusError("query", f"{address} cannot answer a query ({words}); check the server's limits and log.")


def of_unreadable(address: ServerAddress, error: Exception) -> PrometheusError:
    """An answer of the query API that holds something else than it should."""
    why = _short(f"{type(error).__name__}: {error}")
    return PrometheusError(
        "broken", f"What {address} answers cannot be read ({why}); check the server, or a proxy in front of it."
    )


def too_large(address: ServerAddress, limit_bytes: int) -> PrometheusError:
    """An answer beyond what is read."""
    words = f"{address} answers with more than {limit_bytes // 2**20} MiB"
    return PrometheusError("large", f"{words}; ask a server that knows fewer GPUs, or for a shorter range.")


def too_old(address: ServerAddress, version: str) -> PrometheusError:
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
    return line if len(line) <= TOLD_CHARACTERS else f"{line[:TOLD_CHARACTERS]}…"

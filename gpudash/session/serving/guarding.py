"""What serving is guarded by: a token, and a certificate with its key; both are read once, before anything listens."""

from __future__ import annotations

import hmac
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpudash.session.serving.address import Address, ServingError, is_loopback, resolve
from gpudash.system.files import open_regular

TOKEN_VARIABLE = "GPUDASH_SERVE_TOKEN"

SHORTEST_TOKEN = 16
"""Characters of the shortest token: fewer can be guessed."""

MOST_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A secret that requests must bring."""

    secret: str

    def __repr__(self) -> str:
        return "Token(…)"

    def admits(self, authorization: str) -> bool:
        """Whether a request's Authorization field has it; takes as long for a wrong one as for a right one."""
        scheme, _, given = authorization.partition(" ")
        told = given.strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(told, self.secret.encode()) and scheme.lower() == "bearer"


def take_token(file: Path | None) -> Token | None:
    """The token in ``file``, else in the environment, from which it is removed: no program started later gets it.

    Raises:
        ServingError: when the file cannot be read or others can read it, or what is there is no token.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    if file is not None:
        return _token(_read_secret(file), f"The token file {file}")
    return None if given is None else _token(given, TOKEN_VARIABLE)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What connections are encrypted with; ``None`` where neither file is given.

    Raises:
        ServingError: when one of the two is missing, cannot be read, or does not match the other.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--serve-cert" if certificate is None else "--serve-key"
        raise ServingError("TLS needs a certificate and its key", f"Give {missing} FILE as well.")
    _opened(certificate, "certificate").close()
    _opened(key, "key", stat.S_IROTH).close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ServingError:
        raise ServingError(f"The key {key} is protected by a passphrase", "Give one that is not.") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ServingError(f"The key {key} does not belong to the certificate {certificate}") from None
        why = f" ({error.reason})" if error.reason else ""
        text = f"{certificate} and {key} are not a certificate and its key in PEM format{why}"
        raise ServingError(text) from None
    except OSError as error:
        raise ServingError(f"The certificate {certificate} cannot be used ({error.strerror})") from None
    return context


def require_guarded(address: Address, *, token: bool, tls: bool) -> Address:
    """The IP address to listen on.

    Raises:
        ServingError: when it has none, or others can reach it and token or TLS are missing.
    """
    _, where = resolve(address)
    if is_loopback(where.host) or (token and tls):
        return where
    text = f"{address} can be reached from other machines"
    if not token:
        remedy = f"Give --serve-token-file FILE (or {TOKEN_VARIABLE}), or serve this machine only: --serve."
        raise ServingError(f"{text}, so serving there needs a token{'' if tls else ' and TLS'}", remedy)
    remedy = "Give --serve-cert FILE and --serve-key FILE, or serve this machine only: --serve."
    raise ServingError(f"{text}, so serving there needs TLS", remedy)


def _no_passphrase() -> str:
    raise ServingError("")  # openssl would ask for it on the terminal


def _read_secret(file: Path) -> str:
    with _opened(file, "token file", stat.S_IRGRP | stat.S_IROTH) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ServingError(f"The token file {file} holds more than {MOST_BYTES} bytes; it is no token")
    return data.decode("utf-8", "replace")


def _token(text: str, where: str) -> Token:
    secret = text.strip()
    if not secret:
        raise ServingError(f"{where} is empty", "Write a token into it: openssl rand -hex 32")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise ServingError(f"{where} is no token", "A token is one line of printable ASCII without spaces.")
    if len(secret) < SHORTEST_TOKEN:
        text = f"{where} has {len(secret)} characters, which can be guessed"
        raise ServingError(text, f"A token has at least {SHORTEST_TOKEN}: openssl rand -hex 32")
    return Token(secret)


def _opened(file: Path, what: str, forbidden: int = 0) -> BinaryIO:
    """A file to read.

    Args:
        what: it is, in words.
        forbidden: permissions that it must not have, as of `os.stat`.

    Raises:
        ServingError: when it cannot be read, is no regular file, or has such a permission.
    """
    try:
        stream = open_regular(file)
    except (OSError, ValueError) as error:  # a ValueError of a name with a NUL
        raise ServingError(f"The {what} {file} cannot be read ({getattr(error, 'strerror', error)})") from None
    readers = os.fstat(stream.fileno()).st_mode & forbidden
    if not readers:
        return stream
    stream.close()
    who = "Everybody on this machine" if readers & stat.S_IROTH else "A whole group"
    remedy = f"chmod {'go' if forbidden & stat.S_IRGRP else 'o'}-r {file}"
    raise ServingError(f"{who} can read the {what} {file}", remedy)

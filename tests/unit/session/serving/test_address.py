"""Where to listen: what is an address, and who reaches it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.serving.address import (
    PORT,
    TOKEN_VARIABLE,
    Address,
    ServingError,
    Token,
    read_address,
    require_guarded,
    resolve,
    take_token,
    tls_context,
)
from tests.unit.session.serving.certificates import certificate

NO_ADDRESSES = [
    ":",
    "127.0.0.1:",
    ":x",
    ":65536",
    ":-1",
    "::1:9500",
    "[::1",
    "[::1]9500",
    "[::1]:",
    "[nowhere]:1",
    "1.2.3:80",
    "1.2.3.4.5:6",
    ":٣",
    "http://localhost:9500",
    "localhost:9500/metrics",
    "fe80::1%eth0",
    "[fe80::1%eth0]:1",
]

SECRET = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9500", "127.0.0.1", 9500),
        ("9500", "127.0.0.1", 9500),
        ("0.0.0.0:9500", "0.0.0.0", 9500),
        ("[::1]:9500", "::1", 9500),
        ("[::1]", "::1", PORT),
        ("localhost", "localhost", PORT),
        ("gpu-7.example.org:1", "gpu-7.example.org", 1),
        (" 127.0.0.1:0 ", "127.0.0.1", 0),
    ],
)
def test_an_address_is_read_as_people_write_it(text: str, host: str, port: int) -> None:
    assert read_address(text) == Address(host, port)


@pytest.mark.parametrize("text", ["", "a b:1", *NO_ADDRESSES])
def test_what_is_no_address_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ServingError, match="is not an address to serve on") as refusal:
        read_address(text)
    assert ":9500" in refusal.value.remedy


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = read_address(text)
    except ServingError:
        return
    assert 0 <= address.port <= 65535
    assert read_address(str(address)) == address


def test_the_usual_port_is_none_of_the_exporters_and_none_that_linux_gives_away() -> None:
    assert not 9100 <= PORT <= 9999
    assert 1024 < PORT < 32768


def test_a_name_without_an_address_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServingError, match="has no address to serve on"):
        resolve(Address("x" * 300, 9500))

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ServingError, match=r"'nowhere' has no address to serve on \(Name or service not known\)"):
        resolve(Address("nowhere", 9500))


def secret(folder: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    return file


def test_a_token_comes_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    assert take_token(secret(tmp_path, f"{SECRET}\n")) == Token(SECRET)


def test_a_token_from_the_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    assert take_token(None) == Token(SECRET)
    assert TOKEN_VARIABLE not in os.environ
    assert take_token(None) is None


def test_the_file_outweighs_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "another token, and a wrong one")
    assert take_token(secret(tmp_path)) == Token(SECRET)
    assert TOKEN_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("short", "has 5 characters, which can be guessed"),
        ("two words that are long", "is no token"),
        ("x" * 5000, "holds more than 4096 bytes"),
        ("ä" * 20, "is no token"),
        ("0123456789abcdef\n0123456789abcdef", "is no token"),
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ServingError, match=words) as refusal:
        take_token(secret(tmp_path, text))
    assert "x" * 40 not in str(refusal.value)


def test_an_empty_token_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(ServingError, match="GPUDASH_SERVE_TOKEN is empty"):
        take_token(None)


@pytest.mark.parametrize(("mode", "who"), [(0o644, "Everybody on this machine"), (0o640, "A whole group")])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path, mode: int, who: str) -> None:
    with pytest.raises(ServingError, match=f"^{who} can read the token file .*token$") as refusal:
        take_token(secret(tmp_path, mode=mode))
    assert refusal.value.remedy == f"chmod go-r {tmp_path / 'token'}"


@pytest.mark.process
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for take in (lambda: take_token(fifo), lambda: tls_context(fifo, key), lambda: tls_context(cert, fifo)):
        with pytest.raises(ServingError, match=r"fifo cannot be read \(it is a FIFO, not a regular file\)$"):
            take()


def test_a_token_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"cannot be read \(No such file or directory\)"):
        take_token(tmp_path / "none")
    with pytest.raises(ServingError, match=r"cannot be read \(it is a folder, not a file\)"):
        take_token(tmp_path)


def test_only_the_bearer_of_the_token_is_admitted() -> None:
    token = Token(SECRET)
    assert token.admits(f"Bearer {SECRET}")
    assert token.admits(f"bearer  {SECRET} ")
    for wrong in (
        "",
        "Bearer",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET}0",
        "Bearer ä\x80",
    ):
        assert not token.admits(wrong)
    assert SECRET not in repr(token)


@pytest.mark.process
def test_a_certificate_and_its_key_make_a_context(tmp_path: Path) -> None:
    assert tls_context(*certificate(tmp_path)) is not None
    assert tls_context(None, None) is None


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="TLS needs a certificate and its key") as refusal:
        tls_context(tmp_path / "c", None)
    assert refusal.value.remedy == "Give --serve-key FILE as well."
    with pytest.raises(ServingError) as refusal:
        tls_context(None, tmp_path / "k")
    assert refusal.value.remedy == "Give --serve-cert FILE as well."


@pytest.mark.process
def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    _, locked = certificate(tmp_path, "locked", passphrase="hidden")
    garbage = secret(tmp_path, "no certificate")
    for pair, words in (
        ((tmp_path / "none", key), r"The certificate .*none cannot be read \(No such file or directory\)"),
        ((cert, tmp_path / "none"), "The key .*none cannot be read"),
        ((cert, other), "The key .*other.key does not belong to the certificate"),
        ((cert, locked), "is protected by a passphrase"),
        ((garbage, key), "are not a certificate and its key in PEM format"),
        ((cert, garbage), "are not a certificate and its key in PEM format"),
    ):
        with pytest.raises(ServingError, match=words):
            tls_context(*pair)
    key.chmod(0o604)
    with pytest.raises(ServingError, match="Everybody on this machine can read the key"):
        tls_context(cert, key)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_neither_token_nor_tls(host: str) -> None:
    where = require_guarded(Address(host, 1), token=False, tls=False)
    assert where.host == host or (host == "localhost" and where.host in ("127.0.0.1", "::1"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "10.0.0.7", "::ffff:10.0.0.7", "fe80::1"])
def test_an_address_that_others_reach_needs_a_token_and_tls(host: str) -> None:
    address = Address(host, 9500)
    with pytest.raises(ServingError, match=r"so serving there needs a token and TLS$"):
        require_guarded(address, token=False, tls=False)
    with pytest.raises(ServingError, match=r"so serving there needs a token$"):
        require_guarded(address, token=False, tls=True)
    with pytest.raises(ServingError, match=r"so serving there needs TLS$"):
        require_guarded(address, token=True, tls=False)
    assert require_guarded(address, token=True, tls=True) == address

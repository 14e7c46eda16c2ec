"""Tokens and certificates: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpudash.session.serving.address import Address, ServingError
from gpudash.session.serving.guarding import TOKEN_VARIABLE, Token, require_guarded, take_token, tls_context
from tests.unit.session.serving.certificates import certificate

SECRET = "0123456789abcdef0123"


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


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for take in (lambda: take_token(fifo), lambda: tls_context(fifo, key), lambda: tls_context(cert, fifo)):
        with pytest.raises(ServingError, match=r"fifo cannot be read \(it is no regular file\)$"):
            take()


def test_a_token_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"cannot be read \(No such file or directory\)"):
        take_token(tmp_path / "none")
    with pytest.raises(ServingError, match=r"cannot be read \(Is a directory\)"):
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


def test_this_machine_needs_neither_token_nor_tls() -> None:
    assert require_guarded(Address("localhost", 1), token=False, tls=False).host in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_an_address_that_others_reach_needs_a_token_and_tls(host: str) -> None:
    address = Address(host, 9500)
    with pytest.raises(ServingError, match=r"so serving there needs a token and TLS$"):
        require_guarded(address, token=False, tls=False)
    with pytest.raises(ServingError, match=r"so serving there needs a token$"):
        require_guarded(address, token=False, tls=True)
    with pytest.raises(ServingError, match=r"so serving there needs TLS$"):
        require_guarded(address, token=True, tls=False)
    assert require_guarded(address, token=True, tls=True) == address

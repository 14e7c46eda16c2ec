"""Addresses of Prometheus servers, and the token that opens them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.sources.prometheus.address import LONGEST_TOKEN, TOKEN, TOKEN_FILE, ServerAddress, read_address, read_token


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:9090", "http://host:9090"),
        ("prometheus:http://host:9090", "http://host:9090"),
        ("prometheus:http:/host:9090", "http://host:9090"),  # as a path of a file has it
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


LOCAL = ServerAddress("http", "127.0.0.1", 9090)


def test_the_token_comes_from_the_call_the_variable_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    everywhere = {TOKEN: "from-variable", TOKEN_FILE: str(file)}
    assert read_token(LOCAL, everywhere, "given") == "given"
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
    with pytest.raises(ValueError, match=r"fifo \(it is no regular file\)"):
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

"""Where to listen: what is an address, and who reaches it."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.serving.address import PORT, Address, ServingError, is_loopback, read_address, resolve


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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_is_known_in_each_of_its_forms(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7", "fe80::1"])
def test_an_address_that_others_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_name_is_resolved_before_it_is_judged() -> None:
    assert is_loopback(resolve(Address("localhost", 9500))[1].host)


def test_a_name_without_an_address_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServingError, match="has no address to serve on"):
        resolve(Address("x" * 300, 9500))

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ServingError, match=r"'nowhere' has no address to serve on \(Name or service not known\)"):
        resolve(Address("nowhere", 9500))

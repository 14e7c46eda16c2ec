"""What requests ask for."""

from __future__ import annotations

import pytest

from gpudash.session.serving.request import HttpRequest, begins_like_one, names_a_domain, takes_gzip, takes_openmetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What Prometheus 2.42 accepts."""


@pytest.mark.parametrize("received", [b"", b"G", b"GET", b"GET ", b"OPTIONS *"])
def test_the_beginning_of_a_request_is_waited_for(received: bytes) -> None:
    assert begins_like_one(received)


@pytest.mark.parametrize("received", [b"\x16\x03\x01", b"get ", b"GE\x00", b"A" * 17, b"{}"])
def test_what_cannot_become_a_request_is_not_waited_for(received: bytes) -> None:
    assert not begins_like_one(received)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9500", "127.0.0.1:9500", "[::1]:9500", "10.1.2.3"])
def test_this_machine_is_asked_for_by_address_or_as_localhost(host: str) -> None:
    assert not names_a_domain(host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9500", "localhost.evil.example", "", "[x]:1"])
def test_a_domain_in_the_host_field_is_seen(host: str) -> None:
    assert names_a_domain(host)


def test_the_format_and_the_coding_are_those_that_are_accepted() -> None:
    assert takes_openmetrics(HttpRequest("GET", "/", {"accept": PROMETHEUS}))
    assert not takes_openmetrics(HttpRequest("GET", "/", {"accept": "text/plain;version=0.0.4, */*"}))
    assert not takes_openmetrics(HttpRequest("GET", "/"))
    assert takes_gzip(HttpRequest("GET", "/", {"accept-encoding": "br, GZIP;q=0.5"}))
    assert not takes_gzip(HttpRequest("GET", "/", {"accept-encoding": "gzip;q=0"}))
    assert not takes_gzip(HttpRequest("GET", "/"))

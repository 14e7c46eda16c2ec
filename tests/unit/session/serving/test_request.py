"""Reading requests: what is one, and what is refused how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.session.serving.request import (
    REASONS,
    BadRequestError,
    Request,
    begins_like_one,
    names_a_domain,
    read_request,
    takes_gzip,
    takes_openmetrics,
)

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What Prometheus 2.42 accepts."""


def test_a_scrape_is_read() -> None:
    request = read_request(
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:1\r\nAuthorization:  Bearer abc \r\nX: 1\r\nx: 2"
    )
    headers = {"host": "localhost:1", "authorization": "Bearer abc", "x": "1, 2"}
    assert request == Request("GET", "/metrics", headers)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"", 400),
        (b"GET /metrics", 400),
        (b"get /metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: a", 400),
        (b"GET http://a/metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /met rics HTTP/1.1\r\nHost: a", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/1.1", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n folded", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nNo colon", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: \x00", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a" + b"\r\nX: 1" * 64, 431),
    ],
)
def test_what_is_no_request_is_refused(head: bytes, code: int) -> None:
    with pytest.raises(BadRequestError) as refusal:
        read_request(head)
    assert refusal.value.code == code
    assert code in REASONS


@given(st.binary(max_size=200) | st.builds(lambda rest: b"GET /metrics HTTP/1.0\r\n" + rest, st.binary(max_size=200)))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    try:
        request = read_request(head)
    except BadRequestError:
        return
    assert begins_like_one(head)
    assert request.path.startswith("/")


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
    assert takes_openmetrics(Request("GET", "/", {"accept": PROMETHEUS}))
    assert not takes_openmetrics(Request("GET", "/", {"accept": "text/plain;version=0.0.4, */*"}))
    assert not takes_openmetrics(Request("GET", "/"))
    assert takes_gzip(Request("GET", "/", {"accept-encoding": "br, GZIP;q=0.5"}))
    assert not takes_gzip(Request("GET", "/", {"accept-encoding": "gzip;q=0"}))
    assert not takes_gzip(Request("GET", "/"))

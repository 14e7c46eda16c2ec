"""``gpudash open prometheus:...``: what is refused before a window opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.cli.open import open_file
from gpudash.cli.terminal.output import RequestError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("prometheus:", "There is no address behind prometheus:"),
        ("prometheus:host:9090", "'host:9090' is no address of a Prometheus server"),
        ("prometheus:http://host:99999", "'http://host:99999' is no address"),
        ("prometheus:http://host:9090/graph?g0=1", "leave out everything from"),
        ("prometheus:http://host:9090?token=abc", "'http://host:9090' goes on behind the server's address"),
        ("http://host:9090", "http://host:9090 is an address, not a file"),
    ],
)
def test_an_address_that_is_none_is_refused(given: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        open_file(Path(given))
    assert words in str(refused.value)


def test_an_address_without_its_prefix_is_shown_with_it() -> None:
    with pytest.raises(RequestError) as refused:
        open_file(Path("https://host/prometheus"))
    assert refused.value.remedy == "Write prometheus:https://host:443/prometheus for a Prometheus server."


def test_a_token_that_would_be_sent_openly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDASH_PROMETHEUS_TOKEN", "secret")
    with pytest.raises(RequestError, match="could be read on the way") as refused:
        open_file(Path("prometheus:http://host:9090"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("beside", ["prometheus:http://other:9090", "recording.gpudash"])
def test_a_server_is_opened_alone(beside: str) -> None:
    with pytest.raises(RequestError, match="is opened alone"):
        open_file(Path(beside), Path("prometheus:http://host:9090"))


def test_without_a_display_it_says_so_and_where_else_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError, match="no display") as refused:
        open_file(Path("prometheus:http://host:9090"))
    assert refused.value.remedy == "http://host:9090/graph draws what the server knows."

"""A fleet asks its server again and again, and says what is wrong in one sentence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.fleet import Fleet
from gpudash.session.fleet.fleet import LONGEST_WAIT_S, SHORTEST_PERIOD_S, pause_s
from gpudash.sources.prometheus.address import read_address
from gpudash.sources.prometheus.gpus import COUNT_QUERY, QUERY, TIMES_QUERY
from gpudash.sources.prometheus.names import names
from gpudash.system.settings import Settings
from tests.prometheus_server.fake import NOW, Fake, Reply, data, fake_server, times, vector

PAGES = Path(__file__).parents[3] / "prometheus_server" / "pages"
USED = names(None, "gpu", metrics=["used_bytes"])


class Serving:
    """A server that knows one page.

    Attributes:
        entries: what it knows.
        fail: answers instead, while it is set.
        beside: more keys of its answers.
    """

    def __init__(self, page: str = "dcgm-exporter.txt") -> None:
        self.entries: list[dict[str, Any]] = vector((PAGES / page).read_text(), "node7:9400")
        self.fail: Reply | None = None
        self.beside: dict[str, Any] = {}
        self.interval_s = 1.0

    def __call__(self, path: str, asked: Mapping[str, str]) -> Reply:
        if self.fail is not None:
            return self.fail
        if path.endswith("buildinfo"):
            return Reply(body=json.dumps({"status": "success", "data": {"version": "2.42.0"}}).encode())
        if asked["query"] == TIMES_QUERY:
            return data(times(self.entries, NOW - 0.5, USED))
        if asked["query"] == COUNT_QUERY:
            return data(times(self.entries, 300 / self.interval_s, USED))
        return data(self.entries, **self.beside) if asked["query"] == QUERY else data([])


@pytest.fixture
def serving() -> Serving:
    return Serving()


@pytest.fixture
def server(serving: Serving) -> Iterator[Fake]:
    with fake_server(serving) as fake:
        yield fake


@pytest.fixture
def fleet(server: Fake) -> Iterator[Fleet]:
    found = Fleet(read_address(server.address), settings=Settings())
    yield found
    assert found.close()


def test_one_poll_brings_every_gpu_with_few_questions(fleet: Fleet, server: Fake) -> None:
    assert fleet.gpus() == () and fleet.version == 0 and not fleet.answered
    assert fleet.poll() == SHORTEST_PERIOD_S
    assert [gpu.name for gpu in fleet.gpus()] == ["node7 GPU 0", "node7 GPU 1"]
    assert fleet.problem is None and fleet.answered and not fleet.empty and fleet.server_version == "2.42.0"
    assert fleet.gpus()[0].seen_s == NOW - 0.5 and not fleet.gpus()[0].stale
    asked = len(server.requested)
    fleet.poll()
    assert len(server.requested) - asked == 2


def test_a_poll_that_brings_nothing_new_changes_nothing(fleet: Fleet, serving: Serving) -> None:
    fleet.poll()
    version, gpus = fleet.version, fleet.gpus()
    fleet.poll()
    assert fleet.version == version == 1 and fleet.gpus() is gpus
    serving.entries[0]["value"][1] = "1"
    serving.entries[-1]["value"][1] = "100"
    fleet.poll()
    assert fleet.version == 2


def test_warnings_come_with_what_the_server_says(fleet: Fleet, serving: Serving) -> None:
    serving.beside["warnings"] = ["one store is away"]
    serving.entries.append({"metric": {"__name__": "DCGM_FI_DEV_FB_USED"}})
    fleet.poll()
    assert [warning.text for warning in fleet.warnings()] == [
        "node7 GPU 0 is 98 % full: 39.0 of 40.0 GiB, 0.61 of it the driver's own.",
        "The server says: one store is away",
        "The server's answer holds 1 entry that cannot be read; it is left out.",
    ]


def test_a_server_without_gpus_is_told_with_the_names_that_were_looked_for(fleet: Fleet, serving: Serving) -> None:
    serving.entries.clear()
    fleet.poll()
    assert fleet.empty and fleet.problem is not None
    for name in ("gpudash_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED", "nvidia_smi_memory_used_bytes"):
        assert name in fleet.problem


def test_a_server_that_fails_is_asked_less_and_less_often_until_it_answers(fleet: Fleet, serving: Serving) -> None:
    fleet.poll()
    serving.fail = Reply(503, b"away")
    waits = [fleet.poll() for _ in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert fleet.problem is not None and "HTTP 503" in fleet.problem
    assert len(fleet.gpus()) == 2  # what was known stays
    serving.fail = None
    assert fleet.poll() == SHORTEST_PERIOD_S
    assert fleet.problem is None


def test_while_a_server_is_away_its_gpus_become_stale(server: Fake, serving: Serving) -> None:
    now = [100.0]
    fleet = Fleet(read_address(server.address), settings=Settings(), clock=lambda: now[0])
    fleet.poll()
    serving.fail = Reply(503)
    now[0] += 10
    fleet.poll()
    assert not any(gpu.stale for gpu in fleet.gpus())
    now[0] += 10
    fleet.poll()
    assert all(gpu.stale for gpu in fleet.gpus())
    assert [warning.text for warning in fleet.warnings()] == ["node7: 2 GPUs last heard of 20.5 s ago."]
    assert fleet.now_s() == NOW + 20
    fleet.close()


def test_what_is_scraped_once_a_minute_is_not_stale_between_scrapes(server: Fake, serving: Serving) -> None:
    serving.interval_s = 60.0
    now = [0.0]
    fleet = Fleet(read_address(server.address), settings=Settings(), clock=lambda: now[0])
    fleet.poll()
    serving.fail = Reply(503)
    now[0] += 90
    fleet.poll()
    assert not any(gpu.stale for gpu in fleet.gpus())
    fleet.close()


def test_an_answer_that_nobody_foresaw_is_a_sentence(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.poll()

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("odd" * 100_000)

    monkeypatch.setattr("gpudash.sources.prometheus.gpus.read_gpus", fail)
    fleet.poll()
    assert fleet.problem is not None and fleet.problem.endswith(" check the server, or a proxy in front of it.")
    assert fleet.problem.startswith(f"What {fleet.address} answers cannot be read (ZeroDivisionError: oddodd")
    assert len(fleet.problem) < 400


def test_the_thread_polls_and_ends_when_it_is_closed(server: Fake) -> None:
    fleet = Fleet(read_address(server.address), settings=Settings(), period_s=0.0)
    fleet.start()
    waited = threading.Event()
    while fleet.version == 0:
        waited.wait(0.01)
    assert fleet.close()
    assert len(fleet.gpus()) == 2


def test_a_slow_server_gets_as_long_a_rest_as_it_took_to_answer() -> None:
    assert pause_s(1.0, 0.25) == 0.75
    assert pause_s(1.0, 8.0) == 8.0
    assert pause_s(30.0, 100.0) == LONGEST_WAIT_S


def test_closing_does_not_wait_for_a_server_that_is_slow(serving: Serving) -> None:
    hold = threading.Event()
    serving.fail = Reply(hold=hold)
    with fake_server(serving) as fake:
        fleet = Fleet(read_address(fake.address), settings=Settings())
        fleet.start()
        waited = threading.Event()
        while not fake.requested:
            waited.wait(0.01)
        try:
            assert fleet.close()
        finally:
            hold.set()
    assert fleet.problem is None


def test_the_token_of_the_environment_is_sent_and_not_shown(server: Fake) -> None:
    fleet = Fleet(read_address(server.address), settings=Settings(), environment={"GPUDASH_PROMETHEUS_TOKEN": "secret"})
    fleet.poll()
    assert server.headers["Authorization"] == "Bearer secret"
    assert "secret" not in fleet.address and "secret" not in repr(fleet)
    fleet.close()


def test_a_look_at_a_gpu_that_is_not_there_is_refused(fleet: Fleet) -> None:
    fleet.poll()
    with pytest.raises(ValueError, match="knows no GPU"):
        fleet.view("nobody", NOW - 60, NOW, 100)
    with pytest.raises(ValueError, match="knows no GPU"):
        fleet.compare(fleet.gpus()[0].key, (NOW - 60, NOW), "nobody", (NOW - 60, NOW), 100)


def test_two_looks_for_a_comparison_begin_at_the_same_session_time(fleet: Fleet) -> None:
    fleet.poll()
    key = fleet.gpus()[0].key
    day = 86_400.0
    views = fleet.compare(key, (NOW - 60, NOW), key, (NOW - day - 60, NOW - day), 100)
    try:
        assert [view.settle(30.0) for view in views] == [True, True]
        assert views[0].extent_s == views[1].extent_s == (0.0, 60.0)
        assert views[0].began_wall_s - views[1].began_wall_s == day
    finally:
        assert views[0].close() and views[1].close()

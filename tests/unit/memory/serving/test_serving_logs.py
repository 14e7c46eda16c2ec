"""A server's memory, held against what servers logged."""

from __future__ import annotations

import pytest

from tests.unit.memory.serving.logs import BEGIN, END, Log, logs, page, table

WITHOUT_NOTE = [log for log in logs() if not log.note]


def name(log: Log) -> str:
    return f"{log.model}, {log.server}, {log.ranks} cards"


def test_there_are_logs_enough_each_with_its_source() -> None:
    assert len(logs()) >= 25
    assert all(log.source.startswith("https://") and log.logged for log in logs())


@pytest.mark.parametrize("log", [log for log in WITHOUT_NOTE if "weights_gib" in log.logged], ids=name)
def test_weights_are_what_the_server_said_within_one_percent(log: Log) -> None:
    assert log.weights_error() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("log", [log for log in WITHOUT_NOTE if log.tokens_error() is not None], ids=name)
def test_the_stated_memory_holds_the_tokens_that_the_server_said(log: Log) -> None:
    assert log.tokens_error() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    "log", [log for log in WITHOUT_NOTE if "length" in log.logged and "kv_gib" in log.logged], ids=name
)
def test_the_stated_memory_serves_the_requests_that_the_server_said(log: Log) -> None:
    served = log.cache().concurrency(int(log.logged["length"]))
    assert served == pytest.approx(log.logged["concurrency"], rel=0.001, abs=0.011)


@pytest.mark.parametrize("log", [log for log in WITHOUT_NOTE if log.kv_error() is not None], ids=name)
def test_card_and_flags_alone_leave_the_memory_that_the_server_said(log: Log) -> None:
    assert log.kv_error() == pytest.approx(0, abs=0.01)


def test_a_miss_is_explained_where_it_is_and_nothing_else_is() -> None:
    for log in logs():
        missed = [
            abs(log.weights_error() or 0) > 0.01,
            abs(log.tokens_error() or 0) > 0.05,
            abs(log.kv_error() or 0) > 0.05,
        ]
        assert any(missed) == bool(log.note), name(log)


def test_the_guide_has_the_table_that_the_code_makes() -> None:
    written = page().partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "python -m tests.unit.memory.serving.logs writes it"

"""The ranks of a run as rows: what is known of each, live and at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.telemetry.ranks.rows import SILENT_S, RankRow, places_of, rank_rows, rest_text, sentence
from gpudash.telemetry.records import RunEnd, Sample
from gpudash.units import MIB
from tests.ui.fake_session import FakeSession
from tests.ui.rank_feed import PERIOD_S, RankFeed
from tests.unit.telemetry.run_ends import FAILED


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(1)


def rows(session: FakeSession) -> list[RankRow]:
    with session.store.lock:
        return rank_rows(session.store, places_of(session.store.run))


def words(session: FakeSession) -> str:
    return sentence(session.store.run, places_of(session.store.run))


def states(session: FakeSession) -> list[str]:
    return [row.state for row in rows(session)]


def test_a_row_says_where_a_rank_is_and_where_its_steps_go(session: FakeSession) -> None:
    feed = RankFeed(session, 2, hosts=2)
    feed.train(50)
    first, last = rows(session)
    assert (first.rank, first.device, first.host, first.step, first.state) == (0, "cpu", "node-0", 50, "running")
    assert last.host == "node-1"
    assert first.step_s == pytest.approx(0.068, abs=1e-6)
    assert first.waiting == pytest.approx(0.010 / 0.068, abs=0.02) and last.waiting == pytest.approx(0.0, abs=0.02)
    for row in (first, last):
        assert row.computing is not None and row.communicating is not None and row.waiting is not None
        assert row.computing + row.communicating + row.waiting == pytest.approx(1.0)
    assert first.peak_bytes is not None and 700 * MIB <= first.peak_bytes <= 720 * MIB


def test_the_straggler_s_row_says_so_in_words(session: FakeSession) -> None:
    feed = RankFeed(session, 4)
    feed.train(60)
    assert [row.remark for row in rows(session)] == ["", "", "", "straggler, 20 % slower"]
    assert words(session).startswith("Rank 3 computes 20 % longer a step")


def test_the_rank_that_is_fullest_says_so_beside_it(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(60)
    feed.report("imbalance", "Rank 1 holds most.", rank=1, bytes=9)
    assert rows(session)[1].remark == "straggler, 20 % slower; most memory"
    assert words(session).endswith("Rank 1 holds most.")


def test_equal_ranks_have_no_remark_and_the_sentence_says_that(session: FakeSession) -> None:
    feed = RankFeed(session, 2, slow=0.0)
    feed.train(60)
    assert [row.remark for row in rows(session)] == ["", ""]
    assert words(session) == "2 ranks; none is clearly slower than the others."


def test_ranks_of_several_machines_are_said_to_be(session: FakeSession) -> None:
    RankFeed(session, 4, slow=0.0, hosts=2).train(3)
    assert words(session).startswith("4 ranks on 2 machines;")


def test_ranks_of_machines_that_are_not_looked_at_are_counted_too(session: FakeSession) -> None:
    feed = RankFeed(session, 2, slow=0.0)
    feed.report("ranks", "one of two nodes", world_size=4, ranks=feed.places)
    assert words(session).startswith("2 of 4 ranks;")


def test_before_the_first_step_nothing_is_made_up(session: FakeSession) -> None:
    RankFeed(session, 2)
    (first, _) = rows(session)
    assert (first.step, first.step_s, first.computing, first.peak_bytes, first.state) == (None,) * 4 + ("running",)


def test_a_rank_that_says_nothing_is_silent_and_the_others_wait(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(10)
    for _ in range(round(SILENT_S / PERIOD_S) + 2):
        session.feed(PERIOD_S)
        feed.memory(silent=1)
    assert states(session) == ["waiting", "silent"]


def test_a_short_pause_is_no_silence(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(10)
    session.feed(SILENT_S / 2)
    assert states(session) == ["running", "running"]


def test_the_result_s_figures_take_the_place_of_the_recent_ones(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(60)
    result = feed.result()
    result["ranks"][0] |= {"step_seconds_median": 0.5, "communication_share": 0.25, "waiting_share": 0.5}
    result["ranks"][0]["compute_share"] = 0.2
    result["ranks"][0]["peak_used_bytes"] = 5 * MIB
    done = RunEnd(time_s=session.now_s, run_id=1, status="finished", seconds=6.0, steps=60, result=result)
    session.end(done)
    first = rows(session)[0]
    assert (first.step_s, first.computing, first.communicating, first.waiting) == (0.5, 0.2, 0.25, 0.5)
    assert first.peak_bytes == 5 * MIB and states(session) == ["ended", "ended"]


def test_the_result_overrules_a_note_that_named_a_straggler_too_early(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(60)
    result = {**feed.result(), "straggler": None}
    done = RunEnd(time_s=session.now_s, run_id=1, status="finished", seconds=6.0, steps=60, result=result)
    session.end(done)
    assert [row.remark for row in rows(session)] == ["", ""]
    assert words(session) == "2 ranks; none is clearly slower than the others. Their parameters are equal."


def test_parameters_that_differ_are_said_to(session: FakeSession) -> None:
    feed = RankFeed(session, 2, slow=0.0)
    feed.train(5)
    result = {**feed.result(), "parameters_equal": False}
    done = RunEnd(time_s=session.now_s, run_id=1, status="finished", seconds=6.0, steps=60, result=result)
    session.end(done)
    assert words(session).endswith("Their parameters are NOT equal.")


def test_time_without_a_core_is_not_computing_and_is_told(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    session.feed(1)
    told = {"step_s": 1.0, "compute_s": 0.5, "communication_s": 0.1, "waiting_s": 0.1}
    for number in range(3):
        for rank in ("0", "1"):
            session.apply(Sample(session.now_s, "rank", rank, {"step": number, **told}))
        session.feed(0.1)
    first = rows(session)[0]
    assert (first.computing, first.communicating, first.waiting) == pytest.approx((0.5, 0.1, 0.1))
    assert rest_text(row.shares for row in rows(session)) == (
        "Up to 30 % of a rank's time is none of these: it waited for a processor core."
    )
    feed.train(1)
    session.end(
        RunEnd(
            time_s=9.0,
            run_id=1,
            status="finished",
            seconds=1.0,
            steps=1,
            result={"ranks": [{"rank": 0, "communication_share": 0.4, "waiting_share": 0.2}]},
        )
    )
    assert rows(session)[0].computing == pytest.approx(0.4)
    assert rest_text([rows(session)[0].shares]) == ""


def test_the_rank_that_failed_is_the_one_that_is_named_first(session: FakeSession) -> None:
    feed = RankFeed(session, 2)
    feed.train(5)
    message = "Rank 1 (cpu, pid 4001) was killed from outside at step 5 (SIGKILL). Rank 0 waited."
    session.end(replace(FAILED, time_s=9.0, error="killed", message=message, remedy="Again.", steps=5))
    assert states(session) == ["ended", "failed"]


def test_figures_of_an_earlier_run_are_not_those_of_this_one(session: FakeSession) -> None:
    before = RankFeed(session, 2)
    before.train(30)
    session.end()
    session.feed(1)
    RankFeed(session, 2)
    first = rows(session)[0]
    assert (first.step, first.step_s, first.computing, first.peak_bytes) == (None,) * 4

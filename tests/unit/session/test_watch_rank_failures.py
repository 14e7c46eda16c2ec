"""Of ranks that all fail the one that failed first is named, and not the one that missed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpudash.session.watching.ending import EndedRun, Raised, ending_of, reported
from gpudash.telemetry.records import RunEnd
from gpudash.units import MIB

LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4567"
WAITED = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation to complete"


def entry(rank: int, code: int, name: str = "") -> str:
    lines = (
        f"[{rank}]:",
        "  time      : 2026-11-21_22:27:13",
        "  host      : node1",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {100 + rank}){name}",
        "  error_file: <N/A>",
        f"  traceback : Signal {-code}{name} received by PID {100 + rank}",
    )
    return "\n".join(lines)


def launcher(*entries: str) -> Raised:
    """What torchrun raises, as its own process tells it."""
    *others, root = entries
    text = "\n=====\ntrain.py FAILED\n-----\nFailures:\n" + ("\n".join(others) or "  <NO_OTHER_FAILURES>")
    return Raised("ChildFailedError", f"{text}\n-----\nRoot Cause (first observed failure):\n{root}\n=====")


def of_rank(rank: int, error: str, message: str, time_s: float) -> Raised:
    return Raised(error, message, "/home/me/train.py", 7, "main", "", f"rank {rank} (pid {100 + rank})", time_s, rank)


def ran(*raised: Raised, **facts: Any) -> EndedRun:
    return EndedRun("torchrun", 1, 20.0, 1, 10.0, 41, "cpu", raised=raised, ranks={0: 100, 1: 101}, **facts)


def test_the_launchers_report_is_read_with_its_root_cause_last() -> None:
    found = reported(launcher(entry(0, 1), entry(1, -9, " (SIGKILL)")).message)
    assert [(one.rank, one.code, one.pid) for one in found] == [(0, 1, 100), (1, -9, 101)]
    assert reported("something else") == []


@pytest.mark.parametrize("others", [(), (of_rank(0, "RuntimeError", LOST, 15.0),)])
def test_a_rank_that_was_killed_is_named(others: tuple[Raised, ...]) -> None:
    entries = [entry(one.rank or 0, 1) for one in others]
    found = ending_of(ran(*others, launcher(*entries, entry(1, -9, " (SIGKILL)"))))
    assert found.status == "failed" and found.error == "signal"
    assert found.message.startswith("Rank 1 (pid 101) was killed by SIGKILL")


def test_a_rank_that_was_killed_is_named_with_what_it_held() -> None:
    told = ran(launcher(entry(1, -9, " (SIGKILL)")), held=lambda rank: f"Rank {rank} had 3 GiB.")
    found = ending_of(told)
    assert found.status == "failed" and found.message.endswith("was full. Rank 1 had 3 GiB.")


def test_a_rank_that_left_with_a_code_is_named() -> None:
    found = ending_of(ran(of_rank(0, "RuntimeError", LOST, 15.0), launcher(entry(0, 1), entry(1, 5))))
    assert (
        isinstance(found, RunEnd)
        and found.status == "failed"
        and found.message == "Rank 1 (pid 101) ended with exit code 5."
    )


def test_a_rank_that_was_killed_for_its_memory_says_why_it() -> None:
    told = ran(launcher(entry(1, -9)), oom_kills=1, why_full=lambda rank: f"Rank {rank} held most.")
    found = ending_of(told)
    assert found.status == "out_of_memory" and found.error == "host"
    assert found.message.startswith("Rank 1 (pid 101) was killed by the system because")
    assert found.message.endswith("Rank 1 held most.")


def test_an_exception_of_its_own_comes_before_the_others_complaints_whoever_told_first() -> None:
    lost, own = of_rank(0, "RuntimeError", LOST, 15.0), of_rank(1, "ValueError", "the batch is empty", 15.5)
    for order in ((lost, own), (own, lost)):
        found = ending_of(ran(*order, launcher(entry(1, 1), entry(0, 1))))
        assert found.status == "failed" and found.error == "ValueError"
        assert found.message == "Rank 1 (pid 101): ValueError: the batch is empty (train.py:7)."


def test_of_several_exceptions_the_first_is_the_cause() -> None:
    first, then = of_rank(1, "KeyError", "'x'", 14.0), of_rank(0, "ValueError", "no", 15.0)
    found = ending_of(ran(then, first, launcher(entry(0, 1), entry(1, 1))))
    assert found.status == "failed" and found.error == "KeyError"


def test_what_ended_the_start_before_the_last_is_not_the_cause() -> None:
    before = replace(of_rank(1, "KeyError", "'x'", 12.0), who="rank 1 (pid 91)")
    lost = of_rank(0, "RuntimeError", LOST, 15.0)
    found = ending_of(ran(before, lost, launcher(entry(0, 1), entry(1, -9))))
    assert (
        isinstance(found, RunEnd)
        and found.status == "failed"
        and found.message.startswith("Rank 1 (pid 101) was killed by SIGKILL")
    )
    found = ending_of(ran(before, of_rank(0, "ValueError", "no", 15.0), launcher(entry(0, 1))))
    assert found.status == "failed" and found.error == "ValueError"


def test_a_rank_for_which_the_others_waited_in_vain_hangs() -> None:
    found = ending_of(ran(of_rank(0, "RuntimeError", WAITED, 15.0), launcher(entry(0, 1))))
    assert found.status == "failed" and found.error == "hang"
    assert found.message.startswith("Rank 1 (pid 101) hangs after step 41: the others waited in vain")
    assert found.result["frames"] == [], "where the others waited is not where it hangs"
    assert found.details.startswith("Rank 0 (pid 100) waited at:")


def test_a_rank_that_hangs_is_shown_at_its_own_lines() -> None:
    frames = [
        {"file": "/home/me/train.py", "line": 31, "name": "batches"},
        {"file": "/usr/lib/python3.11/queue.py", "line": 171, "name": "get"},
    ]
    told = ran(of_rank(0, "RuntimeError", WAITED, 15.0), launcher(entry(0, 1)), places={1: frames})
    found = ending_of(told)
    assert (
        isinstance(found, RunEnd)
        and found.status == "failed"
        and found.error == "hang"
        and found.result["frames"] == frames
    )
    assert found.remedy == "Rank 1 stood at train.py:31; look what that line waits for."
    assert found.details.startswith('Rank 1 stood at:\n  File "/home/me/train.py", line 31, in batches\n')


def test_when_all_waited_nobody_is_blamed_for_hanging() -> None:
    both = [of_rank(rank, "RuntimeError", WAITED, 15.0 + rank) for rank in (0, 1)]
    found = ending_of(ran(*both, launcher(entry(0, 1), entry(1, 1))))
    assert (
        isinstance(found, RunEnd)
        and found.status == "failed"
        and found.error == "RuntimeError"
        and found.message.startswith("Rank 0")
    )


def test_a_rank_that_the_launcher_ended_is_not_the_cause() -> None:
    found = ending_of(ran(of_rank(0, "RuntimeError", LOST, 15.0), launcher(entry(0, 1), entry(1, -15, " (SIGTERM)"))))
    assert (
        isinstance(found, RunEnd)
        and found.status == "failed"
        and found.message.startswith("Rank 0 (pid 100): RuntimeError")
    )


def test_out_of_memory_of_one_rank_says_which_and_why_that_one() -> None:
    full = of_rank(1, "out_of_memory", "sim out of memory", 15.0)
    refused = {"device": "sim:1", "who": "rank 1 (pid 101)", "rank": 1, "time_s": 15.0}
    sizes = {"requested_bytes": 64 * MIB, "free_bytes": 10 * MIB}
    lost = of_rank(0, "RuntimeError", LOST, 14.9)
    told = ran(lost, full, launcher(entry(0, 1), entry(1, 1)), out_of_memory={**refused, **sizes})
    found = ending_of(replace(told, why_full=lambda rank: f"The device of rank {rank} is the smallest."))
    assert found.status == "out_of_memory" and found.error == "sim"
    assert found.message == (
        "Rank 1 (pid 101) ran out of memory on sim:1: a segment of 64 MiB was asked for and 10 MiB were free "
        "(train.py:7). The device of rank 1 is the smallest."
    )

"""Why ranks ended, in words."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gpudash.telemetry.records import OutOfMemory, RunFailed
from gpudash.units import GIB
from gpudash.workloads.programs.parallel.joining import Ended, HeldUp, Standing, cause_of, ending_of_cause, why_that_one
from gpudash.workloads.running.run_errors import Progress

GONE: dict[str, Any] = {"error": "RuntimeError", "message": "Connection closed by peer", "because_of": "gone"}
OWN: dict[str, Any] = {"error": "ValueError", "message": "no such row", "where": "mine.py:3 in rows"}
FULL: dict[str, Any] = {"error": "OutOfMemoryError", "message": "...", "full": "cuda", "requested_bytes": 2 * GIB}


def ranks(count: int = 2, device: str = "cpu") -> list[Standing]:
    names = [device if device == "cpu" else f"{device}:{rank}" for rank in range(count)]
    return [Standing(rank, name, pid=100 + rank, step=5, steps=4) for rank, name in enumerate(names)]


def test_an_error_of_its_own_comes_before_the_connections_that_it_broke() -> None:
    cause = cause_of(Ended(failed=[(0, GONE), (1, OWN)]), ranks(), memory_was_full=False, printed="")

    assert (cause.rank, cause.error) == (1, "ValueError")
    expected = "Rank 1 (cpu, pid 101) failed in step 5 at mine.py:3 in rows by ValueError: no such row."
    assert cause.message == expected


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (-signal.SIGKILL, "killed", "was killed from outside after step 4 (SIGKILL)"),
        (-signal.SIGSEGV, "crashed", "crashed after step 4 (Segmentation fault, SIGSEGV)"),
        (7, "exited", "ended itself after step 4 with exit code 7"),
    ],
)
def test_a_rank_that_fell_without_a_word_is_named_by_how(code: int, error: str, words: str) -> None:
    ended = Ended(failed=[(0, GONE)], fell={0: 1, 1: code}, gone=[1])

    cause = cause_of(ended, ranks(), memory_was_full=False, printed="what was printed")

    assert (cause.rank, cause.error, cause.details) == (1, error, "what was printed")
    assert words in cause.message


def test_a_rank_that_torchrun_ended_after_another_is_not_to_blame() -> None:
    ended = Ended(fell={0: -signal.SIGTERM, 1: -signal.SIGKILL}, gone=[0, 1])
    assert cause_of(ended, ranks(), memory_was_full=False, printed="").rank == 1


def test_a_rank_that_the_system_killed_for_memory_is_an_out_of_memory() -> None:
    cause = cause_of(Ended(fell={1: -9}, gone=[1]), ranks(), memory_was_full=True, printed="")
    ending = ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {}))

    assert isinstance(ending, OutOfMemory) and ending.error == "host" and "killed rank 1" in ending.message


def test_who_held_the_others_up_is_named_before_its_process_that_was_ended_for_it() -> None:
    ended = Ended(
        failed=[(0, {**GONE, "because_of": "late"})], fell={1: -9}, gone=[1], late=HeldUp(1, "Rank 1 stands.")
    )
    cause = cause_of(ended, ranks(), memory_was_full=False, printed="")

    assert (cause.rank, cause.error, cause.message) == (1, "hang", "Rank 1 stands.")
    assert isinstance(ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {})), RunFailed)


@pytest.mark.parametrize(
    ("ended", "error", "rank"),
    [
        (Ended(gone=[1]), "gone", 1),
        (Ended(failed=[(0, GONE)]), "lost", 0),
        (Ended(), "torchrun", None),
    ],
)
def test_what_nobody_knows_is_not_made_up(ended: Ended, error: str, rank: int | None) -> None:
    cause = cause_of(ended, ranks(), memory_was_full=False, printed="")
    assert (cause.error, cause.rank) == (error, rank)


def test_an_out_of_memory_names_the_rank_the_request_and_why_it() -> None:
    standings = ranks(device="cuda")
    standings[0].memory = {"total_bytes": 24 * GIB}
    cause = cause_of(
        Ended(failed=[(1, {**FULL, "total_bytes": 16 * GIB})]), standings, memory_was_full=False, printed=""
    )
    ending = ending_of_cause(cause, Progress(1.0, 1, 1.0, 4, {}))

    assert isinstance(ending, OutOfMemory) and ending.requested_bytes == 2 * GIB
    assert "Rank 1 (cuda:1, pid 101) ran out of the memory of cuda:1 in step 5" in ending.message
    assert "the smallest: 16.0 GiB, the others' have 24.0 GiB or more" in ending.message


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ({"limit_bytes": GIB}, {"limit_bytes": None}, "limited to 1.00 GiB of address space, the others' are not"),
        (
            {"total_bytes": 8 * GIB, "free_bytes": 0, "reserved_bytes": 3 * GIB},
            {"total_bytes": 8 * GIB, "free_bytes": 4 * GIB, "reserved_bytes": 3 * GIB},
            "Other processes hold 5.00 GiB of its device, and at most 1.00 GiB",
        ),
        (
            {"allocated_bytes": 4 * GIB},
            {"peak_allocated_bytes": 3 * GIB},
            "It held 4.00 GiB itself, and no other rank more than 3.00 GiB",
        ),
        ({"allocated_bytes": 3 * GIB}, {"peak_allocated_bytes": 3 * GIB}, "was the first to find no room"),
    ],
)
def test_why_memory_ran_out_on_this_rank_is_told_by_what_sets_it_apart(
    own: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    standings = ranks(device="cuda")
    standings[0].memory = other
    assert words in why_that_one(1, own, standings)

"""A run's ranks in the terminal: a table that fits, and what stands out in sentences."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gpudash.cli.terminal.report import print_ranks

GIB = 2**30


def row(rank: int, **facts: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "device": f"cuda:{rank}",
        "host": "node1",
        "step_seconds_median": 0.4123,
        "compute_seconds_median": 0.3,
        "communication_share": 0.1,
        "waiting_share": 0.05,
        "peak_used_bytes": 12 * GIB,
        "peak_allocated_bytes": None,
        **facts,
    }


def printed(result: dict[str, Any] | None, width: int = 80) -> list[str]:
    file = StringIO()
    print_ranks(Console(file=file, width=width), result)
    return file.getvalue().splitlines()


def test_each_rank_has_a_line() -> None:
    lines = printed({"ranks": [row(0), row(1, peak_allocated_bytes=3 * GIB)]})
    assert lines[0].split() == ["rank", "device", "step", "computing", "communicating", "waiting", "peak"]
    assert lines[1].split() == ["0", "cuda:0", "412", "ms", "300", "ms", "10", "%", "5", "%", "12.0", "GiB"]
    assert lines[2].endswith("3.00 GiB")
    assert len(lines) == 3 and max(map(len, lines)) <= 80


def test_of_several_nodes_the_hosts_are_told_and_long_names_cut() -> None:
    lines = printed({"ranks": [row(0), row(1, host="a-node-with-a-very-long-name.cluster.example.org")]})
    assert "node1" in lines[1] and "a-node" in lines[2] and "…" in lines[2]
    assert max(map(len, lines)) <= 80 and len(lines) == 3


def test_what_stands_out_is_told_in_sentences() -> None:
    result = {
        "ranks": [row(0), row(1)],
        "straggler": {"rank": 1, "slower": 0.2, "text": "Rank 1 computes 20 % longer."},
        "memory_imbalance": {"rank": 0, "bytes": 1, "text": "Memory is unequal."},
        "parameters_equal": False,
        "restarts": 2,
    }
    assert printed(result)[3:] == [
        "Rank 1 computes 20 % longer.",
        "Memory is unequal.",
        "The parameters are NOT equal across the ranks.",
        "All ranks were started again 2 times.",
    ]


@pytest.mark.parametrize(("equal", "lines"), [(True, ["The parameters are equal across the ranks."]), (None, [])])
def test_whether_parameters_are_equal_is_told_where_it_is_known(equal: bool | None, lines: list[str]) -> None:
    result = {"ranks": [row(0), row(1)], "parameters_equal": equal, "straggler": None, "restarts": 0}
    assert printed(result)[3:] == lines


def test_a_rank_that_made_no_step_has_no_figures() -> None:
    names = ("step_seconds_median", "compute_seconds_median", "communication_share", "waiting_share", "peak_used_bytes")
    lines = printed({"ranks": [row(0, **dict.fromkeys(names))]})
    assert lines[1].split()[:3] == ["0", "cuda:0", "not"] and "peak" in lines[0]


@pytest.mark.parametrize(("share", "told"), [(0.85, False), (0.82, False), (0.5, True), (None, False)])
def test_time_that_went_into_none_of_the_three_is_told_where_it_is_much(share: float | None, told: bool) -> None:
    lines = printed({"ranks": [row(0, compute_share=0.85), row(1, compute_share=share)]})[3:]
    sentence = "Up to 35 % of a rank's time is none of these: it waited for a processor core."
    assert lines == ([sentence] if told else [])


@pytest.mark.parametrize("result", [None, {}, {"ranks": []}, {"ranks": None}])
def test_a_run_without_ranks_tells_nothing_of_them(result: dict[str, Any] | None) -> None:
    assert printed(result) == []

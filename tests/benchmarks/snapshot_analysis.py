"""Reasoning about a snapshot of a million events: its history, questions about a moment, and what-if."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from gpudash.memory.snapshot.history.groups import Ints, Node, tree
from gpudash.memory.snapshot.history.history import History, difference_text
from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.units import MIB
from tests.benchmarks.generated_snapshot import generated

Result = TypeVar("Result")

EVENTS = 1_000_000
MOMENTS = (0.1, 0.5, 0.9)
"""Places in the trace at which questions are asked."""

CAPACITIES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4)
"""Of what is reserved at most, by which cards are asked about."""


def measure() -> dict[str, float]:
    """Seconds of the history, the slowest question and the slowest answer in milliseconds, beside a sort."""
    snapshot = read_snapshot(generated(EVENTS))
    device = snapshot.devices[0]
    history, history_s = _timed(lambda: History(device, snapshot.annotations))
    _, prepare_s = _timed(history.prepare)
    sort_s = min(_timed(lambda: np.argsort(history.columns.address, kind="stable"))[1] for _ in range(3))
    questions = _questions(history)
    what_if = WhatIf(device)
    _, unlimited_s = _timed(lambda: what_if.run(None))
    _, prepared_s = _timed(lambda: _prepared(what_if))
    peak = what_if.run(None).peak_reserved
    capacities = [int(peak * share) // MIB * MIB for share in CAPACITIES]
    answers = [_timed(partial(what_if.answer, capacity))[1] for capacity in capacities]
    return {
        "history_s": history_s,
        "history_over_sorting": history_s / sort_s,
        "paths_s": prepare_s,
        "query_ms": 1000 * max(questions),
        "what_if_unprepared_s": unlimited_s,
        "what_if_preparing_s": prepared_s,
        "what_if_ms": 1000 * max(answers),
    }


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


def _prepared(what_if: WhatIf) -> None:
    while what_if.prepare():
        pass


def _questions(history: History) -> list[float]:
    """Seconds of everything that a click on a moment asks."""
    found = []
    for place in MOMENTS:
        moment = int(history.count * place)
        alive, seconds = _timed(partial(history.alive, moment))
        of_blocks = (history.by_stack, history.by_category, history.site_of, partial(_tree, history))
        of_moment = (history.blocks, history.groups, history.state, history.growth)
        work: list[Callable[[], object]] = [partial(question, alive) for question in of_blocks]
        work += [partial(question, moment) for question in of_moment]
        work.append(partial(difference_text, history, moment, history, moment // 2))
        found += [seconds, *(_timed(question)[1] for question in work)]
    return found


def _tree(history: History, alive: Ints) -> Node:
    return tree(history.paths, history.lives.stack[alive], history.lives.bytes[alive])

from __future__ import annotations

import threading

import pytest

from gpudash.agent.sampler import Rest, Sampler
from tests.unit.session.watched import PATIENCE_S


def test_one_look_that_took_long_is_followed_by_no_long_silence() -> None:
    rest = Rest(share=0.01)
    took = [0.040, 0.001, 0.001, 0.200, 0.001]
    assert [rest.after(cost_s) for cost_s in took] == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.1])


def test_looks_that_take_long_each_time_become_seldom() -> None:
    rest = Rest(share=0.01)
    assert [rest.after(0.02) for _look in range(3)] == pytest.approx([0.0, 2.0, 2.0])


def test_a_program_that_forks_before_each_look_is_looked_at_all_the_same() -> None:
    looked = threading.Event()
    period_s = 0.2

    def look() -> bool:
        looked.set()
        return True

    sampler = Sampler(look, period_s)
    for _ in range(int(PATIENCE_S / period_s * 10)):
        sampler.start()
        if looked.wait(period_s / 10):  # then the program forks
            break
        sampler.stop()
    sampler.stop()
    assert looked.is_set()

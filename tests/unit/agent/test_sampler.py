from __future__ import annotations

import pytest

from gpudash.agent.sampler import Rest


def test_one_look_that_took_long_is_followed_by_no_long_silence() -> None:
    rest = Rest(share=0.01)
    took = [0.040, 0.001, 0.001, 0.200, 0.001]
    assert [rest.after(cost_s) for cost_s in took] == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.1])


def test_looks_that_take_long_each_time_become_seldom() -> None:
    rest = Rest(share=0.01)
    assert [rest.after(0.02) for _look in range(3)] == pytest.approx([0.0, 2.0, 2.0])

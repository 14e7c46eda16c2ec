"""Histories of traces recorded on GPUs: levels, sizes of blocks and layouts are those of the placements themselves."""

from __future__ import annotations

import pytest

from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.replay.what_if import WhatIf
from tests.unit.memory.test_placements import EXPECTED, followed, recorded


@pytest.fixture(params=sorted(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_levels_are_those_of_the_gpu(name: str) -> None:
    history, expected = History(recorded(name)), EXPECTED[name]
    assert history.disagreeing == 0
    assert history.allocated.max() == expected["peak_allocated"]
    assert history.reserved.max() == expected["peak_reserved"]
    assert history.allocated[-1] == expected["final_allocated"]
    assert history.reserved[-1] == expected["final_reserved"]
    assert history.unrecorded_slack == followed(name).unrecorded_slack


def test_the_map_at_the_end_is_that_of_the_file(name: str) -> None:
    device = recorded(name)
    history = History(device)
    shown = [
        (block.address, block.size, block.state) for segment in history.blocks(history.last) for block in segment.blocks
    ]
    assert shown == [
        (block.address, block.size, block.state) for segment in device.segments for block in segment.blocks
    ]


def test_the_smallest_capacity_lies_between_what_is_allocated_and_what_is_reserved(name: str) -> None:
    real, answers = followed(name), WhatIf(recorded(name))
    smallest = answers.smallest_capacity()
    assert real.peak_allocated <= smallest <= max(real.peak_reserved, answers.run(None).peak_reserved)
    assert answers.run(smallest).fits
    assert not answers.run(smallest - 2**21).fits

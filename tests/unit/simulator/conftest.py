"""Two simulated GPUs, registered once in the process and empty before and after every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from gpudash.simulator.device.backend import Backend, register, registered
from gpudash.simulator.device.process_table import VARIABLE
from gpudash.simulator.device.simulated_gpu import SimulatedGpu

FIRST_BYTES = 2**30
SECOND_BYTES = 2**29


@pytest.fixture
def sim() -> Iterator[Backend]:
    """``sim:0`` of 1 GiB and ``sim:1`` of 512 MiB; nothing may be left on them."""
    cards = [SimulatedGpu(0, FIRST_BYTES), SimulatedGpu(1, SECOND_BYTES)]
    known = registered()
    if known is not None:
        known.engine.cards.clear()  # the error of a test that failed keeps its tensors
    backend = register(cards)
    yield backend
    os.environ.pop(VARIABLE, None)  # the processes of other tests have cards of their own
    backend.engine.drop_workspaces()
    if any(card.statistics()["allocated_bytes.all.current"] for card in backend.cards):
        gc.collect()  # errors that a test looked at keep its tensors
    for card in backend.cards:
        assert card.statistics()["allocated_bytes.all.current"] == 0, f"left on sim:{card.index}"

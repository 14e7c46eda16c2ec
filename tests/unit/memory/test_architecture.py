"""What a GPU's design says of it."""

from __future__ import annotations

import pytest

from gpudash.memory.predicting.architecture import Architecture, multiprocessors_of


@pytest.mark.parametrize(
    ("capability", "threads"), [((7, 5), 1024), ((8, 0), 2048), ((8, 9), 1536), ((9, 0), 2048), ((12, 0), 1536)]
)
def test_threads_of_a_multiprocessor_go_by_the_capability(capability: tuple[int, int], threads: int) -> None:
    assert Architecture(capability, 1).threads_per_multiprocessor == threads


@pytest.mark.parametrize(
    ("cores", "capability", "multiprocessors"),
    [(2560, (7, 5), 40), (6912, (8, 0), 108), (16384, (8, 9), 128), (16896, (9, 0), 132), (21760, (12, 0), 170)],
)
def test_multiprocessors_are_counted_from_the_cores_that_the_driver_reports(
    cores: int, capability: tuple[int, int], multiprocessors: int
) -> None:
    assert multiprocessors_of(cores, capability) == multiprocessors

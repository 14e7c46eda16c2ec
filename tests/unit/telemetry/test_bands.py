"""Bands of GPU memory: whatever is read when, they never overlap and never exceed what is used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudash.telemetry.store import GpuBands, gpu_bands, host_others

SIZES = st.integers(0, 2**40)
MAYBE = st.none() | SIZES


@given(SIZES, MAYBE, SIZES, SIZES, st.booleans())
def test_bands_that_are_known_add_up_to_used(
    used: int, process: int | None, allocated: int, reserved: int, linked: bool
) -> None:
    bands = gpu_bands(used, process, allocated, reserved, linked=linked)
    parts = [part for part in (bands.allocated, bands.idle, bands.context, bands.other) if part is not None]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == used


def test_each_band_is_what_its_name_says() -> None:
    assert gpu_bands(1000, 700, 300, 500, linked=True) == GpuBands(300, 200, 200, 300)


def test_without_the_drivers_figure_the_context_is_part_of_other() -> None:
    assert gpu_bands(1000, None, 300, 500, linked=True) == GpuBands(300, 200, None, 500)


def test_an_allocator_that_cannot_be_read_leaves_gaps_not_zeros() -> None:
    assert gpu_bands(1000, 700, None, None, linked=True) == GpuBands(None, None, None, 300)


def test_a_lost_gpu_has_no_bands() -> None:
    assert gpu_bands(None, 700, 300, 500, linked=True) == GpuBands(None, None, None, None)


def test_others_on_the_host_are_what_this_process_does_not_use() -> None:
    assert host_others(1000, 300) == 700
    assert host_others(1000, None) is None
    assert host_others(100, 300) == 0

"""The cap on what torch may reserve: how it is written, what it comes to, and where it cannot be set."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB, MAX_SIZE, TIB


@pytest.mark.parametrize(("text", "fraction"), [("2GiB", 0.25), ("50%", 0.5), ("12.5 %", 0.125), ("100%", 1.0)])
def test_a_cap_is_a_size_or_a_share(text: str, fraction: float) -> None:
    assert MemoryCap.parse(text).fraction(8 * GIB) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-5%", "half", "-1GiB", "nan%", "1e400%", "2000TiB"])
def test_what_is_no_cap_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example (50%|2GiB or 50%)$"):
        MemoryCap.parse(text)


@pytest.mark.parametrize("text", ["2.0", "0.5", " .5", "1."])
def test_a_decimal_without_a_unit_is_refused_for_it_may_mean_a_share_or_gibibytes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is a number without a unit; write for example 2GiB or 50%$"):
        MemoryCap.parse(text)


@given(st.text())
def test_any_text_is_a_cap_or_refused(text: str) -> None:
    try:
        cap = MemoryCap.parse(text)
    except ValueError:
        return
    assert 0 < cap.fraction(MAX_SIZE) <= 1


@given(st.integers(1, 256 * TIB), st.integers(1, 256 * TIB))
@example(2 * GIB, 85_017_493_504)  # an H100's, of which the plain quotient comes to a byte less
@example(256 * TIB - 1, 256 * TIB)
def test_what_torch_makes_of_a_size_is_that_size_to_the_byte_and_never_more_than_all(size: int, total: int) -> None:
    fraction = MemoryCap(size=size).fraction(total)
    assert 0 < fraction <= 1
    assert int(fraction * total) == min(size, total)  # as torch 2.11 has it
    assert int(fraction * total + 0.5) == min(size, total)  # as torch 2.13 has it


def test_a_share_allows_its_part_where_the_whole_is_known_and_a_size_the_same_anywhere() -> None:
    assert MemoryCap(share=0.25).allowed_bytes(8 * GIB) == 2 * GIB
    assert MemoryCap(share=0.25).allowed_bytes(None) is None
    assert MemoryCap(size=GIB).allowed_bytes(None) == MemoryCap(size=GIB).allowed_bytes(8 * GIB) == GIB


def test_the_cpu_cannot_be_capped_and_a_gpu_not_beyond_its_memory() -> None:
    assert MemoryCap(share=0.5).problems("cpu", None) == [
        "--memory-cap: torch limits what it reserves on a GPU only; on the CPU use --guard"
    ]
    assert MemoryCap(size=3 * GIB).problems("sim:0", 2 * GIB) == ["--memory-cap 3.00 GiB: sim:0 has 2.00 GiB"]
    assert MemoryCap(size=2 * GIB).problems("sim:0", 2 * GIB) == []
    assert MemoryCap(share=1.0).problems("cuda:0", None) == []

"""Sizes, rates and times in words, and words back into sizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.units import (
    GIB,
    KIB,
    MAX_SIZE,
    MIB,
    NOT_REPORTED,
    TIB,
    SizeScale,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_left,
    format_like,
    format_moment,
    format_number,
    format_pair,
    format_percent,
    format_rate,
    format_scaled,
    memory_unit,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GIB),
        ("512 MiB", 512 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("200MB", 200_000_000),
        ("4096", 4096),
        ("4096b", 4096),
        ("2g", 2 * GIB),
        ("1TiB", TIB),
        (" 3 KiB ", 3 * KIB),
        (0, 0),
        (MAX_SIZE, MAX_SIZE),
    ],
)
def test_a_size_is_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 GiB GiB", "8XiB", "1e9", "nan", "inf", "1,5GiB", "0x10"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 512MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1025TiB", -1, MAX_SIZE + 1, "9" * 400])
def test_a_size_beyond_any_machine_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="outside 0 to 1 PiB"):
        parse_size(text)


@given(st.integers(0, MAX_SIZE))
def test_bytes_are_read_exactly(size: int) -> None:
    assert parse_size(str(size)) == parse_size(size) == parse_size(f"{size}B") == size


@given(st.integers(0, 2**20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_whole_number_of_a_unit_is_read_exactly(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * {"KiB": KIB, "MiB": MIB, "GiB": GIB}[unit]


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused_in_one_sentence(text: str) -> None:
    sentence, size = "", 0
    try:
        size = parse_size(text)
    except ValueError as error:
        sentence = str(error)
    assert 0 <= size <= MAX_SIZE
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (2048, "2 KiB"),
        (512 * KIB, "512 KiB"),
        (MIB, "1 MiB"),
        (1023 * MIB, "1023 MiB"),
        (GIB - 1, "1.00 GiB"),
        (GIB, "1.00 GiB"),
        (int(9.994 * GIB), "9.99 GiB"),
        (int(9.996 * GIB), "10.0 GiB"),
        (24 * GIB, "24.0 GiB"),
        (TIB, "1.00 TiB"),
        (-2 * GIB, "-2.00 GiB"),
        (None, NOT_REPORTED),
        (math.nan, NOT_REPORTED),
    ],
)
def test_a_size_in_words(size: float | None, words: str) -> None:
    assert format_bytes(size) == words


@given(st.integers(0, 2**50))
def test_words_of_a_size_are_within_their_last_digit(size: int) -> None:
    unit = memory_unit(size)
    factor = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    assert abs(float(format_number(size, unit)) * factor - size) <= factor * (0.501 if unit == "MiB" else 0.51)


def test_a_pair_has_one_unit() -> None:
    assert format_pair(19.8 * GIB, 24 * GIB) == "19.8 of 24.0 GiB"
    assert format_pair(100 * MIB, 24 * GIB) == "0.10 of 24.0 GiB"
    assert format_pair(None, 24 * GIB) == "not reported of 24.0 GiB"


@pytest.mark.parametrize(
    ("size", "other", "words"),
    [
        (724 * MIB, int(1.27 * GIB), "0.71 GiB"),
        (int(1.27 * GIB), 724 * MIB, "1.27 GiB"),
        (45 * MIB, 18 * GIB, "45 MiB"),
        (0, 18 * GIB, "0.00 GiB"),
        (None, GIB, NOT_REPORTED),
        (GIB, None, "1.00 GiB"),
    ],
)
def test_two_sizes_of_a_sentence_have_one_unit_as_long_as_digits_are_left(
    size: float | None, other: float | None, words: str
) -> None:
    assert format_like(size, other) == words


def test_what_is_needed_and_what_is_free_are_written_in_one_unit() -> None:
    for need, free in ((int(1.27 * GIB), 724 * MIB), (724 * MIB, int(1.27 * GIB))):
        scale = SizeScale.of(need, free)
        assert {scale.label(need), scale.label(free)} == {"1.27 GiB", "0.71 GiB"}
    scale = SizeScale.of(45 * MIB, 18 * GIB)
    assert (scale.label(45 * MIB), scale.label(18 * GIB)) == ("45 MiB", "18.00 GiB")


@pytest.mark.parametrize(
    ("value", "words"),
    [(24.6e9, "24.6 GB/s"), (999.96e6, "1.00 GB/s"), (0, "0.00 B/s"), (None, NOT_REPORTED), (math.inf, "∞ B/s")],
)
def test_a_rate_is_decimal(value: float | None, words: str) -> None:
    assert format_rate(value) == words


def test_figures_have_three_digits_and_a_prefix() -> None:
    assert format_scaled(141.2e12, "FLOP/s") == "141 TFLOP/s"
    assert format_scaled(-math.inf, "W") == "-∞ W"


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.0, "0 %"), (0.004, "< 1 %"), (0.856, "86 %"), (0.999, "99 %"), (1.0, "100 %"), (None, NOT_REPORTED)],
)
def test_a_percentage_is_whole_and_full_only_when_full(ratio: float | None, words: str) -> None:
    assert format_percent(ratio) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (4.1e-6, "4.10 µs"),
        (0.412, "412 ms"),
        (12.4, "12.4 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (-0.5, "-500 ms"),
        (None, NOT_REPORTED),
        (math.inf, "∞"),
    ],
)
def test_a_duration_in_words(seconds: float | None, words: str) -> None:
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "1 s"),
        (0.4, "1 s"),
        (1.2, "1 s"),
        (23.6, "24 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
    ],
)
def test_time_that_is_left_is_told_in_whole_seconds(seconds: float, words: str) -> None:
    assert format_left(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), [(41, "0:41"), (725, "12:05"), (3723, "1:02:03"), (-5, "0:00")])
def test_a_clock_counts_hours_only_when_there_are_some(seconds: float, words: str) -> None:
    assert format_clock(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0:00.0"), (41.26, "0:41.2"), (0.3, "0:00.3"), (59.99, "0:59.9"), (3723.0, "1:02:03.0"), (-1.0, "0:00.0")],
)
def test_a_moment_has_a_tenth_of_a_second_and_is_never_ahead_of_itself(seconds: float, words: str) -> None:
    assert format_moment(seconds) == words


def test_a_count_is_grouped_by_thin_spaces() -> None:
    assert format_count(18053) == "18\u202f053"

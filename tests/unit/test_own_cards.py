"""Cards of the user's own, from a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.card_performance import CARD_PERFORMANCE, performance_of
from gpudash.system.own_cards import OwnCards, read_own_cards

WHOLE = """\
[my-card]  # a card
memory = "24GiB"
memory_gb_per_s = 960
float32_tflops = 56.3
tf32_tflops = 56.3
float16_tflops = 112.6
bfloat16_tflops = 112.6
float8_tflops = 225.2
l2_mib = 64
multiprocessors = 84
clock_mhz = 2617
pcie_generation = 5
pcie_lanes = 16
nvlink_gb_per_s = 0
power_w = 360
source = "its box"
"""

LEAST = "memory_gb_per_s = 500\nfloat32_tflops = 30\n"


def read(folder: Path, text: str) -> OwnCards:
    path = folder / "cards.toml"
    path.write_text(text)
    return read_own_cards(path)


def test_a_card_with_every_column_has_nothing_guessed(tmp_path: Path) -> None:
    cards = read(tmp_path, WHOLE)
    card = performance_of("My-Card", cards.performance)
    assert card is not None
    assert cards.total_bytes == {"my-card": 24 * 2**30}
    known = CARD_PERFORMANCE["rtx5080"]
    assert not card.derived
    assert card.source == "my-card: its box"
    for figure in ("flops", "bytes_per_s", "l2_bytes", "multiprocessors", "clock_hz", "link_bytes_per_s", "power_w"):
        assert getattr(card, figure) == getattr(known, figure)


def test_what_a_file_leaves_out_is_lent_by_the_nearest_card_and_counts_as_guessed(tmp_path: Path) -> None:
    card = read(tmp_path, f"['new card']\n{LEAST}").performance["new card"]
    lender = CARD_PERFORMANCE["rtx4070"]
    assert card.derived
    assert "is that of rtx4070" in card.source
    assert set(card.guessed) == {"flops", "l2_bytes", "multiprocessors", "clock_hz", "power_w", "link_bytes_per_s"}
    assert card.flops["float16"] == pytest.approx(lender.flops["float16"] * 30 / 29.1)
    assert card.l2_bytes == lender.l2_bytes


def test_a_kind_of_arithmetic_that_a_card_lacks_is_said_with_0(tmp_path: Path) -> None:
    text = f"[old]\n{LEAST}tf32_tflops = 0\nbfloat16_tflops = 0\nfloat8_tflops = 0\nfloat16_tflops = 60\n"
    card = read(tmp_path, text).performance["old"]
    assert set(card.flops) == {"float32", "float16"}
    assert "flops" not in card.guessed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[a\n", "line 1, column"),
        ("rate = 1\n", "cards.toml:1:1: rate stands outside of a card; begin with a line such as [my-card]."),
        (
            "\n[a]\nfloat32_tflops = 3\n",
            "cards.toml:2:1: a lacks memory_gb_per_s, without which nothing can be said of it.",
        ),
        (
            f"[b]\n{LEAST}[a]\n{LEAST}  l2_mib = -3\n",
            "cards.toml:7:3: a: l2_mib: input should be greater than 0.",
        ),
        (f"[a]\n{LEAST}\nflops = 3\n", "cards.toml:5:1: a: flops is no column of a card; they are memory, "),
        (f"[a]\n{LEAST}memory = 'much'\n", "cards.toml:4:1: a: memory: "),
        (f"[a]\n{LEAST}power_w = inf\n", "cards.toml:4:1: a: power_w: "),
        (
            f"[a]\n{LEAST}pcie_generation = 4\npcie_lanes = 5\n",
            "cards.toml:5:1: a: no card has a PCIe link of generation 4 with 5 lanes.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"cards\.toml") as raised:
        read(tmp_path, text)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@given(
    line=st.sampled_from(WHOLE.splitlines()[1:-1]),
    value=st.sampled_from(["-1", "[]", "{}", "'x'", "1e400", "nan", "9" * 30]),
)
def test_no_column_takes_what_is_no_figure(tmp_path_factory: pytest.TempPathFactory, line: str, value: str) -> None:
    column = line.split(" =")[0]
    with pytest.raises(ValueError, match=f"cards.toml:[0-9]+:1: my-card: {column}: "):
        read(tmp_path_factory.mktemp("cards"), WHOLE.replace(line, f"{column} = {value}"))

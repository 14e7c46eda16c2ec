"""Tables on a narrow terminal: they wrap between words, and columns that find no room are named."""

from __future__ import annotations

import pytest
from rich.table import Table

from gpudash.cli import run
from gpudash.cli.terminal.output import print_table, stdout

TITLES = ("device", "memory", "busy", "temperature", "power")
CELLS = ("sim:0 (SIMULATED H100)", "3.4 of 79.2 GiB", "100 %", "44 °C", "300 W")


def printed(width: int, capsys: pytest.CaptureFixture[str], *spared: str) -> str:
    table = Table(box=None, pad_edge=False)
    for title in TITLES:
        table.add_column(title)
    table.add_row(*CELLS)
    console = stdout()
    console.width = width
    print_table(table, console, spared)
    return capsys.readouterr().out


def words(text: str) -> list[str]:
    return text.split()


def test_a_table_with_room_is_printed_on_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split("  ")[0] for line in printed(100, capsys).splitlines()] == ["device", CELLS[0]]


@pytest.mark.parametrize("width", range(45, 70))
def test_a_narrower_one_wraps_between_words_and_loses_none(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(width, capsys)
    assert sorted(words(told)) == sorted(words(" ".join((*TITLES, *CELLS))))
    assert max(map(len, told.splitlines())) <= width
    assert "100 %" in told and "44 °C" in told, "a figure and its unit stay together"


@pytest.mark.parametrize("width", range(24, 45))
def test_what_finds_no_room_even_so_is_left_out_whole_and_named(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    *table, told = printed(width, capsys).splitlines()
    left_out = told.partition(": ")[2].rstrip(".").split(", ")
    assert told.startswith("Left out, as the terminal has fewer than 45 columns: ")
    assert left_out == list(reversed(TITLES))[: len(left_out)] and len(left_out) <= 3
    kept = len(TITLES) - len(left_out)
    assert sorted(words(" ".join(table))) == sorted(words(" ".join((*TITLES[:kept], *CELLS[:kept]))))


def test_the_columns_that_may_be_spared_go_first(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(36, capsys, "busy")
    assert told.endswith("columns: busy.\n") or "columns: busy, power" in told


def test_a_column_without_a_word_goes_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("stage", "shape", "count"):
        table.add_column(title, justify="right")
    table.add_row("batch", "", "8")
    table.add_row("forward", "", "16")
    print_table(table, stdout())
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["stage", "count"],
        ["batch", "8"],
        ["forward", "16"],
    ]


def test_what_is_remarked_of_stages_stands_below_their_table_where_the_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, rows in ((80, 5), (200, 5)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert run(["run", "pipeline", "--device", "cpu", "--no-record"]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = lines[1 : 1 + rows]
        assert [line.split()[0] for line in table] == ["stage", "create", "move", "operate", "return"]
        assert max(map(len, lines[: 1 + rows])) < width
        assert any(line.startswith("move: same device: torch returned the same tensor") for line in lines) is (
            width == 80
        )

"""What torchrun and the ranks have printed."""

from __future__ import annotations

import os
from pathlib import Path

from gpudash.workloads.programs.parallel.parallel_run import MOST_PRINTED, end_of


def test_of_what_was_printed_only_the_end_is_read_however_much_it_is(tmp_path: Path) -> None:
    printed = tmp_path / "printed.txt"
    with printed.open("wb") as file:
        file.write("\u00fc".encode() + b"begin")
        os.truncate(file.fileno(), 1 << 40)  # a hole: it takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"x" * (MOST_PRINTED - 3) + "\u00fc".encode())

    assert end_of(printed) == "x" * (MOST_PRINTED - 3) + "\u00fc"


def test_a_file_that_is_not_there_has_nothing_printed(tmp_path: Path) -> None:
    assert end_of(tmp_path / "printed.txt") == ""

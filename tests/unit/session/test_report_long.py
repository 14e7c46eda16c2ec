"""The report on a recording that is read from its summaries: the same plots and figures as when it is read whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudash.session.recordings import loading
from gpudash.session.report import page, write_report
from tests.unit.session.recordings import records, write

TICKS = 4000
"""More rows than end two pages of summaries."""


def plots_of(text: str) -> list[tuple[str, list[str]]]:
    """Title of each plot and, by curve, its range as the legend tells it."""
    figures = re.findall(r"<figure>.*?</figure>", text)
    return [(re.findall("<h3>([^<]+)", figure)[0], re.findall(r"</svg>([^<]+ <b>[^<]+)", figure)) for figure in figures]


def test_a_long_recording_shows_the_plots_of_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.gpudash"
    write(path, records(TICKS))
    write_report(path, tmp_path / "whole.html")
    monkeypatch.setattr(loading, "WHOLE_ROWS", 1000)
    monkeypatch.setattr(loading, "TAIL_ROWS", 500)
    monkeypatch.setattr(page, "SHARP_S", 60.0)
    write_report(path, tmp_path / "paged.html")
    whole, paged = ((tmp_path / name).read_text(encoding="utf-8") for name in ("whole.html", "paged.html"))
    titles = ["Memory", "Loss (nats) and accuracy", "Throughput", "Transfer bandwidth", "Utilisation"]
    assert [title for title, _ in plots_of(paged)] == titles
    assert plots_of(paged) == plots_of(whole)
    assert "peak used" in paged


def test_memory_is_drawn_as_bands_the_inner_over_the_outer(tmp_path: Path) -> None:
    path = tmp_path / "run.gpudash"
    write(path, records(400))
    write_report(path, tmp_path / "run.html")
    memory = re.findall(r"<figure>.*?</figure>", (tmp_path / "run.html").read_text(encoding="utf-8"))[0]
    drawn = re.findall(r'<path class="(fill|line) c-(\w+)', memory.split('role="img"')[1])
    assert drawn[:3] == [("fill", "grey"), ("fill", "blue"), ("fill", "sky")]
    assert drawn[3:6] == [("line", "sky"), ("line", "blue"), ("line", "grey")]

"""Files whose names are no text, have lines of their own or look like markup are read and reported like others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpudash.cli import run
from tests.unit.memory.snapshot.made import Made as MadeSnapshot
from tests.unit.telemetry.comparing.made import MADE

NAMES = {"no text": b"run\xff\xfe", "two lines": b"run\nGPU 1 is fine", "markup": b"<script>&amp;", "sign": b"=1+1"}


@pytest.mark.parametrize(
    ("what", "to"),
    [
        *((what, "html") for what in NAMES),
        ("no text", "svg"),
        ("markup", "svg"),
        ("sign", "csv"),
        ("two lines", "json"),
        ("no text", "trace"),
    ],
)
def test_a_recording_of_any_name_is_exported(tmp_path: Path, what: str, to: str) -> None:
    name = NAMES[what]
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b".gpudash"))
    MADE.but(workload="<script>").record(path)
    out = tmp_path / f"out.{to}"
    assert run(["export", str(path), "--to", to, "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    if to in ("html", "svg"):
        assert "<script>" not in text
        assert "run\\udcff\\udcfe" in text or b"\xff" not in name


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_snapshot_of_any_name_is_reported(tmp_path: Path, name: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeSnapshot(64 * 2**20)
    made.step(2**20)
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b".pickle"))
    made.written(path)
    assert run(["snapshot", str(path), "--html", str(tmp_path / "out.html")]) == 0
    assert "<script>" not in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert not any(line.startswith("GPU 1") for line in capsys.readouterr().out.splitlines())

"""The plots of a recording as a picture in a file, as `gpudash export --to png` and `--to svg` write it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.ui.picture import write_graphs
from tests.ui.test_picture import recorded

SIZE = (900, 700)


@pytest.fixture
def recording(qapp: QApplication, tmp_path: Path) -> Path:
    return recorded(tmp_path / "a run.gpudash", 3.0)


def words(path: Path) -> list[str]:
    return [
        (element.text or "").strip() for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_a_png_has_the_size_and_the_colours_asked_for(
    recording: Path, tmp_path: Path, theme: Literal["light", "dark"], palette: Palette
) -> None:
    write_graphs(recording, tmp_path / "out.png", SIZE, theme)
    image = QImage(str(tmp_path / "out.png"))
    assert (image.width(), image.height()) == SIZE
    assert image.pixelColor(2, 2) == QColor(palette.panel)
    assert image.text("Title").startswith(
        "training steps 500 on cpu, a run, cpu · AMD EPYC 9554 · 0:03 to 0:06 of the session"
    )


def test_an_svg_says_the_same_as_the_png_in_words(recording: Path, tmp_path: Path) -> None:
    write_graphs(recording, tmp_path / "out.svg", SIZE)
    found = words(tmp_path / "out.svg")
    for text in (
        "training steps 500 on cpu, a run",
        "MEMORY cpu",
        "this process",
        "UTILISATION",
        "THROUGHPUT",
        "recorded with gpudash",
    ):
        assert text in found
    root = ElementTree.parse(tmp_path / "out.svg").getroot()
    assert (root.get("width"), root.get("height")) == ("900", "700")


def test_a_size_in_which_the_plots_have_no_room_is_refused_with_the_least_that_has(
    recording: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordingError, match="plots have no room in 640x220 pixels; choose at least 640x") as refused:
        write_graphs(recording, tmp_path / "out.png", (640, 220))
    assert list(tmp_path.glob("out*")) == []
    least = int(str(refused.value).rpartition("x")[2])
    write_graphs(recording, tmp_path / "out.png", (640, least))
    assert QImage(str(tmp_path / "out.png")).size().toTuple() == (640, least)


def test_a_picture_leaves_no_window(recording: Path, tmp_path: Path, qapp: QApplication) -> None:
    before = set(qapp.topLevelWidgets())
    write_graphs(recording, tmp_path / "out.png", SIZE)
    assert not {widget for widget in set(qapp.topLevelWidgets()) - before if widget.isVisible()}


def test_a_file_that_is_there_is_replaced_only_when_forced(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    out.write_text("mine")
    with pytest.raises(RecordingError, match="exists already; choose another name or add --force"):
        write_graphs(recording, out, SIZE)
    assert out.read_text() == "mine"
    write_graphs(recording, out, SIZE, force=True)
    assert not QImage(str(out)).isNull()


def test_what_is_no_recording_is_refused_and_nothing_is_left(tmp_path: Path, qapp: QApplication) -> None:
    (tmp_path / "no.gpudash").write_text("hello")
    with pytest.raises(RecordingError, match="is not a recording"):
        write_graphs(tmp_path / "no.gpudash", tmp_path / "out.png", SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["no.gpudash"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_picture(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.svg"
    out.write_text("old")

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RecordingError, match=r"out\.svg cannot be written \(No space left on device\)"):
        write_graphs(recording, out, SIZE, force=True)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a run.gpudash", "out.svg"]

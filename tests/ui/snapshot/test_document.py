"""A snapshot file in a tab: opened, refused, cancelled, closed; its devices, copies and exports."""

from __future__ import annotations

import csv
import pickle
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QImage
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from gpudash.memory.explaining.whole_need import NUMBERLESS, with_need
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.session.recordings.report_folder import write_json, write_steps
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.session.watching.out_of_memory import explanation_of
from gpudash.telemetry.explanation import Need, Remedy
from gpudash.ui.colours import LIGHT, Palette
from gpudash.ui.snapshot.document import SnapshotDocument, fullest
from gpudash.ui.widgets.opening_page import progress_text
from gpudash.units import MIB
from tests.ui.snapshot.conftest import OpenDocument, wait_until_ready
from tests.ui.snapshot.opened import FakeOpened
from tests.unit.session.reports import leaking as kept_of_every_step
from tests.unit.session.reports import refused


@pytest.fixture
def opening(qtbot: QtBot, palette: Palette) -> SnapshotDocument:
    """A document whose file is being read."""
    opened = FakeOpened()
    document = SnapshotDocument(opened, palette)  # type: ignore[arg-type]
    document.fake = opened  # type: ignore[attr-defined]
    qtbot.addWidget(document)
    document.resize(900, 600)
    document.show()
    document.activateWindow()
    qtbot.waitUntil(document.isActiveWindow)
    return document


def test_while_it_is_read_the_numbers_say_how_far(opening: SnapshotDocument) -> None:
    opening.fake.progress = (312_000_000, 940_000_000)  # type: ignore[attr-defined]
    opening.refresh()
    assert opening.opening.label.text() == "312 of 940 MB"
    assert opening.opening.bar.value() == 331 and opening.opening.bar.accessibleDescription() == "312 of 940 MB"
    assert opening.fake.starts == 1 and not opening.ready  # type: ignore[attr-defined]


def test_the_page_is_built_in_parts_while_the_file_is_read(
    opening: SnapshotDocument, qtbot: QtBot, leaking: Snapshot
) -> None:
    fake = opening.fake  # type: ignore[attr-defined]
    tabs: list[int] = []

    def built() -> bool:
        opening.refresh()
        tabs.append(0 if opening._page is None else len(opening.page.findChildren(QWidget)))
        return opening._built

    fake.progress = (1, 2)
    qtbot.waitUntil(built)
    grown = [later - earlier for earlier, later in pairwise(tabs) if later > earlier]
    assert len(grown) >= 6 and max(grown) < sum(grown) / 2, "no part is most of the page"
    assert not opening.ready and opening.opening.isVisible() and opening.opening.label.text() == "0 of 1 kB"
    fake.snapshot = leaking
    wait_until_ready(qtbot, opening)
    assert opening.page.isVisible() and opening.page.study is not None
    opening.close_document()


def test_small_files_are_counted_in_kilobytes_and_the_whole_is_never_less_than_what_was_read() -> None:
    assert progress_text(0, 1_001) == "0 of 2 kB"
    assert progress_text(10_000_000, 10_000_000) == "10 of 10 MB"


def test_esc_and_cancel_give_it_up(opening: SnapshotDocument, qtbot: QtBot) -> None:
    with qtbot.waitSignal(opening.closed):
        qtbot.keyClick(opening.opening.button, Qt.Key.Key_Escape)
    with qtbot.waitSignal(opening.closed):
        opening.opening.button.click()
    opening.close_document()
    assert opening.fake.closings == 1  # type: ignore[attr-defined]


def test_a_refused_file_shows_its_sentence_and_what_a_snapshot_is(opening: SnapshotDocument, qtbot: QtBot) -> None:
    sentence = "run7.pickle is not a torch snapshot: no 'segments' inside. It was not opened."
    opening.fake.refusal = sentence  # type: ignore[attr-defined]
    with qtbot.waitSignal(opening.said) as said:
        opening.refresh()
    page = opening.opening
    assert page.label.text() == sentence == said.args[0]
    assert page.title.text() == "run7.pickle was not opened" and "_dump_snapshot" in page.advice.text()
    assert page.bar.isHidden() and page.button.text().startswith("Close")
    opening.refresh()
    assert not opening.ready


@pytest.mark.process
def test_a_real_file_is_read_by_its_process_and_nothing_is_left_behind(
    qtbot: QtBot, palette: Palette, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.pickle"
    frames = [{"filename": "/home/mia/train.py", "line": 41, "name": "step"}]
    block = {"size": 2**21, "requested_size": 2**21, "address": 2**30, "state": "active_allocated", "frames": frames}
    segment = {
        "device": 0,
        "address": 2**30,
        "total_size": 2**21,
        "stream": 0,
        "segment_type": "large",
        "blocks": [block],
    }
    alloc = {"action": "alloc", "addr": 2**30, "size": 2**21, "stream": 0, "time_us": 10**15, "frames": frames}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[alloc]]}))
    document = SnapshotDocument(OpenedSnapshot(path), palette)
    qtbot.addWidget(document)
    wait_until_ready(qtbot, document)
    assert document.title == "tiny.pickle"
    assert document.page.who.table.model.rows[0][5] == "train.py:41 step"
    document.close_document()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpudash-snapshot")]


@pytest.mark.process
def test_a_real_file_that_is_none_is_refused_in_a_sentence(qtbot: QtBot, palette: Palette, tmp_path: Path) -> None:
    path = tmp_path / "notes.pickle"
    path.write_bytes(pickle.dumps({"loss": [1.0]}))
    document = SnapshotDocument(OpenedSnapshot(path), palette)
    qtbot.addWidget(document)

    def refused() -> bool:
        document.refresh()
        return "was not opened" in document.opening.title.text()

    qtbot.waitUntil(refused)
    assert "notes.pickle" in document.opening.label.text()
    document.close_document()


def test_the_document_opens_on_the_device_with_most_events(two_devices: Snapshot, open_document: OpenDocument) -> None:
    document = open_document(two_devices)
    assert fullest(two_devices) == 1
    choice = document.page.header.device
    assert choice.isVisible() and choice.currentText() == "GPU 3: 242 MiB reserved, out of memory"
    assert "OUT OF MEMORY" in document.page.header.title.text()


def test_another_device_is_worked_out_when_it_is_chosen(
    two_devices: Snapshot, open_document: OpenDocument, qtbot: QtBot
) -> None:
    document = open_document(two_devices)
    document.page.header.device.activated.emit(0)

    def shown() -> bool:
        document.refresh()
        return document.page.header.title.text().startswith("PEAK")

    qtbot.waitUntil(shown)
    assert "GPU 0" in document.page.header.title.text()
    document.page.header.device.activated.emit(1)
    assert "GPU 3" in document.page.header.title.text()


def test_one_device_needs_no_choice(healthy: Snapshot, open_document: OpenDocument) -> None:
    assert not open_document(healthy).page.header.device.isVisible()


def test_what_is_copied_is_the_table_and_reads_back_the_same(leaking: Snapshot, open_document: OpenDocument) -> None:
    document = open_document(leaking)
    document.page.who.table.view.clearSelection()
    document.copy_values()
    lines = [line.split("\t") for line in QGuiApplication.clipboard().text().split("\n")]
    assert lines[0] == ["own", "total", "count", "share", "what", "where"]
    assert lines[1:] == [list(row) for row in document.page.who.table.model.rows]


def test_the_keys_copy_values_and_the_picture(leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot) -> None:
    document = open_document(leaking)
    view = document.page.timeline
    view.setFocus()
    qtbot.keyClick(view, "c", Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text().startswith("own\ttotal")
    qtbot.keyClick(view, "c", Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    image = QGuiApplication.clipboard().image()
    assert image.width() == document.page.width() * image.devicePixelRatio()


def test_the_report_is_copied_as_text(leaking: Snapshot, open_document: OpenDocument) -> None:
    document = open_document(leaking)
    document.page.header.copy.click()
    assert QGuiApplication.clipboard().text().startswith(document.page.header.headline.text())


def test_exports_are_files_that_can_be_read(
    leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot, tmp_path: Path
) -> None:
    document = open_document(leaking)
    document.page.who.table.view.clearSelection()
    document.export("csv", tmp_path / "who.csv")
    with (tmp_path / "who.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1:] == [list(row) for row in document.page.who.table.model.rows]
    document.export("png", tmp_path / "page.png")
    assert not QImage(str(tmp_path / "page.png")).isNull()
    said: list[str] = []
    document.said.connect(said.append)
    document.export("html", tmp_path / "report.html")

    def written() -> bool:
        document.refresh()
        return any(words.startswith("Wrote") for words in said)

    qtbot.waitUntil(written)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "train.py:44" in page and "://" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("kind", ["csv", "png", "html"])
def test_an_export_that_cannot_be_written_says_so(
    leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot, tmp_path: Path, kind: str
) -> None:
    document = open_document(leaking)
    said: list[str] = []
    document.said.connect(said.append)
    document.export(kind, tmp_path / "absent" / f"out.{kind}")

    def told() -> bool:
        document.refresh()
        return any("was not written" in words for words in said)

    qtbot.waitUntil(told)


def test_warnings_of_the_file_are_in_the_evidence(leaking: Snapshot, open_document: OpenDocument) -> None:
    from dataclasses import replace

    words = "The trace contradicts the segments at event 7."
    document = open_document(replace(leaking, warnings=(words,)))
    assert words in document.page.evidence.text()


def test_a_snapshot_that_cannot_be_worked_out_is_told_of(qtbot: QtBot, palette: Palette, leaking: Snapshot) -> None:
    from dataclasses import replace

    broken = replace(leaking, devices=(replace(leaking.devices[0], stacks=()),))
    document = SnapshotDocument(FakeOpened(snapshot=broken), palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)

    def refused() -> bool:
        document.refresh()
        return "cannot be explained" in document.opening.label.text()

    qtbot.waitUntil(refused)
    assert not document.ready
    document.close_document()


def test_closing_while_it_is_worked_out_leaves_no_thread(qtbot: QtBot, palette: Palette, leaking: Snapshot) -> None:
    opened = FakeOpened(snapshot=leaking)
    document = SnapshotDocument(opened, palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)
    document.refresh()
    document.close_document()
    assert not [thread for thread in threading.enumerate() if thread.name == "gpudash-snapshot-study"]
    document.refresh()
    assert not document.ready and opened.closings == 1


def test_the_document_follows_the_theme(leaking: Snapshot, open_document: OpenDocument) -> None:
    document = open_document(leaking)
    document.set_palette(LIGHT)
    QApplication.processEvents()
    image = document.page.timeline.grab().toImage()
    assert image.pixelColor(2, image.height() - 2).name() == LIGHT.panel


def test_a_reports_document_says_what_the_dashboard_said(qtbot: QtBot, palette: Palette, tmp_path: Path) -> None:
    read, steps = kept_of_every_step()
    told = explanation_of(read, refused(steps))
    folder = tmp_path / "2026-11-21-101500-train"
    folder.mkdir()
    write_steps(folder, steps)
    write_json(folder / "explanation.json", told.to_json())
    document = SnapshotDocument(FakeOpened(folder / "snapshot.pickle", read), palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)
    wait_until_ready(qtbot, document)
    assert document.page.header.headline.text() == told.headline
    assert document.page.study is not None and document.page.study.explanation.verdict == "leak"
    assert document.page.study.levels.capacity == 200 * MIB, "what 600 MiB leave beside a context and a process"
    document.page.selector.change(moment=3)
    parts, whole = document.page.study.parts(document.page.selector.now)
    assert sum(part.bytes for part in parts) == whole == told.capacity_bytes
    assert [part.name for part in parts if part.kind == "process"] == ["blender"]
    document.close_document()


def test_a_reports_document_shows_the_need_and_what_was_tried(qtbot: QtBot, palette: Palette, tmp_path: Path) -> None:
    read, steps = kept_of_every_step()
    need = Need(900 * MIB, 600 * MIB, 590 * MIB, 600 * MIB, 8, is_whole=True, seconds=4.0, found_by=NUMBERLESS)
    told = with_need(explanation_of(read, refused(steps)), need)
    write_steps(tmp_path, steps)
    write_json(tmp_path / "explanation.json", told.to_json())
    document = SnapshotDocument(FakeOpened(tmp_path / "snapshot.pickle", read), palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)
    wait_until_ready(qtbot, document)
    assert document.page.study is not None and document.page.study.explanation.need == need
    shown = [remedy.change for remedy in document.page.study.explanation.remedies]
    assert any("900 MiB of the card (" in change for change in shown)
    assert any(
        "without numbers" in label.text() + label.toolTip() for label in document.page.header.findChildren(QLabel)
    )
    document.close_document()


@pytest.mark.parametrize("elsewhere", [True, False], ids=["elsewhere", "changed"])
def test_a_report_whose_source_is_not_as_it_was_shows_the_change_that_it_kept(
    qtbot: QtBot, palette: Palette, tmp_path: Path, elsewhere: bool
) -> None:
    read, steps = kept_of_every_step()
    told = explanation_of(read, refused(steps))
    growing = told.growing[0]
    file = tmp_path / "program" / "train.py"
    patch = PATCH.format(line=growing.line)
    told = replace(told.with_remedies((Remedy("keep a number", fits=True, patch=patch),)), cause="")
    owners = tuple(replace(owner, file=str(file)) for owner in told.owners)
    told = replace(told, owners=owners, growing=tuple(replace(one, file=str(file)) for one in told.growing))
    file.parent.mkdir()
    if not elsewhere:
        file.write_text("print(1)\n")
    write_steps(tmp_path, steps)
    write_json(tmp_path / "explanation.json", told.to_json())
    write_json(tmp_path / "settings.json", {"command": ["python", "train.py"], "folder": str(file.parent)})
    document = SnapshotDocument(FakeOpened(tmp_path / "snapshot.pickle", read), palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)
    wait_until_ready(qtbot, document)
    why = "cannot be read here" if elsewhere else "has changed since"
    assert f"{file} {why}: the change is shown as the report kept it." in document.page.header.remedies.note.text()
    document.show()
    (button,) = (one for one in document.page.header.remedies.findChildren(QPushButton) if one.isVisible())
    assert button.text() == "keep a number" and button.toolTip().startswith("Show the change in the source")
    button.click()
    assert document.page.tabs.currentWidget() is document.page.lines
    source = document.page.lines.view.source
    assert source is not None and source.file == str(file) and "that the run kept" in source.note
    shown = [(row.kind, row.text.strip()) for row in source.rows if row.kind in ("removed", "added")]
    assert shown == [("removed", "history.append(loss)"), ("added", "history.append(loss.item())")]
    lines = document.page.lines
    why = "is not on this computer." if elsewhere else "has changed since the run."
    assert lines.how_to_run.isVisible() and lines.how_to_run.full_text.startswith(f"{file} {why}")
    lines.copy_button.click()
    assert QGuiApplication.clipboard().text() == lines.command.full_text
    assert lines.command.full_text == f"gpudash watch --folder {file.parent} -- python train.py"
    document.close_document()


def test_a_report_without_a_change_of_the_program_says_nothing_of_running_it(
    leaking: Snapshot, open_document: OpenDocument
) -> None:
    document = open_document(leaking)
    document.page.tabs.setCurrentWidget(document.page.lines)
    assert document.page.lines.isVisible()
    assert not (document.page.lines.how_to_run.isVisible() or document.page.lines.copy_button.isVisible())


PATCH = """\
--- train.py
+++ train.py
@@ -{line},1 +{line},1 @@
-    history.append(loss)
+    history.append(loss.item())
"""


def test_what_lies_beside_a_snapshot_and_is_damaged_is_told_of(
    qtbot: QtBot, palette: Palette, tmp_path: Path, leaking: Snapshot
) -> None:
    (tmp_path / "steps.json").write_text("[[1")
    document = SnapshotDocument(FakeOpened(tmp_path / "snapshot.pickle", leaking), palette)  # type: ignore[arg-type]
    qtbot.addWidget(document)
    wait_until_ready(qtbot, document)
    assert "steps.json beside the snapshot was left aside" in document.page.evidence.text()
    document.close_document()

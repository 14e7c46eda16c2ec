"""A recording reopened in the real window: looked at, scrubbed, played, run again; then one that is still written."""

from __future__ import annotations

import os
import signal

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from gpudash.ui.features.view import add_mark
from gpudash.ui.recordings.document import RecordingDocument
from tests.end_to_end.player import Player, Steps

COMMITTED_S = 2.0
"""Everything recorded is committed by then, and so in a copy."""


def reopened(player: Player) -> Steps:
    """Run, reopen what was recorded in a tab, move about in it, run it again; then look at what is still recorded."""
    window, session = player.window, player.session
    window.resize(1440, 960)
    yield lambda: session.torch_ready
    window.workspace.dashboard.panel.change_fields({"width": 32, "depth": 1, "steps": 150, "epochs": 2, "threads": 1})
    window.menus.actions["run.start"].trigger()
    yield lambda: session.running
    yield player.run_ended
    ended_s = session.clock()
    add_mark(window.workspace)
    QTest.keyClicks(window.workspace.dashboard.plots.mark_field, "the end")
    QTest.keyClick(window.workspace.dashboard.plots.mark_field, Qt.Key.Key_Return)
    yield lambda: "user" in {mark.category for mark in session.store.markers}
    with session.store.lock:
        player.seen["marked_s"] = [mark.time_s for mark in session.store.markers if mark.category == "user"]
    yield lambda: session.clock() > ended_s + COMMITTED_S
    copy = player.folder / "training.gpudash"
    session.save_recording(copy)
    window.workspace.open(copy)
    yield lambda: window.workspace.front_dashboard not in (None, window.workspace.dashboard)
    document = window.workspace.front
    assert isinstance(document, RecordingDocument) and document.dashboard is not None and document.replay is not None
    with document.replay.store.lock:
        marks = list(document.replay.store.markers)
    player.seen["reopened_s"] = [mark.time_s for mark in marks if mark.label == "the end"]
    player.seen["title"], player.seen["words"] = window.windowTitle(), document.head.label.text()
    yield from player.pictures("reopened")
    document.bar.slider.setValue(document.bar.slider.maximum() // 2)
    yield lambda: not document.replay.at_end
    player.seen["middle_s"] = document.replay.position_s
    yield from player.pictures("replayed")
    document.bar.speed.setCurrentIndex(document.bar.speed.count() - 1)
    document.bar.toggle()
    yield lambda: document.replay.at_end
    document.run_again.click()
    player.seen["again"] = (
        window.workspace.dashboard.panel.spec().model_dump()["steps"],
        window.workspace.dashboard.panel.device_name,
    )
    window.workspace.open(session.recording_path)
    yield lambda: window.workspace.front_dashboard not in (None, window.workspace.dashboard, document.dashboard)
    followed = window.workspace.front
    assert isinstance(followed, RecordingDocument) and followed.replay is not None
    before = followed.replay.extent_s[1]
    yield lambda: followed.replay.extent_s[1] > before + 1.0
    player.seen["live"] = followed.bar.live
    assert followed.dashboard is not None
    player.seen["followed_steps"] = followed.dashboard.panel.form.values()["steps"]
    player.picture("followed")
    window.workspace.close_documents()
    player.seen["left"] = window.workspace.count


def piped(player: Player) -> Steps:
    """Look at what another process sends until it is alive here, end that process, and look at what came."""
    window = player.window
    window.resize(1440, 960)
    yield lambda: window.workspace.front_dashboard not in (None, window.workspace.dashboard)
    document = window.workspace.front
    assert isinstance(document, RecordingDocument) and document.replay is not None
    yield lambda: document.replay.following and document.replay.extent_s[1] > 1.0
    player.seen["live"], player.seen["title"] = document.bar.live, window.windowTitle()
    os.kill(int(os.environ["SENDER_PID"]), signal.SIGINT)
    yield lambda: bool(document.replay.notices) and not document.replay.following
    yield lambda: bool(document.notice.text)
    player.seen["notice"], player.seen["words"] = document.notice.text, document.head.label.text()
    player.picture("piped")

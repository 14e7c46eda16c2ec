"""Starting ``gpudash``: what waits until the window has been painted, and what begins then."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from gpudash.system.settings import Settings
from gpudash.ui import app as app_module
from tests.programs import python

UNWANTED = (
    "gpudash.memory.explaining",
    "gpudash.memory.serving.plan",
    "gpudash.session.predicting.remedies",
    "gpudash.speed.prediction",
    "numpy.ma",
    "pygments",
    "cyclopts",
    "gpudash.cli.run",
    "gpudash.memory.snapshot",
    "gpudash.session.demo",
    "gpudash.session.fleet",
    "gpudash.session.recordings.library",
    "gpudash.session.report",
    "gpudash.session.serving",
    "gpudash.session.recordings.snapshot_opener",
    "gpudash.sources.prometheus",
    "gpudash.telemetry.comparing",
    "gpudash.telemetry.export",
    "gpudash.ui.recordings.compare.document",
    "gpudash.ui.stage",
    "gpudash.ui.explanation.page",
    "gpudash.ui.fleet",
    "gpudash.ui.recordings.library",
    "gpudash.ui.snapshot.document",
    "gpudash.workloads.programs.parallel",
    "prometheus_client",
    "rich",
    "torch",
)
"""Whatever belongs to another command, or to what is opened from a menu."""

START = """
import gc, json, sys
from gpudash.cli.loading import load_window
load_window()
from PySide6.QtCore import QTimer
from gpudash.cli import run
from gpudash.ui.window.main_window import MainWindow

told = []

def tell(window, event):
    if told:
        return
    told.append(window)
    copied = [len(vars(sys.modules[f"pyqtgraph.Qt.{name}"])) for name in ("QtCore", "QtGui", "QtWidgets")]
    seen = {"modules": sorted(sys.modules), "collecting": gc.isenabled(), "copied": copied}
    print(json.dumps(seen), flush=True)
    QTimer.singleShot(0, window.close)

MainWindow.paintEvent = tell
sys.exit(run([]))
"""


@pytest.mark.process
def test_before_the_first_paint_only_what_it_shows_is_loaded_and_no_garbage_is_looked_for(tmp_path: Path) -> None:
    done = python("-c", START, env={**os.environ, "QT_QPA_PLATFORM": "offscreen", "GPUDASH_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[0])
    loaded = [name for name in seen["modules"] if any(name == part or name.startswith(f"{part}.") for part in UNWANTED)]
    assert "gpudash.ui.dashboard.dashboard" in seen["modules"]
    assert loaded == []
    assert not seen["collecting"]
    assert sum(seen["copied"]) < 200, "pyqtgraph has created types of Qt that nothing uses"


SOURCES = """
import inspect, sys
from pathlib import Path

read = []
getsource = inspect.getsource
inspect.getsource = lambda module: read.append(module.__name__) or getsource(module)
from gpudash.cli.loading import load_window
load_window()
print(len([name for name in read if name.startswith("gpudash")]))
sys.path.insert(0, sys.argv[1])
Path(sys.argv[1], "anothers.py").write_text("import PySide6")
import anothers
print("anothers" in read)
"""


@pytest.mark.process
def test_pyside_reads_the_source_of_nothing_that_the_window_is_made_of_and_of_others_as_before(tmp_path: Path) -> None:
    done = python("-c", SOURCES, str(tmp_path), env={**os.environ, "QT_QPA_PLATFORM": "offscreen"})
    assert done.stdout.split() == ["0", "True"], done.stderr


GARBAGE = """
import threading, weakref
from PySide6.QtWidgets import QLabel
from gpudash.ui.app import application

collected_by = []
app = application()


class Node:
    pass


def make_garbage():
    label = QLabel()
    label.itself = label
    weakref.finalize(label, lambda: collected_by.append(threading.current_thread().name))


def make_objects():
    for _ in range(100_000):
        node = Node()
        node.itself = node


make_garbage()
thread = threading.Thread(target=make_objects, name="other")
thread.start()
thread.join()
assert not collected_by
while not collected_by:
    app.processEvents()
print(*collected_by)
"""


@pytest.mark.process
def test_a_widget_that_is_garbage_is_deleted_by_the_thread_that_made_it() -> None:
    done = python("-c", GARBAGE, env={**os.environ, "QT_QPA_PLATFORM": "offscreen"})
    assert done.stdout.split() == ["MainThread"], done.stderr


class Starting:
    """What is begun of a session."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.requested = 0

    def load_torch(self, isolate: bool) -> None:
        assert isolate, "torch is for the process of a run"
        self.requested += 1


@pytest.fixture
def frozen() -> Iterator[None]:
    """What the start freezes is searched again afterwards."""
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
def test_torch_is_loaded_once_when_the_window_has_been_painted_and_what_is_there_is_searched_never_again(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.unfreeze()
    monkeypatch.setattr(app_module, "PAINTED_MS", 10**6)
    session, window = Starting(), QWidget()
    qtbot.addWidget(window)
    app_module._AfterFirstPaint(window, session)  # type: ignore[arg-type]
    assert session.requested == 0 and gc.get_freeze_count() == 0
    window.show()
    QCoreApplication.sendEvent(window, QEvent(QEvent.Type.Paint))
    assert session.requested == 0
    qtbot.waitUntil(lambda: session.requested == 1)
    assert gc.get_freeze_count() > 0
    window.repaint()
    QCoreApplication.processEvents()
    assert session.requested == 1


@pytest.mark.usefixtures("frozen")
def test_a_window_that_is_never_painted_does_not_keep_torch_waiting(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "PAINTED_MS", 0)
    session, window = Starting(), QWidget()
    qtbot.addWidget(window)
    app_module._AfterFirstPaint(window, session)  # type: ignore[arg-type]
    qtbot.waitUntil(lambda: session.requested == 1)

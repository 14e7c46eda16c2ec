"""Fixtures of every test: nothing outside the temporary folder is written, no thread outlives its test."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)  # a test that fails fails again, here and elsewhere
settings.load_profile("repeatable")

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder into which everything gpudash writes goes during a test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GPUDASH_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and thread.name.startswith(("gpudash", "Thread-"))
    ]
    for thread in left:
        thread.join(1.0)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"left running, stop and join in the test: {alive}"

"""Trace files, each read by a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpudash.memory.profiler_trace.trace_file import TraceError
from gpudash.session.trackers.trace_opener import OpenedTrace
from tests.unit.memory.profiler_trace.traces import document, written

pytestmark = pytest.mark.process

LONGEST_S = 60.0


def test_the_process_reads_the_file_and_is_gone(tmp_path: Path) -> None:
    opened = OpenedTrace(written(tmp_path, document(), "trace.json.gz"))
    opened.start()
    profile = opened.wait(LONGEST_S)
    assert profile is not None and profile.name == "trace.json.gz"
    assert profile.memory[0].peak_bytes == 900 and profile.timeline["lanes"] == ["CPU", "cuda:0"]
    assert opened.close() and opened.poll() == profile, "what was read stays"


def test_a_process_that_ends_is_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    opened = OpenedTrace(path, process=(sys.executable, "-S", "-c", "raise SystemExit(3)"))
    opened.start()
    with pytest.raises(TraceError, match=r"The process that read trace.json ended \(exit code 3\)"):
        opened.wait(LONGEST_S)
    assert opened.close()


def test_one_that_is_closed_while_it_is_read_says_so(tmp_path: Path) -> None:
    waiting = (sys.executable, "-S", "-c", "import sys; sys.stdin.read()")
    opened = OpenedTrace(written(tmp_path, document()), process=waiting)
    opened.start()
    assert opened.poll() is None
    assert opened.close()
    with pytest.raises(TraceError, match="was closed before it was read"):
        opened.poll()

"""What eight gpudash that start at the same moment make is made by each of them, and lost by none."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path

from gpudash.system.files import PrivateFolder
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.recording.schema import recording_name
from gpudash.telemetry.records import Note, Topic
from tests.unit.session.watched import PATIENCE_S

PROCESSES = 8

TIMES = 200

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def together(make: Callable[[Path, int], None], folder: Path, *, in_step: bool) -> Counter[str]:
    """What went wrong when so many processes have called ``make`` so many times.

    Args:
        in_step: whether they wait for each other before each call, or only before the first.
    """
    context = multiprocessing.get_context("fork")
    begin, faults = context.Barrier(PROCESSES), context.SimpleQueue()

    def work(number: int, begin: Barrier) -> None:
        found: Counter[str] = Counter()
        for turn in range(TIMES):
            if in_step or turn == 0:
                begin.wait(PATIENCE_S)
            try:
                make(folder, number * TIMES + turn)
            except (OSError, RecordingError, AssertionError) as error:
                found[str(error)] += 1
        faults.put(found)

    processes = [context.Process(target=work, args=(number, begin)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    found: Counter[str] = Counter()
    for _ in processes:
        found += faults.get()
    for process in processes:
        process.join(PATIENCE_S)
    return found


def make_folder(parent: Path, number: int) -> None:
    """Make a folder, find in it what was put there, and remove it."""
    folder = PrivateFolder(parent, "gpudash-watch-")
    (folder.path / "agent").write_text(str(number))
    assert (folder.path / "agent").read_text() == str(number)
    folder.remove()


def make_recording(folder: Path, number: int) -> None:
    """Record one note, in a recording that has the same name in each process."""
    second = NOON + timedelta(seconds=number % TIMES)
    recorder = Recorder(recording_name(folder, "monitor", second), meta={}, may_number=True)
    recorder.add(Note(time_s=1.0, topic=Topic.PROGRAM, text=str(number)))
    recorder.close()


def test_folders_that_are_made_at_once_are_swept_away_by_nobody(tmp_path: Path) -> None:
    assert together(make_folder, tmp_path / "folders", in_step=False) == Counter()
    assert list((tmp_path / "folders").iterdir()) == []


def test_recordings_that_begin_in_the_same_second_each_get_a_file(tmp_path: Path) -> None:
    assert together(make_recording, tmp_path / "recordings", in_step=True) == Counter()
    texts = []
    for path in (tmp_path / "recordings").iterdir():
        with open_recording(path) as opened:
            texts += [record.text for record in opened.records() if isinstance(record, Note)]
    assert sorted(map(int, texts)) == list(range(PROCESSES * TIMES))

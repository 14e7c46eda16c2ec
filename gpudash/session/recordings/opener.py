"""Recordings on their way into the window: each file is read on its own thread so that the window stays responsive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.system.threads import joined, started
from gpudash.telemetry.recording.recorder import RecordingError

if TYPE_CHECKING:
    from gpudash.session.recordings.loading import Progress
    from gpudash.session.recordings.replay import Replay

logger = logging.getLogger(__name__)


class _GivenUpError(Exception):
    """Nobody waits for the recording any more."""


def read_replay(path: Path, progress: Progress) -> Replay:
    """A replay of the recording at ``path``; see `Replay`."""
    from gpudash.session.recordings.replay import Replay  # imported by the thread that reads, not by the window's

    return Replay(path, progress)


class OpenedRecording:
    """A recording in a file.

    Args:
        path: the recording.
        title: its name in sentences.
        read: creates the replay and reports progress, and stops when the report raises; it may take long.

    Attributes:
        size_bytes: size of the file; 0 if not known.
        part: fraction read so far, from 0 to 1.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        *,
        read: Callable[[Path, Progress], Replay] = read_replay,
    ) -> None:
        self.path = path
        self.title = title
        self._read = read
        self._lock = threading.Lock()
        self._replay: Replay | None = None
        self._problem = ""
        self._given_up = False
        self.part = 0.0
        try:
            self.size_bytes = path.stat().st_size
        except OSError:
            self.size_bytes = 0
        self._thread = started("gpudash-open-recording", self._load)

    def poll(self) -> Replay | None:
        """The recording, which the caller must close; ``None`` while it is being read.

        Raises:
            RecordingError: one sentence, when it cannot be read.
        """
        with self._lock:
            if self._problem:
                raise RecordingError(self._problem)
            replay, self._replay = self._replay, None
            return replay

    def give_up(self) -> None:
        """Abandon the recording: at once if it has been read, else as soon as reading ends."""
        with self._lock:
            self._given_up = True
            replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; false if it did not end in time."""
        return joined(self._thread, timeout_s)

    def _on_progress(self, part: float) -> None:
        self.part = part
        if self._given_up:
            raise _GivenUpError

    def _load(self) -> None:
        replay, problem = None, ""
        try:
            replay = self._read(self.path, self._on_progress)
        except _GivenUpError:
            return
        except RecordingError as error:
            problem = str(error)
        except FileNotFoundError:
            problem = f"There is no file {self.path} any more."
        except Exception as error:
            logger.exception("a recording cannot be opened")
            problem = f"{self.title} cannot be read ({type(error).__name__}: {error})."
        with self._lock:
            self._problem = problem
            if not self._given_up:
                self._replay = replay
                return
        if replay is not None:
            replay.close()


class OpenedReplay:
    """A replay that already exists, such as one of a stream.

    Args:
        replay: owned by the caller that receives it from `poll`.
        title: its name in sentences.

    Attributes:
        path: the title, since there is no file of the user's.
    """

    size_bytes = 0
    part = 1.0

    def __init__(self, replay: Replay, title: str) -> None:
        self.title = title
        self.path = title
        self._replay: Replay | None = replay

    def poll(self) -> Replay | None:
        """The replay, which the caller must close; ``None`` once it has been returned."""
        replay, self._replay = self._replay, None
        return replay

    def give_up(self) -> None:
        """Close the replay, unless it has been returned."""
        replay = self.poll()
        if replay is not None:
            replay.close()

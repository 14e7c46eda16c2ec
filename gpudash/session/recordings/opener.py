"""Recordings on their way into the window: a file is read by a thread of its own, so that the window goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpudash.session.recordings.loading import Progress
from gpudash.session.recordings.replay import Replay
from gpudash.telemetry.recording.recorder import RecordingError


class _GivenUpError(Exception):
    """Nobody waits for the recording any more."""


class OpenedRecording:
    """One file.

    Args:
        path: the recording.
        title: what sentences about it call it.
        read: makes the replay, tells the part it has read, and stops where telling raises; it may take long.

    Attributes:
        size_bytes: how large the file is; 0 where that cannot be told.
        part: how much of it has been read, from 0 to 1.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        *,
        read: Callable[[Path, Progress], Replay] = Replay,
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
        self._thread = threading.Thread(target=self._load, name="gpudash-open-recording", daemon=True)
        self._thread.start()

    @property
    def place(self) -> Path:
        """The file."""
        return self.path

    def poll(self) -> Replay | None:
        """The recording, which is the caller's to close; ``None`` while it is being read.

        Raises:
            RecordingError: one sentence, when it cannot be read.
        """
        with self._lock:
            if self._problem:
                raise RecordingError(self._problem)
            replay, self._replay = self._replay, None
            return replay

    def give_up(self) -> None:
        """Let go of the recording: at once when it has been read, else when reading ends."""
        with self._lock:
            self._given_up = True
            replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; false when it did not end in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _tell(self, part: float) -> None:
        self.part = part
        if self._given_up:
            raise _GivenUpError

    def _load(self) -> None:
        replay, problem = None, ""
        try:
            replay = self._read(self.path, self._tell)
        except _GivenUpError:
            return
        except RecordingError as error:
            problem = str(error)
        except FileNotFoundError:
            problem = f"There is no file {self.path} any more."
        except Exception as error:
            problem = f"{self.title} cannot be read ({type(error).__name__}: {error})."
        with self._lock:
            self._problem = problem
            if not self._given_up:
                self._replay = replay
                return
        if replay is not None:
            replay.close()


class OpenedReplay:
    """A replay that is there already, such as one over a stream.

    Args:
        replay: belongs to whom `poll` gives it.
        title: what sentences about it call it.
    """

    size_bytes = 0
    part = 1.0

    def __init__(self, replay: Replay, title: str) -> None:
        self.title = title
        self.place = title
        self._replay: Replay | None = replay

    def poll(self) -> Replay | None:
        """The replay, which is the caller's to close; ``None`` once it has been given."""
        replay, self._replay = self._replay, None
        return replay

    def give_up(self) -> None:
        """Close the replay, unless it has been given."""
        replay = self.poll()
        if replay is not None:
            replay.close()

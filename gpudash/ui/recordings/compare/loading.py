"""Reading the runs of a comparison in a thread, with names that tell them apart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gpudash.session.recordings.comparing.comparison_loader import CancelledError, load_run, split_run
from gpudash.session.recordings.comparing.run_labels import distinguished
from gpudash.telemetry.comparing import ComparedRun
from gpudash.telemetry.recording.recorder import RecordingError

logger = logging.getLogger(__name__)

Load = Callable[[Path, int | None, Callable[[], bool]], ComparedRun]


def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
    """`load_run` with the arguments that the thread passes."""
    return load_run(path, number, named=True, cancelled=cancelled)


class LoadingRuns(threading.Thread):
    """Reads recordings one after another; the caller polls `done`.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        load: reads one recording.

    Attributes:
        runs: the runs in the order of the paths, once all are read.
        problem: one sentence if a recording cannot be read.
    """

    def __init__(self, paths: Sequence[Path], load: Load = load) -> None:
        super().__init__(name="gpudash-comparison", daemon=True)
        self.runs: list[ComparedRun] = []
        self.problem = ""
        self.reading = ""
        self._paths = list(paths)
        self._load = load
        self._unwanted = threading.Event()

    @property
    def done(self) -> bool:
        """Whether the thread has finished, with the runs or with a problem."""
        # The thread ends with either; `run` has no third outcome.
        return not self.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Stop reading, and wait up to ``timeout_s`` for the thread to end."""
        self._unwanted.set()
        self.join(timeout_s)

    def run(self) -> None:
        runs = []
        try:
            for path in self._paths:
                self.reading = path.name
                runs.append(self._load(*split_run(str(path)), self._unwanted.is_set))
        except CancelledError:
            return
        except RecordingError as error:
            self.problem = f"{error}."
        # Some errors have no text from the system.
        except OSError as error:
            self.problem = f"{self.reading} cannot be read: {error.strerror or error}."
        except Exception as error:  # report errors caused by the file's content
            logger.exception("runs could not be compared")
            self.problem = f"{self.reading} cannot be compared ({type(error).__name__}: {error})."
        else:
            self.runs = distinguished(runs, self._paths)

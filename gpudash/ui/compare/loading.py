"""Reads the runs of a comparison in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gpudash.session.comparing import CancelledError, load_run, split_run
from gpudash.telemetry.comparing import ComparedRun
from gpudash.telemetry.recorder import RecordingError

Load = Callable[[Path, int | None, Callable[[], bool]], ComparedRun]


def load(path: Path, number: int | None, cancelled: Callable[[], bool]) -> ComparedRun:
    """`load_run`, as a thread calls it."""
    return load_run(path, number, cancelled=cancelled)


class LoadingRuns(threading.Thread):
    """Reads recordings one after another; whoever started it looks at `done` now and then.

    Args:
        paths: recordings, each ``FILE`` or ``FILE#N``.
        load: reads one.

    Attributes:
        runs: in the order of the paths, once all are read.
        problem: one sentence, when one cannot be read.
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
        """Whether there is an answer: runs, or a problem."""
        return not self.is_alive()

    def cancel(self, timeout_s: float) -> None:
        """Read no further, and wait up to ``timeout_s`` for the thread to end."""
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
        except OSError as error:
            self.problem = f"{self.reading} cannot be read: {error.strerror or error}."
        except Exception as error:  # whatever a file's content leads to is told, not raised into nothing
            self.problem = f"{self.reading} cannot be compared ({type(error).__name__}: {error})."
        else:
            self.runs = runs

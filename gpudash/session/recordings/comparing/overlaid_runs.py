"""Recorded runs over the live plots: a thread reads them and shifts them to the store's time, so no frame waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpudash.drawing.axes import Style
from gpudash.session.recordings.comparing.comparison_loader import CancelledError, load_run, split_run
from gpudash.session.recordings.comparing.run_labels import distinguished, short_labels
from gpudash.system.threads import joined, started
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun
from gpudash.telemetry.comparing.comparison import LETTERS, RUN_CURVES
from gpudash.telemetry.comparing.curves import MEMORY, Quantity, aligned, shared_memory
from gpudash.telemetry.plots import LAID_OVER, CurveSpec, PlotSpec
from gpudash.telemetry.readings import Key
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

STYLES: tuple[Style, ...] = ("solid", "solid", "solid", "solid", "solid", "dash")
"""Style of each run, in the colours of `RUN_CURVES`; the last is also that of a loss, and so dashed."""

JOIN_S = 1.0

Load = Callable[[str, Callable[[], bool]], ComparedRun]
"""Loads the run at a place, ``FILE`` or ``FILE#N``, until it is cancelled."""


def _load(place: str, cancelled: Callable[[], bool]) -> ComparedRun:
    path, number = split_run(place)
    return load_run(path, number, named=True, cancelled=cancelled)


class OverlaidRuns:
    """The runs that are overlaid on what a session shows, each from its own start.

    Args:
        store: the session's; it draws the runs like its own, and neither records nor serves them.
        load: loads a run.

    Attributes:
        problem: why a run could not be read, one sentence; "" if none.
        span: session times of the common start and the latest end of what is drawn; ``None`` while nothing is.
    """

    def __init__(self, store: Store, load: Load = _load) -> None:
        self._store = store
        self._load = load
        self._places: tuple[str, ...] = ()
        self._began_s = 0.0
        self._known: dict[str, ComparedRun] = {}
        self._shown: tuple[tuple[str, str, frozenset[str]], ...] = ()
        self._number = 0
        self._thread: threading.Thread | None = None
        self.problem = ""
        self.span: tuple[float, float] | None = None

    @property
    def chosen(self) -> bool:
        """Whether any runs are overlaid."""
        return bool(self._places)

    def choose(self, places: Sequence[Path], began_s: float) -> None:
        """Overlay these runs, the first `MOST_RUNS` of them, starting at ``began_s`` of the session's time."""
        self._places = tuple(map(str, places[:MOST_RUNS]))
        self.span = None
        self._begin(began_s)

    def align(self, began_s: float) -> None:
        """Move their starts to ``began_s``."""
        if self._places and began_s != self._began_s:
            self._begin(began_s)

    def _begin(self, began_s: float) -> None:
        self._began_s = began_s
        self._number += 1
        self.problem = ""
        if not self._places:
            self._publish(self._number, (), {}, None)
            return
        self._thread = started("gpudash-laid-runs", self._work, self._number, self._places, began_s)

    def _work(self, number: int, places: Sequence[str], began_s: float) -> None:
        runs: list[ComparedRun] = []
        paths: list[Path] = []
        for place in places:
            try:
                if place not in self._known:
                    self._known[place] = self._load(place, lambda: number != self._number)
                runs.append(self._known[place])
                paths.append(Path(place))
            except CancelledError:
                return
            except (RecordingError, OSError, ValueError) as error:
                logger.warning("a run could not be laid over: %s", error)
                self.problem = str(error)
        shown = []
        series: dict[Key, Series] = {}
        memory = shared_memory(runs)
        runs = distinguished(runs, paths)
        short = short_labels([run.label for run in runs])
        for letter, run, label in zip(LETTERS, runs, short, strict=False):
            curves = _series_of(run, memory, began_s)
            shown.append((f"{letter} {label}", f"{run.label}, from its start", frozenset(curves)))
            series |= {(LAID_OVER, name, letter): curve for name, curve in curves.items()}
        ends = [extent[1] for curve in series.values() if (extent := curve.extent()) is not None]
        span = None
        if ends:
            span = (began_s, max(ends))
        self._publish(number, shown, series, span)

    def _publish(
        self,
        number: int,
        shown: Sequence[tuple[str, str, frozenset[str]]],
        series: Mapping[Key, Series],
        span: tuple[float, float] | None,
    ) -> None:
        with self._store.lock:
            # A newer choice has been made: its own thread has the last word.
            if number != self._number:
                return
            self._shown = tuple(shown)
            self.span = span
            self._store.lay_over(series)

    def on(self, plots: Sequence[PlotSpec]) -> tuple[PlotSpec, ...]:
        """The plots with a thin curve for each run; called under the store's lock."""
        if not self._shown:
            return tuple(plots)
        return tuple(replace(plot, curves=(*plot.curves, *self._curves(plot))) for plot in plots)

    def _curves(self, plot: PlotSpec) -> list[CurveSpec]:
        found = []
        for place, (name, note, plots) in enumerate(self._shown):
            if plot.id not in plots:
                continue
            key = (LAID_OVER, plot.id, LETTERS[place])
            colour, style = RUN_CURVES[place], STYLES[place]
            curve = CurveSpec(key, name, plot.unit, colour, style, unit_name=plot.unit_name, note=note)
            found.append(curve)
        return found

    def close(self) -> bool:
        """Stop reading; false if the thread did not end in time."""
        self._number += 1
        return joined(self._thread, JOIN_S)


def _series_of(run: ComparedRun, memory: Quantity | None, began_s: float) -> dict[str, Series]:
    """The curves of a run by the plots that they belong to, shifted to ``began_s``."""
    # If the runs have no kind of memory in common, each shows its own.
    if memory is None:
        memory = next((name for name in MEMORY if name in run.memory), None)
    wanted: dict[str, Quantity | None] = {"memory": memory, "loss": "loss", "throughput": "throughput"}
    found = {}
    for plot, quantity in wanted.items():
        if quantity is None:
            continue
        curve = aligned(run, quantity, "start")
        if not len(curve.x):
            continue
        # A series thins its values on request, like those of the session: a frame costs the same for any length.
        series = Series()
        series.extend(curve.x + began_s, curve.y)
        found[plot] = series
    return found

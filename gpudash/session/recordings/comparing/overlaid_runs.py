"""Recorded runs over the live plots: a thread reads them and shifts them to the store's time, so no frame waits."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudash.devices.names import badged_name
from gpudash.drawing.axes import Style, Unit
from gpudash.session.recordings.comparing.comparison_loader import CancelledError, load_run, split_run
from gpudash.session.recordings.comparing.run_labels import distinguished, short_labels
from gpudash.system.threads import joined, started
from gpudash.telemetry.comparing import MOST_RUNS, ComparedRun
from gpudash.telemetry.comparing.comparison import LETTERS, RUN_CURVES
from gpudash.telemetry.comparing.curves import MEMORY, Quantity, aligned, shared_memory
from gpudash.telemetry.plots import LAID_OVER, CurveSpec, PlotSpec
from gpudash.telemetry.readings import Key
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.runs import WATCH, item_of
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Store

logger = logging.getLogger(__name__)

STYLES: tuple[Style, ...] = ("solid", "solid", "solid", "solid", "solid", "dash")
"""Style of each run, in the colours of `RUN_CURVES`; the last is also that of a loss, and so dashed."""

JOIN_S = 1.0

Load = Callable[[str, Callable[[], bool]], ComparedRun]
"""Loads the run at a place, ``FILE`` or ``FILE#N``, until it is cancelled."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """What the values of a run are of; they may be drawn only over readings of the same.

    Attributes:
        plot: id of the plot for such values.
        unit, unit_name: as of a `CurveSpec`.
        of_host: whether it is memory of the host, and not of a GPU.
    """

    plot: str
    unit: Unit
    unit_name: str = ""
    of_host: bool = False

    def is_of(self, plot: PlotSpec) -> bool:
        """Whether a plot shows such values."""
        of_host = plot.id == "memory" and any(curve.key[0] == "host" for curve in plot.curves)
        return (plot.id, plot.unit, plot.unit_name, of_host) == (self.plot, self.unit, self.unit_name, self.of_host)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A run that is overlaid.

    Attributes:
        name, note: its legend entry and that entry's tooltip.
        device: name of its device.
        axes: what its curves are of.
    """

    name: str
    note: str
    device: str
    axes: tuple[_Axis, ...]


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
        self._shown: tuple[_Shown, ...] = ()
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
        shown: list[_Shown] = []
        series: dict[Key, Series] = {}
        memory = shared_memory(runs)
        runs = distinguished(runs, paths)
        short = short_labels([run.label for run in runs])
        for letter, run, label in zip(LETTERS, runs, short, strict=False):
            curves = _series_of(run, memory, began_s)
            axes = tuple(_axis_of(run, name) for name in curves)
            note = f"{run.label}, from its start"
            shown.append(_Shown(f"{letter} {label}", note, badged_name(run.view.device), axes))
            series |= {(LAID_OVER, name, letter): curve for name, curve in curves.items()}
        ends = [extent[1] for curve in series.values() if (extent := curve.extent()) is not None]
        span = None
        if ends:
            span = (began_s, max(ends))
        self._publish(number, shown, series, span)

    def _publish(
        self,
        number: int,
        shown: Sequence[_Shown],
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
        """The plots with a thin curve for each run; called under the store's lock.

        A run is drawn over readings of the same only: where no plot shows GPU memory, that of runs on a GPU gets a
        plot of its own, and so do steps a second beside items a second.
        """
        curves = defaultdict(list)
        for place, run in enumerate(self._shown):
            for axis in run.axes:
                curves[axis].append(_curve(place, run, axis))
        found = []
        for plot in plots:
            laid = [curve for axis in list(curves) if axis.is_of(plot) for curve in curves.pop(axis)]
            found.append(replace(plot, curves=(*plot.curves, *laid)))
        own = [_own_plot(axis, laid, self._devices_of(axis)) for axis, laid in curves.items()]
        return (*found, *own)

    def _devices_of(self, axis: _Axis) -> Iterable[str]:
        """Names of the devices of the runs that have such values."""
        return dict.fromkeys(run.device for run in self._shown if axis in run.axes)

    def close(self) -> bool:
        """Stop reading; false if the thread did not end in time."""
        self._number += 1
        return joined(self._thread, JOIN_S)


def _axis_of(run: ComparedRun, plot: str) -> _Axis:
    """What a run's values in a plot are of."""
    if plot == "memory":
        return _Axis(plot, "bytes", of_host=run.view.device == "cpu")
    if plot == "throughput":
        return _Axis(plot, "number", f"{item_of(run.view.workload)}/s")
    if run.view.workload == WATCH:
        return _Axis(plot, "loss")
    return _Axis(plot, "nats")


def _curve(place: int, run: _Shown, axis: _Axis) -> CurveSpec:
    key = (LAID_OVER, axis.plot, LETTERS[place])
    colour, style = RUN_CURVES[place], STYLES[place]
    return CurveSpec(key, run.name, axis.unit, colour, style, unit_name=axis.unit_name, note=run.note)


def _own_plot(axis: _Axis, curves: Sequence[CurveSpec], devices: Iterable[str]) -> PlotSpec:
    """The plot of values that no plot of the session shows."""
    subject = ""
    if axis.plot == "memory":
        subject = f" {', '.join(devices)}"
    return PlotSpec(
        id=f"{axis.plot} of overlaid runs {axis.unit_name or axis.unit}",
        title=f"{axis.plot.upper()}{subject} · overlaid runs",
        curves=tuple(curves),
        unit=axis.unit,
        unit_name=axis.unit_name,
    )


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

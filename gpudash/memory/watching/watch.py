"""Watches how full each memory is, and the health of each GPU: raises warnings with hysteresis, and forecasts when
memory will be full."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpudash.memory.watching.forecaster import Forecaster
from gpudash.memory.watching.growth import FAIRLY_FULL, HORIZON_S, SOON_S, Forecast, is_due
from gpudash.memory.watching.hardware import HardwareWatch
from gpudash.memory.watching.levels import HOST, Guard, Level, LevelReader
from gpudash.specs import PressureSpec
from gpudash.telemetry import records
from gpudash.telemetry.readings import PROCESSES_S
from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, Sample, StepFinished, Value, Warning
from gpudash.telemetry.records import Level as Gravity
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.units import format_bytes, format_left, format_number, format_pair, format_percent, memory_unit

STOP, FREE, SAVE = "stop", "free_cache", "save_recording"
"""Actions that a warning may offer; for another machine's memory only `SAVE`."""

GUARD_RATIO = 0.8
"""Part of the way to a guard's level (from the use when it was armed) that must be covered before a forecast becomes a
warning: a run that stops well below its guard needs none."""

CALM_S = 2.0
"""Time without a forecast after which a growth has ended."""

ROUNDING = 1e-9
"""Tolerance for ratios such as 0.85 − 0.05, which floats miss by a hair."""


@dataclass(slots=True)
class _Memory:
    """The state of one memory.

    `height`: 0 normal, 1 above the warning level, 2 above the critical one. `idle`: bytes in torch's cache. `time_s`:
    time of the newest reading, in its forecaster's units.
    """

    forecaster: Forecaster = field(default_factory=Forecaster)
    time_s: float = 0.0
    level: Level | None = None
    ahead: Forecast | None = None
    height: int = 0
    foretold: bool = False
    growing_s: float = 0.0
    guard_level: int | None = None
    guard_base: int = 0
    cause: str | None = None
    idle: int = 0


class MemoryWatch:
    """Turns readings into warnings. Belongs to one thread, except `forecast` and `standing`, which any may call.

    Args:
        warn_ratio: how full memory must be for a warning.
        critical_ratio: how full it must be for a critical warning.
        hysteresis_ratio: how far below a level it must fall for the warning to end.

    Attributes:
        describe: returns the name of a memory ("host" or a GPU's UUID) for the beginning of a sentence.
        memory_of: returns the memory of torch's device ("cpu", "cuda:0"); ``None`` if unknown.
        pool_of: returns the memory to watch for another one: itself, one that contains it, or "" for none.
        guards: guard of the current run, by memory.
        interval_of: returns the seconds between two readings of a memory if they are rare; ``None`` if they come many
            times a second.
        is_here: whether the memories are this computer's, so that programs can be stopped.
    """

    def __init__(self, warn_ratio: float = 0.85, critical_ratio: float = 0.95, hysteresis_ratio: float = 0.05) -> None:
        self.is_here = True
        self.describe: Callable[[str], str] = _describe
        self.memory_of: Callable[[str], str | None] = _memory_of
        self.pool_of: Callable[[str], str] = str
        self.guards: Mapping[str, Guard] = {}
        self.interval_of: Callable[[str], float] | None = None
        self._levels = (warn_ratio, critical_ratio)
        self._hysteresis = hysteresis_ratio
        self._reader = LevelReader()
        self._hardware = HardwareWatch(lambda uuid: self.describe(uuid))
        self._memories: dict[str, _Memory] = {}
        self._stepping: set[str] = set()
        self._run: RunStarted | None = None
        self._processes: dict[str, tuple[float, list[Mapping[str, Value]]]] = {}

    def set_levels(self, warn_ratio: float, critical_ratio: float, hysteresis_ratio: float) -> None:
        """Use other levels from the next reading on; arguments as in the constructor."""
        self._levels = (warn_ratio, critical_ratio)
        self._hysteresis = hysteresis_ratio

    def observe(self, sample: Sample, *, forecasts: bool = True) -> list[Event]:
        """Process a reading; returns at most one warning about memory, and one about hardware, usually none.

        A gap changes nothing: a memory that cannot be read is neither filling nor safe.

        Args:
            sample: a sample of any table.
            forecasts: whether to recompute the forecast of a memory that is read rarely, which takes about 0.3 ms;
                otherwise the previous one stays.
        """
        if sample.table == "process":
            self._process(sample)
            return []
        if sample.table == "allocator":
            self._allocator(sample)
            return []
        return [*self._levels_news(sample, forecasts), *self._hardware.observe(sample)]

    def _levels_news(self, sample: Sample, forecasts: bool) -> list[Event]:
        found = self._reader.read(sample)
        if found is None:
            return []
        name, level = found
        if self.pool_of(name) != name:
            return []
        memory = self._memory(name)
        if self.interval_of is None:
            self._follow(name, memory, level)
        else:
            self._follow_slowly(memory, level, self.interval_of(name), forecasts=forecasts)
        warning = self._threshold(name, memory, level) or self._growth(name, memory, level)
        if warning is None:
            return []
        return [warning]

    def observe_event(self, event: Event) -> None:
        """Process an event of a run: its start, its steps and its end divide readings into intervals of equal phase.

        Steps count for the memory of the run's device and, since its data pass through it, for the host's.
        """
        match event:
            case RunStarted():
                self._run = event
                self._stepping = {HOST, self.pool_of(self.memory_of(event.device) or HOST)}
                for name in self._stepping:
                    self._begin(name)
            case StepFinished():
                for name in self._stepping:
                    self._memory(name).forecaster.observe_step(event.time_s, event.step, event.steps)
            case Note(topic=records.Topic.DEVICE):
                self._turn_to(str(event.details.get("device")))
            case Warning(cause=str()):
                self.set_cause(event.device, event.cause)
            case _ if isinstance(event, RunEnd):
                for name in self._stepping:
                    self._begin(name)
                self._run = None
                self._stepping = set()
            case _:
                pass

    def _turn_to(self, device: str) -> None:
        """Record that the run uses a device, or restarts on it: its steps then also count for that device's memory."""
        name = self.memory_of(device)
        if self._stepping and name is not None:
            self._stepping = {*self._stepping, self.pool_of(name)}
            self._begin(name)

    def _begin(self, name: str) -> None:
        """Reset for a new run: the previous one says nothing about it."""
        memory = self._memory(name)
        memory.cause = None
        memory.forecaster.begin_run()

    def set_cause(self, device: str, cause: str | None) -> None:
        """Set what grows in ``device`` ("host" or a UUID) in this run, for a sentence; ``None`` for unknown."""
        memory = self._memory(device)
        memory.cause = cause
        memory.forecaster.set_cause(cause)

    def forecast(self, device: str) -> Forecast | None:
        """When ``device`` ("host" or a UUID) reaches its capacity or its guard; ``None`` if it does not grow."""
        memory = self._memories.get(self.pool_of(device))
        if memory is None:
            return None
        return memory.ahead

    def present(self, memory: str) -> list[Warning]:
        """The current warnings: memory is above a level, or else about to be full; and the problems of its GPU."""
        full = self._present_level(memory)
        return [*([] if full is None else [full]), *self._hardware.present(memory)]

    def _present_level(self, memory: str) -> Warning | None:
        name = self.pool_of(memory)
        found = self._memories.get(name)
        if found is None or found.level is None:
            return None
        if found.height:
            return self._past(name, found, found.level)
        if found.foretold and found.ahead is not None:
            return self._warning("forecast", name, found.level, self._filling(name, found.ahead, found.level))
        return None

    def forget(self, memory: str) -> None:
        """Delete everything known about a memory."""
        self._memories.pop(memory, None)

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """``warning`` with the newest figures and the possible actions; ``None`` if nothing newer is known.

        Args:
            warning: a current warning about memory.
            ahead: result of `forecast` for that memory, so that others can show the same one.
        """
        name = self.pool_of(warning.device)
        memory = self._memories.get(name)
        level = None
        if memory is not None:
            level = memory.level
        if memory is None or level is None or (warning.level == "note" and warning.cause is None):
            return None
        if warning.level in ("warning", "critical"):
            text = self._full(name, level, ahead, memory.cause)
        elif warning.level == "forecast" and ahead is not None:
            text = self._filling(name, ahead, level)
        else:
            grows = warning.text
            if warning.cause is None:
                grows = _grows(memory.cause)
            text = f"{grows} {self.describe(name)}: {_pair(level)}{_left(ahead)}.".lstrip()
        return replace(warning, text=text, actions=self._actions(name))

    def _actions(self, name: str) -> tuple[str, ...]:
        """The possible actions for a memory: Stop applies to the run that uses it, Free to the cache of gpudash's
        runs."""
        if not self.is_here:
            return (SAVE,)
        run = None
        if name in self._stepping:
            run = self._run
        watches = run is not None and run.workload == WATCH
        stops = run is not None and not (watches and "pid" in run.spec)  # an attached process is left running
        frees = not watches and (run is not None or name == HOST or self._holds_itself(name))
        found = [SAVE]
        if frees:
            found.insert(0, FREE)
        if stops:
            found.insert(0, STOP)
        return tuple(found)

    def _memory(self, name: str) -> _Memory:
        return self._memories.setdefault(self.pool_of(name), _Memory())

    def _follow(self, name: str, memory: _Memory, level: Level) -> None:
        memory.level = level
        memory.forecaster.observe(level.time_s, level.used, level.capacity)
        guard = self.guards.get(name)
        guard_level = None
        if guard is not None:
            guard_level = guard.level_bytes
        if guard_level is not None:
            guard_level += level.driver_reserved  # the guard uses the driver's figure, which excludes its own memory
        if guard_level != memory.guard_level:
            # Progress towards the guard is measured from where it was set.
            memory.guard_level = guard_level
            memory.guard_base = level.used
        memory.ahead = memory.forecaster.forecast(guard_level)

    def _follow_slowly(self, memory: _Memory, level: Level, interval_s: float, *, forecasts: bool) -> None:
        """Process readings that come every ``interval_s``.

        The forecaster is designed for readings many times a second. Here it counts in readings instead of seconds, so
        that it looks back over equally many readings.
        """
        if memory.level is not None:
            memory.time_s += (level.time_s - memory.level.time_s) / interval_s
        memory.level = level
        memory.forecaster.observe(memory.time_s, level.used, level.capacity)
        if level.ratio < FAIRLY_FULL:
            memory.ahead = None  # emptier memories would not be reported
            return
        if not forecasts:
            return
        ahead = memory.forecaster.forecast()
        memory.ahead = None
        if ahead is not None:
            memory.ahead = replace(
                ahead,
                seconds_low=ahead.seconds_low * interval_s,
                seconds=ahead.seconds * interval_s,
                seconds_high=ahead.seconds_high * interval_s,
                bytes_per_second=ahead.bytes_per_second / interval_s,
            )

    def _allocator(self, sample: Sample) -> None:
        name = self.memory_of(sample.device or "")
        allocated, reserved = map(sample.values.get, ("allocated_bytes", "reserved_bytes"))
        if name is None or not isinstance(allocated, int | float) or not isinstance(reserved, int | float):
            return
        self._memory(name).idle = max(0, int(reserved - allocated))
        peak = sample.values.get("peak_allocated_bytes")
        known = None
        if isinstance(peak, int | float):
            known = peak
        self._memory(name).forecaster.observe_allocator(sample.time_s, allocated, reserved, known)

    def _threshold(self, name: str, memory: _Memory, level: Level) -> Warning | None:
        """A warning for each crossing upwards, and a "passed" one after falling below the lowest level."""
        before = memory.height
        ratio = level.ratio
        # Up immediately, down only below the level minus the hysteresis: swings around a level cause one warning.
        reached = sum(ratio >= limit - ROUNDING for limit in self._levels)
        held = sum(ratio >= limit - self._hysteresis - ROUNDING for limit in self._levels)
        memory.height = max(reached, min(before, held))
        if memory.height > before:
            return self._past(name, memory, level)
        if before and not memory.height:
            memory.foretold = False
            text = f"Memory pressure on {self.describe(name)} is over: {_pair(level)} in use."
            return self._warning("passed", name, level, text)
        return None

    def _past(self, name: str, memory: _Memory, level: Level) -> Warning:
        gravity: Gravity = "warning"
        if memory.height == 2:
            gravity = "critical"
        return self._warning(gravity, name, level, self._full(name, level, memory.ahead, memory.cause))

    def _growth(self, name: str, memory: _Memory, level: Level) -> Warning | None:
        """A warning for a growth that ends soon; a "passed" one when it has ended, unless the memory has another
        warning."""
        ahead = memory.ahead
        if ahead is not None:
            memory.growing_s = level.time_s
        if memory.foretold and level.time_s - memory.growing_s >= CALM_S:
            memory.foretold = False
            text = f"{self.describe(name)} has stopped filling at {_pair(level)}."
            if memory.height:
                return None
            return self._warning("passed", name, level, text)
        if ahead is None or memory.foretold or not self._due(memory, ahead, level):
            return None
        memory.foretold = True
        return self._warning("forecast", name, level, self._filling(name, ahead, level))

    def _due(self, memory: _Memory, ahead: Forecast, level: Level) -> bool:
        if ahead.limit == "guard":
            way = ahead.limit_bytes - memory.guard_base
            return ahead.seconds < SOON_S and way > 0 and level.used - memory.guard_base >= GUARD_RATIO * way
        return is_due(ahead, SOON_S if self.interval_of is None else HORIZON_S)

    def _warning(self, gravity: Gravity, name: str, level: Level, text: str) -> Warning:
        actions: tuple[str, ...] = ()
        if gravity != "passed":
            actions = self._actions(name)
        return Warning(time_s=level.time_s, level=gravity, device=name, text=text, ratio=level.ratio, actions=actions)

    def _full(self, name: str, level: Level, ahead: Forecast | None, cause: str | None) -> str:
        used = f"{_pair(level)}{_share(level)}"
        parts = [
            f"{self.describe(name)} is {format_percent(level.ratio)} full: {used}{_left(ahead)}.",
            _grows(cause) or self._biggest_user(name),
        ]
        if self.is_here:
            parts.append(self._advice(name, "close what you do not need"))
        return " ".join(filter(None, parts))

    def _filling(self, name: str, ahead: Forecast, level: Level) -> str:
        low = round(ahead.seconds_low)
        high = round(ahead.seconds_high)
        seconds = format_left(ahead.seconds)
        if ahead.seconds >= 1 and high > low:
            seconds += f" ({low}–{high} s)"
        unit = memory_unit(level.capacity)
        rate = f"+{_rounded(ahead.bytes_per_second, unit)}/s"
        if ahead.bytes_per_step is not None:
            rate += f", +{_rounded(ahead.bytes_per_step, unit)} per step"
        if ahead.cause is None:
            cause = ""
        else:
            cause = f" {_grows(ahead.cause)}"
        if ahead.limit == "guard":
            used = format_pair(level.used, ahead.limit_bytes)
            return f"{self.describe(name)} reaches the guard in about {seconds}: {used}, {rate}.{cause}"
        text = f"{self.describe(name)} fills in about {seconds}: {_pair(level)}, {rate}.{cause}"
        return f"{text} {self._advice(name)}".rstrip()

    def _advice(self, name: str, *more: str) -> str:
        """Advice about a memory, in a sentence: the buttons next to it, and ``more``."""
        buttons = {STOP: "stop the run", FREE: "free the cache"}
        choices = [*(buttons[action] for action in self._actions(name) if action in buttons), *more]
        if not choices:
            return ""
        if choices[:-1]:
            last = f"or {choices[-1]}"
        else:
            last = choices[-1]
        if len(choices) == 2:
            text = f"{choices[0]} {last}."
        else:
            text = ", ".join([*choices[:-1], f"{last}."])
        return text[0].upper() + text[1:]

    def _process(self, sample: Sample) -> None:
        name = sample.device or HOST
        time_s, rows = self._processes.get(name, (-1.0, []))
        if time_s != sample.time_s:
            rows = []
            self._processes[name] = (sample.time_s, rows)
        rows.append(sample.values)

    def _rows(self, name: str) -> list[Mapping[str, Value]]:
        """The processes that use a memory, by current lists."""
        memory = self._memories.get(name)
        level = None
        if memory is not None:
            level = memory.level
        if level is None:
            since_s = -math.inf
        else:
            since_s = level.time_s - PROCESSES_S
        lists = [rows for of, rows in tuple(self._processes.items()) if self.pool_of(of) == name]
        return [row for time_s, rows in lists if time_s >= since_s for row in tuple(rows)]

    def _holds_itself(self, name: str) -> bool:
        """Whether this process uses a memory, by the newest list."""
        return any(row.get("pid") == os.getpid() for row in self._rows(name))

    def _biggest_user(self, name: str) -> str:
        """The process that uses most of a memory, in a sentence; "" if none is known."""
        rows = self._rows(name)
        sized = [(size, row) for row in rows if isinstance(size := row.get("memory_bytes"), int | float)]
        if not sized:
            return ""
        size, row = max(sized, key=lambda item: item[0])
        if self.is_here and row.get("pid") == os.getpid():
            return self._own_share(name, size)
        user = ""
        if row.get("user"):
            user = f", user {row['user']}"
        return f"{row.get('name') or 'A process'} (pid {row.get('pid')}{user}) holds {format_bytes(size)}."

    def _own_share(self, name: str, size: float) -> str:
        """This process's use of a memory, by purpose, in a sentence."""
        holds = f"holds {format_bytes(size)}"
        if self._run is not None:
            if name in self._stepping:
                return f"The run in gpudash {holds}."
            return f"gpudash itself {holds}."
        memory = self._memories.get(name)
        if memory is None:
            idle = 0
        else:
            idle = memory.idle
        rest = ""
        if idle:
            rest = f", {format_bytes(idle)} of it idle in gpudash's cache"
        if name == HOST:
            return f"gpudash itself {holds}."
        return f"No run is on; gpudash itself {holds}{rest}."


def _describe(name: str) -> str:
    if name == HOST:
        return "This computer's memory"
    return f"GPU {name}"


def _memory_of(device: str) -> str | None:
    if device == "cpu":
        return HOST
    return None


def _rounded(size: float, unit: str) -> str:
    """``size`` in ``unit``, or in a smaller unit if that would be zero."""
    return format_bytes(size, unit=None if format_number(size, unit) == "0.00" else unit)


def _grows(cause: str | None) -> str:
    if cause is None:
        return ""
    return f"The growth comes from {cause}."


def ends_in(ahead: Forecast) -> str:
    """What happens when: "full in 24 s", "guard in 24 s"."""
    return f"{'full' if ahead.limit == 'capacity' else 'guard'} in {format_left(ahead.seconds)}"


def run_left(run: RunView, ahead: Forecast | None) -> str:
    """The remaining time of a run: "40 s left"; "" if unknown.

    If its memory will be full before, that instead: "full in 24 s". A run that fills memory by design ends when it is
    full.

    Args:
        run: the current run.
        ahead: forecast for the memory of its device.
    """
    left = run.seconds_left
    if left is None:
        return ""
    filling = run.workload == PressureSpec.name and run.spec.get("until") == "oom"
    if ahead is not None and (filling or ahead.seconds < left):
        return ends_in(ahead)
    return f"{format_left(left)} left"


def _left(ahead: Forecast | None) -> str:
    """The remaining time of a memory for a sentence: ", full in about 24 s"; "" without a forecast."""
    if ahead is None:
        return ""
    return f", {'full' if ahead.limit == 'capacity' else 'at the guard'} in about {format_left(ahead.seconds)}"


def _pair(level: Level) -> str:
    return format_pair(level.used, level.capacity)


def _share(level: Level) -> str:
    """The driver's own part of the use, if the card excludes it from its figure."""
    unit = memory_unit(level.capacity)
    if _pair(level) == format_pair(level.used - level.driver_reserved, level.capacity):
        return ""
    return f", {format_number(level.driver_reserved, unit)} of it the driver's own"

"""The current run: a workload's in the worker, or a program that is watched, one at a time; what guards
it, and profiles of its steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpudash.devices.names import Device
from gpudash.memory.watching.levels import HOST, Guard, memory_of
from gpudash.session.live.machine import Machine
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.system.settings import Settings, recordings_folder
from gpudash.telemetry.recording.schema import recording_name
from gpudash.telemetry.records import RunEnd, Sample
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.session.watching.attaching.attached import Attached
    from gpudash.session.watching.program import StopProgress
    from gpudash.session.watching.watch import Watching
    from gpudash.workloads.profiling import ProfileRequest
    from gpudash.workloads.running.card_requests import RequestSink
    from gpudash.workloads.running.run import RunRequest
    from gpudash.workloads.running.worker import Worker

LEAVING_S = 2.0
"""Longest that a start waits for an end that has come and is still being stored, and for what remains to be done after
the end of a program that was watched."""

NOT_YOUR_OWN = "Steps of your own program are not profiled here; use torch.profiler in it."

A_RUN_IS_ON = "A run is in progress; stop it before starting another."

MOST_STEPS = 50
"""Steps profiled at once at most: what is recorded of each has to be read, during which the run waits."""

DEFAULT_STEPS = 5


Watched: TypeAlias = "Watching | Attached"
"""A program that is watched."""


class Running:
    """Starts and stops runs, and arms their guards. Any thread may call.

    Args:
        machine: the devices.
        worker: runs workloads.
        guards: of the run that is on.
        guarded: told when guards have been armed or disarmed.
        settings: in force now.
        on_requests: as of `RunRequest`.

    Attributes:
        run_id: of the newest run.
    """

    def __init__(
        self,
        machine: Machine,
        worker: Worker,
        guards: RunGuards,
        guarded: Callable[[], None],
        settings: Callable[[], Settings],
        on_requests: RequestSink | None = None,
    ) -> None:
        self.run_id = 0
        self._on_requests = on_requests
        self._machine = machine
        self._worker = worker
        self._guards = guards
        self._guarded = guarded
        self._settings = settings
        self._starting = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._ending_run: int | None = None
        self._watched: Watched | None = None
        self._leaving: Watched | None = None

    @property
    def on(self) -> bool:
        """Whether a run is on: from its start until its end is stored."""
        return not self._ended.is_set()

    @property
    def watched(self) -> Watched | None:
        """The program that is watched, ``None`` when none is."""
        return self._watched

    @property
    def busy_s(self) -> float:
        """For how long one message of the program that is watched has been taken in, 0 between messages; much of it
        means that the run's end may never be stored.
        """
        watched = self._watched
        if watched is None:
            return 0.0
        return watched.busy_s

    def start(
        self,
        spec: Spec,
        device: Device,
        *,
        guard_bytes: int | None,
        memory_cap: MemoryCap | None,
        isolate: bool | None,
        profile: ProfileRequest | None,
    ) -> int:
        """Start a workload's run and return its number; arguments as of `Session.start_run`.

        Raises:
            ValueError: one sentence, when the device cannot run this spec.
            RuntimeError: when a run is on, or the worker is closed.
        """
        devices = devices_of(spec, self._machine)
        check(spec, device, memory_cap, devices)
        self._await_end()
        with self._starting:
            self._require_none()
            self._release(LEAVING_S)
            # Before `_begin`: it raises where a guard has no reading to stand on, and then no run has begun.
            self._arm([self._machine.pool_of(one.memory) for one in devices or (device,)], guard_bytes)
            self._begin()
            request = run_request(
                spec,
                device,
                self.run_id,
                self._machine,
                self._guards,
                warn_ratio=self._settings().warn_ratio,
                memory_cap=memory_cap,
                isolate=isolate,
                devices=devices,
                profile=profile,
                on_requests=self._on_requests,
            )
            try:
                self._worker.submit(request)
            except RuntimeError:
                self._disarm()
                self._ended.set()
                raise
            return self.run_id

    def watch(self, begin: Callable[[int], Watched]) -> int:
        """Begin to watch a program and return the run's number. No guard is armed: the program is the user's own.

        Args:
            begin: given the number, starts it; what it raises is passed on.

        Raises:
            RuntimeError: when a run is on.
        """
        self._await_end()
        with self._starting:
            self._require_none()
            self._release(LEAVING_S)
            self._begin()
            try:
                self._watched = begin(self.run_id)
            # Also on KeyboardInterrupt: otherwise the run would stay on without anything to report its end.
            except BaseException:
                self._ended.set()
                raise
            return self.run_id

    @property
    def stopping(self) -> StopProgress | None:
        """How far the end of the program that is watched has come; ``None`` where it was not asked to end."""
        watched = self._watched
        if watched is None or not self.on:
            return None
        return watched.stopping

    @property
    def finding_need_s(self) -> float | None:
        """For how long the program that ran out of memory has been run again to find out what it needs; ``None`` where
        it is not. `stop` leaves that.
        """
        watched = self._watched
        if watched is None or not self.on:
            return None
        return watched.finding_need_s

    @property
    def after_end(self) -> str:
        """What is still being done for a program that has ended, without a full stop; "" where none has, or the run is
        over.
        """
        watched = self._watched
        if watched is None or not self.on:
            return ""
        return watched.after_end

    def stop(self, when: str, *, shutdown: bool = False) -> None:
        """Ask the run to end.

        Args:
            when: what this comes after, in words that follow "sent by gpudash".
            shutdown: whether gpudash itself is being ended, so that a program has a deadline.
        """
        watched = self._watched
        if watched is None or not self.on:
            self._worker.stop()
        elif shutdown:
            watched.shut_down(when)
        else:
            watched.stop(when)

    def wait_left(self) -> None:
        """Wait until a program that was asked to end by a shutdown has ended; it has its deadlines for that."""
        watched = self._watched
        if watched is not None and self.on:
            watched.wait_left()

    def profile(self, request: ProfileRequest) -> None:
        """Profile the next steps of the run.

        Raises:
            RuntimeError: one sentence, when that is not possible now.
        """
        if self._watched is not None and self.on:
            raise RuntimeError(NOT_YOUR_OWN)
        self._worker.profile(request)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run's end has been stored; false when the time passed first."""
        return self._ended.wait(timeout_s)

    def announce_end(self, ending: RunEnd) -> None:
        """The end of a run is on its way to the store."""
        self._ending_run = ending.run_id

    def take_end(self, ending: RunEnd) -> None:
        """The end of a run has been stored."""
        if ending.run_id == self.run_id:
            with self._starting:
                self._disarm()
                # The program that leaves still takes back what it showed; the next start waits for that in
                # `_release`.
                self._leaving, self._watched = self._watched, None
            # Only after guards and program are settled: a start that sees it arms guards of its own.
            self._ended.set()

    def abandon(self) -> None:
        """Give up waiting."""
        self._ended.set()

    def observe(self, sample: Sample, report: Callable[[str, str], None]) -> None:
        """Hold a reading against the guards, and stop the run at the first that has reached its guard's level.

        Args:
            report: given the memory and the guard's sentence.
        """
        crossed = self._guards.observe(sample)
        if crossed is None:
            return
        with self._starting:
            if self.on:
                memory, sentence = crossed
                report(memory, sentence)
                self._worker.stop(because=sentence)
            self._disarm()

    def close(self, timeout_s: float) -> bool:
        """End the run, whatever it is; false when it did not end in time."""
        deadline = time.monotonic() + timeout_s
        watched = self._watched
        if watched is None:
            ended = self._release(timeout_s)
        else:
            ended = watched.close(timeout_s)
        return self._worker.close(deadline - time.monotonic()) and ended

    def _release(self, timeout_s: float) -> bool:
        """Wait until the program that was watched last has taken back what it showed; false when that takes longer."""
        leaving, self._leaving = self._leaving, None
        return leaving is None or leaving.close(timeout_s)

    def _await_end(self) -> None:
        """Wait for an end that has come and is still being stored: a run that starts afterwards follows a complete one.

        Called without `_starting`, which the end needs.
        """
        if self.on and self._ending_run == self.run_id:
            self._ended.wait(LEAVING_S)

    def _require_none(self) -> None:
        if self.on:
            raise RuntimeError(A_RUN_IS_ON)

    def _begin(self) -> None:
        self.run_id += 1
        self._ended.clear()

    def _arm(self, memories: Sequence[str], guard_bytes: int | None) -> None:
        settings, latest = self._settings(), self._machine.latest
        critical = None
        if settings.guard:
            critical = settings.critical_ratio
        total = latest(HOST, "total_bytes")
        found: dict[str, tuple[int, str]] = {}
        for memory in memories:
            found |= _levels(memory, guard_bytes, latest(memory, "used_bytes"), total, critical)
        self._guards.arm(found)
        self._guarded()

    def _disarm(self) -> None:
        self._guards.disarm()
        self._guarded()


def devices_of(spec: Spec, machine: Machine) -> tuple[Device, ...]:
    """The devices of a run on several, one a rank; none when it takes place on one.

    Raises:
        ValueError: one sentence, when one of them is not there or cannot be used.
    """
    return tuple(map(machine.find, spec.device_names))


def check(spec: Spec, device: Device, memory_cap: MemoryCap | None, devices: Sequence[Device] = ()) -> None:
    """Make sure that a run can be asked for.

    Args:
        devices: of a run on several, as `devices_of` has them.

    Raises:
        ValueError: one sentence, when a device cannot run ``spec`` or bear the cap.
    """
    problems = spec.run_problems(device.name)
    if memory_cap is not None:
        for one in devices or (device,):
            problems += [new for new in memory_cap.problems(one.name, one.total_bytes) if new not in problems]
    if problems:
        raise ValueError("; ".join(problems))


def run_request(
    spec: Spec,
    device: Device,
    run_id: int,
    machine: Machine,
    guards: RunGuards,
    *,
    warn_ratio: float,
    memory_cap: MemoryCap | None,
    isolate: bool | None,
    devices: tuple[Device, ...],
    profile: ProfileRequest | None,
    on_requests: RequestSink | None,
) -> RunRequest:
    """What the worker is given for a run that `check` has passed; CUDA's and comparisons are isolated by themselves."""
    from gpudash.workloads.running.run import RunRequest

    memory = device.memory
    if isolate is None:
        isolate = spec.undisturbed or device.kind not in ("cpu", "sim")
    return RunRequest(
        spec=spec,
        device=device.name,
        run_id=run_id,
        refuse=guards.refusal(
            machine.pool_of(memory), {other.name: machine.pool_of(other.memory) for other in devices[1:]}
        ),
        memory=partial(machine.level, memory),
        warn_ratio=warn_ratio,
        expected_uuid=device.uuid,
        link_bytes_per_second=machine.link_rate(device.uuid),
        cards=machine.simulated.cards,
        memory_cap=memory_cap,
        surroundings=partial(machine.surroundings, memory),
        energy=machine.energy,
        isolate=isolate,
        on_host=partial(machine.host_run, device.uuid if device.kind == "cuda" else None),
        on_cards=machine.simulated.hosted,
        devices=devices,
        on_requests=on_requests,
        on_ranks=machine.follow_ranks,
        profile=profile,
    )


Report = Callable[[str, str], None]


class RunGuards:
    """One guard for each memory that is read, armed for the time of a run.

    Guards follow the readings also between runs, so that one knows the use from the moment it is armed. Readings come
    from the session's thread, refusals from the worker's, arming from the thread that starts a run.

    Args:
        report: given a memory ("host" or a GPU's UUID) and the sentence of a guard that refuses an allocation of it.

    Attributes:
        armed: memory → its guard, while a run is on; replaced whole, never changed.
    """

    def __init__(self, report: Report) -> None:
        self.armed: Mapping[str, Guard] = {}
        self._report = report
        self._known: dict[str, Guard] = {HOST: Guard()}

    def arm(self, levels: Mapping[str, tuple[int, str]]) -> None:
        """Guard memories from now on.

        Args:
            levels: memory → the use in bytes at which the run is stopped, and words for what that level is.
        """
        armed = {}
        for memory, (level, text) in levels.items():
            armed[memory] = self._guard(memory)
            armed[memory].arm(memory, level, text)
        self.armed = armed

    def disarm(self) -> None:
        """Guard nothing any more."""
        self.armed = {}
        for guard in tuple(self._known.values()):
            guard.disarm()

    def observe(self, sample: Sample) -> tuple[str, str] | None:
        """Take in a reading; memory and sentence when it is the first at or above a level."""
        memory = memory_of(sample)
        if memory is None:
            return None
        sentence = self._guard(memory).observe(sample)
        if sentence is None:
            return None
        return (memory, sentence)

    def refusal(self, memory: str, others: Mapping[str, str] | None = None) -> Callable[..., str | None]:
        """What a run on ``memory`` asks before it takes bytes of "cpu" or of its device: a sentence refuses.

        A run in a process of its own may add what it knows to be in use.

        Args:
            others: of a run on several devices, those beside its first → their memory.
        """
        elsewhere = dict(others or {})

        def refuse(size: int, device: str, used: int | None = None) -> str | None:
            if device == "cpu":
                refused = HOST
            else:
                refused = elsewhere.get(device, memory)
            sentence = self._guard(refused).refuse(size, used)
            if sentence is not None:
                self._report(refused, sentence)
            return sentence

        return refuse

    def _guard(self, memory: str) -> Guard:
        return self._known.setdefault(memory, Guard(memory))


def _levels(
    memory: str,
    guard_bytes: int | None,
    used: int | None,
    host_total: int | None,
    critical_ratio: float | None,
) -> dict[str, tuple[int, str]]:
    """The levels of a run's guards, as `RunGuards.arm` takes them.

    Args:
        memory: the run's, "host" or a GPU's UUID.
        guard_bytes: how far above ``used`` the run may go; ``None`` sets no such guard.
        used: use of ``memory`` now.
        host_total: capacity of the host.
        critical_ratio: where the host is guarded otherwise; ``None`` leaves it unguarded.

    Raises:
        ValueError: when a guard is asked for where there is no reading to put it above.
    """
    found: dict[str, tuple[int, str]] = {}
    if guard_bytes is not None:
        if used is None:
            raise ValueError("The guard needs a reading of this device's memory, and there is none; leave it out.")
        text = f"the guard, {format_bytes(guard_bytes)} above the use at the start of the run"
        found[memory] = used + guard_bytes, text
    if critical_ratio is not None and host_total is not None and HOST not in found:
        found[HOST] = int(host_total * critical_ratio), "the guard's level"
    return found


def profile_request(steps: int, recording: Path | None, spec: Spec | None = None) -> ProfileRequest:
    """The request for a profile of ``steps``, its trace beside the recording, or where one would be.

    Args:
        spec: of a run that is about to start; ``None``: of one that is on.

    Raises:
        ValueError: one sentence, when so many steps are not profiled.
    """
    from gpudash.workloads.profiling import ProfileRequest

    check_steps(steps)
    if spec is None:
        name = "profile"
    else:
        name = spec.name
    base = recording or recording_name(recordings_folder(), name)
    single = spec is not None and spec.steps_field is not None and getattr(spec, spec.steps_field) == 1
    return ProfileRequest(steps, str(base.absolute().with_suffix("")), from_start=single)


def check_steps(steps: int) -> None:
    """Make sure that so many steps are profiled at once.

    Raises:
        ValueError: one sentence, when they are not.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"{steps} steps cannot be profiled at once; choose 1 to {MOST_STEPS}.")


def trace_of(details: Mapping[str, Any], recording: Path | None) -> Path | None:
    """The trace of a profile: beside its recording, wherever that lies today, else where it was written.

    Args:
        details: of the note that told the profile.

    Returns:
        ``None`` when there is none any more.
    """
    trace = details.get("trace")
    if not isinstance(trace, str) or not trace:
        return None
    if recording is None:
        places = [Path(trace)]
    else:
        places = [recording.parent / Path(trace).name, Path(trace)]
    return next((place for place in places if place.is_file()), None)

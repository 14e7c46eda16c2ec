"""The session's services for watching a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpudash.memory.request_log import RequestLogs
from gpudash.session.live.machine import Machine
from gpudash.session.watching.output.log import OutputLog
from gpudash.system.settings import Settings
from gpudash.telemetry.records import Record
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.session.watching.memory import Probe


@dataclass(frozen=True, slots=True)
class Wiring:
    """The part of the session that a watched program uses.

    Attributes:
        emit: callback for records, from any thread.
        clock: session time in seconds.
        began_wall_s: seconds since 1970 at session time 0.
        machine: the devices.
        store: what has been read.
        probe: starts and stops the reading of an allocator.
        follow: shows a program's processes (resident bytes by PID) instead of ours; ``None`` to undo.
        settings: settings at the program's start.
        output: receives the output.
        requests: receives programs' allocator requests.
    """

    emit: Callable[[Record], None]
    clock: Callable[[], float]
    began_wall_s: float
    machine: Machine
    store: Store
    probe: Probe
    follow: Callable[[Callable[[], Mapping[int, int]] | None], None]
    settings: Settings
    output: OutputLog
    requests: RequestLogs = field(default_factory=RequestLogs)

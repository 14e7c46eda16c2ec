"""``gpudash monitor``: watch only, this machine or another over ssh."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.flags import RecordOptions, ServeOptions, SimulateOptions, begin
from gpudash.cli.terminal.interruption import interruptible
from gpudash.cli.terminal.output import Exit, RequestError, leave, print_json, print_notice
from gpudash.system.garbage import without_collection

if TYPE_CHECKING:
    from gpudash.cli.terminal.monitoring import JsonLines, LiveTable
    from gpudash.session import Session

POLL_S = 0.1
"""How soon Ctrl+C and a reader that went away are noticed."""

LINES_TIMEOUT_S = 0.5
"""How long the last lines may take to be read when watching ends."""


def monitor(
    machine: str | None = None,
    /,
    *,
    seconds: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    rate: Annotated[float | None, Parameter(validator=Number(gte=1, lte=50))] = None,
    recorded: RecordOptions | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    json_lines: Annotated[bool, Parameter(negative="")] = False,
    simulated: SimulateOptions | None = None,
    serving: ServeOptions | None = None,
) -> int:
    """Watch the machine without running anything.

    Parameters
    ----------
    machine
        Another one: ssh://[user@]host[:port]. It is read over ssh with nothing installed there, and not recorded.
    seconds
        How long; left out: until Ctrl+C.
    rate
        Memory readings a second, 1 to 50.
    recorded
        Whether and where the readings are recorded.
    json
        Print a summary as one JSON document at the end.
    json_lines
        Print every reading as a line of JSON.
    simulated
        GPUs to simulate.
    serving
        Whether and where the readings are served for Prometheus.
    """
    with without_collection():  # importing makes no garbage, and looking for it takes a tenth of the time
        from gpudash.cli.terminal.monitoring import JsonLines, LiveTable

    if machine is not None:
        if json_lines or simulated or serving or recorded:
            what = "A machine over ssh is neither recorded, served nor simulated, and gives no JSON lines."
            raise RequestError(what, "Leave out all but --seconds, --rate and --json.")
        return _monitor_over_ssh(machine, seconds, rate, json=json)
    with (serving or ServeOptions()).served() as served:
        lines = JsonLines() if json_lines else None
        session = _started(rate, recorded or RecordOptions(), simulated, lines)
        table = None if json or json_lines else LiveTable(session)
        with interruptible() as interruption:
            try:
                served.begin(session)
                _watch(seconds, lambda: interruption.asked or (lines is not None and lines.reader_left), table)
            finally:
                try:
                    if table is not None:
                        table.close()
                finally:  # also where nothing can be printed
                    served.close()
                    summary = session.summary()
                    joined = session.close()
    for text in session.undelivered:
        print_notice(text)
    joined = _end_lines(lines) and joined and served.joined
    if json:
        print_json(summary)
    if session.recording is not None:
        print_notice(f"Recording: {session.recording}")
    if lines is not None and lines.problem:
        return leave(Exit.FAILED, joined)
    return leave(Exit.INTERRUPTED if interruption.asked and seconds is not None else Exit.FINISHED, joined)


def _monitor_over_ssh(address: str, seconds: float | None, rate: float | None, *, json: bool) -> int:
    from gpudash.cli.terminal.linking import linked, read_addresses
    from gpudash.cli.terminal.monitoring import LiveTable
    from gpudash.session.remote.machine import summary

    with linked(read_addresses([address]), rate_hz=rate) as fleet, interruptible() as interruption:
        machine = fleet.machines[0]
        while not (machine.settled.wait(POLL_S) or interruption.asked):
            pass
        if machine.greeting is None and not interruption.asked:
            raise RequestError(machine.why_not_linked)
        table = None if json else LiveTable(machine)
        try:
            _watch(seconds, lambda: interruption.asked or machine.state == "given up", table)
        finally:
            if table is not None:
                table.close()
        told = summary(machine)
    if json:
        print_json(told)
    if told["error"] is not None and not interruption.asked:
        return leave(Exit.FAILED, joined=True)
    return leave(Exit.INTERRUPTED if interruption.asked and seconds is not None else Exit.FINISHED, joined=True)


def _started(
    rate: float | None, recorded: RecordOptions, simulated: SimulateOptions | None, lines: "JsonLines | None"
) -> "Session":
    """A session that only watches.

    Raises:
        RequestError: when the recording cannot be written, or no such GPU can be simulated.
    """
    simulation = None if simulated is None else simulated.simulation()
    session = recorded.session("monitor", simulation, rate_hz=rate)
    if lines is not None:
        lines.put(session.introduction())
        session.on_record = lines.put
    begin(session, worker=False)
    return session


def _watch(seconds: float | None, ended: Callable[[], bool], table: "LiveTable | None") -> None:
    """Wait until the time is over or ``ended``, keeping the table up to date."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    while not ended() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_S))
        if table is not None:
            table.refresh()


def _end_lines(lines: "JsonLines | None") -> bool:
    """Let the last lines be read; false when their thread could not be joined."""
    if lines is None:
        return True
    joined = lines.close(LINES_TIMEOUT_S)
    if lines.problem:
        print_notice(f"What was to be printed cannot be written: {lines.problem}.")
    if lines.left_out:
        print_notice(f"{lines.left_out} lines were left out because they were not read in time.")
    return joined

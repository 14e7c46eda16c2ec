"""``gpudash monitor``: watch this machine, or others over ssh, without running anything."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.flags import RecordOptions, ServeOptions, SimulateOptions, begin
from gpudash.cli.terminal.interruption import interruptible
from gpudash.cli.terminal.output import RequestError, print_notice
from gpudash.system.garbage import without_collection

if TYPE_CHECKING:
    from gpudash.cli.terminal.monitoring import JsonLines
    from gpudash.session import Session


def monitor(
    *machines: str,
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
    machines
        Other machines: ssh://[user@]host[:port], one or more. They are read over ssh with nothing installed there, and
        recorded only with --record: a single machine to that file, several to that folder, each to its own file.
    seconds
        How long to watch; default: until Ctrl+C.
    rate
        Memory readings per second, 1 to 50.
    recorded
        Whether and where to record the readings.
    json
        Print a summary as one JSON document at the end.
    json_lines
        Print every reading as a line of JSON.
    simulated
        GPUs to simulate.
    serving
        Whether and where to serve the readings for Prometheus.
    """
    with without_collection():  # imports create no garbage; collecting takes a tenth of the time
        from gpudash.cli.terminal.monitoring import JsonLines, LiveTable, finish, watch

    if machines:
        if simulated or (recorded and recorded.notify):
            what = "--simulate and --notify are for this machine, and others are to be read over ssh."
            raise RequestError(what, "Leave them out.")
        from gpudash.cli.terminal.remote_monitoring import monitor_machines

        with (serving or ServeOptions()).served() as served:
            return monitor_machines(
                machines,
                served,
                seconds=seconds,
                rate=rate,
                recording=None if recorded is None or recorded.no_record else recorded.record,
                as_json=json,
                lines=JsonLines() if json_lines else None,
            )
    with (serving or ServeOptions()).served() as served:
        lines = None
        if json_lines:
            lines = JsonLines()
        session = _started(rate, recorded or RecordOptions(), simulated, lines)
        table = None
        if not (json or json_lines):
            table = LiveTable(session)
        with interruptible() as interruption:
            try:
                watch(
                    table,
                    served,
                    lambda: served.begin(session),
                    seconds=seconds,
                    ended=lambda: interruption.requested or (lines is not None and lines.reader_left),
                )
            finally:  # also if nothing can be printed
                summary = session.summary()
                joined = session.close()
    for text in session.undelivered:
        print_notice(text)
    return finish(
        summary if json else None,
        [] if session.recording_path is None else [session.recording_path],
        lines,
        joined=joined and served.joined,
        failed=False,
        interrupted=interruption.requested and seconds is not None,
    )


def _started(
    rate: float | None, recorded: RecordOptions, simulated: SimulateOptions | None, lines: "JsonLines | None"
) -> "Session":
    """A session that only watches.

    Raises:
        RequestError: if the recording cannot be written, or the GPU cannot be simulated.
    """
    simulation = None
    if simulated is not None:
        simulation = simulated.simulation()
    session = recorded.session("monitor", simulation, rate_hz=rate)
    if lines is not None:
        lines.put(session.introduction())
        session.on_record = lines.put
    begin(session, worker=False)
    return session

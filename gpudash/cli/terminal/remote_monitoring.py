"""``gpudash monitor ssh://a ssh://b``: machines over ssh without a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.linking import linked, read_addresses
from gpudash.cli.terminal.monitoring import POLL_S, JsonLines, LiveTable, finish, watch
from gpudash.cli.terminal.output import RequestError, print_notice

if TYPE_CHECKING:
    from gpudash.cli.terminal.flags import Served
    from gpudash.session.remote.fleet import SshFleet
    from gpudash.session.remote.machine import RemoteMachine
    from gpudash.sources.ssh.address import SshHost


def monitor_machines(
    addresses: Sequence[str],
    served: Served,
    *,
    seconds: float | None,
    rate: float | None,
    recording: Path | None,
    as_json: bool,
    lines: JsonLines | None,
) -> int:
    """Watch them until the time is over, all are lost for good, or Ctrl+C; returns the exit code.

    Args:
        addresses: as the user wrote them.
        served: what serves their figures.
        seconds: how long, from when each is linked or could not be; ``None``: until Ctrl+C.
        rate: readings a second; ``None``: the settings'.
        recording: where they are recorded: of one machine the file, of several the folder. ``None``: nowhere.
        as_json: whether to print a summary at the end.
        lines: what writes every record as a line.

    Raises:
        RequestError: when an address is none, nothing can be recorded there, or no machine can be linked.
    """
    # Refused before ssh asks for a password.
    if as_json and lines is not None:
        raise RequestError("--json and --json-lines are two forms of output.", "Give one of them.")
    hosts = read_addresses(addresses)
    files = None
    if recording is not None:
        files = _files(recording, hosts)
    prepare = _nothing
    if lines is not None:
        prepare = partial(_write_lines, lines)
    with (
        linked(hosts, rate_hz=rate, recordings=files, prepare=prepare) as fleet,
        interruptible() as interruption,
    ):
        machines = fleet.machines
        _wait_for_a_link(machines, interruption)
        names = []
        if len(machines) > 1:
            names = [machine.name for machine in machines]
        table = None
        if not (as_json or lines is not None):
            table = LiveTable(*machines, names=names)
        watch(
            table,
            served,
            partial(served.begin_machines, machines),
            seconds=seconds,
            ended=_ended(machines, interruption, lines),
            begun=partial(_settled, machines),  # a machine that is slow to link is watched as long as the others
        )
        # Within the block: once the fleet is closed, its machines have no state to tell.
        summaries = _summaries(machines)
        if recording is None:
            recordings = []
        else:
            recordings = [machine.recording for machine in machines]
    if len(summaries) == 1:
        document = summaries[0]
    else:
        document = _of_several(summaries)
    lost = any(found["error"] is not None for found in summaries)
    return finish(
        document if as_json else None,
        recordings,
        lines,
        joined=served.joined,
        # A machine that is lost fails the command, but not when the user ended it.
        failed=lost and not interruption.requested,
        # With a number of seconds Ctrl+C is an early end; without one it is the only end there is.
        interrupted=interruption.requested and seconds is not None,
    )


def _files(recording: Path, hosts: Sequence[SshHost]) -> list[Path]:
    """For each machine the file that it is recorded in.

    Raises:
        RequestError: when there can be no such folder.
    """
    from gpudash.telemetry.recording.schema import recording_name

    if len(hosts) == 1:
        return [recording]
    try:
        recording.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{recording} cannot be made the folder of {len(hosts)} recordings: {error.strerror}.",
            "Name a folder with --record: each machine has a file of its own in it.",
        ) from None
    # A colon is not allowed in names on every file system, and a port has one.
    return [recording_name(recording, host.name.replace(":", "-")) for host in hosts]


def _write_lines(lines: JsonLines, fleet: SshFleet) -> None:
    """Write what every machine tells; of one its lines are those of a session, which `gpudash open -` reads."""
    several = len(fleet.machines) > 1
    for machine in fleet.machines:
        put = partial(lines.put, machine=machine.name if several else "")
        # Introduced first: its lines begin with what a reader has to know of the machine.
        put(machine.introduction())
        machine.on_record = put


def _nothing(_fleet: SshFleet) -> None:
    """Prepare nothing."""


def _wait_for_a_link(machines: Sequence[RemoteMachine], interruption: Interruption) -> None:
    """Wait until one is linked.

    Raises:
        RequestError: when none could be.
    """
    while not interruption.requested and not any(machine.greeting for machine in machines):
        if _settled(machines):
            raise RequestError(" ".join(machine.why_not_linked for machine in machines))
        # Any one of those that are still linking: their events wake this thread, and the loop looks at all again.
        next(machine for machine in machines if not machine.settled.is_set()).settled.wait(POLL_S)


def _settled(machines: Sequence[RemoteMachine]) -> bool:
    return all(machine.settled.is_set() for machine in machines)


def _ended(
    machines: Sequence[RemoteMachine], interruption: Interruption, lines: JsonLines | None
) -> Callable[[], bool]:
    """Whether there is nothing left to watch; a machine that never was linked is named meanwhile."""
    named: set[str] = set()

    def ended() -> bool:
        for machine in machines:
            problem = machine.problem
            if machine.greeting is None and problem is not None and machine.name not in named:
                named.add(machine.name)
                print_notice(problem)
        if interruption.requested or (lines is not None and lines.reader_left):
            return True
        return all(machine.state == "given up" for machine in machines)

    return ended


def _summaries(machines: Sequence[RemoteMachine]) -> list[dict[str, object]]:
    from gpudash.session.remote.machine import summary

    return [summary(machine) for machine in machines]


def _of_several(summaries: Sequence[dict[str, object]]) -> dict[str, object]:
    """The document of several machines, each as the document of one, whose status its error says."""
    failed = any(found["error"] is not None for found in summaries)
    machines = [{key: value for key, value in found.items() if key != "status"} for found in summaries]
    return {"status": "failed" if failed else "finished", "error": None, "machines": machines}

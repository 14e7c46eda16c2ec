"""``gpudash monitor ssh://a ssh://b``: watch machines over ssh in the terminal."""

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
    """Watch machines until the time is over, all links are given up, or Ctrl+C; return the exit code.

    Args:
        addresses: addresses as typed.
        served: serves their figures.
        seconds: duration, from when each machine is linked or has failed; ``None``: until Ctrl+C.
        rate: readings per second; ``None``: the settings'.
        recording: file for a single machine, folder for several; ``None``: record nothing.
        as_json: whether to print a summary at the end.
        lines: writes every record as a line.

    Raises:
        RequestError: if an address is invalid, the recording cannot be written, or no machine can be linked.
    """
    from gpudash.session.remote.machine import summary

    # Check before ssh asks for a password.
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
            begun=partial(_settled, machines),  # a machine that links slowly is watched as long as the others
        )
        # Inside the block: once the fleet is closed, its machines have no state.
        summaries = list(map(summary, machines))
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
        # A lost machine makes the command fail, unless the user ended it.
        failed=lost and not interruption.requested,
        # With --seconds, Ctrl+C ends it early; without, it is the only way to end it.
        interrupted=interruption.requested and seconds is not None,
    )


def _files(recording: Path, hosts: Sequence[SshHost]) -> list[Path]:
    """The recording's file for each machine.

    Raises:
        RequestError: if the folder cannot be created.
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
    # Addresses with a port contain a colon, which some file systems do not allow in names.
    return [recording_name(recording, host.name.replace(":", "-")) for host in hosts]


def _write_lines(lines: JsonLines, fleet: SshFleet) -> None:
    """Write the records of all machines; of a single one, in the format of a session, which `gpudash open -` reads."""
    several = len(fleet.machines) > 1
    for machine in fleet.machines:
        put = partial(lines.put, machine=machine.name if several else "")
        # The introduction comes first: readers need its facts about the machine.
        put(machine.introduction())
        machine.on_record = put


def _nothing(_fleet: SshFleet) -> None:
    """Prepare nothing."""


def _wait_for_a_link(machines: Sequence[RemoteMachine], interruption: Interruption) -> None:
    """Wait until a machine is linked.

    Raises:
        RequestError: if none can be linked.
    """
    while not interruption.requested and not any(machine.greeting for machine in machines):
        if _settled(machines):
            raise RequestError(" ".join(machine.why_not_linked for machine in machines))
        # Wait on any machine that is still linking, for a short time; the loop then checks all of them.
        next(machine for machine in machines if not machine.settled.is_set()).settled.wait(POLL_S)


def _settled(machines: Sequence[RemoteMachine]) -> bool:
    return all(machine.settled.is_set() for machine in machines)


def _ended(
    machines: Sequence[RemoteMachine], interruption: Interruption, lines: JsonLines | None
) -> Callable[[], bool]:
    """A function that tells whether nothing is left to watch, and names machines that could not be linked."""
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


def _of_several(summaries: Sequence[dict[str, object]]) -> dict[str, object]:
    """The document for several machines, with each machine's own document; its error gives its status."""
    failed = any(found["error"] is not None for found in summaries)
    machines = [{key: value for key, value in found.items() if key != "status"} for found in summaries]
    return {"status": "failed" if failed else "finished", "error": None, "machines": machines}

"""Links machines over ssh from the terminal, where ssh can ask for a password before anything else is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.cli.terminal.output import RequestError, print_notice

if TYPE_CHECKING:
    from gpudash.session.remote.fleet import SshFleet
    from gpudash.sources.ssh.address import SshHost

STILL = "Still linking {name}: answer what ssh asks, or press Ctrl+C to leave it."


def read_addresses(given: Sequence[str]) -> list[SshHost]:
    """The machines at some addresses, "ssh://user@host:2222".

    Raises:
        RequestError: when one is none.
    """
    from gpudash.sources.ssh.address import read_host

    try:
        # The same machine given twice is linked once, at its first place.
        return list(dict.fromkeys(map(read_host, given)))
    except ValueError as error:
        raise RequestError(str(error)) from None


@contextmanager
def linked(
    hosts: Sequence[SshHost],
    *,
    rate_hz: float | None = None,
    window: bool = False,
    recordings: Sequence[Path] | None = None,
    prepare: Callable[[SshFleet], object] = lambda _fleet: None,
) -> Iterator[SshFleet]:
    """Machines that are being linked; every link ends with the block.

    In a terminal one is linked after the other, and each has been linked, or has failed, when the block begins.

    Args:
        hosts: where they are.
        rate_hz: readings a second, instead of the settings'.
        window: whether a window is about to open, in which ssh can ask where there is no terminal.
        recordings: as of `SshFleet`.
        prepare: called before the first is linked.

    Raises:
        RequestError: when every machine needs something done before it can be linked.
    """
    from gpudash.session.remote.fleet import SshFleet
    from gpudash.sources.ssh.connection import can_prompt
    from gpudash.system.settings import load_settings
    from gpudash.telemetry.recording.recorder import RecordingError

    settings, _notices = load_settings()
    if rate_hz is not None:
        settings.rate_hz = rate_hz
    try:
        fleet = SshFleet(hosts, settings, recordings=recordings)
    except (ValueError, RecordingError, OSError) as error:
        raise RequestError(str(error)) from None
    try:
        prepare(fleet)
        # One after the other, each with the terminal to itself: two prompts for a password could not be told apart.
        if can_prompt():
            print_notice(fleet.asking)
            fleet.start_in_terminal(lambda machine: print_notice(STILL.format(name=machine.name)))
            if all(machine.state == "given up" for machine in fleet.machines):
                raise RequestError(" ".join(machine.problem or "" for machine in fleet.machines))
        else:
            fleet.start(asks=window)
        # Closed also where preparing or linking has failed: each link has processes of its own.
        yield fleet
    finally:
        fleet.close()

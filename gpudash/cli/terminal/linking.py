"""Linking machines over ssh from the terminal, where ssh can ask for a password before anything else is shown."""

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
    """Parse addresses of machines, "ssh://user@host:2222".

    Raises:
        RequestError: if one is invalid.
    """
    from gpudash.sources.ssh.address import read_host

    try:
        # A machine that is given twice is linked once, at its first position.
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
    """Machines that are being linked; all links end with the block.

    In a terminal they are linked one after the other; when the block begins, each is linked or has failed.

    Args:
        hosts: addresses of the machines.
        rate_hz: readings per second, in place of the settings'.
        window: whether a window is about to open, in which ssh can ask if there is no terminal.
        recordings: as in `SshFleet`.
        prepare: called before the first machine is linked.

    Raises:
        RequestError: if no machine can be linked without something being done first.
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
        # One after the other, each with the terminal to itself: two password prompts would be indistinguishable.
        if can_prompt():
            print_notice(fleet.asking)
            fleet.start_in_terminal(lambda machine: print_notice(STILL.format(name=machine.name)))
            if all(machine.state == "given up" for machine in fleet.machines):
                raise RequestError(" ".join(machine.problem or "" for machine in fleet.machines))
        else:
            fleet.start(asks=window)
        # Also close after a failure: each link has processes of its own.
        yield fleet
    finally:
        fleet.close()

"""What can be opened, told apart once: a file, standard input, a machine over ssh, a Prometheus server.

From the command line on it is passed as one of these types, so that a `Path` is only ever a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpudash.sources.prometheus.address import PREFIX as PROMETHEUS
from gpudash.sources.prometheus.address import ServerAddress, read_address
from gpudash.sources.ssh.address import PREFIX as SSH
from gpudash.sources.ssh.address import SshHost, read_host

__all__ = ["Address", "ServerAddress", "SshHost", "StandardInput", "parse_address", "read_address"]

_WEB = ("http:", "https:")


@dataclass(frozen=True, slots=True)
class StandardInput:
    """What is piped in: the JSON lines of a monitor."""


Address = Path | StandardInput | SshHost | ServerAddress
"""Where something to open is: a path is a recording, a snapshot, or the folder that an out-of-memory left behind."""


def parse_address(address: str) -> Address:
    """The address that is written as ``address``: a path, "-", "ssh://user@host:2222" or "prometheus:http://host:9090".

    Raises:
        ValueError: one sentence, when it begins as an address of a machine or a server does and can be none.
    """
    if address == "-":
        return StandardInput()
    if address.startswith(SSH):
        return read_host(address)
    if address.startswith(PROMETHEUS):
        return read_address(address)
    if address.startswith(_WEB):
        server = read_address(address)
        raise ValueError(
            f"{server} is an address, not a file; write {PROMETHEUS}{server} if a Prometheus server is there."
        )
    return Path(address)

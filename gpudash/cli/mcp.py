"""``gpudash mcp``: the answers of the other commands for coding agents, over standard input and output."""

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.output import Exit, RequestError
from gpudash.units import parse_size

LIMIT_S = 600.0
"""Default time limit of a call, in seconds."""

MEMORY_SHARE = 0.8
"""Default memory limit of a call, as a share of this computer's memory."""

INSTALL = "Install it with: pip install 'gpudash[mcp]'"


def mcp(
    *,
    root: Path = Path(),
    read_only: Annotated[bool, Parameter(negative="")] = False,
    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = LIMIT_S,
    memory_limit: str | None = None,
) -> int:
    """Serve a coding agent over standard input and output, by the Model Context Protocol.

    The agent's client starts it, as the guide's page on coding agents shows. It listens on nothing else, and writes
    none of your files. Before a program of yours is run, your client asks you.

    Parameters
    ----------
    root
        Folder whose files the agent may name; default: this one.
    read_only
        Do not offer the tools that run your code.
    time_limit
        Seconds after which a call is stopped.
    memory_limit
        Memory of this computer that a call and everything it starts may use, such as 16GiB; default: 80 % of it.
    """
    _require_sdk()
    from gpudash.session.api.mcp_server.command import CallLimits
    from gpudash.session.api.mcp_server.server import serve

    limits = CallLimits(time_limit, _most_bytes(memory_limit))
    try:
        serve(root, limits, read_only=read_only)
    except ValueError as error:
        raise RequestError(str(error), "Name one that is there.") from None
    return Exit.FINISHED


def _most_bytes(size: str | None) -> int:
    """Parse a size. Raises: RequestError: one sentence, if it is not a size."""
    if size is None:
        import psutil

        return int(MEMORY_SHARE * psutil.virtual_memory().total)
    try:
        most = parse_size(size)
    except ValueError as error:
        raise RequestError(f"--memory-limit: {error}.", "Or leave it out.") from None
    if most <= 0:
        raise RequestError("--memory-limit 0 leaves nothing to run in.", "Write for example 16GiB.")
    return most


def _require_sdk() -> None:
    """Raise `RequestError` if the protocol's package is missing or too old."""
    if importlib.util.find_spec("mcp") is None:
        raise RequestError("gpudash mcp needs the package mcp, which is not installed.", INSTALL)
    try:
        importlib.import_module("mcp.server.mcpserver")
    except ImportError:
        raise RequestError("gpudash mcp needs the package mcp in version 2.3 or later.", INSTALL) from None

"""``gpudash mcp``: what the other commands answer, for coding agents, over standard input and output."""

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.output import Exit, RequestError
from gpudash.units import parse_size

LIMIT_S = 600.0
"""Of a call, unless told otherwise."""

MEMORY_SHARE = 0.8
"""Of this computer's memory, that a call may hold, unless told otherwise."""

INSTALL = "Install it with: pip install 'gpudash[mcp]'"


def mcp(
    *,
    root: Path = Path(),
    read_only: Annotated[bool, Parameter(negative="")] = False,
    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = LIMIT_S,
    memory_limit: str | None = None,
) -> int:
    """Answer a coding agent over standard input and output, by the Model Context Protocol.

    It is started by the agent's client, as the guide's page on coding agents shows. It listens on nothing else, and
    writes none of your files. Before a program of yours is run, your client asks you.

    Parameters
    ----------
    root
        Folder that the agent may name files of; left out: this one.
    read_only
        Without the tools that run your code.
    time_limit
        Seconds after which a call is ended.
    memory_limit
        Memory of this computer that a call may hold with all that it starts, such as 16GiB; left out: 80 % of it.
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
    """Raises: RequestError: one sentence, when it is no size."""
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
    """Raise `RequestError` where the protocol's package is not there, or is older than ours needs."""
    if importlib.util.find_spec("mcp") is None:
        raise RequestError("gpudash mcp needs the package mcp, which is not installed.", INSTALL)
    try:
        importlib.import_module("mcp.server.mcpserver")
    except ImportError:
        raise RequestError("gpudash mcp needs the package mcp in version 2.3 or later.", INSTALL) from None

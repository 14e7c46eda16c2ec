"""``gpudash mcp``: what the other commands answer, for coding agents, over standard input and output."""

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.output import Exit, RequestError

LIMIT_S = 600.0
"""Of a call, unless told otherwise."""

INSTALL = "Install it with: pip install 'gpudash[mcp]'"


def mcp(
    *,
    root: Path = Path(),
    read_only: Annotated[bool, Parameter(negative="")] = False,
    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = LIMIT_S,
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
    """
    _require_sdk()
    from gpudash.session.api.mcp_server.server import serve

    try:
        serve(root, time_limit, read_only=read_only)
    except ValueError as error:
        raise RequestError(str(error), "Name one that is there.") from None
    return Exit.FINISHED


def _require_sdk() -> None:
    """Raise `RequestError` where the protocol's package is not there, or is older than ours needs."""
    if importlib.util.find_spec("mcp") is None:
        raise RequestError("gpudash mcp needs the package mcp, which is not installed.", INSTALL)
    try:
        importlib.import_module("mcp.server.mcpserver")
    except ImportError:
        raise RequestError("gpudash mcp needs the package mcp in version 2.3 or later.", INSTALL) from None

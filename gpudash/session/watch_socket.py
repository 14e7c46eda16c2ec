"""Where a watched program's processes reach the session."""

from __future__ import annotations

from gpudash.agent.server import AgentServer
from gpudash.session.private_folder import PrivateFolder, runtime_folder


def listening() -> tuple[PrivateFolder, AgentServer]:
    """A private folder, and a server at a socket in it.

    Raises:
        ValueError: one sentence, when there can be none.
    """
    try:
        folder = PrivateFolder(runtime_folder(), "gpudash-watch-")
        try:
            return folder, AgentServer(folder.path / "agent")
        except OSError:
            folder.remove()
            raise
    except OSError as error:
        raise ValueError(
            f"No socket could be made for the program to talk to ({error.strerror or error}); "
            "let XDG_RUNTIME_DIR or TMPDIR name a folder that can be written."
        ) from None

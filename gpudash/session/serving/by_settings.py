"""Serving a window's session, as the settings ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudash.session.serving.address import ServingError, is_ip, read_address
from gpudash.session.serving.guarding import require_guarded
from gpudash.session.serving.serving import ServeRequest, Serving
from gpudash.telemetry.records import Note, Warning

if TYPE_CHECKING:
    from gpudash.session.live.session import Session


def setting_problem(address: str) -> str:
    """Why settings cannot name ``address``, as far as that is known without asking for names; empty where they can."""
    if not address:
        return ""
    try:
        asked = read_address(address)
        if is_ip(asked.host):
            require_guarded(asked, token=False, tls=False)
    except ServingError as error:
        return f"{error}; settings can name an address of this machine only, such as :10950"
    return ""


def serve_by_settings(session: Session, address: str) -> Serving | None:
    """Serve ``session`` at ``address``, and say where in a note; ``None`` after a warning where that cannot be.

    Only this machine can be served: settings name neither certificate nor key.
    """
    try:
        serving = Serving(ServeRequest(address))
    except ServingError as error:
        text = f"The readings are not served: {error}."
        session.emit(Warning(time_s=session.clock(), level="warning", device="serving", text=text))
        return None
    serving.start(session)
    session.emit(Note(time_s=session.clock(), topic="serving", text=f"The readings are served at {serving.url}"))
    return serving

"""Serving a window's session, as the settings ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudash.session.serving.address import ServingError
from gpudash.session.serving.serving import ServeRequest, Serving
from gpudash.telemetry.records import Note, Warning

if TYPE_CHECKING:
    from gpudash.session.live import Session


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

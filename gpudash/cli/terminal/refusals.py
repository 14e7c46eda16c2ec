"""Why a device cannot be used, and the way out."""

from __future__ import annotations

from gpudash.cli.terminal.output import RequestError

DEVICES = "gpudash devices lists what is there."
"""The way out where another device may do."""


def refused(error: ValueError) -> RequestError:
    """What a session says of a device or of a run on it, as a wrong request.

    Settings that torch's allocator refuses bar every GPU, so that another one is no way out.
    """
    from gpudash.session.live.simulated_gpus import allocator_settings

    said, settings = str(error), allocator_settings()[1]
    if settings is None or not (settings in said or said.rstrip(".") in settings):
        return RequestError(said, DEVICES)
    return RequestError(said if settings in said else settings, "Correct that variable, or unset it.")

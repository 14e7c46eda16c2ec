"""The code that runs inside a watched program: only the standard library and torch, from Python 3.9 on."""

from __future__ import annotations


def open_attach_socket() -> bool:
    """Allow ``gpudash watch --attach`` to enter this process later; false if that is impossible."""
    from .attach import attach_socket

    return attach_socket.open_attach_socket()

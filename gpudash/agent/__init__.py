"""What is put into a program that is watched: standard library and torch only, from Python 3.9 on."""

from __future__ import annotations


def open_attach_socket() -> bool:
    """Let ``gpudash watch --attach`` come into this process later; false where that cannot be."""
    from .attach import attach_socket

    return attach_socket.open_attach_socket()

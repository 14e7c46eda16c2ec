"""Checking whether Qt can start here (its Python package, its system libraries, the display), and opening the window.

The check comes before the import of Qt, because Qt ends the process if a platform library is missing. Every command
imports this file, which therefore imports little.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpudash.cli.terminal.output import RequestError, leave

if TYPE_CHECKING:
    from gpudash.devices.names import Simulation

UNSEEN = ("offscreen", "minimal", "minimalegl")
"""Qt platforms that show nothing, for tests and pictures."""

OFFSCREEN_LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
}
XCB_LIBRARIES = {
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}
"""Shared libraries that PySide6-Essentials does not include → Debian packages that do. Found by installing one missing
library at a time into a bare Debian 12."""


def _load_library(name: str) -> object:
    import ctypes

    return ctypes.CDLL(name)


def missing_packages(platform: str, load: Callable[[str], object] = _load_library) -> list[str]:
    """Debian packages whose libraries Qt's ``platform`` plugin ("offscreen", "xcb", "wayland") is missing here."""
    if not sys.platform.startswith("linux"):
        return []
    wanted = {**OFFSCREEN_LIBRARIES, **(XCB_LIBRARIES if platform == "xcb" else {})}
    return [package for library, package in wanted.items() if not _loads(library, load)]


def has_display() -> bool:
    """Whether a window can be opened: a Qt platform that can is set, this is not Linux, or there is a display."""
    if os.environ.get("QT_QPA_PLATFORM"):
        return os.environ["QT_QPA_PLATFORM"] != "minimal"
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def is_seen() -> bool:
    """Whether a user can see a window and type into it: there is a display, and Qt draws on it."""
    return has_display() and platform_name() not in UNSEEN


def why_unseen() -> str:
    """Why `is_seen` is false, as the beginning of a sentence."""
    if has_display():
        return f"QT_QPA_PLATFORM is {platform_name()}, which nobody sees"
    return "There is no display"


def platform_name() -> str:
    """The Qt platform that a window would use here."""
    named = os.environ.get("QT_QPA_PLATFORM", "").split(":")[0].split(";")[0]
    if named:
        return named
    if os.environ.get("DISPLAY"):
        return "xcb"
    return "wayland"


def require_qt(load: Callable[[str], object] = _load_library) -> None:
    """Check that Qt can start.

    Raises:
        RequestError: names the missing package with the exact command that installs it, or the missing display.
    """
    if importlib.util.find_spec("PySide6") is None:
        raise RequestError("The window needs PySide6, which is not installed.", "Run: pip install PySide6-Essentials")
    platform = platform_name()
    missing = missing_packages(platform, load)
    if missing:
        raise RequestError(
            f"Qt lacks {len(missing)} system {'library' if len(missing) == 1 else 'libraries'}.",
            f"Run: sudo apt install {' '.join(missing)}",
        )
    if platform == "xcb" and not os.environ.get("DISPLAY"):
        raise RequestError(
            "QT_QPA_PLATFORM is xcb, and DISPLAY names no display.",
            "Unset QT_QPA_PLATFORM to run in the terminal, or set DISPLAY.",
        )
    if platform == "xcb" and not _display_answers(load):
        raise RequestError(
            f"The display {os.environ.get('DISPLAY')!r} does not answer.",
            "Unset DISPLAY to run in the terminal, or correct it.",
        )
    if platform == "wayland" and not _wayland_answers():
        raise RequestError(
            f"The Wayland display {os.environ.get('WAYLAND_DISPLAY', 'wayland-0')!r} does not answer.",
            "Unset WAYLAND_DISPLAY to run in the terminal, or correct it or XDG_RUNTIME_DIR.",
        )


def _loads(library: str, load: Callable[[str], object]) -> bool:
    try:
        load(library)
    except OSError:
        return False
    return True


def _display_answers(load: Callable[[str], object]) -> bool:
    import ctypes

    try:
        xcb = load("libxcb.so.1")
    except OSError:
        return True  # Qt includes its own; leave errors to it
    connect = getattr(xcb, "xcb_connect", None)
    if connect is None:
        return True
    connect.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(connect(None, None))
    failed = bool(xcb.xcb_connection_has_error(connection))  # type: ignore[attr-defined]
    xcb.xcb_disconnect(connection)  # type: ignore[attr-defined]
    return not failed


def _wayland_answers() -> bool:
    """Whether a compositor accepts connections where libwayland looks for one (wl_display_connect(3))."""
    import socket
    from pathlib import Path

    if os.environ.get("WAYLAND_SOCKET"):
        return True  # an inherited connection
    place = Path(os.environ.get("XDG_RUNTIME_DIR", "")) / os.environ.get("WAYLAND_DISPLAY", "wayland-0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as compositor:
        compositor.settimeout(ANSWER_S)
        try:
            compositor.connect(os.fspath(place))
        except OSError:
            return False
    return True


ANSWER_S = 2.0
"""Longest wait for a compositor, in seconds."""


def open_window(simulation: Simulation | None = None) -> int:
    """Show the window and block until it is closed; return the exit code.

    Raises:
        RequestError: if Qt cannot start here.
    """
    require_qt()
    from gpudash.cli.loading import load_window

    load_window()
    from gpudash.ui.app import run

    return leave(*run(simulation=simulation))

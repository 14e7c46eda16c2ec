"""What is said when Qt cannot start."""

from __future__ import annotations

import socket
import tempfile

import pytest

from gpudash.cli.qt import OFFSCREEN_LIBRARIES, XCB_LIBRARIES, is_seen, missing_packages, require_qt, why_unseen
from gpudash.cli.terminal.output import RequestError


def lacking(*libraries: str):
    def load(name: str) -> object:
        if name in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    return load


@pytest.mark.parametrize("library", OFFSCREEN_LIBRARIES)
def test_each_missing_library_is_told_with_the_line_that_installs_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    with pytest.raises(RequestError) as told:
        require_qt(lacking(library))
    assert told.value.remedy == f"Run: sudo apt install {OFFSCREEN_LIBRARIES[library]}"


def test_several_missing_libraries_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    with pytest.raises(RequestError) as told:
        require_qt(lacking("libxcb-cursor.so.0", "libEGL.so.1"))
    assert told.value.remedy == "Run: sudo apt install libegl1 libxcb-cursor0"


def test_the_libraries_of_a_real_window_are_not_asked_for_offscreen() -> None:
    load = lacking(*XCB_LIBRARIES)
    assert missing_packages("offscreen", load) == []
    assert missing_packages("xcb", load) == list(XCB_LIBRARIES.values())


def test_a_display_that_does_not_answer_is_told_before_qt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QT_QPA_PLATFORM")
    monkeypatch.setenv("DISPLAY", ":4711")
    with pytest.raises(RequestError) as told:
        require_qt(
            lambda name: (
                object() if name in {**OFFSCREEN_LIBRARIES, **XCB_LIBRARIES} else __import__("ctypes").CDLL(name)
            )
        )
    assert "':4711' does not answer" in told.value.message


def test_a_wayland_display_is_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QT_QPA_PLATFORM")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        with pytest.raises(RequestError, match="The Wayland display 'w' does not answer"):
            require_qt(lacking())
        with socket.socket(socket.AF_UNIX) as compositor:
            compositor.bind(f"{folder}/w")
            compositor.listen()
            require_qt(lacking())


def test_a_platform_without_the_display_that_it_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(RequestError, match="QT_QPA_PLATFORM is xcb, and DISPLAY names no display"):
        require_qt(lacking())


def test_a_machine_with_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    require_qt(lacking())


@pytest.mark.parametrize(
    ("platform", "display", "why"),
    [
        (None, None, "There is no display"),
        ("offscreen", ":1", "QT_QPA_PLATFORM is offscreen, which nobody sees"),
        ("offscreen:configfile=screens.json", None, "QT_QPA_PLATFORM is offscreen, which nobody sees"),
        (None, ":1", ""),
        ("vnc", None, ""),
    ],
)
def test_what_is_drawn_for_nobody_is_not_seen(
    platform: str | None, display: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("QT_QPA_PLATFORM", platform), ("DISPLAY", display), ("WAYLAND_DISPLAY", None)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert is_seen() is (why == "")
    if why:
        assert why_unseen() == why

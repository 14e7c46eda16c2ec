"""What building the packages needs of the machine, asked before minutes are spent."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable

TOOLS = {
    "desktop-file-validate": "desktop-file-utils",
    "appstreamcli": "appstream",
    "Xvfb": "xvfb",
    "xdotool": "xdotool",
}
"""Programs → the Debian packages that they are in."""

SERVERS = {
    "appimage": "https://github.com/astral-sh/python-build-standalone/releases/latest",
    "conda": "https://conda.anaconda.org/conda-forge/noarch/repodata.json.zst",
}
"""What each package is made from."""

ANSWER_S = 20.0
"""Longest wait for a server."""

Request = Callable[[str], object]


def missing_tools(find: Callable[[str], str | None] = shutil.which) -> str:
    """Which programs are not installed, and the line that installs them, in a sentence; "" where all are."""
    missing = [tool for tool in TOOLS if find(tool) is None]
    if not missing:
        return ""
    packages = " ".join(TOOLS[tool] for tool in missing)
    return f"make package needs {', '.join(missing)}. Run: sudo apt install {packages}"


def _request(address: str) -> object:
    with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=ANSWER_S) as answer:
        return answer.status


def unreachable_server(package: str, request: Request = _request) -> str:
    """Why ``package`` cannot be made from what it is downloaded from, and what does without, in a sentence; "" where
    the server answers."""
    address = SERVERS[package]
    try:
        request(address)
    except OSError as error:
        reason = getattr(error, "reason", error)
        return (
            f"{address} cannot be reached ({reason}). make package PACKAGE_OPTIONS=--offline builds from this "
            "machine's interpreter and PyPI's files."
        )
    return ""

"""Where the program's icons, themes and texts lie."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(*parts: str) -> Path:
    """The path of a file under ``resources/``: beside the package in a checkout, inside it in a wheel.

    Raises:
        FileNotFoundError: naming the file, when an installation lacks it.
    """
    for base in (_PACKAGE / "_resources", _PACKAGE.parent / "resources"):
        path = base.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"gpudash's own file {'/'.join(parts)} is missing; reinstall gpudash")

"""Locations of gpudash's files. Every command imports this, so it must not need what the settings do."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Folder of recordings, settings and the log: ``GPUDASH_HOME``, else the platform's user data folder."""
    home = os.environ.get("GPUDASH_HOME")
    if home:
        return Path(home).expanduser()
    import platformdirs  # imported late, as it is rarely needed

    return Path(platformdirs.user_data_dir("gpudash", appauthor=False))


def log_file() -> Path:
    """The log of gpudash's own processes; older ones are next to it as gpudash.log.1 and so on."""
    return data_folder() / "gpudash.log"

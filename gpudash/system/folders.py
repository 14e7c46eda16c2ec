"""Where gpudash keeps its files. Loaded by every command, and so without what the settings need."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Where recordings, settings and the log lie: ``GPUDASH_HOME``, else the platform's user data folder."""
    home = os.environ.get("GPUDASH_HOME")
    if home:
        return Path(home).expanduser()
    import platformdirs  # only where it is asked

    return Path(platformdirs.user_data_dir("gpudash", appauthor=False))


def log_file() -> Path:
    """The log of gpudash's own processes; older ones lie beside it as gpudash.log.1 and so on."""
    return data_folder() / "gpudash.log"

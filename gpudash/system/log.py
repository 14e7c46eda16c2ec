"""The log of gpudash's processes: what they could not do, with tracebacks, in a file that its user alone may read."""

from __future__ import annotations

import io
import logging
import logging.handlers
import os
from pathlib import Path

VARIABLE = "GPUDASH_LOG"
"""Names the file for processes that another one starts."""

MOST_BYTES = 1_000_000
KEPT = 4
"""Older files that are kept beside the newest one, as gpudash.log.1 and so on."""

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def start_log(file: str) -> None:
    """Write what this process logs to a file, and let the processes that it starts do so too.

    A log that cannot be written costs nothing but itself.

    Args:
        file: absolute path. It and its folder are made with the first record.
    """
    os.environ[VARIABLE] = file
    handler = _PrivateFile(file, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger("gpudash").addHandler(handler)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A file of mode 0600, whatever the umask."""

    def _open(self) -> io.TextIOWrapper:
        file = Path(self.baseFilename)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A full disk is no reason to write into somebody's terminal."""

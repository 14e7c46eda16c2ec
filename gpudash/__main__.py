"""``python -m gpudash``, and the entry points of both scripts."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Reopen closed standard streams on the null device, before a file or a socket takes their descriptors.

    Unwanted output then fails with a message, as on a full disk, instead of ending up in a recording; messages are
    discarded.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)  # takes the lowest free one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def main() -> None:
    """The ``gpudash`` command."""
    open_standard_streams()
    try:
        from gpudash.cli import is_logged, run

        argv = sys.argv[1:]
        if is_logged(argv):
            from gpudash.system.log import log_uncaught

            log_uncaught()
        code = run(argv)
    except KeyboardInterrupt:  # before the command that handles it had begun
        from gpudash.cli import interrupted

        code = interrupted(sys.argv[1:])
    sys.exit(code)


def window() -> None:
    """The ``gpudash-window`` command: opens the window, without a terminal, and the file that is named."""
    open_standard_streams()
    from gpudash.cli import run
    from gpudash.system.log import log_uncaught

    log_uncaught()
    files = sys.argv[1:2]
    sys.exit(run(["open", "--", *files] if files else []))


if __name__ == "__main__":
    main()

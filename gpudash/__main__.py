"""``python -m gpudash``, and the entry points of both scripts."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Give a standard stream that was closed for us its place again, before a file or a socket is given its number.

    Unwanted output fails as on a full disk, in a sentence, instead of ending in a recording; messages go
    nowhere.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)  # the lowest that is free
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
    except KeyboardInterrupt:  # before the command that says so had begun
        from gpudash.cli import interrupted

        code = interrupted(sys.argv[1:])
    sys.exit(code)


def window() -> None:
    """The ``gpudash-window`` command: the window, without a terminal; a file that is named is opened in it."""
    open_standard_streams()
    from gpudash.cli import run
    from gpudash.system.log import log_uncaught

    log_uncaught()
    files = sys.argv[1:2]
    sys.exit(run(["open", "--", *files] if files else []))


if __name__ == "__main__":
    main()

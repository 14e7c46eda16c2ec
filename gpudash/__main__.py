"""``python -m gpudash``, and the entry points of both scripts."""

from __future__ import annotations

import sys


def main() -> None:
    """The ``gpudash`` command."""
    try:
        from gpudash.cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before the command that would say so had begun
        code = 130
    sys.exit(code)


def window() -> None:
    """The ``gpudash-window`` command: the window, without a terminal; a file that is named is opened in it."""
    from gpudash.cli import run

    files = sys.argv[1:2]
    sys.exit(run(["open", "--", *files] if files else []))


if __name__ == "__main__":
    main()

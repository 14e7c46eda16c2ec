"""``python -m gpudash``, and the entry points of both scripts."""

from __future__ import annotations

import sys


def main() -> None:
    """The ``gpudash`` command."""
    from gpudash.cli import run

    sys.exit(run(sys.argv[1:]))


def window() -> None:
    """The ``gpudash-window`` command: the window, without a terminal."""
    from gpudash.cli import run

    sys.exit(run([]))


if __name__ == "__main__":
    main()

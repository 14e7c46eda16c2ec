"""README's moving picture: ``python -m tests.end_to_end.film`` plays it in the real window and writes it anew.

It needs Xvfb, openbox, xdotool and Pillow.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.end_to_end.film_scenario import FRAME_MS
from tests.end_to_end.guide_pictures import ALONE
from tests.programs import program

FILM = Path("resources/film.webp")

LONGEST_S = 15.0
LARGEST_BYTES = 3_000_000

RUN_PICTURES = 45
"""Of the run, however long it takes on this machine."""


def main() -> None:
    """Play among no processes of others, which the first screen would list; then write the film."""
    if sys.argv[1:]:
        _write(Path(sys.argv[1]))
        return
    folder = tempfile.mkdtemp()
    driver = f"{sys.executable} -m tests.end_to_end.window_driver film {folder}"
    screen = f"{program('xvfb-run')} -a -s '-screen 0 1600x1000x24' sh -c '{program('openbox')} & exec {driver}'"
    steps = f"{shlex.join(ALONE)} {screen} && {sys.executable} -m tests.end_to_end.film {folder} && rm -r {folder}"
    environment = {**os.environ, "GPUDASH_HOME": f"{folder}/home", "QT_QPA_PLATFORM": "xcb"}
    os.execvpe("sh", ["sh", "-c", steps], environment)


def _write(folder: Path) -> None:
    run = json.loads((folder / "seen.json").read_text())["run"]
    pictures = _lapsed(sorted(folder.glob("film-*.png")), *run)
    first, *others = [Image.open(picture).convert("RGB") for picture in pictures]
    first.save(FILM, save_all=True, append_images=others, duration=FRAME_MS, loop=0, quality=72, method=4)
    size, seconds = FILM.stat().st_size, len(pictures) * FRAME_MS / 1000
    sys.stdout.write(f"{FILM}: {len(pictures)} pictures, {seconds:.1f} s, {size / 1e6:.2f} MB\n")
    if size > LARGEST_BYTES or seconds > LONGEST_S:
        sys.exit(f"It should be at most {LONGEST_S:.0f} s and {LARGEST_BYTES / 1e6:.0f} MB.")


def _lapsed(pictures: list[Path], first: int, last: int) -> list[Path]:
    """All pictures but those of the run, from ``first`` to ``last``, of which evenly `RUN_PICTURES` are kept."""
    run = pictures[first:last]
    kept = [run[number * len(run) // RUN_PICTURES] for number in range(min(RUN_PICTURES, len(run)))]
    return [*pictures[:first], *kept, *pictures[last:]]


if __name__ == "__main__":
    main()

"""The real window beside how it was drawn: ``python -m tests.end_to_end.design_pairs DRAWINGS`` plays each situation.

DRAWINGS is a folder with ``ghost-red.png`` and its kin. What comes of it is build/pairs/NAME.png, the drawing at the
left. Names behind it choose some. It needs Xvfb, openbox, xdotool, gcc and Pillow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from tests.end_to_end.guide_pictures import ALONE
from tests.nvml_stub.build import Scenario, StubGpu, build, variables
from tests.programs import program

PAIRS = Path("build/pairs")

LONGEST_S = 600.0

SITUATIONS: Mapping[str, str] = {
    "first-screen": "designed_first_screen",
    "ghost-red": "designed_short",
    "ghost-drawn": "designed_running",
    "states": "designed_states",
    "explain-source": "designed_explanation",
    "stage": "designed_stage",
}
"""Name of the drawing → the scenario that comes to the same situation."""

BETWEEN_PX = 16


def main() -> None:
    """Play each in a process of its own, and put the two pictures beside each other."""
    drawings = Path(sys.argv[1])
    unknown = [name for name in sys.argv[2:] if name not in SITUATIONS]
    if unknown:
        sys.exit(f"{unknown[0]} is not one of {', '.join(SITUATIONS)}")
    PAIRS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or SITUATIONS:
        with tempfile.TemporaryDirectory() as folder:
            _play(SITUATIONS[name], Path(folder), with_driver=name == "first-screen")
            error = json.loads(Path(folder, "seen.json").read_text()).get("error")
            if error:
                sys.exit(f"{name}: {error}")
            _beside(drawings / f"{name}.png", Path(folder, "picture.png")).save(PAIRS / f"{name}.png")
        sys.stdout.write(f"{PAIRS / name}.png\n")


def _play(scenario: str, folder: Path, *, with_driver: bool) -> None:
    environment = {**os.environ, "GPUDASH_HOME": f"{folder}/home", "QT_QPA_PLATFORM": "xcb"}
    environment["PLAY_PATIENCE_S"] = f"{LONGEST_S:.0f}"
    if with_driver:
        played = folder / "nvml"
        Scenario(gpus=[StubGpu(0, name="NVIDIA GeForce RTX 4090", total=24_564 * 1024**2)]).write(played)
        environment |= variables(build(folder / "driver"), played)
    driver = f"{sys.executable} -m tests.end_to_end.window_driver {scenario} {folder}"
    screen = f"{program('openbox')} & exec {driver}"
    alone = ALONE if with_driver else ()
    command = [*alone, program("xvfb-run"), "-a", "-s", "-screen 0 2700x1600x24", "sh", "-c", screen]
    subprocess.run(command, env=environment, check=True, timeout=2 * LONGEST_S)


def _beside(drawing: Path, real: Path) -> Image.Image:
    left, right = Image.open(drawing).convert("RGB"), Image.open(real).convert("RGB")
    both = Image.new("RGB", (left.width + BETWEEN_PX + right.width, max(left.height, right.height)), "#808080")
    both.paste(left, (0, 0))
    both.paste(right, (left.width + BETWEEN_PX, 0))
    return both


if __name__ == "__main__":
    main()

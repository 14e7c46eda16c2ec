"""Pictures of README and the guide: ``python -m tests.end_to_end.guide_pictures`` draws them anew by the real window.

Names behind it choose some, such as ``compare`` or ``watch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.benchmarks.fleet_overview import GPUS, MACHINES, server
from tests.end_to_end.fleet_scenario import ADDRESS

PICTURES = Path("resources/readme")

ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh")
"""Runs a command among no processes of others, which the first screen would list. The shell is the first process there:
to that the system sends no signal that it has no handler for, such as the one that xvfb-run waits for."""

LONGEST_S = 600.0


@dataclass(frozen=True)
class GuidePicture:
    """What is played, and which of its pictures is taken.

    Attributes:
        scenario: its name in `tests.end_to_end.window_driver`.
        picture: without its ending.
    """

    scenario: str
    picture: str


GUIDE: Mapping[str, GuidePicture] = {
    "first-screen": GuidePicture("pictured_first_screen", "light"),
    "light": GuidePicture("pictured_prediction", "light"),
    "dark": GuidePicture("pictured_prediction", "dark"),
    "watch": GuidePicture("pictured_leak", "watch-light"),
    "explained": GuidePicture("pictured_leak", "explained-dark"),
    "comparison": GuidePicture("comparison", "dark"),
    "compare": GuidePicture("compared", "dark"),
    "fleet": GuidePicture("generated_fleet", "fleet-light"),
    "ranks": GuidePicture("ranks", "dark"),
    "reopened": GuidePicture("reopened", "reopened-dark"),
    "snapshot": GuidePicture("sample_report", "snapshot-dark"),
    "stage-move": GuidePicture("demo", "stage-move"),
    "stage-wrong": GuidePicture("demo", "stage-wrong"),
    "stage-copies": GuidePicture("demo", "stage-copies"),
    "stage-devices": GuidePicture("demo", "stage-devices"),
    "stage-full": GuidePicture("demo", "stage-full"),
    "stage-precisions": GuidePicture("demo_of_remedies", "stage-precisions"),
    "stage-ladder": GuidePicture("demo_of_remedies", "stage-ladder"),
    "stage-lines": GuidePicture("demo_of_remedies", "stage-lines"),
}
"""Name of the picture → where it comes from."""


def main() -> None:
    """Play each scenario in a process of its own, and keep its pictures."""
    names = sys.argv[1:] or list(GUIDE)
    for scenario in dict.fromkeys(GUIDE[name].scenario for name in names):
        wanted = [name for name in names if GUIDE[name].scenario == scenario]
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            environment = {**os.environ, "GPUDASH_HOME": f"{folder}/home", "QT_QPA_PLATFORM": "offscreen"}
            environment["PLAY_PATIENCE_S"] = f"{LONGEST_S:.0f}"
            if "fleet" in wanted:
                port = stack.enter_context(server())
                environment |= {ADDRESS: f"prometheus:http://127.0.0.1:{port}", "FLEET_GPUS": str(MACHINES * GPUS)}
            command = [*ALONE] if "first-screen" in wanted else []
            command += [sys.executable, "-m", "tests.end_to_end.window_driver", scenario, folder]
            subprocess.run(command, env=environment, check=True, timeout=2 * LONGEST_S)
            for name in wanted:
                write_small(Path(folder, f"{GUIDE[name].picture}.png"), PICTURES / f"{name}.png")
                sys.stdout.write(f"{PICTURES / name}.png\n")


def write_small(taken: Path, kept: Path) -> None:
    """Keep a picture in 256 colours, a third of its bytes: the wheel carries the guide's."""
    picture = Image.open(taken).convert("RGB")
    picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(kept, optimize=True)


if __name__ == "__main__":
    main()

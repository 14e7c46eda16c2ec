"""Makes the sample recordings of ``resources/samples`` with the real commands.

``python -m tests.end_to_end.make_samples [NAME ...]`` makes all of them, or those that are named. What would tell of
the machine they were made on (its name, its user, its folders, its other processes) is replaced or left out.
"""

from __future__ import annotations

import getpass
import os
import pickle
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "resources" / "samples"

VALIDATION = """\
import logging
import time

import torch

device = torch.accelerator.current_accelerator()
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).to(device)
outputs = []
for step in range(400):
    batch = torch.randn(1024, 256).to(device)
    outputs.append(model(batch))  # without torch.no_grad() the whole graph stays behind it
    logging.getLogger("gpudash").info("step", extra={"step": step})
    time.sleep(0.1)
"""

TRAINING = ["--width", "64", "--depth", "2", "--sequence", "32", "--steps", "120", "--epochs", "4", "--threads", "1"]
TWO_RUNS = ["--device", "sim:0", "--steps", "30", "--epochs", "2", "--width", "48", "--depth", "2", "--threads", "1"]


PIDS: list[int] = []
"""Of the commands that were run."""


def words_of_this_machine() -> dict[str, str]:
    """What tells of this machine → what stands in its place, the longest first."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    told = {
        site: "/venv/lib/python3/site-packages",
        str(ROOT): "/src",
        sys.prefix: "/venv",
        sys.base_prefix: "/python",
        str(Path.home()): "/home/user",
        platform.node(): "sample",
        platform.platform(): "Linux-x86_64",
    }
    return dict(sorted(told.items(), key=lambda pair: -len(pair[0])))


def gpudash(folder: Path, *words: str, expected: int = 0) -> None:
    """Run one command in ``folder`` with a home of its own there."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUDASH")}
    environ |= {"GPUDASH_HOME": str(folder / "home"), "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-m", "gpudash", *words], cwd=folder, env=environ) as process:
        PIDS.append(process.pid)
    if process.returncode != expected:
        raise SystemExit(f"gpudash {' '.join(words)} ended with {process.returncode}, not {expected}")


def healthy_training(folder: Path) -> None:
    gpudash(folder, "run", "training", "--device", "cpu", *TRAINING, "--record", "healthy-training.gpudash")


def transfer_sweep(folder: Path) -> None:
    sizes = "64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"
    gpudash(folder, "run", "transfer", "--blocks", sizes, "--samples", "99", "--record", "transfer-sweep.gpudash")


def two_runs(folder: Path) -> None:
    for precision in ("fp32", "bf16"):
        target = f"two-runs-{precision}.gpudash"
        gpudash(folder, "run", "training", *TWO_RUNS, "--precision", precision, "--record", target)


def comparison(folder: Path) -> None:
    shape = ["--model", "mlp", "--width", "256", "--depth", "2", "--threads", "1"]
    words = ["--workload", "training", "--devices", "cpu,cpu", "--half-width", "0.04", *shape]
    gpudash(folder, "run", "comparison", *words, "--record", "comparison.gpudash")


def out_of_memory(folder: Path) -> None:
    (folder / "validate.py").write_text(VALIDATION, encoding="utf-8")
    target = "out-of-memory.gpudash"
    program = ["--", sys.executable, "validate.py"]
    gpudash(folder, "watch", "--simulate", "512MiB", "--record", target, *program, expected=1)
    (report,) = (folder / "home" / "reports").iterdir()
    shutil.copytree(report, folder / "out-of-memory")


REPORT = ("snapshot.pickle", "explanation.json", "steps.json", "output.txt", "report.txt")
"""What a sample keeps of a report: the rest is in the recording beside it, or tells of the machine."""

RATE_HZ = 5.0
"""Readings a second: enough for a plot of a few seconds, and a quarter of the default's."""

MADE: dict[str, Callable[[Path], None]] = {
    "healthy-training": healthy_training,
    "out-of-memory": out_of_memory,
    "transfer-sweep": transfer_sweep,
    "comparison": comparison,
    "two-runs": two_runs,
}


class Scrubber:
    """Replaces what tells of this machine."""

    def __init__(self, folder: Path) -> None:
        self._text = {str(folder): "/samples", **words_of_this_machine()}
        self._user = getpass.getuser()

    def text(self, text: str) -> str:
        for told, said in self._text.items():
            text = re.sub(rf"(?<!\w){re.escape(told)}(?!\w)", said, text)
        return text

    def value(self, value: Any) -> Any:
        """A snapshot's value, however deep."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        return value

    def recording(self, path: Path) -> None:
        """Every text of a recording; of the processes only the one that was recorded stays."""
        with sqlite3.connect(path) as database:
            own = ", ".join(map(str, PIDS))  # on a simulated GPU there is nobody else
            database.execute(f"DELETE FROM process WHERE device IS NULL AND pid NOT IN ({own})")
            database.execute("UPDATE process SET user = 'user' WHERE user IS NOT NULL")
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
                for column in columns:
                    held = database.execute(
                        f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\''
                    ).fetchall()
                    for (before,) in held:
                        after = self.text(before)
                        if after != before:
                            database.execute(
                                f'UPDATE "{table}" SET "{column}" = ? WHERE "{column}" = ?', (after, before)
                            )
        database.close()
        with sqlite3.connect(path, isolation_level=None) as database:
            database.execute("PRAGMA journal_mode = DELETE")
            database.execute("VACUUM")
        database.close()

    def report(self, folder: Path) -> None:
        """The snapshot of an out-of-memory, and what lies beside it."""
        folder.chmod(0o755)
        for path in folder.iterdir():
            if path.name not in REPORT:
                path.unlink()
            elif path.suffix == ".pickle":
                path.write_bytes(pickle.dumps(self.value(pickle.loads(path.read_bytes())), protocol=4))
            else:
                path.write_text(self.text(path.read_text(encoding="utf-8")), encoding="utf-8")


def main(names: list[str]) -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for name in names or list(MADE):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "home").mkdir()
            (folder / "home" / "settings.toml").write_text(f"rate_hz = {RATE_HZ}\n", encoding="utf-8")
            MADE[name](folder)
            scrubber = Scrubber(folder)
            for recording in folder.glob("*.gpudash"):
                scrubber.recording(recording)
                shutil.copyfile(recording, SAMPLES / recording.name)
            report = folder / name
            if report.is_dir():
                scrubber.report(report)
                shutil.rmtree(SAMPLES / name, ignore_errors=True)
                shutil.copytree(report, SAMPLES / name)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measured throughputs of real cards, published with timm (Apache-2.0), and which of them are for the fit."""

from __future__ import annotations

import csv
import hashlib
import io
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

ROWS = Path(__file__).parent / "rows.csv"
SOURCE = "huggingface/pytorch-image-models, results/, commit aa4b5850c1543fa488abf260f18390eda46cf85d (2026-08-08)"

SEED = 27
FOR_FIT = 1.2
FOR_TEST = 0.62
"""Of a family with n models, this times the square root of n are drawn, and one at least."""


@dataclass(frozen=True)
class Table:
    """A file of the source, by what it was measured on.

    Attributes:
        file: its name there, without "benchmark-" and ".csv".
        card: as `gpudash.devices.known_gpus.KnownGpu.key`.
        channels_last: of the model and its images.
        training: a step of training, else of inference.
        for_fit: the half of the families that is for the fit is used for it; else all of it is blind.
    """

    file: str
    card: str
    channels_last: bool = False
    training: bool = False
    for_fit: bool = False


TABLES = (
    Table("infer-amp-nchw-pt240-cu124-rtx3090", "rtx3090", for_fit=True),
    Table("infer-amp-nchw-pt240-cu124-rtx4090", "rtx4090", for_fit=True),
    Table("infer-amp-nhwc-pt240-cu124-rtx3090", "rtx3090", channels_last=True, for_fit=True),
    Table("infer-amp-nhwc-pt240-cu124-rtx4090", "rtx4090", channels_last=True, for_fit=True),
    Table("infer-amp-nchw-pt291-cu130-5090", "rtx5090"),
    Table("infer-amp-nchw-pt291-cu130-pro6000maxq", "rtx-pro-6000-maxq"),
    Table("train-amp-nchw-pt112-cu113-rtx3090", "rtx3090", training=True),
)


@dataclass(frozen=True)
class Row:
    """One measurement: of a model's step with ``batch`` images of ``image`` × ``image``."""

    table: Table
    model: str
    family: str
    image: int
    batch: int
    step_s: float

    @property
    def for_fit(self) -> bool:
        """Whether the fit may see it; the others are blind."""
        return self.table.for_fit and in_fit(self.family)


def in_fit(family: str) -> bool:
    """Half of the families, by a hash of their names: nobody chose which."""
    return hashlib.sha256(family.encode()).digest()[0] % 2 == 0


def draw(git: Path, family_of: Callable[[str], str | None]) -> list[Row]:
    """Models at random over families, with their rows in all tables."""
    tables = {table: _read(git, table) for table in TABLES}
    of_family: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted({row[0] for table in TABLES[:2] for row in tables[table]}):
        family = family_of(name)
        if family is not None:
            of_family[family].append(name)
    chance = random.Random(SEED)
    rows = []
    for family, names in sorted(of_family.items()):
        wanted = max(round((FOR_FIT if in_fit(family) else FOR_TEST) * sqrt(len(names))), 1)
        for name in sorted(chance.sample(names, min(wanted, len(names)))):
            for table in TABLES:
                rows += [
                    Row(table, name, family, image, batch, step_s)
                    for model, image, batch, step_s in tables[table]
                    if model == name
                ]
    return rows


def _read(git: Path, table: Table) -> list[tuple[str, int, int, float]]:
    text = subprocess.check_output(
        ["git", "-C", str(git), "show", f"HEAD:results/benchmark-{table.file}.csv"], text=True
    )
    kind = "train" if table.training else "infer"
    return [
        (
            row["model"],
            int(row[f"{kind}_img_size"]),
            int(row[f"{kind}_batch_size"]),
            int(row[f"{kind}_batch_size"]) / float(row[f"{kind}_samples_per_sec"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def write(rows: list[Row]) -> None:
    """Into the repository's own file."""
    with ROWS.open("w", newline="") as file:
        file.write(f"# {SOURCE}; rows drawn by python -m tests.speed fetch\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "model", "family", "image", "batch", "step_s"])
        writer.writerows(
            [row.table.file, row.model, row.family, row.image, row.batch, f"{row.step_s:.6g}"] for row in rows
        )


def read() -> Iterator[Row]:
    """What `write` wrote."""
    tables = {table.file: table for table in TABLES}
    lines = [line for line in ROWS.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        yield Row(
            tables[row["table"]],
            row["model"],
            row["family"],
            int(row["image"]),
            int(row["batch"]),
            float(row["step_s"]),
        )

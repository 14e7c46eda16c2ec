"""Fetch, trace, fit, test.

``python -m tests.speed fetch GIT``: draws the rows from a git directory of huggingface/pytorch-image-models.
``python -m tests.speed trace``: writes down the work of every row, or with ``fit`` of those for the fit; needs timm.
``python -m tests.speed fit``: fits the constants of `gpudash.speed` to the rows that are for it, and writes them.
``python -m tests.speed card FILE``: predicts what ``python -m tests.gpu.collect`` measured on a card.
``python -m tests.speed blind``: predicts all other rows, and prints the tables of the guide.
"""

from __future__ import annotations

import sys
import time
import tomllib
import warnings
from datetime import UTC, datetime
from pathlib import Path

from tests.speed import stub_torchvision, tables, traces


def _fetch(git: str) -> None:
    stub_torchvision.install()
    from tests.speed import tracing

    def family_of(name: str) -> str | None:
        try:
            return tracing.family(name)
        except (KeyError, RuntimeError):
            return None

    rows = tables.draw(Path(git), family_of)
    tables.write(rows)
    print(len(rows), "rows of", len({row.model for row in rows}), "models of", len({row.family for row in rows}))


def _trace(for_fit: bool) -> None:
    warnings.simplefilter("ignore")
    stub_torchvision.install()
    begin = time.monotonic()
    works, failures = traces.trace([row for row in tables.read() if row.for_fit or not for_fit], traces.read())
    traces.write(works)
    print(len(works), "steps traced in", round(time.monotonic() - begin), "s,", traces.FILE.stat().st_size, "bytes")
    for name, why in failures.items():
        print("not traced:", name, why)


def _fit() -> None:
    from gpudash.speed.constants import FILE
    from tests.speed import fitting

    works = traces.read()
    rows = [row for row in tables.read() if row.for_fit]
    names = fitting.fitted_names(tomllib.loads(FILE.read_text())["known"])
    fitted, operation_s = fitting.fit(fitting.steps_of(rows, works), fitting.begin(), names, fitting.OPERATION_S)
    out = list(fitting.left_out(rows, works, fitted, names))
    low, high = fitting.bounds(out, works)
    traced = [row for row in rows if traces.key(row) in works]
    models = len({row.model for row in traced})
    source = (
        f"a fit of {datetime.now(UTC).date()} to {len(traced)} steps of {models} models of timm, "
        "as published for an RTX 3090 and 4090"
    )
    fitting.write(fitted, names, low, high, source)
    print(source)
    print("operations of the hosts:", operation_s, "interval:", low, high)


def _blind() -> None:
    from gpudash.speed.work import HostSpeed
    from tests.speed import report

    for line in report.blind(list(tables.read()), traces.read(), HostSpeed()):
        print(line)


def main(arguments: list[str]) -> None:
    """One of the commands above."""
    match arguments:
        case ["fetch", git]:
            _fetch(git)
        case ["trace"]:
            _trace(for_fit=False)
        case ["trace", "fit"]:
            _trace(for_fit=True)
        case ["fit"]:
            _fit()
        case ["card", file]:
            from tests.speed import card

            card.report(Path(file))
        case ["blind"]:
            _blind()
        case _:
            print(__doc__)


main(sys.argv[1:])

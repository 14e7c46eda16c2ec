"""Constants of `gpudash.speed.constants` from measured steps: least squares of logarithms, held near what is known."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from numpy.typing import NDArray

from gpudash.devices.card_performance import CARD_PERFORMANCE, CardPerformance
from gpudash.speed import prediction
from gpudash.speed.columns import WorkColumns, columns_of
from gpudash.speed.constants import FILE, Constants, spread
from gpudash.speed.kernels import kernel_times
from gpudash.speed.work import HostSpeed, Operation, StepWork
from tests.speed import traces
from tests.speed.tables import Row

Floats = NDArray[np.float64]

START = Path(__file__).with_name("start.toml")

HELD_WITHIN = 0.35
"""How far, as a logarithm, a constant may usually be from where it starts: a prior's standard deviation."""

HELD_CLOSER = {
    # What kernels that only move memory get of the bandwidth is known well enough, and no more than all of it.
    **dict.fromkeys(("elementwise", "cast", "batch_norm", "layer_norm", "softmax", "reduction"), 0.08),
    **dict.fromkeys(("copy", "product_bandwidth"), 0.15),
    "l2_fall": 0.1,
    "overlap": 0.2,
    "start": 0.2,
    "launch": 0.2,
    "exponential": 0.2,
    "wave": 0.2,
}

USUAL_ERROR = 0.08
"""Of a step, as a logarithm, against which that is weighed."""

HOSTS = ("rtx3090", "rtx4090")
"""The computers of the fit's cards, whose time to start an operation nobody published: it is fitted, and not kept."""

OPERATION_S = (8e-6, 6e-6)
"""Where those begin."""


@dataclass(frozen=True)
class Steps:
    """Measured steps on one card, as columns."""

    card: CardPerformance
    host: int
    columns: WorkColumns
    begins: NDArray[np.int64]
    taken_s: Floats
    operations: Floats
    rows: tuple[Row, ...]

    def predicted_s(self, constants: Constants, operation_s: float) -> Floats:
        """How long each is predicted to take."""
        device = np.add.reduceat(
            kernel_times(self.columns, self.card, constants).together * self.columns.count, self.begins
        )
        return prediction.joined(device + constants.start, self.operations * operation_s)


def steps_of(rows: Sequence[Row], works: dict[traces.Key, StepWork]) -> list[Steps]:
    """By card."""
    by_card: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if traces.key(row) in works:
            by_card[row.table.card].append(row)
    found = []
    for card, its_rows in by_card.items():
        operations: list[Operation] = []
        counts: list[int] = []
        begins = []
        for row in its_rows:
            begins.append(len(operations))
            work = works[traces.key(row)]
            operations += list(work.operations)
            counts += list(work.operations.values())
        totals = [sum(works[traces.key(row)].operations.values()) for row in its_rows]
        found.append(
            Steps(
                card=CARD_PERFORMANCE[card],
                host=HOSTS.index(card) if card in HOSTS else 0,
                columns=WorkColumns.of(operations, counts),
                begins=np.array(begins),
                taken_s=np.array([row.step_s for row in its_rows]),
                operations=np.array(totals, dtype=np.float64),
                rows=tuple(its_rows),
            )
        )
    return found


def errors(steps: Sequence[Steps], constants: Constants, operation_s: Sequence[float]) -> Floats:
    """Logarithms of predicted over taken, of all steps."""
    return np.concatenate(
        [np.log(each.predicted_s(constants, operation_s[each.host]) / each.taken_s) for each in steps]
    )


def fit(
    steps: Sequence[Steps], start: Constants, names: Sequence[str], operation_s: Sequence[float], turns: int = 25
) -> tuple[Constants, list[float]]:
    """``names`` of the constants, and the hosts' times, by Levenberg and Marquardt with weights after Huber."""
    begin = np.log([*(getattr(start, name) for name in names), *operation_s])
    held = np.array([HELD_CLOSER.get(name, HELD_WITHIN) for name in names] + [HELD_WITHIN] * len(operation_s))

    def unpacked(values: Floats) -> tuple[Constants, list[float]]:
        numbers = np.exp(values)
        given = {name: float(number) for name, number in zip(names, numbers, strict=False)}
        return replace(start, **given), [float(number) for number in numbers[len(names) :]]

    def residual(values: Floats) -> Floats:
        return errors(steps, *unpacked(values)) / USUAL_ERROR

    def cost(values: Floats) -> float:
        size = np.abs(residual(values))
        huber = np.where(size < 1.5, size**2 / 2, 1.5 * size - 1.125).sum()
        return float(huber + (((values - begin) / held) ** 2).sum() / 2)

    values = begin.copy()
    damping = 1.0
    lowest = cost(values)
    for _ in range(turns):
        off = residual(values)
        weight = np.minimum(1.5 / np.maximum(np.abs(off), 1e-9), 1.0)
        jacobian = np.empty((len(off), len(values)))
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += 0.02
            jacobian[:, index] = (residual(moved) - off) / 0.02
        normal = jacobian.T @ (jacobian * weight[:, None]) + np.diag(1 / held**2)
        gradient = jacobian.T @ (weight * off) + (values - begin) / held**2
        improved = False
        for _ in range(6):
            tried = values - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            now = cost(tried)
            if now < lowest:
                values, improved = tried, lowest - now > 1e-3
                lowest = now
                damping /= 3
                break
            damping *= 3
        if not improved:
            break
    return unpacked(values)


def begin() -> Constants:
    """Where the fit starts, and what it is held to."""
    known = tomllib.loads(FILE.read_text())["known"]
    return Constants(**tomllib.loads(START.read_text())["fitted"], **known)


def fitted_names(known: Sequence[str]) -> list[str]:
    """All constants but those that no data speak of."""
    return [field.name for field in fields(Constants) if field.name not in known]


FOLDS = 6


def left_out(
    rows: Sequence[Row], works: dict[traces.Key, StepWork], start: Constants, names: Sequence[str]
) -> Iterator[tuple[Row, Constants]]:
    """Each row with constants of a fit that saw nothing of its family, begun at ``start``."""
    families = sorted({row.family for row in rows})
    for fold in range(FOLDS):
        out = set(families[fold::FOLDS])
        kept = steps_of([row for row in rows if row.family not in out], works)
        constants, _ = fit(kept, start, names, OPERATION_S, turns=4)
        yield from ((row, constants) for row in rows if row.family in out and traces.key(row) in works)


def bounds(rows: Sequence[tuple[Row, Constants]], works: dict[traces.Key, StepWork]) -> tuple[float, float]:
    """`Spread.low` and `Spread.high`, with which one step in twenty is shorter and one longer than the interval."""
    host = HostSpeed()
    known = spread()
    off = []
    further = []
    for row, constants in rows:
        work = works[traces.key(row)]
        card = CARD_PERFORMANCE[row.table.card]
        step = prediction._step(work, columns_of(work), card, host, constants)
        off.append(np.log(row.step_s / step.seconds()))
        further.append(prediction.further_doubts(step, card, host, known))
    # Beyond sqrt(bound^2 + further) lies what is, in squares less its own further doubts, beyond the bound.
    squares = np.array(off) ** 2 - np.array(further)
    signed = np.sign(off) * np.sqrt(np.maximum(squares, 0))
    low, high = np.quantile(signed, (0.05, 0.95))
    return float(low), float(high)


def write(constants: Constants, names: Sequence[str], low: float, high: float, source: str) -> None:
    """Into the file that predictions read, with its comments."""
    document: Any = tomlkit.parse(FILE.read_text())
    document["source"] = source
    for name in names:
        document["fitted"][name] = float(f"{getattr(constants, name):.4g}")
    document["spread"]["low"] = round(low, 3)
    document["spread"]["high"] = round(high, 3)
    FILE.write_text(tomlkit.dumps(document))

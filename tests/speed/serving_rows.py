"""Published rows of servers of language models, and what `gpudash.speed.serving` says of each.

``python -m tests.speed.serving_rows`` prints how far it is off, by table and model; with ``fit`` behind it, the
constants that meet the rows of `FITTED_MODEL` best.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.serving import FITTED, Constants, ServedWork, generating, reading, serving_time, spread_of

BLIND = Path(__file__).parent / "blind"

FITTED_MODEL = "gpt-j-6b"
"""The model on whose rows the constants were fitted."""

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """Of a model, by its paper: parameters, layers, width, width of the keys of all heads, of the queries."""

    parameters: float
    layers: int
    hidden: int
    keys: int
    queries: int


SHAPES = {
    "gpt-j-6b": Shape(6.05e9, 28, 4096, 4096, 4096),
    "llama-2-7b": Shape(6.74e9, 32, 4096, 4096, 4096),
    "llama-2-70b": Shape(68.98e9, 80, 8192, 1024, 8192),
    "falcon-180b": Shape(179.5e9, 80, 14848, 512, 14848),
    "llama-3-8b": Shape(8.03e9, 32, 4096, 1024, 4096),
    "mistral-7b": Shape(7.25e9, 32, 4096, 1024, 4096),
    "qwen2.5-0.5b": Shape(0.494e9, 24, 896, 128, 896),
    "llama-3-70b": Shape(70.55e9, 80, 8192, 1024, 8192),
}

WEIGHTS = {
    ("llama-3-8b", "q4_k_m"): 4.58 * GIB,
    ("llama-3-8b", "f16"): 14.96 * GIB,
    ("llama-3-70b", "q4_k_m"): 39.59 * GIB,
}
"""As the table of llama.cpp says."""


@dataclass(frozen=True)
class Row:
    """A published row and its prediction, both in seconds, or both in tokens a second.

    Attributes:
        table: its file.
        what: "first token", "generating", "a token", "reading" or "both".
        spread: of the predicted interval.
    """

    table: str
    card: str
    model: str
    what: str
    measured: float
    predicted: float
    spread: float

    @property
    def error(self) -> float:
        """Share of what was measured that the prediction is off."""
        return abs(self.predicted / self.measured - 1)

    @property
    def covered(self) -> bool:
        return abs(math.log(self.predicted / self.measured)) <= math.log(self.spread)


def work_of(model: str, precision: str, ranks: int) -> ServedWork:
    """The work of a model whose weights and cache have the row's precision."""
    shape = SHAPES[model]
    number = 2
    arithmetic = "float16"
    if precision == "bfloat16":
        arithmetic = "bfloat16"
    if precision == "fp8":
        number = 1
        arithmetic = "float8"
    return ServedWork(
        layers=shape.layers,
        hidden=shape.hidden,
        weights_bytes=WEIGHTS.get((model, precision), shape.parameters * number) / ranks,
        parameters=shape.parameters / ranks,
        token_bytes=2 * shape.layers * shape.keys * number / ranks,
        attention_width=shape.layers * shape.queries / ranks,
        arithmetic=arithmetic,
        ranks=ranks,
        unpacked=precision.startswith("q4"),
    )


def rows(constants: Constants = FITTED, model: str = "") -> Iterator[Row]:
    """Every row of the tables, or of one model."""
    for table in ("serving_tensorrt_llm", "serving_llama_cpp", "serving_vllm"):
        with (BLIND / f"{table}.csv").open() as file:
            for row in csv.DictReader(file):
                if model in ("", row["model"]):
                    yield _row(table, row, constants)


def _row(table: str, row: dict[str, str], constants: Constants) -> Row:
    card = CARD_PERFORMANCE[row["card"]]
    work = work_of(row["model"], row["precision"], int(row["gpus"]))
    measured = float(row["throughput"])
    spread = spread_of(work, card)
    if row["unit"] == "ms a token":
        prompt, answer = map(int, row["size"].split("+"))
        seconds = generating(work, card, int(row["batch"]), prompt + answer / 2, constants).total_s
        return Row(table, row["card"], row["model"], "a token", measured / 1e3, seconds, spread)
    if row["mode"] == "first token":
        prompt, answer = map(int, row["size"].split("+"))
        seconds = serving_time(work, card, int(row["batch"]), prompt, answer, constants).first_token_s
        return Row(table, row["card"], row["model"], "first token", measured / 1e3, seconds, spread)
    if row["mode"] == "decode":
        length = int(row["size"])
        predicted = 1 / generating(work, card, 1, length / 2, constants).total_s
        return Row(table, row["card"], row["model"], "generating", measured, predicted, spread)
    if row["mode"] == "prefill":
        length = int(row["size"])
        seconds = reading(work, card, 1, length, constants).total_s
        if row["unit"] == "ms to the first token":
            return Row(table, row["card"], row["model"], "first token", measured / 1e3, seconds, spread)
        return Row(table, row["card"], row["model"], "reading", measured, length / seconds, spread)
    prompt, answer = map(int, row["size"].split("+"))
    predicted = serving_time(work, card, int(row["batch"]), prompt, answer, constants).tokens_per_s
    return Row(table, row["card"], row["model"], "both", measured, predicted, spread)


LOWEST = Constants(products_share=0.2, generating_layer_s=2e-6, reading_layer_s=5e-6, sum_s=5e-6)
HIGHEST = Constants(products_share=0.8, generating_layer_s=300e-6, reading_layer_s=300e-6, sum_s=100e-6)
FREE = ("products_share", "generating_layer_s", "reading_layer_s", "sum_s")
TRIALS = 8000
WORST = 0.6
"""Of the logarithm of a ratio: a row that is further off counts as this much."""


def fit() -> Constants:
    """The constants that meet the rows of `FITTED_MODEL` best, by random search from a seed."""
    chance = random.Random(0)
    best = FITTED
    least = math.inf
    for trial in range(TRIALS):
        values = {}
        for name in FREE:
            low, high = getattr(LOWEST, name), getattr(HIGHEST, name)
            # First anywhere, then around the best so far.
            if trial < TRIALS // 4:
                values[name] = chance.uniform(low, high)
            else:
                values[name] = min(max(getattr(best, name) * math.exp(chance.gauss(0, 0.06)), low), high)
        constants = replace(FITTED, **values)
        found = list(rows(constants, FITTED_MODEL))
        loss = statistics.mean(min(abs(math.log(row.predicted / row.measured)), WORST) for row in found)
        if loss < least:
            best, least = constants, loss
    return best


def main(arguments: Sequence[str]) -> None:
    """Print the errors by table, model and what was done, or the fit."""
    if "fit" in arguments:
        sys.stdout.write(f"{fit()}\n")
        return
    groups = defaultdict(list)
    for row in rows():
        groups[row.table, row.model, row.what].append(row)
    for (table, model, what), found in sorted(groups.items()):
        errors = sorted(row.error for row in found)
        bias = statistics.median(row.predicted / row.measured for row in found)
        covered = sum(row.covered for row in found)
        sys.stdout.write(
            f"{table:22} {model:12} {what:12} {len(found):3} rows, median {statistics.median(errors):.0%}, "
            f"worst {errors[-1]:.0%}, ratio {bias:.2f}, covered {covered}\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])

"""Predictions as functions: ``gpudash estimate`` in a separate process, with its answers as objects."""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudash.memory.explaining.explanation_text import in_columns
from gpudash.memory.predicting.card_text import spare_text
from gpudash.session.api.cells import needed_of
from gpudash.simulator.predict import PredictedProgram, PredictionError, ask, simulated
from gpudash.units import format_bytes, format_duration

MOST_LINES = 5
"""How many lines of code are listed: those that hold the most."""

FITS = {True: "fits", False: "does not fit", None: "may not fit"}

CELL, EARLIER = "cell.py", "earlier_cells.py"

Target = Callable[..., Any] | str | Sequence[str]
"""A function that takes a device, builds everything there and returns its step; its name, as "package.module:function"
or "file.py:function"; or the arguments of a command, as ["python", "train.py"]."""


class PredictedRun(PredictedProgram):
    """The predicted memory of a run on a GPU. Sizes in bytes; ``str`` and a notebook show a short summary."""

    subject = "This run"

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.line_rows(), *self.assumptions])

    __repr__ = __str__

    @property
    def headline(self) -> str:
        """A sentence saying whether it fits and what it needs."""
        needed = f"it needs {format_bytes(self.needed_bytes)}"
        held = format_bytes(self.peak_allocated_bytes)
        return f"{self.subject} {FITS[self.fits]}: {needed}, of which tensors hold {held}."

    def line_rows(self) -> list[str]:
        """The lines of code that hold the most at the peak."""
        largest = sorted(self.by_line.items(), key=lambda item: -item[1])[:MOST_LINES]
        return [f"  {format_bytes(size):>10}  {self.place(where)}" for where, size in largest]

    def place(self, where: str) -> str:
        """The position of a line, as shown to the user."""
        return where

    def to_dict(self) -> dict[str, Any]:
        """Everything that ``gpudash estimate --json`` prints."""
        return dict(self.document)

    def to_html(self) -> str:
        """The summary as an HTML fragment, which a notebook displays."""
        from gpudash.drawing.page import BarsBlock, Block, BulletsBlock, ParagraphBlock, fragment

        body: list[Block] = [ParagraphBlock(self.headline, "cause")]
        largest = max(self.by_category.values(), default=1)
        rows = [(name, format_bytes(size), size / largest) for name, size in self.by_category.items() if size]
        if rows:
            body.append(BarsBlock(rows))
        lines = [row.strip() for row in self.line_rows()]
        if lines:
            body.append(BulletsBlock(lines))
        body += [ParagraphBlock(text, "soft") for text in self.assumptions]
        return fragment(body)

    _repr_html_ = to_html


class PredictedCell(PredictedRun):
    """What a cell would take; its lines are numbered as in the notebook."""

    subject = "This cell"

    def place(self, where: str) -> str:
        return _place(where)


@dataclass(frozen=True)
class CardAnswer:
    """The answer for one card. Sizes in bytes.

    Attributes:
        card: as requested.
        name: the card's name.
        fits: ``None`` within the margin, or if not known.
        spare_bytes: memory left over, negative if it is short; ``None`` if not known.
        step_s: predicted seconds per step; ``None`` if not known.
        reason: why there is no answer; "" if there is one.
    """

    card: str
    name: str
    fits: bool | None
    spare_bytes: int | None
    step_s: float | None
    reason: str


class CardAnswers(list[CardAnswer]):
    """The answers for several cards, in the order requested."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(map(_card_answer, document["cards"]))
        self._document = document

    def __bool__(self) -> bool:
        """Whether the run fits every card."""
        return all(answer.fits is True for answer in self)

    def __str__(self) -> str:
        return "\n".join(in_columns(self._rows()))

    def __repr__(self) -> str:
        return str(self)

    @property
    def sentence(self) -> str:
        """The answer for each card, one after the other."""
        return f"{'; '.join(f'{name}: {text}' for name, text, _step in map(_row, self))}."

    def to_dict(self) -> dict[str, Any]:
        """Everything that ``gpudash estimate --json`` prints."""
        return dict(self._document)

    def to_html(self) -> str:
        """The answers as an HTML fragment, which a notebook displays."""
        from gpudash.drawing.page import TableBlock, fragment

        head, *rows = self._rows()
        return fragment([TableBlock([(title, False) for title in head], rows)])

    _repr_html_ = to_html

    def _rows(self) -> list[tuple[str, str, str]]:
        return [("card", "fits", "step, predicted"), *map(_row, self)]


def estimate(
    target: Target, *, card: str | Sequence[str] = (), steps: int = 3, time_limit_s: float | None = None
) -> PredictedRun:
    """Predict the memory a run takes on a GPU, without a GPU and without computing anything.

    Runs in a separate process, so nothing in this one changes. Files that it writes are discarded.

    Args:
        target: a function ``def build(device): ...; return step``, its name, or the arguments of a command.
        card: name ("rtx4090") or memory ("24GiB"); several for a command with ranks. The default is this computer's
            GPU.
        steps: number of steps to simulate.
        time_limit_s: processor time that a command may take, in seconds; 60 by default.

    Raises:
        PredictionError: one sentence, when no prediction is possible.
        ValueError: one sentence, when ``target`` is none of these.

    >>> import gpudash
    >>> found = gpudash.estimate("tests.unit.session.api.own_training:build", card="rtx4090")
    >>> found.fits, found.peak_allocated_bytes
    (True, 17069056)
    """
    return PredictedRun.of(_answer_of(target, simulated(card), steps, time_limit_s))


def fits(target: Target, cards: Sequence[str], *, steps: int = 3, time_limit_s: float | None = None) -> CardAnswers:
    """Check whether a run fits each of several cards, from one prediction; the result is true if it fits all of them.

    Args:
        target, steps, time_limit_s: as for `estimate`.
        cards: their names, such as ["l4", "rtx4090"].

    Raises:
        PredictionError: one sentence, when no prediction is possible.
        ValueError: one sentence, when ``target`` is not one of the types above, or there are no cards.
    """
    if isinstance(cards, str) or not cards:
        raise ValueError(f'fits() takes the names of cards, as in cards=["l4", "rtx4090"], not {cards!r}.')
    # What would fit the first card is not in the answer, and takes further runs.
    flags = ["--simulate", cards[0], "--cards", ",".join(cards), "--no-alternatives"]
    return CardAnswers(_answer_of(target, flags, steps, time_limit_s))


def predict_cell(
    cell: str, earlier: Sequence[str], *, cards: Sequence[str] = (), steps: int = 3, time_limit_s: float = 60.0
) -> PredictedCell | CardAnswers:
    """Predict a cell, in the current folder.

    Args:
        cell: its Python source.
        earlier: the source of the cells run before it, oldest first.
        cards: names or memory of GPUs; this computer's by default.
        steps, time_limit_s: as for `estimate`.

    Returns:
        the prediction for one card, or the answers for several.

    Raises:
        ValueError: one sentence, when the cell is not valid Python.
        PredictionError: when no prediction is possible.
    """
    before = needed_of(cell, earlier)
    with tempfile.TemporaryDirectory(prefix="gpudash-cell-") as folder:
        Path(folder, EARLIER).write_text(before, encoding="utf-8")
        script = Path(folder, CELL)
        first = f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); from {Path(EARLIER).stem} import *"
        script.write_text(f"{first}\n{cell}", encoding="utf-8")
        command = [sys.executable, str(script)]
        try:
            if len(cards) > 1:
                return fits(command, cards, steps=steps, time_limit_s=time_limit_s)
            return PredictedCell.of(estimate(command, card=cards, steps=steps, time_limit_s=time_limit_s).document)
        except PredictionError as error:
            raise PredictionError(
                re.sub(rf"{re.escape(folder)}/\S+:\d+", lambda found: _place(found[0]), str(error))
            ) from None


def _answer_of(target: Target, flags: Sequence[str], steps: int, time_limit_s: float | None) -> Mapping[str, Any]:
    arguments = [*flags, "--steps", str(steps), "--json"]
    if callable(target):
        with _named(target) as name:
            return ask([*arguments, "--callable", name], modules=sys.path)
    if isinstance(target, str) and ":" in target:
        return ask([*arguments, "--callable", target], modules=sys.path)
    if isinstance(target, str) or not target:
        raise ValueError(
            f'estimate() takes a function, its name as "file.py:function", or a command as ["python", "train.py"], '
            f"not {target!r}."
        )
    limit: list[str] = []
    if time_limit_s is not None:
        limit = ["--time-limit", str(time_limit_s)]
    # the program has its own Python, which finds its own modules
    return ask([*arguments, *limit, "--", *target])


def _card_answer(row: Mapping[str, Any]) -> CardAnswer:
    time = row.get("time") or {}
    return CardAnswer(
        row["card"], row["name"], row["fits"], row["spare_bytes"], time.get("median_s"), row.get("reason") or ""
    )


def _row(answer: CardAnswer) -> tuple[str, str, str]:
    text = FITS[answer.fits]
    if answer.spare_bytes is not None:
        text = f"{text}, {spare_text(answer.spare_bytes)}"
    elif answer.reason:
        text = answer.reason
    step = ""
    if answer.step_s is not None:
        step = format_duration(answer.step_s)
    return answer.name, text, step


@contextmanager
def _named(build: Callable[..., Any]) -> Iterator[str]:
    """A name under which another process finds a function; one defined in a notebook is written to a file for it.

    Raises:
        ValueError: one sentence, when it has no such name.
    """
    name = getattr(build, "__qualname__", "")
    module = sys.modules.get(getattr(build, "__module__", None) or "")
    if not name.isidentifier() or module is None:
        raise ValueError(
            "estimate() predicts in a process of its own, so it takes a function that a module or a cell defines at "
            "its top: no lambda, no method, and none that is made within another function."
        )
    if not inspect.signature(build).parameters:
        raise ValueError(f"{name}() takes no device: write def {name}(device), which returns its step.")
    if module.__name__ != "__main__":
        yield f"{module.__name__}:{name}"
        return
    cells = getattr(module, "In", None)
    file = getattr(module, "__file__", None)
    if isinstance(cells, list):
        with tempfile.TemporaryDirectory(prefix="gpudash-cell-") as folder:
            path = Path(folder, EARLIER)
            path.write_text(needed_of(name, cells), encoding="utf-8")
            yield f"{path}:{name}"
    elif file is not None:
        yield f"{file}:{name}"
    else:
        raise ValueError(f"{name}() was typed in, and no file has it: put it into one, and give its name.")


def _place(where: str) -> str:
    """The position of a line, as it is found in the notebook."""
    file, _, number = where.rpartition(":")
    name = Path(file).name
    if name == CELL and number.isdecimal():
        return f"line {int(number) - 1} of the cell"
    if name == EARLIER:
        return f"line {number} of what earlier cells made"
    return where

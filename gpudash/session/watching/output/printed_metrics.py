"""Finds losses, accuracies and step numbers in a program's output by the names of their fields.

A number counts as a loss only if its field has that name: ``step 20 loss 2.32``, ``| epoch 1 | 200/2983 batches | loss
7.63``, ``iter 10: loss 3.2``, JSON lines, dictionaries in Python syntax, the postfix of a progress bar. Variants of a
loss ("kl_loss", "best loss") do not count; if there are no others, as in a GAN (``Loss_D: 1.3 Loss_G: 0.7``), each is
a loss of its own. An evaluation's loss on the training data is not a step's loss. A custom pattern replaces all this.
It is matched in a child process, because nothing else can stop a regular expression that backtracks endlessly.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from gpudash.session.watching.output.log import LONGEST_LINE, shown
from gpudash.telemetry.runs import MOST_LOSSES

LINES_AT_ONCE = 2000
LINES_PER_SECOND = 500
"""Most lines searched per second; of more, the newest."""

LINE_BYTES = 256
"""A longer line counts as several."""

MOST_WAITING = 10_000
"""Most results between two calls of `take`."""

PATTERN_S = 1.0
"""Time limit for a custom pattern on one batch of output."""

LONGEST_PATTERN = 1000

GROUPS = ("step", "epoch", "loss", "val_loss", "accuracy")
"""Group names allowed in a custom pattern."""

Kind = Literal["loss", "accuracy", "step", "epoch"]

_SUBJECTS: Mapping[str, Kind] = {
    "loss": "loss",
    **dict.fromkeys(("acc", "accuracy", "acc@1", "prec@1"), "accuracy"),
    **dict.fromkeys(("step", "iter", "iters", "iteration", "it", "batch", "update"), "step"),
    "epoch": "epoch",
}
_TRAINING = frozenset({"train", "training"})
_VALIDATION = frozenset(
    {"val", "valid", "validation", "validating", "eval", "evaluation", "evaluating", "test", "testing", "dev"}
)
_METRIC_COMPANIONS = frozenset(
    {"avg", "average", "mean", "total", "running", "current", "cur", "final", "lm", "global", "smoothed", "metrics"}
    | {"step", "iter", "batch", "minibatch", "epoch", "the", "with", "and"}
    | {"info", "debug", "warning", "rank", "gpu", "worker", "node"}
)
"""Words before "loss" that do not change its meaning; other words make it a part, or something else."""

_NO_LOSS = frozenset(
    {"best", "min", "lowest", "max", "last", "previous", "prev", "old", "packet", "stop", "weight", "target", "delta"}
    | {"scale", "scaler", "weights", "coef", "coeff", "factor", "lambda", "ratio", "fn", "function", "type", "time"}
    | {"threshold", "history", "id", "count", "num", "number", "hearing", "data"}
)
"""Words next to "loss" that change its meaning."""

MOST_SKIPPED = 8
"""Most ignored fields that are reported."""

HELD_S = 10.0
"""Longest time that an evaluation's loss on the training data waits for a step's loss, which would be the run's."""

_COUNT_COMPANIONS = frozenset(
    {"global", "optimizer", "the", "end", "of", "at", "info", "debug", "rank", "gpu", "worker", "node"}
)
"""Words before "step" or "epoch" that do not change its meaning."""

# Possessive quantifiers (Python 3.11) throughout: without backtracking, no line takes long.
_NUMBER = r"[-+]?+(?:(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?+|nan|inf(?:inity)?+)"
_FIELD = re.compile(
    r"(?<![\w@])(?P<name>[a-z][\w@]*+(?:[ /.\-](?!nan\b|inf(?:inity)?\b)[a-z][\w@]*+){0,2}+)"
    r"[\"']?+\s*+(?:[:=]\s*+)?+[\"'(\[]?+(?:tensor\()?+"
    rf"(?P<value>{_NUMBER})(?![\w]|[.,:][0-9]|/[a-z])(?:\s?/\s*+(?P<whole>[0-9]++))?+(?P<percent>\s?%)?+",
    re.IGNORECASE,
)
_COUNTS = tuple(
    # From the most specific to the least: an epoch's fraction in brackets precedes that of its batches.
    re.compile(text)
    for text in (
        r"(?<![\w.])([0-9]{1,15}) ?/ *+([0-9]{1,15}) ++(?:batches|steps|iterations|iters|it)\b",
        r"(?<![\w.])([0-9]{1,15})/([0-9]{1,15}) (?:\[[0-9:=>.?]|━)",
        r"\[ *+[0-9]{1,15}/ *+[0-9]{1,15}\] ?\[ *+([0-9]{1,15})/ *+([0-9]{1,15})\]",
        r"\[ *+([0-9]{1,15})/ *+([0-9]{1,15})\]",
    )
)
"""A step number and total without a name: ``200/2983 batches``, a progress bar, ``[ 10/5005]``, possibly after the
epoch's."""

_SPLIT = re.compile(rf"(?<![\w/.@-])({'|'.join(sorted(_TRAINING | _VALIDATION))})(?![\w/.])", re.IGNORECASE)
_OF_NETWORKS = re.compile(r"\(epoch: [0-9]{1,15}, iters: [0-9]{1,15}, [^)]{0,200}\)")
"""Prefix of the losses in pix2pix and CycleGAN, which are named only after networks: ``G_GAN: 1.2 D_real: 0.6``."""

_TIMES = frozenset({"time", "data"})
"""Fields of such a line that are not losses."""

_OF_WHOLE_RUN = "train_runtime"
"""Next to this field, Hugging Face's Trainer reports the mean of all steps' losses, under the name of a step's."""

_WHOLE = re.compile(r"[0-9]{1,15}")
_VALUE = re.compile(_NUMBER, re.IGNORECASE)


class Printed(NamedTuple):
    """The content of a line.

    Attributes:
        time_s: session time at which it was printed.
        step: number of the step; ``None`` if missing.
        total: number of steps in an epoch or the run; ``None`` if missing.
        epoch: the epoch as printed.
        loss: training loss, possibly NaN or infinite.
        accuracy: a ratio.
        fields: names of the losses and accuracy, such as "train loss".
        val_loss: validation loss, like ``loss``.
        losses: losses of a program with several, by name.
        skipped: ignored fields that are called a loss, such as "kl_loss" next to "loss".
    """

    time_s: float
    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    fields: tuple[str, ...] = ()
    val_loss: float | None = None
    losses: Mapping[str, float] = MappingProxyType({})
    skipped: tuple[str, ...] = ()


class PrintedMetrics:
    """Reads both streams of a program. `feed` and `end` belong to the reading thread; any may call `take`.

    Training and validation are kept apart: a validation loss has its own field, and a validation accuracy is only used
    as long as there is none from training.

    Args:
        pattern: custom pattern, checked by `check_pattern`; "" for none.
    """

    def __init__(self, pattern: str = "") -> None:
        self._own: _OwnPattern | None = None
        if pattern:
            self._own = _OwnPattern(pattern)
        self._begun: dict[int, tuple[bytes, float]] = {}
        self._of_training: set[str] = set()
        self._of_steps: set[str] = set()
        self._several: set[str] = set()
        self._skipped: set[str] = set()
        self._held: tuple[Printed, str] | None = None
        self._in_percent = False
        self._val_loss: float | None = None
        # A token bucket of lines that may be read.
        self._allowed = float(LINES_AT_ONCE)
        self._allowed_s = 0.0
        self._lock = threading.Lock()
        self._found: deque[Printed] = deque(maxlen=MOST_WAITING)
        self._problem = ""

    def feed(self, stream: int, data: bytes | None, time_s: float) -> None:
        """Process a stream's data at a time; ``None`` if some of it is missing.

        Lines are read when they are complete; a line that is too long, or has a missing part, is dropped.
        """
        if data is None:
            # Too long by itself, so the line is dropped however it continues.
            self._begun[stream] = (b"x" * (LONGEST_LINE + 1), time_s)
            return
        begun, begun_s = self._begun.pop(stream, (b"", time_s))
        *whole, rest = re.split(rb"[\r\n]", data)
        if not whole:
            # No longer than needed to see that it is too long.
            self._begun[stream] = ((begun + rest)[: LONGEST_LINE + 1], time_s)
            return
        self._begun[stream] = (rest[: LONGEST_LINE + 1], time_s)
        # If only its line end has arrived now, the line was printed when its beginning arrived.
        first_s = begun_s
        if whole[0]:
            first_s = time_s
        lines = [(begun + whole[0], first_s), *((line, time_s) for line in whole[1:])]
        promising: list[tuple[str, float]] = []
        for line, at_s in lines:
            if len(line) <= LONGEST_LINE and self._may_hold_metrics(line):
                promising.append((shown(line), at_s))
        self._allowed += max(0.0, time_s - self._allowed_s) * LINES_PER_SECOND
        self._allowed = min(LINES_AT_ONCE, self._allowed)
        self._allowed_s = time_s
        # From the newest back, as many as are allowed.
        taken: deque[tuple[str, float]] = deque()
        while promising and self._allowed >= 1:
            taken.appendleft(promising.pop())
            self._allowed -= 1 + len(taken[0][0]) // LINE_BYTES
        if taken:
            self._read(taken)

    def take(self, now_s: float = 0.0) -> tuple[list[Printed], str]:
        """New results in order, and why reading has stopped, once; "" if it has not.

        Args:
            now_s: session time; results that have waited for `HELD_S` are released.
        """
        with self._lock:
            if self._held is not None and now_s - self._held[0].time_s > HELD_S:
                self._release(of_steps=True)
            found = list(self._found)
            problem = self._problem
            self._found.clear()
            self._problem = ""
        return found, problem

    def end(self) -> None:
        """There is no more output."""
        with self._lock:
            self._release(of_steps=True)
        if self._own is not None:
            self._own.close()

    def _may_hold_metrics(self, line: bytes) -> bool:
        if self._own is not None:
            return bool(line)
        # Test the bytes first: the expressions are much slower, and most lines have none of these words.
        lower = line.lower()
        return b"loss" in lower or b"acc" in lower or b"prec@" in lower or b"iters: " in lower

    def _read(self, lines: Sequence[tuple[str, float]]) -> None:
        if self._own is None:
            of_lines = [_named_fields(line) for line, _ in lines]
        elif self._own.ended:
            return
        else:
            of_lines = list(map(_grouped, self._own.read([line for line, _ in lines])))
        for (_, time_s), fields in zip(lines, of_lines, strict=False):
            self._keep(fields, time_s)
        if self._own is not None and self._own.ended:
            with self._lock:
                self._problem = (
                    f"The pattern for losses took longer than {PATTERN_S:.0f} s on what was printed, and is not used "
                    "any more; make it simpler."
                )

    def _keep(self, fields: _Fields, time_s: float) -> None:
        # The first of each: later ones on a line are mostly a mean or a best value.
        training = next((metric for metric in fields.loss if not metric.of_validation), None)
        validation = next((metric for metric in fields.loss if metric.of_validation), None)
        accuracy = self._chosen(fields.accuracy)
        losses = self._losses_of_their_own(fields, training)
        metrics = [metric for metric in (training, validation, accuracy) if metric is not None]
        skipped = {metric.name for metric in fields.several if metric.name not in losses} - self._skipped
        skipped = set(sorted(skipped)[: max(0, MOST_SKIPPED - len(self._skipped))])
        self._skipped |= skipped
        if not metrics and not losses and not skipped:
            return
        # The number is valid if a training loss or one of several is on the same line.
        step = fields.step
        total = fields.total
        # A validation's batches are not steps.
        if training is None and not losses and validation is not None:
            step = None
            total = None
        loss = None
        if training is not None:
            loss = training.value
        ratio = None
        if accuracy is not None:
            ratio = self._ratio(accuracy)
        val_loss = None
        # A progress bar repeats the newest evaluation at every step.
        if validation is not None and (training is None or validation.value != self._val_loss):
            val_loss = self._val_loss = validation.value
        found = Printed(
            time_s=time_s,
            step=step,
            total=total,
            epoch=fields.epoch,
            loss=loss,
            accuracy=ratio,
            fields=(*(metric.name for metric in metrics), *losses),
            val_loss=val_loss,
            losses=losses,
            skipped=tuple(sorted(skipped)),
        )
        with self._lock:
            self._publish(found, training, is_evaluation=validation is not None and fields.step is not None)

    def _losses_of_their_own(self, fields: _Fields, training: _Metric | None) -> dict[str, float]:
        """Losses of a program that has several instead of one; empty if it has reported a single one."""
        if training is not None or self._of_steps:
            return {}
        losses: dict[str, float] = {}
        for metric in fields.several:
            if metric.of_validation or not metric.is_assigned or metric.name in losses:
                continue
            if metric.name in self._several or len(self._several) < MOST_LOSSES:
                self._several.add(metric.name)
                losses[metric.name] = metric.value
        return losses

    def _publish(self, found: Printed, training: _Metric | None, *, is_evaluation: bool) -> None:
        """Add a result for `take`.

        A line with both losses at a step may be from an evaluation, whose training loss is an estimate. It is if
        another line has a step's loss, under another name and alone: the first such line waits until one appears, or
        none has for a while. An evaluation's figure is a loss of its own.
        """
        name = ""
        if training is not None:
            name = training.name.casefold()
        if training is not None and not is_evaluation:
            self._of_steps.add(name)
            # A line with only a loss decides: what waits is a step's if it has the same name.
            self._release(of_steps=self._held is not None and self._held[1] in self._of_steps)
        elif is_evaluation and name and name not in self._of_steps:
            if self._of_steps:
                found = _as_evaluation(found)
            elif self._held is None:
                self._held = found, name
                return
        if self._held is not None and is_evaluation:
            self._release(of_steps=True)
        self._found.append(found)

    def _release(self, *, of_steps: bool) -> None:
        """Release the waiting line, as a step's or an evaluation's."""
        if self._held is None:
            return
        found, name = self._held
        self._held = None
        if of_steps:
            self._of_steps.add(name)
        else:
            found = _as_evaluation(found)
        self._found.append(found)

    def _ratio(self, accuracy: _Metric) -> float | None:
        """An accuracy as a ratio; after a value above 1, those without a unit count as per cent."""
        value = accuracy.value
        if not accuracy.is_ratio:
            self._in_percent = self._in_percent or value > 1
            if self._in_percent:
                value = value / 100
        if math.isnan(value) or 0 <= value <= 1:
            return value
        return None

    def _chosen(self, metrics: Sequence[_Metric]) -> _Metric | None:
        """The first training value, or a validation value if there is none."""
        training = next((metric for metric in metrics if not metric.of_validation), None)
        if training is not None:
            self._of_training.add(training.kind)
            return training
        return next((metric for metric in metrics if metric.kind not in self._of_training), None)


class _Metric(NamedTuple):
    """A loss or an accuracy, with the name of its field.

    Attributes:
        is_ratio: whether an accuracy is certainly a ratio, not possibly in per cent.
        is_assigned: whether an equals sign or colon separates name and value, unlike in prose.
    """

    kind: Kind
    name: str
    value: float
    of_validation: bool = False
    is_ratio: bool = False
    is_assigned: bool = False


def _as_evaluation(found: Printed) -> Printed:
    """The result of an evaluation: its training loss becomes a loss of its own."""
    assert found.loss is not None
    return found._replace(loss=None, losses={**found.losses, found.fields[0]: found.loss})


class _Fields(NamedTuple):
    """The fields of a line."""

    step: int | None
    total: int | None
    epoch: float | None
    loss: Sequence[_Metric]
    accuracy: Sequence[_Metric]
    several: Sequence[_Metric] = ()


class _Pair(NamedTuple):
    """A name and the number after it, as written; and whether the text before them is about training or validation."""

    name: str
    value: str
    whole: str
    is_percent: bool
    split: str
    is_assigned: bool = True


def _named_fields(line: str) -> _Fields:
    """The fields of a line, by their names."""
    step = total = epoch = None
    found: dict[Kind, list[_Metric]] = {"loss": [], "accuracy": []}
    several: list[_Metric] = []
    of_networks = _OF_NETWORKS.search(line) is not None
    pairs = list(_pairs(line))
    is_of_run = any(pair.name == _OF_WHOLE_RUN for pair in pairs)
    for pair in pairs:
        kind, split = _kind(pair.name)
        if kind is None and of_networks and pair.is_assigned and pair.name not in _TIMES:
            several.append(_Metric("loss", pair.name, float(pair.value), is_assigned=True))
        elif kind == "loss" and is_of_run:
            several.append(_Metric("loss", pair.name, float(pair.value)))
        elif kind in ("loss", "accuracy"):
            found[kind].extend(_metrics(kind, split, pair))
        elif kind == "step" and step is None and _WHOLE.fullmatch(pair.value):
            step = int(pair.value)
            total = _count(pair.whole)
        elif kind is None and not pair.whole and not pair.is_percent and _is_one_of_several(pair.name):
            of_validation = "validation" in (pair.split, *map(_side, _name_parts(pair.name)))
            several.append(_Metric("loss", pair.name, float(pair.value), of_validation, is_assigned=pair.is_assigned))
        elif kind == "epoch" and epoch is None and math.isfinite(float(pair.value)):
            epoch = float(pair.value)
    # A named step counts more than a mere fraction, or the width of a bar.
    if step is None:
        matches = (count.search(line) for count in _COUNTS)
        counted = next(filter(None, matches), None)
        if counted:
            step = int(counted[1])
            total = int(counted[2])
    return _Fields(step, total, epoch, found["loss"], found["accuracy"], several)


def _metrics(kind: Kind, split: str, pair: _Pair) -> Iterator[_Metric]:
    """The loss or accuracy of a pair; none for a loss that is a part of something."""
    is_part = bool(pair.whole) or pair.is_percent
    if kind == "loss" and is_part:
        return
    is_ratio = kind == "accuracy" and (is_part or "@" in pair.name)
    value = float(pair.value)
    if is_ratio:
        whole = float(pair.whole or 100.0)
        value = value / whole if whole else math.nan  # 0 of 0
    yield _Metric(kind, pair.name, value, (split or pair.split) == "validation", is_ratio)


def _pairs(line: str) -> Iterator[_Pair]:
    """Names followed by numbers."""
    text = line.strip()
    if text.startswith("{") and text.endswith("}"):
        document = None
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
        if isinstance(document, dict):
            yield from _of_document(document)
            return
    marks = deque(_SPLIT.finditer(line))
    split = ""
    for match in _FIELD.finditer(line):
        # The last word for a side before the name: "train: loss 1.2, val: loss 1.4"
        while marks and marks[0].start() < match.start():
            split = _side(marks.popleft()[0].lower())
        is_assigned = bool({":", "="} & set(line[match.end("name") : match.start("value")]))
        yield _Pair(match["name"], match["value"], match["whole"] or "", bool(match["percent"]), split, is_assigned)


def _of_document(document: Mapping[str, Any]) -> Iterator[_Pair]:
    text = " ".join(value for value in document.values() if isinstance(value, str))
    named = _SPLIT.findall(text)
    split = ""
    if named:
        split = _side(named[-1].lower())
    inner: list[tuple[str, Any]] = []
    for name, of in document.items():
        if isinstance(of, dict):
            inner += [(f"{name}/{key}", value) for key, value in of.items()]
    for name, value in [*document.items(), *inner]:
        if isinstance(value, int | float | str) and not isinstance(value, bool) and _VALUE.fullmatch(str(value)):
            yield _Pair(name, str(value), "", False, split)


@lru_cache(4096)
def _kind(name: str) -> tuple[Kind | None, str]:
    """The kind of a field by its name, and "training", "validation" or "" if the name does not say."""
    parts = _name_parts(name) or [""]
    split = next((_side(part) for part in parts if _side(part)), "")
    # "loss/train" is the same as "train/loss": drop sides at the end, to find the subject, the last word before them.
    while len(parts) > 1 and _side(parts[-1]):
        parts.pop()
    # Lightning has two names for a value: each step's, and an epoch's mean, the only one for a validation.
    logged = "epoch" if split == "validation" else "step"
    if parts[-2:] == ["loss", logged] and split:
        parts.pop()
    kind = _SUBJECTS.get(parts[-1])
    if kind is None:
        return None, ""
    companions = _COUNT_COMPANIONS
    if kind in ("loss", "accuracy"):
        companions = _METRIC_COMPANIONS
    known = all(_side(part) or part.rstrip("0123456789") in companions for part in parts[:-1])
    if known:
        return (kind, split)
    return (None, "")


@lru_cache(4096)
def _is_one_of_several(name: str) -> bool:
    """Whether a field of this name is one of several losses, such as "D loss", "Loss_G" or "kl_loss"."""
    parts = _name_parts(name)
    at_an_end = bool(parts) and "loss" in (parts[0], parts[-1])
    joined = bool(parts) and (parts[-1] == "loss" or " " not in name)
    return at_an_end and joined and len(parts) > 1 and not _NO_LOSS.intersection(parts)


def _name_parts(name: str) -> list[str]:
    return list(filter(None, re.split(r"[^a-z0-9@]+", name.lower())))


def _side(word: str) -> str:
    if word in _TRAINING:
        return "training"
    if word in _VALIDATION:
        return "validation"
    return ""


def _count(text: str) -> int | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    return None


def check_pattern(text: str) -> None:
    """Check that a custom pattern can be used.

    Raises:
        ValueError: one sentence, if it cannot.
    """
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"A pattern for losses has at most {LONGEST_PATTERN} characters.")
    try:
        groups = re.compile(text).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"The pattern for losses is no regular expression: {error}.") from None
    if not {"loss", "val_loss", "accuracy"} & set(groups):
        raise ValueError("The pattern for losses has no group named loss or accuracy, such as (?P<loss>[-+.e0-9]+).")


def _grouped(groups: Mapping[str, str]) -> _Fields:
    """The values of a custom pattern's groups; those that are not numbers are dropped."""
    numbers = {name: text for name, text in groups.items() if _VALUE.fullmatch(text)}
    loss: list[_Metric] = []
    accuracy: list[_Metric] = []
    if "loss" in numbers:
        loss.append(_Metric("loss", "loss", float(numbers["loss"])))
    if "val_loss" in numbers:
        loss.append(_Metric("loss", "val_loss", float(numbers["val_loss"]), of_validation=True))
    if "accuracy" in numbers:
        accuracy.append(_Metric("accuracy", "accuracy", float(numbers["accuracy"])))
    epoch = None
    if "epoch" in numbers and math.isfinite(float(numbers["epoch"])):
        epoch = float(numbers["epoch"])
    return _Fields(_count(groups.get("step", "")), None, epoch, loss, accuracy)


_MATCHING = """
import json, re, signal, sys
pattern = re.compile(sys.argv[1])
for batch in sys.stdin:
    signal.alarm(5)
    found = [pattern.search(line) for line in json.loads(batch)]
    print(json.dumps([match.groupdict("") if match else {} for match in found]), flush=True)
    signal.alarm(0)
"""


class _OwnPattern:
    """A custom pattern, in a child process that is killed if it takes too long.

    Attributes:
        ended: whether that has happened.
    """

    def __init__(self, pattern: str) -> None:
        self.ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _MATCHING, pattern],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def read(self, lines: Sequence[str]) -> list[dict[str, str]]:
        """The groups' values in each line; if that takes longer than `PATTERN_S`, nothing, and the process is
        killed."""
        questions = self._process.stdin
        answers = self._process.stdout
        assert questions is not None and answers is not None
        try:
            questions.write(json.dumps(lines).encode() + b"\n")
            questions.flush()
        except OSError:
            self.close()
            return []
        answer = b""
        until_s = time.monotonic() + PATTERN_S
        while not answer.endswith(b"\n"):
            # The process may answer in pieces; the deadline is for all of them.
            ready, _, _ = select.select([answers], [], [], max(0.0, until_s - time.monotonic()))
            piece = b""
            if ready:
                piece = os.read(answers.fileno(), 65_536)
            if not piece:
                self.close()
                return []
            answer += piece
        return list(map(dict, json.loads(answer)))

    def close(self) -> None:
        """End the process."""
        self.ended = True
        self._process.kill()
        self._process.communicate()

"""Losses, accuracies and step numbers in what a watched program prints, found by the names of their fields.

A number is taken for a loss only where its field is named so: ``step 20 loss 2.32``, ``| epoch 1 | 200/2983 batches |
loss 7.63``, ``iter 10: loss 3.2``, JSON lines, dictionaries as Python prints them, the postfix of a progress bar. Parts
of a loss ("kl_loss", "best loss") are not the loss; where there is no other, as of a GAN (``Loss_D: 1.3 Loss_G: 0.7``),
each is a loss of its own. What an evaluation says of the training data is no step's loss. A pattern of one's own takes
the place of all this; it is matched in a process of its own, because nothing else can end a regular expression that
backtracks without end.
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
"""Lines in which fields are looked for; of a program that prints more of them the newest are."""

LINE_BYTES = 256
"""A longer line counts as several."""

MOST_WAITING = 10_000
"""Readings between two times that they are taken."""

PATTERN_S = 1.0
"""Longest that a pattern of one's own may take for what was printed at once."""

LONGEST_PATTERN = 1000

GROUPS = ("step", "epoch", "loss", "val_loss", "accuracy")
"""Names of groups that a pattern of one's own may have."""

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
"""Words before "loss" that leave it the loss; any other names a part of it, or something else."""

_NO_LOSS = frozenset(
    {"best", "min", "lowest", "max", "last", "previous", "prev", "old", "packet", "stop", "weight", "target", "delta"}
    | {"scale", "scaler", "weights", "coef", "coeff", "factor", "lambda", "ratio", "fn", "function", "type", "time"}
    | {"threshold", "history", "id", "count", "num", "number", "hearing", "data"}
)
"""Words beside "loss" that make something else of it."""

MOST_SKIPPED = 8
"""Fields that are said not to be taken."""

HELD_S = 10.0
"""Longest that an evaluation's figure of the training data waits for a step's loss, which would be the run's."""

_COUNT_COMPANIONS = frozenset(
    {"global", "optimizer", "the", "end", "of", "at", "info", "debug", "rank", "gpu", "worker", "node"}
)
"""Words before "step" or "epoch" that leave it the one that is going on."""

# Possessive quantifiers (Python 3.11) throughout: nothing is given back, so that no line takes long.
_NUMBER = r"[-+]?+(?:(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?+|nan|inf(?:inity)?+)"
_FIELD = re.compile(
    r"(?<![\w@])(?P<name>[a-z][\w@]*+(?:[ /.\-](?!nan\b|inf(?:inity)?\b)[a-z][\w@]*+){0,2}+)"
    r"[\"']?+\s*+(?:[:=]\s*+)?+[\"'(\[]?+(?:tensor\()?+"
    rf"(?P<value>{_NUMBER})(?![\w]|[.,:][0-9]|/[a-z])(?:\s?/\s*+(?P<whole>[0-9]++))?+(?P<percent>\s?%)?+",
    re.IGNORECASE,
)
_COUNTS = tuple(
    # From the most telling to the barest: an epoch's fraction in brackets stands before that of its batches.
    re.compile(text)
    for text in (
        r"(?<![\w.])([0-9]{1,15}) ?/ *+([0-9]{1,15}) ++(?:batches|steps|iterations|iters|it)\b",
        r"(?<![\w.])([0-9]{1,15})/([0-9]{1,15}) (?:\[[0-9:=>.?]|━)",
        r"\[ *+[0-9]{1,15}/ *+[0-9]{1,15}\] ?\[ *+([0-9]{1,15})/ *+([0-9]{1,15})\]",
        r"\[ *+([0-9]{1,15})/ *+([0-9]{1,15})\]",
    )
)
"""Step and their number without a name: ``200/2983 batches``, a progress bar, ``[ 10/5005]``, also behind that
of an epoch."""

_SPLIT = re.compile(rf"(?<![\w/.@-])({'|'.join(sorted(_TRAINING | _VALIDATION))})(?![\w/.])", re.IGNORECASE)
_OF_NETWORKS = re.compile(r"\(epoch: [0-9]{1,15}, iters: [0-9]{1,15}, [^)]{0,200}\)")
"""Before the losses of pix2pix and CycleGAN, which are named by their networks alone: ``G_GAN: 1.2 D_real: 0.6``."""

_TIMES = frozenset({"time", "data"})
"""Fields of such a line that are no losses."""

_OF_WHOLE_RUN = "train_runtime"
"""Beside it the Trainer of Hugging Face tells the mean of all steps' losses, under the name of a step's."""

_WHOLE = re.compile(r"[0-9]{1,15}")
_VALUE = re.compile(_NUMBER, re.IGNORECASE)


class Printed(NamedTuple):
    """What one line tells.

    Attributes:
        time_s: session time at which it was printed.
        step: number of the step; ``None`` where it is not told.
        total: how many of them make an epoch or the run; ``None`` where it is not told.
        epoch: as it is printed.
        loss: of a training; NaN and infinities as they are.
        accuracy: a ratio.
        fields: what losses and accuracy are called, such as "train loss".
        val_loss: of a validation, as ``loss``.
        losses: of a program that has several, by their names.
        skipped: fields that are called a loss and were not taken for one, such as "kl_loss" beside "loss".
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
    """Reads both streams of one program. `feed` and `end` belong to the thread that reads them, `take` to any.

    Training and validation are not mixed: a validation's loss has a place of its own, and its accuracy is told as long
    as there is none of a training.

    Args:
        pattern: of one's own, which `check_pattern` has passed; "" for none.
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
        # a bucket of lines that may be read, which fills with time
        self._allowed = float(LINES_AT_ONCE)
        self._allowed_s = 0.0
        self._lock = threading.Lock()
        self._found: deque[Printed] = deque(maxlen=MOST_WAITING)
        self._problem = ""

    def feed(self, stream: int, data: bytes | None, time_s: float) -> None:
        """Take in what a stream brought at a time, or ``None`` where something of it is missing.

        A line is read once it is whole. One that is too long, or of which something is missing, is left out.
        """
        if data is None:
            # too long by itself: whatever the line goes on with, it is left out
            self._begun[stream] = (b"x" * (LONGEST_LINE + 1), time_s)
            return
        begun, begun_s = self._begun.pop(stream, (b"", time_s))
        *whole, rest = re.split(rb"[\r\n]", data)
        if not whole:
            # no longer than is needed to see that it is too long
            self._begun[stream] = ((begun + rest)[: LONGEST_LINE + 1], time_s)
            return
        self._begun[stream] = (rest[: LONGEST_LINE + 1], time_s)
        # a line whose end alone has come now was printed when its beginning came
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
        # from the newest back, as many as may be read
        taken: deque[tuple[str, float]] = deque()
        while promising and self._allowed >= 1:
            taken.appendleft(promising.pop())
            self._allowed -= 1 + len(taken[0][0]) // LINE_BYTES
        if taken:
            self._read(taken)

    def take(self, now_s: float = 0.0) -> tuple[list[Printed], str]:
        """What has been read since, in order, and why no more is read, once; "" where nothing is wrong.

        Args:
            now_s: session time; what has waited for `HELD_S` is passed on.
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
        """No more comes."""
        with self._lock:
            self._release(of_steps=True)
        if self._own is not None:
            self._own.close()

    def _may_hold_metrics(self, line: bytes) -> bool:
        if self._own is not None:
            return bool(line)
        # a test of bytes first: the expressions take much longer, and most lines have none of these words
        lower = line.lower()
        return b"loss" in lower or b"acc" in lower or b"prec@" in lower or b"iters: " in lower

    def _read(self, lines: Sequence[tuple[str, float]]) -> None:
        if self._own is None:
            of_lines = [_named_fields(line) for line, _ in lines]
        elif self._own.ended:
            return
        else:
            of_lines = [_grouped(groups) for groups in self._own.read([line for line, _ in lines])]
        for (_, time_s), fields in zip(lines, of_lines, strict=False):
            self._keep(fields, time_s)
        if self._own is not None and self._own.ended:
            with self._lock:
                self._problem = (
                    f"The pattern for losses took longer than {PATTERN_S:.0f} s on what was printed, and is not used "
                    "any more; make it simpler."
                )

    def _keep(self, fields: _Fields, time_s: float) -> None:
        # the first of each: what stands further behind on a line is mostly a mean or a best
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
        # The number stays where a training's loss or one of several stands beside it.
        step = fields.step
        total = fields.total
        # a validation's batches are no steps
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
        # a progress bar repeats the newest evaluation at every step
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
        """Losses that a program has in place of one; none of a program that has told the one."""
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
        """Put what was found where `take` finds it.

        A line that tells both losses at a step may be an evaluation's, whose loss of the training data is an estimate.
        It is once some line tells a step's loss, by another name and alone: until one does, or none has for a while,
        the first such line waits. An evaluation's figure is a loss of its own.
        """
        name = ""
        if training is not None:
            name = training.name.casefold()
        if training is not None and not is_evaluation:
            self._of_steps.add(name)
            # a line alone with its loss has settled it: what waits is of a step if it has the same name
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
        """Publish the line that has waited, as one of a step or of an evaluation."""
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
        """An accuracy as a ratio; once one was above 1 those without a unit are taken for per cent."""
        value = accuracy.value
        if not accuracy.is_ratio:
            self._in_percent = self._in_percent or value > 1
            if self._in_percent:
                value = value / 100
        if math.isnan(value) or 0 <= value <= 1:
            return value
        return None

    def _chosen(self, metrics: Sequence[_Metric]) -> _Metric | None:
        """The first of a training, or of a validation where no training tells any."""
        training = next((metric for metric in metrics if not metric.of_validation), None)
        if training is not None:
            self._of_training.add(training.kind)
            return training
        return next((metric for metric in metrics if metric.kind not in self._of_training), None)


class _Metric(NamedTuple):
    """A loss or an accuracy, by the name that its field has.

    Attributes:
        is_ratio: whether an accuracy is one for certain, and not perhaps in per cent.
        is_assigned: whether a sign of equality or a colon stands between name and value, as in no prose.
    """

    kind: Kind
    name: str
    value: float
    of_validation: bool = False
    is_ratio: bool = False
    is_assigned: bool = False


def _as_evaluation(found: Printed) -> Printed:
    """What an evaluation has told: its loss of the training data is one of its own."""
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
    """A name and the number behind it, as written; and what the text before them is about, training or validation."""

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
            continue
        if kind == "loss" and is_of_run:
            several.append(_Metric("loss", pair.name, float(pair.value)))
            continue
        if kind in ("loss", "accuracy"):
            value = float(pair.value)
            is_ratio = False
            if kind == "loss" and (pair.whole or pair.is_percent):
                continue
            if kind == "accuracy" and (pair.whole or pair.is_percent or "@" in pair.name):
                whole = 100.0
                if pair.whole:
                    whole = float(pair.whole)
                is_ratio = True
                # 0 of 0
                if whole:
                    value /= whole
                else:
                    value = math.nan
            of_validation = (split or pair.split) == "validation"
            found[kind].append(_Metric(kind, pair.name, value, of_validation, is_ratio))
        elif kind == "step" and step is None and _WHOLE.fullmatch(pair.value):
            step = int(pair.value)
            total = _count(pair.whole)
        elif kind is None and not pair.whole and not pair.is_percent and _is_one_of_several(pair.name):
            of_validation = "validation" in (pair.split, *map(_side, _name_parts(pair.name)))
            several.append(_Metric("loss", pair.name, float(pair.value), of_validation, is_assigned=pair.is_assigned))
        elif kind == "epoch" and epoch is None and math.isfinite(float(pair.value)):
            epoch = float(pair.value)
    # a step with a name counts more than one that is only a fraction, or the width of a bar
    if step is None:
        matches = (count.search(line) for count in _COUNTS)
        counted = next(filter(None, matches), None)
        if counted:
            step = int(counted[1])
            total = int(counted[2])
    return _Fields(step, total, epoch, found["loss"], found["accuracy"], several)


def _pairs(line: str) -> Iterator[_Pair]:
    """Names with the numbers behind them."""
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
        # the newest word for a side before the name: "train: loss 1.2, val: loss 1.4"
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
    """What a field of this name holds, and "training", "validation" or "" where the name does not say."""
    parts = _name_parts(name) or [""]
    split = next((_side(part) for part in parts if _side(part)), "")
    # "loss/train" is the loss as "train/loss" is
    # Sides at the end are dropped, so that what counts is the subject: the last word before them.
    while len(parts) > 1 and _side(parts[-1]):
        parts.pop()
    # Lightning's names of one value: each step's, and the mean of an epoch, which a validation alone goes by
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
    """Whether a field of this name holds one of several losses, such as "D loss", "Loss_G" or "kl_loss"."""
    parts = _name_parts(name)
    at_an_end = bool(parts) and "loss" in (parts[0], parts[-1])
    joined = bool(parts) and (parts[-1] == "loss" or " " not in name)
    return at_an_end and joined and len(parts) > 1 and not _NO_LOSS.intersection(parts)


def _name_parts(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9@]+", name.lower()) if word]


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
    """Make sure that a pattern of one's own can be used.

    Raises:
        ValueError: one sentence, when it cannot.
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
    """What the groups of a pattern of one's own hold; what is no number is left out."""
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
    """A pattern of one's own, in a process that is ended when it takes too long.

    Attributes:
        ended: whether it was.
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
        """What the groups hold in each line; nothing, and the end, when that takes longer than `PATTERN_S`."""
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
        return [dict(groups) for groups in json.loads(answer)]

    def close(self) -> None:
        """End the process."""
        self.ended = True
        self._process.kill()
        self._process.communicate()

"""A training's batches: the same batch for the same seed and number, on any device.

Besides text there are generated classes, of points and images. The type of data also determines what a model's answers
mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import torch

from gpudash.specs import TrainingSpec
from gpudash.specs.training import (
    CLASSES,
    COLOURS,
    CONTRAST,
    FEATURES,
    IMAGE_SIDE,
    MOST_WRITTEN,
    SHOWN,
    SPREAD,
    TILE,
)
from gpudash.telemetry.records import Topic
from gpudash.units import format_bytes
from gpudash.workloads.programs.text import corpus
from gpudash.workloads.running.context import Context

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets."""


class Batches(Protocol):
    """A training set cut into batches.

    Attributes:
        outputs: number of different targets.
        items: items (characters or samples) in a step's batch.
        item: the word for one item.
        facts: what the result reports about the data.
    """

    outputs: int
    items: int
    item: Literal["character", "sample"]
    facts: dict[str, Any]

    def batch(self, index: int) -> Batch:
        """The batch of step ``index`` in an epoch, on the CPU; `micro_batches` divides it."""
        ...

    def questions(self) -> Questions:
        """The input for inference."""
        ...


class Questions(Protocol):
    """The batches for inference, one after the other, and the meaning of the model's answers.

    Attributes:
        inputs: of the next step, on the CPU or on the device after `stay_at`.
    """

    inputs: torch.Tensor

    def stay_at(self, inputs: torch.Tensor) -> None:
        """Continue from ``inputs``, which are those of the first step, on the device."""
        ...

    def answered(self, logits: torch.Tensor, answers: torch.Tensor) -> None:
        """Advance to the next step. No numbers are read, so this also works in a dry run.

        Args:
            logits: of the step, on the device.
            answers: the most likely one of each, on the CPU.
        """
        ...

    def predictions(self, logits: torch.Tensor) -> list[dict[str, Any]]:
        """What the model predicts for the first `SHOWN` of the batch; takes no device memory.

        Args:
            logits: of the latest step, on the device.

        Returns:
            for text, ``prompt`` and ``text``, the generated continuation; for classes, ``class``, its ``probability``
            (softmax, 0 to 1) and the ``expected`` one.
        """
        ...


class TextQuestions:
    """Text that is continued: each prediction is appended, and the first character leaves the window.

    Args:
        vocabulary: a character's number is its index.
        prompts: (batch, sequence), int64, on the CPU.
    """

    def __init__(self, vocabulary: bytes, prompts: torch.Tensor) -> None:
        self.inputs = prompts
        self._vocabulary = vocabulary
        self._prompts = list(map(self._text, prompts[:SHOWN].tolist()))
        self._written: list[torch.Tensor] = []
        self._stays = False

    def stay_at(self, inputs: torch.Tensor) -> None:
        self.inputs, self._stays = inputs, True

    def answered(self, logits: torch.Tensor, answers: torch.Tensor) -> None:
        newest = answers[:, -1:]
        if len(self._written) < MOST_WRITTEN:
            self._written.append(newest[:SHOWN].clone())
        if self._stays:
            newest = logits[:, -1:].argmax(-1)
        self.inputs = torch.cat((self.inputs[:, 1:].to(newest.device), newest), 1)

    def predictions(self, logits: torch.Tensor) -> list[dict[str, Any]]:
        written = torch.cat(self._written, 1).tolist()
        return [{"prompt": prompt, "text": self._text(row)} for prompt, row in zip(self._prompts, written, strict=True)]

    def _text(self, numbers: list[int]) -> str:
        return bytes(self._vocabulary[number] for number in numbers).decode(errors="replace")


class ClassQuestions:
    """Batch after batch of the set, or always the first one if it stays on the device."""

    def __init__(self, source: Batches, batches: int) -> None:
        self._source = source
        self._batches = batches
        self._number = 0
        self.inputs, self._labels = source.batch(0)
        self._answered_labels = self._labels
        self._stays = False

    def stay_at(self, inputs: torch.Tensor) -> None:
        self.inputs, self._stays = inputs, True

    def answered(self, logits: torch.Tensor, answers: torch.Tensor) -> None:
        self._answered_labels = self._labels
        if not self._stays:
            self._number += 1
            self.inputs, self._labels = self._source.batch(self._number % self._batches)

    def predictions(self, logits: torch.Tensor) -> list[dict[str, Any]]:
        # The first rows of a contiguous tensor are copied directly, without a temporary on the GPU.
        probabilities, found = logits[:SHOWN].cpu().float().softmax(-1).max(-1)
        rows = zip(found.tolist(), probabilities.tolist(), self._answered_labels[:SHOWN].tolist(), strict=True)
        return [{"class": number, "probability": probability, "expected": label} for number, probability, label in rows]


def text_batch(text: torch.Tensor, batch: int, sequence: int, seed: int, index: int) -> Batch:
    """Random windows of ``text``, and the same shifted by one character: both (batch, sequence), int64."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    starts = torch.randint(len(text) - sequence, (batch,), generator=generator)
    characters = text[starts[:, None] + torch.arange(sequence + 1)]
    return characters[:, :-1].contiguous(), characters[:, 1:].contiguous()


class TextBatches:
    """Windows of the corpus; the target of each character is the next one."""

    item: Literal["character", "sample"] = "character"

    def __init__(self, spec: TrainingSpec, context: Context) -> None:
        found = corpus()
        vocabulary = found.vocabulary
        number = torch.zeros(256, dtype=torch.int64)
        number[torch.tensor(list(vocabulary))] = torch.arange(len(vocabulary))
        # A batch consists of its characters' positions and values, and of inputs and targets copied from these.
        context.about_to_allocate(4 * 8 * spec.batch * (spec.sequence + 1), "cpu")
        self._text = number[torch.frombuffer(bytearray(found.data), dtype=torch.uint8).to(torch.int64)]
        self._spec = spec
        self._vocabulary = vocabulary
        self.outputs = len(vocabulary)
        self.items = spec.step_batch * spec.sequence
        facts = {
            "source": found.source,
            "sha256": found.sha256,
            "bytes": len(found.data),
            "vocabulary": len(vocabulary),
        }
        self.facts = {
            "unigram_entropy": found.unigram_entropy,
            "most_frequent_share": found.most_frequent_share,
            "corpus": facts,
        }
        context.note(
            Topic.CORPUS,
            f"Text: {found.source}, {format_bytes(len(found.data))}, {len(vocabulary)} different characters; guessing "
            f"without context gives a loss of {found.unigram_entropy:.2f}.",
            **facts,
            unigram_entropy=found.unigram_entropy,
            most_frequent_share=found.most_frequent_share,
        )

    def batch(self, index: int) -> Batch:
        return text_batch(self._text, self._spec.step_batch, self._spec.sequence, self._spec.seed, index)

    def questions(self) -> Questions:
        return TextQuestions(self._vocabulary, self.batch(0)[0])


class ClassBatches:
    """Consecutive parts of the generated set: points for an MLP, images for a CNN."""

    item: Literal["character", "sample"] = "sample"

    def __init__(self, spec: TrainingSpec, context: Context) -> None:
        numbers = FEATURES
        if spec.model == "cnn":
            numbers = COLOURS * IMAGE_SIDE**2
        samples = spec.samples
        context.about_to_allocate(samples * (numbers * 4 + 8), "cpu")
        if spec.model == "cnn":
            drawn = images(samples, IMAGE_SIDE, spec.seed)
        else:
            drawn = classes(samples, spec.seed)
        self._points, self._labels = drawn
        self._batch = self.items = spec.step_batch
        self._batches = batches_per_epoch(spec)
        self.outputs = CLASSES
        shares = torch.bincount(self._labels, minlength=CLASSES).double() / samples
        entropy = -sum(share * math.log(share) for share in shares.tolist() if share > 0)
        share = float(shares.max())
        self.facts = {
            "unigram_entropy": None,
            "class_entropy": entropy,
            "most_frequent_share": share,
        }
        if spec.model == "cnn":
            what = f"{IMAGE_SIDE} × {IMAGE_SIDE} pixels"
        else:
            what = f"{FEATURES} features"
        context.note(
            Topic.CLASSES,
            f"{CLASSES} classes of {what}, {samples} samples; guessing without looking gives a loss of {entropy:.2f}.",
            samples=samples,
            class_entropy=entropy,
            most_frequent_share=share,
        )

    def batch(self, index: int) -> Batch:
        first = index * self._batch % len(self._points)
        part = slice(first, first + self._batch)
        return self._points[part], self._labels[part]

    def questions(self) -> Questions:
        return ClassQuestions(self, self._batches)


def batches_per_epoch(spec: TrainingSpec) -> int:
    """Batches in the training set: the steps divided by the epochs, rounded up."""
    return spec.batches_per_epoch


def epoch_order(spec: TrainingSpec, epoch: int) -> list[int]:
    """The batches of ``epoch`` (from 1) in the epoch's own random order."""
    generator = torch.Generator().manual_seed(spec.seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(batches_per_epoch(spec), generator=generator).tolist()
    return order


def micro_batches(batch: Batch, rows: int) -> Iterator[Batch]:
    """Parts of a step's batch with ``rows`` sequences or samples each; a batch of at most that size stays whole."""
    inputs, targets = batch
    if len(inputs) <= rows:
        return iter((batch,))
    return zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True)


def placed(
    stage: str, tensors: tuple[torch.Tensor, ...], device: torch.device, context: Context
) -> tuple[torch.Tensor, ...]:
    """Copy ``tensors``, which are together, to ``device``: a stage, and a transfer if they are copied."""
    source = tensors[0].device
    copied = not same_device(source, device)
    with context.stage(
        stage,
        bytes=sum(tensor.nbytes for tensor in tensors) if copied else 0,
        from_device=str(source),
        to_device=str(device),
        copied=copied,
    ):
        return tuple(tensor.to(device) for tensor in tensors)


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether both are the same device; without an index it is the first one."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def data(spec: TrainingSpec, context: Context) -> Batches:
    """The training set of ``spec``."""
    if spec.model == "transformer":
        return TextBatches(spec, context)
    return ClassBatches(spec, context)


def classes(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around `CLASSES` random centres, with unit Gaussian noise.

    Returns:
        points of shape (samples, `FEATURES`), float32, and their classes, shape (samples,), int64; on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = SPREAD * torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, FEATURES, generator=generator), labels


def images(samples: int, side: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of `CLASSES` random patterns, each a tile repeated over the image, with unit Gaussian noise.

    Returns:
        images of shape (samples, `COLOURS`, side, side), float32, and their classes, shape (samples,), int64; on the
        CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    tiles = CONTRAST * torch.randn(CLASSES, COLOURS, TILE, TILE, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    repeats = -(-side // TILE)
    patterns = tiles.repeat(1, 1, repeats, repeats)[:, :, :side, :side]
    return patterns[labels] + torch.randn(samples, COLOURS, side, side, generator=generator), labels

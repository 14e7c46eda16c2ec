"""Steps that others published, of other cards and other models than timm's tables: their work, and how far it is off.

``python -m tests.speed.published trace``: writes down the work of every row; needs timm, transformers and diffusers.
``python -m tests.speed.published``: predicts every row, and prints errors by table, card and precision.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.prediction import predict
from gpudash.speed.work import HostSpeed, StepTime, StepWork

BLIND = Path(__file__).parent / "blind"

TABLES = ("nvidia_convnets", "nvidia_bert", "diffusers", "transformers_vision")

WORKS = BLIND / "works.json.gz"
"""The work of one step on one card, by everything that decides it."""

MASKED = {128: 20}
"""Positions of a sequence that BERT's pre-training predicts, by its length (the glossary of NVIDIA's page)."""


@dataclass(frozen=True)
class Published:
    """A row of a table."""

    table: str
    card: str
    gpus: int
    model: str
    precision: str
    channels_last: bool
    batch: int
    size: int
    training: bool
    throughput: float
    unit: str
    note: str

    @property
    def key(self) -> str:
        """Rows of one key have the same work on each card."""
        tensor_cores = "tf32" in CARD_PERFORMANCE[self.card].flops
        kind = "training" if self.training else "inference"
        layout = "channels last" if self.channels_last else "contiguous"
        note = self.note if self.model == "bert-large" else ""
        parts = [self.model, self.precision, layout, self.batch, self.size, kind, note]
        # By torch's defaults convolutions in fp32 go to tensor cores that can do them.
        if self.precision == "float32":
            parts.append(f"tf32 {tensor_cores and self.table == 'transformers_vision'}")
        return ", ".join(map(str, parts))

    @property
    def accumulated(self) -> int:
        """Steps whose gradients are summed before they are exchanged."""
        words = self.note.split()
        if "accumulated," in words:
            return int(words[words.index("steps") - 1])
        return 1

    @property
    def items(self) -> int:
        """Of all cards together, in a step."""
        if self.unit == "iterations/s":
            return 1
        return self.batch * self.gpus

    @property
    def step_s(self) -> float:
        """Seconds that a step took."""
        return self.items / self.throughput


def read() -> Iterator[Published]:
    """Every row of the tables."""
    for table in TABLES:
        with (BLIND / f"{table}.csv").open() as file:
            for row in csv.DictReader(file):
                yield Published(
                    table=table,
                    card=row["card"],
                    gpus=int(row["gpus"]),
                    model=row["model"],
                    precision=row["precision"],
                    channels_last=row["layout"] == "channels last",
                    batch=int(row["batch"]),
                    size=int(row["size"]),
                    training=row["mode"] == "training",
                    throughput=float(row["throughput"]),
                    unit=row["unit"],
                    note=row["note"],
                )


def trace(row: Published) -> tuple[StepWork, int]:
    """The work of a row's step on one card, and how many parameters its model has."""
    import torch

    from gpudash.speed.work import ATTENTION, CONVOLUTION, GROUPED, PRODUCT
    from tests.speed.tracing import Recorder, _Autocast

    class FusedAttention(_Autocast):
        """Attention as one kernel, and nothing cast: a model in half precision as a whole."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") == "scaled_dot_product_attention":
                return super().__torch_function__(func, types, args, kwargs)
            return func(*args, **(kwargs or {}))

    casting: Any = nullcontext()
    if row.precision == "amp-float16":
        casting = _Autocast(True)
    elif row.precision == "float16":
        casting = FusedAttention(True)
    with torch.device("meta"):
        model, given = _build(row)
    if row.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if row.precision == "float16":
        model = model.half()
    model.train(row.training)
    optimizer = None
    if row.training and row.accumulated == 1:
        optimizer = _optimizer(row, model)
    # The first makes the optimizer's state and the gradients, the second is as all others.
    for _ in range(2 if row.training else 1):
        recorder = Recorder()
        with recorder, torch.set_grad_enabled(row.training):
            with casting:
                result = model(**given)
            if row.training:
                recorder.phase = "backward"
                _loss(result).backward()
            if optimizer is not None:
                recorder.phase = "optimizer"
                optimizer.step()
                optimizer.zero_grad()
    products = {PRODUCT, CONVOLUTION, GROUPED, ATTENTION}
    if row.precision == "float32":
        products = set()
        if row.key.endswith("tf32 True"):
            products = {CONVOLUTION, GROUPED}
    operations: dict[Any, int] = defaultdict(int)
    for operation, count in recorder.operations.items():
        if row.precision in ("float32", "tf32") and operation.kind in products and operation.dtype == "float32":
            operation = operation._replace(dtype="tf32")
        operations[operation] += count
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return StepWork(dict(operations), items=row.batch, synchronisations=1), parameters


def _loss(result: Any) -> Any:
    import torch
    from torch.nn import functional

    total = 0
    for logits in result if isinstance(result, tuple) else (result,):
        flat = logits.float().reshape(-1, logits.shape[-1])
        total = total + functional.cross_entropy(flat, torch.zeros(len(flat), dtype=torch.long, device="meta"))
    return total


def _optimizer(row: Published, model: Any) -> Any:
    import torch

    if row.model == "bert-large":
        return torch.optim.Adam(model.parameters(), foreach=True)
    if row.model.startswith("efficientnet"):
        return torch.optim.RMSprop(model.parameters(), momentum=0.9, foreach=False)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def _build(row: Published) -> tuple[Any, dict[str, Any]]:
    """A row's model and what it is given, on the meta device."""
    if row.model == "bert-large":
        return _bert(row)
    if row.model.startswith("stable-diffusion"):
        return _diffusion(row)
    if row.model == "segformer-b0":
        return _segformer(row)
    return _timm(row)


def _images(row: Published) -> Any:
    import torch

    given = torch.empty(row.batch, 3, row.size, row.size)
    if row.channels_last:
        return given.contiguous(memory_format=torch.channels_last)
    return given


def _timm(row: Published) -> tuple[Any, dict[str, Any]]:
    from tests.speed import stub_torchvision

    stub_torchvision.install()
    import timm

    return timm.create_model(row.model), {"x": _images(row)}


def _segformer(row: Published) -> tuple[Any, dict[str, Any]]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150))
    return model, {"pixel_values": _images(row)}


def _bert(row: Published) -> tuple[Any, dict[str, Any]]:
    import torch
    from torch import nn
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=30528,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )

    class Pretraining(nn.Module):
        """Masked positions alone go through the head, as NVIDIA's does."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config)
            self.dense = nn.Linear(1024, 1024)
            self.norm = nn.LayerNorm(1024)
            self.output = nn.Linear(1024, config.vocab_size)
            self.output.weight = self.bert.embeddings.word_embeddings.weight
            self.next = nn.Linear(1024, 2)

        def forward(self, input_ids: Any, attention_mask: Any, places: Any) -> Any:
            found = self.bert(input_ids=input_ids, attention_mask=attention_mask)
            picked = torch.index_select(found.last_hidden_state.reshape(-1, 1024), 0, places)
            return self.output(self.norm(nn.functional.gelu(self.dense(picked)))), self.next(found.pooler_output)

    class Answering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config, add_pooling_layer=False)
            self.output = nn.Linear(1024, 2)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            found = self.bert(input_ids=input_ids, attention_mask=attention_mask)
            return self.output(found.last_hidden_state).transpose(1, 2)

    given = {
        "input_ids": torch.zeros(row.batch, row.size, dtype=torch.long),
        "attention_mask": torch.ones(row.batch, 1, row.size, row.size),
    }
    if "PreTraining" not in row.note:
        return Answering(), given
    places = torch.zeros(row.batch * MASKED[row.size], dtype=torch.long)
    return Pretraining(), {**given, "places": places}


def _diffusion(row: Published) -> tuple[Any, dict[str, Any]]:
    """The UNet of Stable Diffusion 1.5 over twice the batch, with what a ControlNet adds where there is one."""
    import torch
    from diffusers import ControlNetModel, UNet2DConditionModel
    from torch import nn

    sizes = {"block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768, "attention_head_dim": 8}
    unet = UNet2DConditionModel(sample_size=64, **sizes)
    count = 2 * row.batch
    given = {
        "sample": torch.empty(count, 4, row.size // 8, row.size // 8, dtype=torch.float16),
        "timestep": torch.empty(count, dtype=torch.float16),
        "encoder_hidden_states": torch.empty(count, 77, 768, dtype=torch.float16),
    }
    if not row.model.endswith("controlnet"):
        return unet, given

    class Controlled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = unet
            self.control = ControlNetModel(**sizes)

        def forward(self, condition: Any, **given: Any) -> Any:
            down, middle = self.control(**given, controlnet_cond=condition, return_dict=False)
            return self.unet(**given, down_block_additional_residuals=down, mid_block_additional_residual=middle)

    condition = torch.empty(count, 3, row.size, row.size, dtype=torch.float16)
    return Controlled(), {**given, "condition": condition}


def write() -> None:
    """Trace every row into `WORKS`; what is there already is kept."""
    warnings.simplefilter("ignore")
    document: dict[str, Any] = {}
    if WORKS.exists():
        document = json.loads(gzip.decompress(WORKS.read_bytes()))
    failed: set[str] = set()
    # timm's models last: the stand-in for torchvision that they need is none for transformers and diffusers.
    for row in sorted(read(), key=lambda row: not row.model.startswith(("bert", "stable", "segformer"))):
        if row.key in document or row.key in failed:
            continue
        try:
            work, parameters = trace(row)
        except Exception as error:
            failed.add(row.key)
            sys.stdout.write(f"not traced: {row.key}: {type(error).__name__}: {str(error)[:200]}\n")
            continue
        document[row.key] = [work.to_dict(), parameters]
    WORKS.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9))
    sys.stdout.write(f"{len(document)} steps traced, {WORKS.stat().st_size:,} bytes\n")


def times(host: HostSpeed) -> Iterator[tuple[Published, StepTime]]:
    """Every row that was traced, and its prediction."""
    document = json.loads(gzip.decompress(WORKS.read_bytes()))
    for row in read():
        if row.key not in document:
            continue
        work_of, parameters = document[row.key]
        work = replace(StepWork.from_dict(work_of), items=row.items)
        if row.gpus > 1:
            exchanged = 4 * parameters // row.accumulated
            work = replace(work, ranks=row.gpus, exchanged_bytes=exchanged)
        yield row, predict(work, CARD_PERFORMANCE[row.card], host)


def report() -> None:
    """Print errors by table, card, precision and what was done."""
    groups: dict[tuple[str, ...], list[tuple[float, bool]]] = defaultdict(list)
    for row, time in times(HostSpeed()):
        error = time.median_s / row.step_s - 1
        covered = time.low_s <= row.step_s <= time.high_s
        kind = "training" if row.training else "inference"
        for key in ((row.table, row.card, f"{row.gpus} cards", row.precision, kind), (row.table, "all", "", "", "")):
            groups[key].append((error, covered))
    for key, found in sorted(groups.items()):
        errors = sorted(abs(error) for error, _ in found)
        bias = median(error for error, _ in found)
        covered = sum(held for _, held in found)
        sys.stdout.write(
            f"{' '.join(key):62} {len(found):3} rows, median {median(errors):.0%}, nine in ten "
            f"{errors[min(int(0.9 * len(errors)), len(errors) - 1)]:.0%}, bias {bias:+.0%}, covered {covered}\n"
        )


def main(arguments: list[str]) -> None:
    """One of the commands above."""
    if "trace" in arguments:
        write()
        return
    report()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Operations whose CUDA kernels take room of their own, small: what they ask of torch's allocator.

``python -m tests.unit.simulator.kernel_samples`` with a CUDA build prints the requests of this card as JSON, in bytes
and in order of size; ``recorded/kernels.json`` has those of torch 2.13 on a stand-in for the CUDA libraries, which
computes nothing, by compute capability.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

Run = Callable[[], Any]


def cases(device: str) -> Mapping[str, Run]:
    """What is run, by its name, on tensors of ``device``."""

    def ones(*sizes: int, dtype: torch.dtype = torch.float32, learnt: bool = False) -> torch.Tensor:
        return torch.ones(sizes, dtype=dtype, device=device, requires_grad=learnt)

    def learning(loss: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Run:
        def run() -> None:
            loss(*tensors).backward()
            for tensor in tensors:
                tensor.grad = None

        return run

    words = ones(8000, dtype=torch.int64)
    bags = torch.arange(0, 8000, 20, device=device)
    table = ones(5000, 32, learnt=True)
    sound, speech = ones(50, 16, 20, learnt=True), ones(900, 4, 20, learnt=True)

    def bag(mode: str) -> Run:
        return learning(lambda weight: functional.embedding_bag(words, weight, bags, mode=mode).sum(), table)

    def aligned(chances: torch.Tensor, labels: int) -> Run:
        steps, count, _ = chances.shape
        many = torch.full((count,), steps), torch.full((count,), labels)
        wanted = ones(count, labels, dtype=torch.int64)
        return learning(lambda given: functional.ctc_loss(given, wanted, *many), chances)

    found: dict[str, Run] = {f"a bag's {mode}": bag(mode) for mode in ("sum", "mean", "max")}
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
        for sizes in ((100_000,), (40, 8000), (200, 5000), (8000, 40)):
            values = ones(*sizes, dtype=dtype)
            found[f"{sizes} of {dtype} in order"] = lambda values=values: values.sort(-1)
    columns, turned = ones(5000, 40), ones(40, 5000)
    wide, deep = ones(64, 128), ones(8, 64, 64)
    spectrum = ones(64, 65, dtype=torch.complex64)
    return {
        **found,
        "columns in order": lambda: columns.sort(0),
        "rows of a transposed tensor in order": lambda: turned.t().sort(0),
        "sounds and words": aligned(sound, 10),
        "long sounds and words": aligned(speech, 300),
        "two inputs": learning(
            lambda weight: functional.bilinear(ones(32, 20), ones(32, 30), weight).sum(), ones(1, 20, 30, learnt=True)
        ),
        "every second column": lambda: wide[:, ::2] @ ones(64, 32),
        "every second column, with a bias": lambda: torch.addmm(ones(32), wide[:, ::2], ones(64, 32)),
        "one row for all": lambda: ones(1, 64).expand(9, 64) @ ones(64),
        "every second column of many": lambda: torch.bmm(deep[..., ::2], ones(8, 32, 16)),
        "a transposed batch": lambda: torch.bmm(deep.transpose(1, 2), deep),
        "rows that all are one": lambda: torch.bmm(ones(8, 1, 32).expand(8, 5, 32), ones(8, 32, 16)),
        "pixels in columns": lambda: functional.unfold(ones(2, 3, 16, 16), 3),
        "few numbers shuffled": lambda: torch.randperm(20_000, device=device),
        "many numbers shuffled": lambda: torch.randperm(100_000, device=device),
        "drawn with replacement": lambda: torch.multinomial(ones(16, 5000), 5, replacement=True),
        "logarithms of sums": lambda: deep.logsumexp(-1),
        "means by index": lambda: ones(4, 64).scatter_reduce(
            0, torch.zeros_like(deep[0], dtype=torch.int64), deep[0], "mean"
        ),
        "filled in order": lambda: deep.masked_scatter(ones(8, 64, 1, dtype=torch.bool), deep.transpose(1, 2)),
        "a sigmoid's logarithm": learning(lambda given: functional.logsigmoid(given).sum(), ones(64, 64, learnt=True)),
        "scattered from the host": lambda: wide[:, ::2].copy_(torch.ones(64, 64)),
        "converted on the GPU": lambda: torch.ones(64, 64, dtype=torch.uint8).to(
            device, torch.float32, non_blocking=True
        ),
        "a sound from its spectrum": lambda: torch.fft.irfft(spectrum),
        "rolled along two dimensions": lambda: deep.roll((3, 5), (1, 2)),
        "rolled along three dimensions, transposed": lambda: deep.transpose(0, 2).roll((1, 2, 3), (0, 1, 2)),
        "rolled along one dimension, transposed": lambda: deep.transpose(0, 2).roll(1, 0),
        "the median of all": lambda: columns.median(),
        "the median of few": lambda: spectrum.real[0].median(),
        "pixels folded": lambda: functional.fold(ones(2, 27, 196), (16, 16), 3),
        "sums of exponentials": lambda: deep.logcumsumexp(1),
        "the largest until then": lambda: deep.cummax(1),
        **recurrent(device),
        **normalised(device),
    }


def normalised(device: str) -> Mapping[str, Run]:
    """Training of convolutions with batch normalisation, whose channels lie first or last; made when first run."""

    def trains(
        layout: torch.memory_format, cast: torch.dtype | None, pool: Callable[[torch.Tensor], torch.Tensor]
    ) -> Run:
        @functools.cache
        def network() -> Any:
            parts = (
                *(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(inplace=True)),
                *(torch.nn.Conv2d(32, 64, 3, 2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()),
            )
            return torch.nn.Sequential(*parts).to(device, memory_format=layout)

        def run() -> None:
            images = torch.ones(4, 3, 96, 96, device=device).contiguous(memory_format=layout)
            with torch.autocast(device, cast or torch.bfloat16, enabled=cast is not None):
                made = pool(network()(images))
            made.float().square().sum().backward()
            network().zero_grad()

        return run

    def averaged(images: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool2d(images, 1).flatten(1)

    first, last, half = torch.contiguous_format, torch.channels_last, torch.bfloat16
    layer = functools.cache(lambda: torch.nn.BatchNorm1d(64).to(device))

    def rows(count: int) -> Run:
        return lambda: layer()(torch.ones(count, 64, device=device, requires_grad=True)).square().sum().backward()

    return {
        "images normalised": trains(first, None, averaged),
        "images normalised in bfloat16": trains(first, half, averaged),
        "images normalised in float16": trains(first, torch.float16, averaged),
        "images normalised, channels last": trains(last, None, averaged),
        "images normalised in bfloat16, channels last": trains(last, half, averaged),
        "images normalised in float16, channels last": trains(last, torch.float16, averaged),
        "images normalised, channels last, averaged by mean": trains(last, half, lambda made: made.mean((2, 3))),
        "images normalised, channels last, of which all are kept": trains(last, half, lambda made: made),
        "rows normalised": rows(8192),
        "few rows normalised": rows(64),
    }


def recurrent(device: str) -> Mapping[str, Run]:
    """Recurrent networks as cuDNN runs them, by name; each is made when it is first run."""

    def runs(kind: Any, hidden: int, size: tuple[int, int, int] = (32, 16, 128), **options: Any) -> Run:
        mode = {name: options.pop(name, None) for name in ("lengths", "dtype", "cast", "scattered", "without")}

        @functools.cache
        def network() -> Any:
            made = kind(size[2], hidden, **options).to(device, mode["dtype"])
            if mode["scattered"]:
                for weight in made.parameters():
                    weight.data = weight.data.clone()
            return made.train(mode["without"] != "training")

        @functools.cache
        def given() -> torch.Tensor:
            steps, batch, inputs = size
            turned = (batch, steps) if options.get("batch_first") else (steps, batch)
            return torch.ones(*turned, inputs, device=device, dtype=mode["dtype"], requires_grad=True)

        def run() -> None:
            values: Any = given()
            if mode["lengths"]:
                is_turned = options.get("batch_first", False)
                values = pack_padded_sequence(values, mode["lengths"], is_turned, enforce_sorted=False)
            with contextlib.ExitStack() as stack:
                stack.enter_context(warnings.catch_warnings(action="ignore"))
                if mode["without"]:
                    stack.enter_context(torch.no_grad())
                if mode["cast"]:
                    stack.enter_context(torch.autocast(device, mode["cast"]))
                result = network()(values)[0]
            if not mode["without"]:
                (result.data if mode["lengths"] else result).sum().backward()
                given().grad = None
                network().zero_grad()

        return run

    half, double, lstm, gru = torch.float16, torch.float64, torch.nn.LSTM, torch.nn.GRU
    many: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    unequal = [32 - 2 * place for place in range(16)]
    found = {
        "": {},
        " in layers": {"num_layers": 3},
        " both ways": {"bidirectional": True},
        " both ways in layers": many,
    }
    made = {
        f"{kind.__name__} of {hidden}{name}": runs(kind, hidden, **options)
        for kind in (lstm, gru, torch.nn.RNN)
        for hidden in (96, 160, 256)
        for name, options in found.items()
    }
    return {
        **made,
        "ReLU": runs(torch.nn.RNN, 300, nonlinearity="relu"),
        "LSTM, batch first": runs(lstm, 256, batch_first=True),
        "LSTM projected": runs(lstm, 256, proj_size=64),
        "LSTM projected both ways in layers": runs(lstm, 256, proj_size=64, **many),
        "LSTM projected without biases": runs(lstm, 256, proj_size=64, bias=False),
        "LSTM without biases": runs(lstm, 256, bias=False, num_layers=2),
        "LSTM of packed sequences": runs(lstm, 256, lengths=unequal, num_layers=2),
        "GRU of packed sequences, batch first": runs(gru, 96, lengths=unequal, batch_first=True),
        "LSTM with dropout": runs(lstm, 256, num_layers=2, dropout=0.5),
        "GRU with dropout both ways": runs(gru, 100, dropout=0.5, **many),
        "LSTM of half precision": runs(lstm, 256, dtype=half),
        "GRU of half precision": runs(gru, 256, dtype=half),
        "small LSTM of half precision": runs(lstm, 64, (8, 16, 64), dtype=half),
        "RNN of half precision": runs(torch.nn.RNN, 512, (4, 8, 128), dtype=half),
        "LSTM of double precision": runs(lstm, 64, dtype=double),
        "LSTM of bfloat16": runs(lstm, 64, dtype=torch.bfloat16),
        "LSTM that is evaluated": runs(lstm, 256, without="training"),
        "LSTM without gradients": runs(lstm, 256, without="gradients"),
        "LSTM of scattered weights": runs(lstm, 256, num_layers=2, scattered=True),
        "LSTM cast to float16": runs(lstm, 256, cast=half, num_layers=2),
        "LSTM cast to bfloat16": runs(lstm, 256, cast=torch.bfloat16),
        "LSTM of odd sizes": runs(lstm, 201, (37, 5, 77), num_layers=3),
        "LSTM of long sequences": runs(lstm, 200, (150, 20, 50), num_layers=2),
    }


def on_cuda(run: Run) -> list[int]:
    """What ``run`` asks of the allocator of ``cuda:0``, after a first time."""
    run()
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    run()
    traces = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return sorted(event["size"] for event in traces if event["action"] == "alloc")


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: on_cuda(run) for name, run in cases("cuda").items()}) + "\n")

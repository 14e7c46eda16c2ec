"""Operations whose CUDA kernels take room of their own, small: what they ask of torch's allocator.

``python -m tests.unit.simulator.kernel_samples`` with a CUDA build prints the requests of this card as JSON, in bytes
and in order of size; ``recorded/kernels.json`` has those of torch 2.13 on a stand-in for the CUDA libraries, which
computes nothing, by compute capability.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

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

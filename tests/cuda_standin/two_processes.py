"""Two processes on one GPU of 2 GiB, of which each context takes 300 MiB: prints what each of them gets as answers.

``python two_processes.py``: on the GPU that is there; with ``simulated`` on a simulated one that answers for CUDA.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import torch

MIB = 2**20

kept: dict[str, Any] = {}


def hold(name: str, mib: float) -> str:
    """Take memory, or torch's message why there is none, without its advice."""
    try:
        kept[name] = torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return re.split(r" If reserved | expandable_segments is enabled\.", str(error), maxsplit=1)[0]
    return ""


def train(name: str, width: int, capturable: bool) -> str:
    """Three steps of a small model, which stays."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=capturable)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.zeros(64, width, device="cuda")).square().mean().backward()
        optimizer.step()
    kept[name] = model, optimizer
    return ""


def let_go(name: str) -> str:
    del kept[name]
    torch.cuda.empty_cache()
    return ""


def ask() -> str:
    return ""


def do(work: str, *arguments: Any) -> list[Any]:
    """Do something, and return how it went: the message of a refusal, what is free, and what the allocator says."""
    message = {"hold": hold, "train": train, "let_go": let_go, "ask": ask}[work](*arguments)
    figures = torch.cuda.memory_stats()
    names = ("allocated_bytes", "reserved_bytes")
    numbers = [figures[f"{name}.all.{part}"] for name in names for part in ("current", "peak")]
    return [message, *torch.cuda.mem_get_info(), numbers, figures["num_ooms"], figures["num_alloc_retries"]]


class Second:
    """The second process, which does what it is asked to."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, "second", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, *work: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(work) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def first(*arguments: str) -> list[Any]:
    """The answers of both, in order."""
    answers = [do("ask"), do("hold", "most", 1000)]
    second = Second(*arguments)
    answers += [second.do("ask"), second.do("hold", "as much", 1000), second.do("hold", "some", 200.5), do("ask")]
    answers += [do("hold", "too much", 300), do("train", "model", 512, True), second.do("ask"), do("let_go", "most")]
    answers += [second.do("hold", "as much", 700), second.do("train", "model", 768, False), second.do("let_go", "some")]
    answers += [do("hold", "more", 500), do("ask")]
    numbers = {str(os.getpid()): "FIRST", str(second.process.pid): "SECOND"}
    second.kill()
    answers += [do("hold", "more yet", 1300), do("ask")]
    found: list[Any] = json.loads(
        re.sub(r"\bProcess (\d+)\b", lambda found: f"Process {numbers[found[1]]}", json.dumps(answers))
    )
    return found


def report(answer: list[Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    arguments = sys.argv[1:]
    if "simulated" in arguments:
        from gpudash.simulator import simulate

        simulate(2048 * MIB, as_cuda=True)
    torch.cuda.set_device(0)
    if "second" not in arguments:
        report(first(*arguments))
        return
    for line in sys.stdin:
        report(do(*json.loads(line)))


if __name__ == "__main__":
    main()

"""Callables as users write them, and what their dry runs answer: run in a process of its own, printing JSON."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.fit import peaks
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.answering import answering_for_cuda
from gpudash.simulator.dry_run.dry_run import FEW_NUMBERS, DryRun, ReportedCard
from gpudash.simulator.dry_run.own_code import follow, load
from gpudash.simulator.refusal import CannotPredictError

Build = Callable[[torch.device], Callable[[], object]]
Use = Callable[[torch.Tensor, torch.Tensor], object]

kept: list[Any] = []
kept_numbers: list[float] = []
collected: list[torch.Tensor] = []


def step_then(use: Use) -> Build:
    """A training step of a small layer, after which ``use`` is given its result and its loss."""

    def build(device: torch.device) -> Callable[[], object]:
        layer = nn.Linear(8, 8).to(device)

        def step() -> None:
            result = layer(torch.ones(4, 8, device=device))
            loss = result.sum()
            loss.backward()
            use(result.detach(), loss.detach())

        return step

    return build


def allocate_by(number: float, near: torch.Tensor) -> torch.Tensor:
    """What must never be predicted: a size that depends on a number."""
    return torch.empty((int(number) % 1000 + 1) << 20, device=near.device)


def scaled(device: torch.device) -> Callable[[], object]:
    """Training in float16 as torch's documentation has it, with a scheduler that skips what the scaler skipped."""
    layer = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    scaler = torch.amp.GradScaler(device.type)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = layer(torch.ones(4, 64, device=device)).square().mean()
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if before > scaler.get_scale() or 1 / before == 0:
            raise ValueError("a step was skipped")

    return step


def learns_on_the_cpu(device: torch.device) -> Callable[[], object]:
    """A loss that is worked out from a copy on the CPU, without looking at its numbers."""
    layer = nn.Linear(8, 8).to(device)
    return lambda: layer(torch.ones(4, 8, device=device)).cpu().square().sum().backward()


def saves_on_the_cpu(device: torch.device) -> Callable[[], object]:
    """Activations kept in the host's memory until the backward pass."""
    layer = nn.Linear(8, 8).to(device)

    def step() -> None:
        with torch.autograd.graph.save_on_cpu():
            loss = layer(torch.ones(4, 8, device=device)).square().sum()
        loss.backward()

    return step


def pins_on_the_cpu(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """A copy on the CPU on its way back to the device."""
    result.cpu().pin_memory().to(result.device, non_blocking=True)


def cycle(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """A list that holds itself and a tensor: only the garbage collector frees it."""
    holder: list[Any] = [result]
    holder.append(holder)


def shown(_result: torch.Tensor, loss: torch.Tensor) -> None:
    """What a training loop does with its loss."""
    average = 0.9 * kept_numbers[-1] + 0.1 * loss.item() if kept_numbers else loss.item()
    kept_numbers.append(average)
    said = f"{loss.item():.4f} {loss:.3f} {loss.item() * 4:>9} {round(average, 3)} {loss.item():d} {-average}"
    said += "%.2f %s" % (sum(kept_numbers) / len(kept_numbers), loss.tolist())  # noqa: UP031
    if math.isnan(loss.item()) or not math.isfinite(loss.item()) or average != average:
        raise FloatingPointError(said)
    if not torch.isfinite(loss) or torch.isnan(loss).any():
        raise FloatingPointError(said)


def compared(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """Copies that are collected on the CPU, and compared there with labels that have never left it."""
    collected.append(result.cpu())
    every = torch.cat(collected)
    right = (result.cpu().argmax(1) == torch.zeros(4, dtype=torch.long)).float()
    said = f"{every} {every.mean():.3f} {every.max(0)} {right.mean().item():.1%}"
    every[0] = 3.0
    if every.device.type != "cpu" or every.t().reshape(-1).shape != (every.numel(),) or "..." not in said:
        raise ValueError(said)


def saved(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """A checkpoint, in a file that has one already."""
    path = Path(tempfile.mkdtemp()) / "best.pt"
    path.write_text("of a real run")
    torch.save({"result": result, "copy": result.cpu()}, path)
    if path.read_text() != "of a real run":
        raise ValueError("overwritten")


def bounded(_result: torch.Tensor, loss: torch.Tensor) -> None:
    """The best accuracy yet, and a guard against numbers that explode."""
    if not loss.item() > 0.0 or loss.item() > 1e9 or loss.item() == 0 or min(1e30, loss.item()) == 1e30:
        raise ValueError


class Best:
    """Keeps the smallest loss, and asks for a tensor whenever it has improved."""

    def __init__(self) -> None:
        self.loss = math.inf

    def __call__(self, result: torch.Tensor, loss: torch.Tensor) -> None:
        if loss.item() < self.loss:
            self.loss = loss.item()
            kept.append(torch.empty(1 << 20, device=result.device))


def hits(result: torch.Tensor, _loss: torch.Tensor) -> None:
    """The accuracy of a batch, added up."""
    labels = torch.zeros(4, dtype=torch.long, device=result.device)
    right = (result.argmax(1) == labels).sum().item()
    kept_numbers.append(right / len(labels) + (result[0, 0].item() > 3))


def masked(device: torch.device) -> Callable[[], object]:
    """A loss over the words that a batch's own mask marks, as of padded text."""
    layer = nn.Linear(64, 64).to(device)
    host = torch.ones(8, 16, dtype=torch.long)
    host[:, 12:] = 0

    def step() -> None:
        mask = host.to(device)
        if mask.bool().all() or mask.sum().item() != 96 or int(mask.sum(1).max()) != 12 or mask.tolist()[0][15]:
            raise ValueError("not the mask that was given")
        chosen = layer(torch.ones(8, 16, 64, device=device))[mask.bool()]
        if chosen.shape != (96, 64) or mask.nonzero().shape != (96, 2):
            raise ValueError("not what the mask marks")
        chosen.sum().backward()

    return step


@torch.library.custom_op("followed::doubled", mutates_args=())
def doubled(values: torch.Tensor) -> torch.Tensor:
    """An operation of the code's own, written for numpy."""
    return torch.from_numpy(2 * values.numpy())


@doubled.register_fake
def _(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values)


NUMBERS: tuple[Any, ...] = (False, True, 2, 1.5)


def beside_numbers(device: torch.device) -> Callable[[], object]:
    """A step that works with tensors whose numbers are known, or are not, and with plain numbers."""
    truths = torch.zeros(2, 4, dtype=torch.bool, device=device)
    counts = torch.ones(2, 4, dtype=torch.int64, device=device)
    values = torch.rand(2, 4, device=device)
    tensors = truths, truths.all(), counts, counts.sum(), values, values > 0, values.cpu(), (values > 0).cpu()

    def step() -> None:
        for tensor in tensors:
            for number in NUMBERS:
                kept.extend(work(tensor, number) for work in (torch.mul, torch.eq, torch.copysign, torch.xlogy))
                if not tensor.is_floating_point() and not isinstance(number, float):
                    kept.extend(
                        (tensor & number, number | tensor, tensor ^ number, tensor.clone().__iand__(bool(number)))
                    )

    return step


def all_finished(device: torch.device) -> Callable[[], object]:
    """A step as that of a beam search that asks whether all beams are finished."""
    weights = torch.rand(64, device=device)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        finished = torch.zeros((2, 4), dtype=torch.bool, device=device)
        alive = ~(torch.all(finished, dim=-1, keepdim=True) & False)
        return weights * 2 if alive.all() else weights

    return step


def beams(device: torch.device) -> Callable[[], object]:
    """A step that generates six tokens, and searches four beams for as many."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=64, eos_token_id=499, pad_token_id=0
    )
    model = GPT2LMHeadModel(config).to(device).eval()
    prompt = torch.full((2, 8), 3, device=device)

    def step() -> None:
        for options in ({}, {"num_beams": 4}, {"num_beams": 4, "early_stopping": True}):
            made = model.generate(prompt, max_new_tokens=6, do_sample=False, **options)
            assert made.shape == (2, 14)

    return step


def network_of(device: torch.device) -> tuple[nn.Module, dict[str, torch.Tensor], torch.Tensor]:
    """A network, its parameters without a graph, and a batch."""
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    return network, {name: one.detach() for name, one in network.named_parameters()}, torch.rand(256, 64, device=device)


def gradient_of_each(device: torch.device) -> Callable[[], object]:
    """A step that takes the gradients of each sample of a batch."""
    network, parameters, batch = network_of(device)
    loss = torch.func.grad(lambda given, one: torch.func.functional_call(network, given, (one,)).sum())
    each = torch.func.vmap(loss, in_dims=(None, 0))
    return lambda: each(parameters, batch)


def second_derivatives(device: torch.device) -> Callable[[], object]:
    """A step that takes a Hessian by two backward passes."""
    network, _parameters, batch = network_of(device)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda one: network(one).tanh().sum()))
    return lambda: hessian(batch[0])


def adapted(device: torch.device) -> Callable[[], object]:
    """A step of learning to learn: a gradient of what a gradient has changed."""
    network, _parameters, batch = network_of(device)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(network, given, (batch,))
        return made.square().mean()

    def step() -> None:
        parameters = dict(network.named_parameters())
        gradients = torch.func.grad(loss)(parameters)
        loss({name: one - 0.1 * gradients[name] for name, one in parameters.items()}).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def item_of_each(device: torch.device) -> Callable[[], object]:
    """A step that asks for a number of every sample at once."""
    batch = torch.rand(4, 8, device=device)
    each = torch.func.vmap(lambda one: one * one.sum().item())
    return lambda: each(batch)


TRANSFORMED: dict[str, Build] = {
    "gradient of each": gradient_of_each,
    "second derivatives": second_derivatives,
    "adapted": adapted,
}
"""Code that uses transforms of ``torch.func``."""


def gate(values: torch.Tensor) -> torch.Tensor:
    """What a compiler would fuse: three operations on each element."""
    return values * torch.sigmoid(values) + 1


early_compile = torch.compile
compiled_before: list[Callable[[torch.Tensor], torch.Tensor]] = []
"""`gate`, compiled before the process begins with dry runs."""


class Gated(nn.Module):
    """A layer and what follows it."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor] = gate) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.then = then

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The layer, then the other."""
        return self.then(self.layer(values))


def by_decorator() -> nn.Module:
    """A network that calls a function that was decorated."""

    @torch.compile(fullgraph=True)
    def then(values: torch.Tensor) -> torch.Tensor:
        return gate(values)

    return Gated(then)


def in_place() -> nn.Module:
    """A network that compiles itself."""
    network = Gated()
    network.compile(dynamic=True)
    return network


COMPILING: dict[str, Callable[[], nn.Module]] = {
    "uncompiled": Gated,
    "compiled": lambda: torch.compile(Gated()),
    "compiled by a decorator": by_decorator,
    "compiled in place": in_place,
    "compiled within": lambda: torch.compile(nn.Sequential(torch.compile(Gated(), backend="aot_eager"))),
    "compiled as a graph": lambda: torch.compile(Gated(), mode="reduce-overhead"),
    "compiled without Inductor": lambda: torch.compile(Gated(), backend="aot_eager"),
    "compiled before": lambda: Gated(compiled_before[0]),
    "compiled by what was imported before": lambda: Gated(early_compile(gate, backend="eager")),
}
"""Networks, all but the first of which are compiled."""


def trained(make: Callable[[], nn.Module]) -> Build:
    """A step that trains a network, and makes sure that nothing has been compiled."""

    def build(device: torch.device) -> Callable[[], object]:
        network = make().to(device)
        optimizer = torch.optim.AdamW(network.parameters())
        batch = torch.rand(256, 64, device=device)

        def step() -> None:
            network(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert not torch._dynamo.utils.counters["frames"]

        return step

    return build


def scaled_by_parameters(device: torch.device) -> Callable[[], object]:
    """An optimizer that scales its steps by the size of the parameters, or by a small number where that is larger."""
    layer = nn.Linear(64, 64).to(device)

    def step() -> None:
        layer(torch.ones(4, 64, device=device)).sum().backward()
        for parameter in layer.parameters():
            scale = max(1e-3, parameter.detach().norm(2) / parameter.numel() ** 0.5)
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad * scale * -0.1)

    return step


def searching(line_search: str | None) -> Build:
    """Training by L-BFGS, five iterations a step."""

    def build(device: torch.device) -> Callable[[], object]:
        layer = nn.Linear(1024, 64).to(device)
        optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=5, history_size=20, line_search_fn=line_search)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            made = layer(torch.ones(4, 1024, device=device)).square().mean()
            made.backward()
            return made

        return lambda: optimizer.step(loss)

    return build


def makes_pictures(device: torch.device) -> Callable[[], object]:
    """What a pipeline returns in the end: arrays of the pictures it has made."""
    layer = nn.Conv2d(3, 3, 3, padding=1).to(device)

    def step() -> None:
        with torch.no_grad():
            made = layer(torch.ones(2, 3, 64, 64, device=device)).clamp(0, 1)
        pictures = (made.cpu().permute(0, 2, 3, 1).numpy() * 255).round().astype("uint8")
        same = np.asarray(made.half().cpu())
        if pictures.shape != (2, 64, 64, 3) or pictures.any() or same.dtype != np.float16:
            raise ValueError("no picture of zeros")

    return step


def trains_as_a_whole(device: torch.device) -> Callable[[], object]:
    """A step that is a training of five steps: it makes its optimizer."""
    layer = nn.Linear(64, 64).to(device)

    def train() -> None:
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(5):
            layer(torch.ones(4, 64, device=device)).sum().backward()
            optimizer.step()

    return train


def learns_to_learn(device: torch.device) -> Callable[[], object]:
    """A step with two steps of another optimizer within, which it makes anew."""
    layer, inner = nn.Linear(64, 64).to(device), nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        within = torch.optim.SGD(inner.parameters())
        for _ in range(2):
            inner(torch.ones(4, 64, device=device)).sum().backward()
            within.step()
        layer(torch.ones(4, 64, device=device)).sum().backward()
        optimizer.step()

    return step


def checkpointed(device: torch.device) -> Callable[[], object]:
    """Convolutions that are computed again in the backward pass, which ends as soon as enough has been."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3)).to(device)

    def step() -> None:
        images = torch.ones(2, 3, 16, 16, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            made = checkpoint(layers, images, use_reentrant=False)
        made.float().sum().backward()

    return step


BOXES = torch.library.Library("torchvision", "FRAGMENT")
BOXES.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def detects(device: torch.device) -> Callable[[], object]:
    """A detector's way from many boxes to those that it learns from (torchvision/models/detection)."""
    head = nn.Linear(4, 256).to(device)

    def step() -> None:
        boxes = torch.rand(5000, 4, device=device)
        scores = head(boxes).sum(1).sigmoid()
        kept = torch.where((boxes[:, 2] - boxes[:, 0]) >= 0.01)[0]
        boxes, scores = boxes[kept], scores[kept]
        boxes, scores = boxes[scores > 0.0], scores[scores > 0.0]
        best = torch.ops.torchvision.nms(boxes, scores, 0.7)[:1000]
        boxes = boxes[best]
        matched = boxes.sum(1) > 2
        chosen = torch.where(matched)[0]
        chosen = chosen[torch.randperm(len(chosen), device=device)[:64]]
        sampled = torch.zeros(1000, dtype=torch.uint8, device=device)
        sampled[chosen] = 1
        learnt = torch.where(sampled)[0]
        if len(boxes) != 1000 or len(learnt) != 64:
            raise ValueError(f"{len(boxes)} boxes, {len(learnt)} learnt from")
        head(boxes[learnt]).sum().backward()

    return step


def sharded(device: torch.device) -> Callable[[], object]:
    """A model that FSDP2 is to shard."""
    from torch.distributed.fsdp import fully_shard

    layer = nn.Linear(8, 8).to(device)
    fully_shard(layer)
    return lambda: layer(torch.ones(1, 8, device=device))


def waits(_device: torch.device) -> Callable[[], object]:
    """Waits for a process that never comes."""
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=0, world_size=2)
    raise NotImplementedError


def interrupt(_result: torch.Tensor, _loss: torch.Tensor) -> None:
    raise KeyboardInterrupt


CALLABLES: dict[str, Build] = {
    "item of a copy": step_then(lambda result, loss: allocate_by(int(loss.cpu().item()), result)),
    "int of a copy": step_then(lambda result, loss: allocate_by(int(result.to("cpu")[0, 0]), result)),
    "copy to list": step_then(lambda result, loss: kept.append(result.cpu().tolist())),
    "copy to numpy": step_then(lambda result, loss: result.cpu().numpy()),
    "condition on a copy": step_then(lambda result, loss: 1 if loss.cpu() > 0.5 else 2),
    "copy and host tensor": step_then(lambda result, loss: result.cpu() + torch.ones(4, 8)),
    "compared on the cpu": step_then(compared),
    "condition on what a copy gave": step_then(lambda result, loss: bool((result.cpu() + torch.ones(4, 8)).mean() > 1)),
    "saved": step_then(saved),
    "into a host tensor": step_then(lambda result, loss: torch.zeros(4, 8).copy_(result)),
    "to list": step_then(lambda result, loss: result.tolist()),
    "item": step_then(lambda result, loss: loss.item()),
    "mask": step_then(lambda result, loss: result[result > 0].sum().backward),
    "many masked": step_then(lambda result, loss: torch.ones(3, 2**19, device=result.device).gt(2).nonzero()),
    "scaled by parameters": scaled_by_parameters,
    "L-BFGS": searching(None),
    "L-BFGS with a line search": searching("strong_wolfe"),
    "pictures": makes_pictures,
    "checkpointed": checkpointed,
    "whole training": trains_as_a_whole,
    "meta-learning": learns_to_learn,
    "detector": detects,
    "unique": step_then(lambda result, loss: result.unique()),
    "shown": step_then(shown),
    "hits": step_then(hits),
    "bounded": step_then(bounded),
    "best": step_then(Best()),
    "branch": step_then(lambda result, loss: 1 if loss.item() > 0.5 else 2),
    "index": step_then(lambda result, loss: kept_numbers[: loss.item()]),  # type: ignore[misc]
    "plain": step_then(lambda result, loss: kept_numbers.append(float(loss))),
    "into a tensor": step_then(lambda result, loss: torch.zeros(2).__setitem__(0, loss.item())),
    "of a list": step_then(lambda result, loss: torch.tensor([0.0, loss.item()]).mean()),
    "masked": masked,
    "beside numbers": beside_numbers,
    "all finished": all_finished,
    "beams": beams,
    **TRANSFORMED,
    "item of each": item_of_each,
    **{name: trained(make) for name, make in COMPILING.items()},
    "custom operation": step_then(lambda result, loss: kept.append(doubled(result))),
    "sharded": sharded,
    "ranks": waits,
    "wrapped": lambda device: nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to(device)),
    "no step": lambda device: None,  # type: ignore[arg-type, return-value]
    "exit": step_then(lambda result, loss: sys.exit(3)),
    "interrupt": step_then(interrupt),
    "division": step_then(lambda result, loss: 1 / 0),
    "unknown name": step_then(lambda result, loss: nothing_of_this_name),  # type: ignore[name-defined] # noqa: F821
    "kept copy": step_then(lambda result, loss: kept.append(loss.cpu().cpu().double())),
    "printed": step_then(lambda result, loss: sys.stdout.write(f"{result} {loss.cpu()}\n")),
    "on the cpu": learns_on_the_cpu,
    "saved on the cpu": saves_on_the_cpu,
    "pinned on the cpu": step_then(pins_on_the_cpu),
    "scaler": scaled,
    "cycle": step_then(cycle),
    "after a cycle": step_then(lambda result, loss: None),
    "again": step_then(lambda result, loss: None),
    "data parallel": lambda device: nn.DataParallel(nn.Linear(8, 8).to(device)),
}


def twice(device: torch.device) -> Callable[[], object]:
    """Goes back through a graph that is gone."""
    weight = torch.ones(3, device=device, requires_grad=True)

    def step() -> None:
        loss = (weight * weight).sum()
        loss.backward()
        loss.backward()

    return step


def hooked(device: torch.device) -> Callable[[], object]:
    """A hook of a backward pass that divides by zero."""
    weight = torch.ones(3, device=device, requires_grad=True)

    def step() -> None:
        made = weight * 2
        made.register_hook(lambda _grad: 1 / 0)
        made.sum().backward()

    return step


MISTAKES: dict[str, tuple[Build, str]] = {
    "wrong sizes": (lambda device: lambda: nn.Linear(8, 8).to(device)(torch.ones(4, 9, device=device)), "RuntimeError"),
    "no such device": (lambda _device: lambda: nn.Linear(8, 8).to("xpu"), ""),
    "no parameters": (lambda _device: lambda: torch.optim.Adam([], lr=1), "ValueError"),
    "no such method": (lambda device: lambda: torch.ones(3, device=device).nothing(), "AttributeError"),  # type: ignore[attr-defined] # it is a mistake
    "back twice": (twice, "RuntimeError"),
    "hook": (hooked, "ZeroDivisionError"),
    "two devices": (lambda device: lambda: torch.ones(3, device=device) + torch.ones(3), "RuntimeError"),
    "not on the host": (lambda device: lambda: torch.ones(3, device=device).numpy(), "TypeError"),
}
"""Code that raises wherever it runs, and the error's class; "" where that depends on how torch was built."""


def answers() -> dict[str, dict[str, Any]]:
    """What is predicted for every callable, or why nothing is."""
    compiled_before.append(torch.compile(gate, backend="eager"))
    dry = DryRun()
    found: dict[str, dict[str, Any]] = {}
    for name, build in CALLABLES.items():
        found[name] = asked(lambda build=build: follow(build, dry, steps=3))
    found["module that exits"] = asked(lambda: load("tests.unit.simulator.module_that_exits:build"))
    found["data parallel again"] = {"works": nn.DataParallel(nn.Linear(2, 2)).module.in_features}
    for name, (build, _error) in MISTAKES.items():
        found[name] = asked(lambda build=build: follow(build, dry, steps=2))
    with answering_for_cuda(dry, Architecture(), ReportedCard("a card", 2**34)) as device:
        for name, (build, _error) in MISTAKES.items():
            found[f"{name}, on cuda"] = asked(lambda build=build: follow(build, dry, steps=2, device=device))
    found["trusted"] = {"read": trusted(dry)}
    return found


def trusted(dry: DryRun) -> list[float]:
    """The different numbers that code known not to decide by them finds in copies on the CPU."""
    read: set[float] = set()

    def run(_tracker: Tracker) -> None:
        for count in (10, 100_000):
            values = torch.empty(count, device="sim")
            read.update(torch.ones(count).copy_(values).tolist())
            if count < FEW_NUMBERS:
                read.update(values.cpu().tolist())
            else:
                assert values.cpu().is_meta

    dry.record(run, trusting=True)
    return sorted(read)


def asked(predict: Callable[[], Any]) -> dict[str, Any]:
    """The answer of ``predict`` as JSON."""
    try:
        found = predict()
        trace = found.trace
        peak = peaks(trace, AllocatorSettings()).allocated
        return {"peak": peak, "assumed": found.assumptions, "followed": (trace.steps, trace.followed)}
    except CannotPredictError as error:
        return {"kind": error.kind, "message": str(error), "remedy": error.remedy}


if __name__ == "__main__":
    told = answers()
    sys.stdout.write(json.dumps(told) + "\n")

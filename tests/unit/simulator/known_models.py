"""Runs whose memory was recorded on a real GPU, written anew from their description.

**The decoder.** A language model of 24 layers, width 1024, 16 heads, feed-forward width 4096, vocabulary 10000, batch
4, context 128 or 512; no bias anywhere, input and output embeddings not shared; each layer ``x + attention(norm(x))``,
then ``x + feed_forward(norm(x))``, and a last norm. Every matrix product is a ``torch.einsum``. Norm: root mean square,
in float32, times a weight. Attention: query, key and value by three products; rotary positions for query and key, from
one float32 table of cosines and sines (context × 32 each), applied to even and odd elements and joined again; a causal
mask made anew in every layer; scores, division by the root, ``where``, softmax written out (less the maximum, ``exp``,
over the sum) and not fused. Feed-forward: ``down(silu(gate(x)) * up(x))`` with silu as ``x * sigmoid(x)``. Loss: log
softmax written out, ``gather``, mean.

The model is made on the host and moved; the batches of five steps before the recorded one are there first, and then its
own. A training step drops the gradients, takes model and loss (under bf16 autocast where that is asked for), goes
backward and takes a step of an AdamW of its own: decay by ``p.data -= …``, first and second moment replaced by new
tensors, and the parameter's change by ``p.data -= …``; logits and loss live as long as the step. Inference is the model
alone in inference mode. The sixth step was recorded.

**Attention alone.** Query, key and value of (8, 4096, 16), all requiring gradients; products by ``torch.einsum``, the
same softmax written out, the sum of the result, one backward pass; from an empty cache, recorded from the first
allocation on. The three inputs, the output, the sum and the gradients live to the end.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch import nn

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.fit import peaks
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run.dry_run import DryRun

LAYERS, WIDTH, HEADS, FEED_FORWARD, VOCABULARY, BATCH = 24, 1024, 16, 4096, 10_000, 4
STEPS_BEFORE = 5
STEPS = STEPS_BEFORE + 1
ROTARY_BASE = 10_000.0


class Product(nn.Module):
    """``x @ weight.T``: (..., in) to (..., out)."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outward, inward))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight[tokens, :]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(given)


class Rotary(nn.Module):
    """Turns each pair of elements by an angle that grows with the position."""

    def __init__(self, context: int) -> None:
        super().__init__()
        size = WIDTH // HEADS
        rates = ROTARY_BASE ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(context).to(torch.float32), rates)
        self.table = nn.Buffer(torch.stack((torch.cos(angles), torch.sin(angles))), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        even, odd = x.reshape(*x.shape[:-1], -1, 2).movedim(-1, 0)
        cos, sin = self.table[:, : x.shape[-2]]
        turned_even = cos * even - sin * odd
        turned_odd = sin * even + cos * odd
        return torch.cat((turned_even.unsqueeze(-1), turned_odd.unsqueeze(-1)), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.query = Product(WIDTH, WIDTH)
        self.key = Product(WIDTH, WIDTH)
        self.value = Product(WIDTH, WIDTH)
        self.out = Product(WIDTH, WIDTH)
        self.rotary = rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(-2, -3) for part in (query, key, value))
        query = self.rotary(query)
        key = self.rotary(key)
        places = torch.arange(x.shape[-2], device=x.device)
        mask = places.view(1, 1, -1, 1) >= places.view(1, 1, 1, -1)
        attended = attention(query, key, value, mask)
        attended = attended.transpose(-2, -3).flatten(-2).contiguous()
        return self.out(attended)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Product(WIDTH, FEED_FORWARD)
        self.down = Product(FEED_FORWARD, WIDTH)
        self.up = Product(WIDTH, FEED_FORWARD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.attention = Attention(rotary)
        self.feed_forward = FeedForward()
        self.norm_attention = Norm()
        self.norm_feed_forward = Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attention(self.norm_attention(x))
        between = x + attended
        transformed = self.feed_forward(self.norm_feed_forward(between))
        return between + transformed


class Decoder(nn.Module):
    """(batch, context) of tokens to (batch, context, vocabulary)."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.tokens = Embedding()
        self.rotary = Rotary(context)
        self.layers = nn.ModuleList(Layer(self.rotary) for _ in range(LAYERS))
        self.norm = Norm()
        self.head = Product(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits: torch.Tensor = self.head(x)
        del embedded
        return logits


class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"rate": 1e-3, "betas": (0.9, 0.95), "decay": 0.01, "epsilon": 1e-8})

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["rate"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, gradient = self.state[parameter], parameter.grad.data
                count = state.get("step", 0) + 1
                corrected = rate * math.sqrt(1 - second**count) / (1 - first**count)
                parameter.data -= rate * group["decay"] * parameter.data
                mean = state.get("mean", torch.zeros_like(parameter))
                square = state.get("square", torch.zeros_like(parameter))
                state["mean"] = first * mean + (1 - first) * gradient
                state["square"] = second * square + (1 - second) * torch.square(gradient)
                parameter.data -= corrected * state["mean"] / (torch.sqrt(state["square"]) + group["epsilon"])
                state["step"] = count


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def softmax(x: torch.Tensor) -> torch.Tensor:
    less = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(less)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    scores = torch.einsum("...qd,...kd->...qk", query, key)
    scores = scores / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, value)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    most = torch.max(x, dim=-1, keepdim=True)[0]
    less = x - most
    return less - torch.log(torch.sum(torch.exp(less), dim=-1, keepdim=True))


def cross_entropy(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    losses = -log_softmax(logits)
    return torch.mean(torch.gather(losses, -1, wanted.unsqueeze(-1)))


def decoder(context: int, *, trains: bool, bf16: bool) -> Callable[[torch.device], Callable[[], object]]:
    """What builds the decoder on a device and returns its step."""

    def build(device: torch.device) -> Callable[[], object]:
        with torch.device("meta"):
            model = Decoder(context)
        model.to(device)
        optimizer = OwnAdamW(model.parameters()) if trains else None
        sides = 2 if trains else 1
        before = [torch.zeros(STEPS_BEFORE, BATCH, context, dtype=torch.int64, device=device) for _ in range(sides)]
        recorded = [torch.zeros(BATCH, context, dtype=torch.int64, device=device) for _ in range(sides)]
        batches = [*zip(*before, strict=True), recorded]
        coming = iter(batches)

        def train() -> None:
            assert optimizer is not None
            optimizer.zero_grad()
            tokens, wanted = next(coming)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(tokens)
                loss = cross_entropy(logits, wanted)
            loss.backward()
            optimizer.step()

        def infer() -> None:
            (tokens,) = next(coming)
            with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(tokens)
            del logits

        return train if trains else infer

    return build


def attention_alone(device: torch.device) -> Callable[[], object]:
    """What builds attention alone on a device and returns its one step."""

    def step() -> list[torch.Tensor]:
        inputs = [torch.empty(8, 4096, 16, device=device, requires_grad=True) for _ in range(3)]
        result = attention(*inputs)
        total = result.sum()
        total.backward()
        return [*inputs, result, total]

    return step


Build = Callable[[torch.device], Callable[[], object]]

KNOWN: dict[str, tuple[Build, int]] = {
    "decoder, context 128, training, float32": (decoder(128, trains=True, bf16=False), STEPS),
    "decoder, context 512, training, bf16 autocast": (decoder(512, trains=True, bf16=True), STEPS),
    "decoder, context 128, inference, float32": (decoder(128, trains=False, bf16=False), STEPS),
    "decoder, context 512, inference, bf16 autocast": (decoder(512, trains=False, bf16=True), STEPS),
    "attention alone, float32": (attention_alone, 1),
}
"""Name → what builds it, and how many steps of it were taken."""


def predictions() -> dict[str, dict[str, int]]:
    """Peak of the last step's allocated bytes, and of all reserved bytes, of every known run."""
    dry = DryRun()
    found = {name: peaks(followed(dry, build, steps)) for name, (build, steps) in KNOWN.items()}
    return {name: {"allocated": peak.steady, "reserved": peak.reserved} for name, peak in found.items()}


def followed(dry: DryRun, build: Build, steps: int) -> Trace:
    """The dry run of ``steps`` steps from an empty cache; what a step returns lives to the end."""

    def run(tracker: Tracker) -> None:
        step = build(torch.device("sim", 0))
        returned = []
        for number in range(1, steps + 1):
            tracker.step = number
            returned.append(step())
        tracker.finish()

    return dry.record(run)


if __name__ == "__main__":
    json.dump(predictions(), sys.stdout, indent=2)

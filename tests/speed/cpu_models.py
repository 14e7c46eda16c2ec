"""Small models whose step takes milliseconds to tenths of a second on one core, for `tests.speed.cpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpudash.simulator.dry_run.own_code import Build
from gpudash.specs import MatmulSpec, Spec, TrainingSpec

WORKLOADS: dict[str, Spec] = {
    "training mlp": TrainingSpec(model="mlp", steps=40),
    "training mlp, 1024 wide": TrainingSpec(model="mlp", width=1024, batch=64, steps=40),
    "training cnn": TrainingSpec(model="cnn", steps=40),
    "training transformer": TrainingSpec(model="transformer", steps=40),
    "training transformer, checkpointing": TrainingSpec(model="transformer", checkpointing=True, steps=40),
    "training transformer, accumulation": TrainingSpec(model="transformer", accumulation=4, steps=40),
    "matmul 512": MatmulSpec(size=512, repeat=40),
    "matmul 1024": MatmulSpec(size=1024, repeat=40),
}

Make = Callable[[], nn.Module]


def _learning(make: Make, batch: Callable[[Any], Any], loss: Callable[[Any], torch.Tensor]) -> Build:
    """A training step with AdamW, of a batch that lies on the device."""

    def build(device: Any) -> Callable[[], object]:
        model = make().to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        given = batch(device)

        def step() -> None:
            optimizer.zero_grad()
            made = model(**given) if isinstance(given, dict) else model(given)
            loss(made).backward()
            optimizer.step()

        return step

    return build


def _answering(make: Make, batch: Callable[[Any], Any]) -> Build:
    def build(device: Any) -> Callable[[], object]:
        model = make().to(device).eval()
        given = batch(device)

        def step() -> None:
            with torch.no_grad():
                model(**given) if isinstance(given, dict) else model(given)

        return step

    return build


def _mean(made: Any) -> torch.Tensor:
    if isinstance(made, torch.Tensor):
        return made.float().pow(2).mean()
    return _mean(made[0])


def _loss(made: Any) -> torch.Tensor:
    found: torch.Tensor = made.loss
    return found


def _vectors(rows: int, width: int) -> Callable[[Any], torch.Tensor]:
    return lambda device: torch.ones(rows, width, device=device)


def _pictures(batch: int, side: int) -> Callable[[Any], torch.Tensor]:
    return lambda device: torch.ones(batch, 3, side, side, device=device)


def _tokens(batch: int, length: int, *, labels: bool = True) -> Callable[[Any], dict[str, torch.Tensor]]:
    def make(device: Any) -> dict[str, torch.Tensor]:
        ids = torch.ones(batch, length, dtype=torch.int64, device=device)
        if labels:
            return {"input_ids": ids, "labels": ids}
        return {"input_ids": ids}

    return make


def _mlp(width: int, depth: int) -> Make:
    def make() -> nn.Module:
        return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))

    return make


class _Residual(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.one = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.two = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = functional.relu(self.one(self.first(images)))
        return functional.relu(images + self.two(self.second(made)))


def _cnn(channels: int, depth: int, *, depthwise: bool = False) -> Make:
    def make() -> nn.Module:
        groups = 1
        if depthwise:
            groups = channels
        return nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            *(_Residual(channels, groups) for _ in range(depth)),
            nn.MaxPool2d(2),
            nn.Flatten(1),
        )

    return make


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRUCell(128, 128)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        state = steps.new_zeros(steps.shape[1], 128)
        for one in steps:
            state = self.inner(one, state)
        return state


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True), 3)


def _of_transformers(name: str, config: str, **options: Any) -> Make:
    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
        return made

    return make


SMALL = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""With it a CPU attends by other kernels than a GPU."""

_bert = _of_transformers("BertForMaskedLM", "BertConfig", **SMALL, intermediate_size=512, **NO_DROPOUT)
_gpt = _of_transformers(
    "GPT2LMHeadModel",
    "GPT2Config",
    vocab_size=1000,
    n_embd=128,
    n_layer=3,
    n_head=4,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    resid_pdrop=0.0,
)
_llama = _of_transformers("LlamaForCausalLM", "LlamaConfig", **SMALL, intermediate_size=384, num_key_value_heads=2)
_vit = _of_transformers(
    "ViTForImageClassification",
    "ViTConfig",
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=512,
    image_size=64,
    patch_size=8,
)
_resnet = _of_transformers(
    "ResNetForImageClassification",
    "ResNetConfig",
    embedding_size=16,
    hidden_sizes=[32, 64],
    depths=[2, 2],
    layer_type="basic",
)
_convnext = _of_transformers(
    "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[32, 64], depths=[2, 2], num_stages=2
)
_t5 = _of_transformers(
    "T5ForConditionalGeneration",
    "T5Config",
    vocab_size=1000,
    d_model=128,
    d_ff=512,
    d_kv=32,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
    decoder_start_token_id=0,
)


def _pixels(batch: int) -> Callable[[Any], dict[str, torch.Tensor]]:
    pictures = _pictures(batch, 64)
    return lambda device: {"pixel_values": pictures(device)}


def _logits(made: Any) -> torch.Tensor:
    return _mean(made.logits)


MODELS: dict[str, Build] = {
    "mlp 512 × 6, learning": _learning(_mlp(512, 6), _vectors(128, 512), _mean),
    "mlp 128 × 24, learning": _learning(_mlp(128, 24), _vectors(32, 128), _mean),
    "mlp 1024 × 4, answering": _answering(_mlp(1024, 4), _vectors(256, 1024)),
    "cnn 32 × 4, learning": _learning(_cnn(32, 4), _pictures(8, 32), _mean),
    "cnn 64 × 4, answering": _answering(_cnn(64, 4), _pictures(8, 32)),
    "cnn depthwise 64 × 4, learning": _learning(_cnn(64, 4, depthwise=True), _pictures(8, 32), _mean),
    "gru cell, learning": _learning(_Recurrent, lambda device: torch.ones(32, 64, 128, device=device), _mean),
    "encoder of torch, learning": _learning(_encoder, lambda device: torch.ones(8, 128, 128, device=device), _mean),
    "bert, learning": _learning(_bert, _tokens(8, 128), _loss),
    "bert, answering": _answering(_bert, _tokens(8, 128, labels=False)),
    "gpt2, learning": _learning(_gpt, _tokens(4, 128), _loss),
    "gpt2, answering": _answering(_gpt, _tokens(4, 256, labels=False)),
    "llama, learning": _learning(_llama, _tokens(4, 128), _loss),
    "llama, answering": _answering(_llama, _tokens(4, 256, labels=False)),
    "vit, learning": _learning(_vit, _pixels(8), _logits),
    "vit, answering": _answering(_vit, _pixels(8)),
    "resnet, learning": _learning(_resnet, _pixels(4), _logits),
    "resnet, answering": _answering(_resnet, _pixels(8)),
    "convnext, learning": _learning(_convnext, _pixels(4), _logits),
    "t5, learning": _learning(_t5, _tokens(4, 64), _loss),
}

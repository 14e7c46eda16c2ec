"""One step of a model: what ``gpudash estimate --model`` follows, and what a run of it takes.

What is asked for is told as `gpudash.specs.model.ModelSpec.request` has it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import Followed, follow
from gpudash.simulator.models import building, flash_attention
from gpudash.simulator.models.config import read, refused
from gpudash.simulator.models.inputs import Inputs
from gpudash.simulator.models.offload import NONE, Offload
from gpudash.simulator.models.packed_layers import PackedLinear, adapt
from gpudash.simulator.models.parallel import ModelRanks
from gpudash.simulator.models.quantised import EightBitAdamW, parameter_count

Step = Callable[[], object]

UNPADDED = "every sequence is as long as asked for, without padding"
HEADLESS = "a model without a head learns the mean of what it puts out"
PACKED_LEARNS = "Train adapters on it with --task qlora, where bitsandbytes packed it."
MOSTLY_UNPACKED = (
    "{:.0%} of the weights lie in linear layers, which is all that is packed: not the rest, as experts in one tensor"
)

AUTOCAST = {"amp": torch.bfloat16, "amp_fp16": torch.float16}
"""Precisions with float32 weights → type of what autocast computes."""

PROMPT = "a pass over the whole prompt with its KV cache, as generate begins"


FOLLOWED_STEPS = 2
"""An optimizer makes its state in the first; what a library's model takes does not grow from step to step. With ranks
there is one more, since DistributedDataParallel makes its buckets anew in the second."""


def follow_model(asked: Mapping[str, Any], dry: DryRun, architecture: Architecture) -> tuple[Followed, dict[str, Any]]:
    """What a model asks of the allocator of a GPU, and what is known of it.

    Args:
        asked: as of `AskedModel`.
        dry: of this process.
        architecture: of the GPU.

    Raises:
        CannotPredictError: one sentence, when there is no such model, or it cannot be built or followed.
    """
    model = AskedModel(asked)
    steps = FOLLOWED_STEPS + bool(model.ranks.count)
    with model.ranks.first(), dry.backend.engine.counting_flops() as counted:
        found = follow(model.build, dry, steps=steps, architecture=architecture)
        facts = {**model.facts, **model.offload.facts(model.ranks.count or 1), "flops": counted() // steps}
    return found, {**facts, "assumptions": model.assumptions}


class AskedModel:
    """A model and what is done with it.

    Args:
        asked: as `gpudash.specs.model.ModelSpec.request`.
        draws: whether its weights are drawn, as for a run of it with numbers.

    Attributes:
        facts: what is known of the model, once it has been built: ``architecture``, ``parameters``, ``weight_bytes``,
            ``dtype``, ``sequence`` and ``longest`` (tokens; ``None`` where it takes none, or any),
            ``stored_parameters`` and ``stored_bytes`` (``None`` where no weights are there).
        assumptions: sentences without a full stop, once it has been built.
        offload: what lies on the host.
        ranks: what the model is spread over.

    Raises:
        CannotPredictError: one sentence, when there is no such model.
    """

    def __init__(self, asked: Mapping[str, Any], *, draws: bool = False) -> None:
        self._asked = asked
        self._draws = draws
        self._config = read(str(asked["path"]))
        kind = NONE if asked["task"] == "infer" else str(asked["offload"])
        self.offload = Offload(kind, pins=draws and torch.cuda.is_available())
        self.ranks = ModelRanks({**asked, "offload": self.offload.kind})
        self.facts: dict[str, Any] = {}
        self.assumptions: tuple[str, ...] = ()

    def build(self, device: torch.device) -> Step:
        """The model on ``device`` and the function that takes a step of it.

        Raises:
            CannotPredictError: one sentence, when it cannot be built.
        """
        asked = self._asked
        model = building.build(self._config, device, asked, draws=self._draws, places=not self.ranks.shards)
        inputs = Inputs(model, int(asked["batch"]), int(asked["sequence"]))
        self._describe(model, inputs)
        if asked["task"] == "infer":
            return self._inferring(model, inputs, device)
        how = building.quantisation_of(self._config, torch.bfloat16, asked)
        if how is not None and (asked["task"] == "train" or not how.learns):
            raise refused(f"The weights of {self._config.file} are packed and do not learn.", PACKED_LEARNS)
        if asked["task"] == "train":
            return self._training(model, model, inputs, device)
        rank, targets = int(asked["lora_rank"]), str(asked["lora_targets"])
        adapted = adapt(model, rank=rank, targets=targets, checkpointing=bool(asked["checkpointing"]))
        return self._training(adapted, model, inputs, device)

    def _describe(self, model: nn.Module, inputs: Inputs) -> None:
        packed = (one for module in model.modules() if isinstance(module, PackedLinear) for one in module.buffers())
        tensors = {id(one): one for one in (*model.parameters(), *packed)}.values()
        stored, dtype = self._config.stored, building.weights_dtype(self._config, str(self._asked["precision"]))
        how = building.quantisation_of(self._config, dtype, self._asked)
        self.facts = {
            "architecture": type(model).__name__,
            "parameters": parameter_count(model),
            "weight_bytes": sum(one.numel() * one.element_size() for one in tensors),
            "dtype": str(dtype).removeprefix("torch."),
            "packed_bits": 0 if how is None else how.bits,
            "sequence": inputs.sequence if inputs.takes_tokens else None,
            "longest": inputs.longest,
            "stored_parameters": None if stored is None else stored.parameters,
            "stored_bytes": None if stored is None else stored.total_bytes,
        }
        self.assumptions = (UNPADDED,) if inputs.takes_tokens else ()
        weights = sum(module.weights for module in model.modules() if isinstance(module, PackedLinear))
        if 0 < weights < self.facts["parameters"] / 2:
            self.assumptions += (MOSTLY_UNPACKED.format(weights / self.facts["parameters"]),)
        if self._asked["attention"] == flash_attention.NAME:
            self.assumptions += (flash_attention.AS_TORCH,)

    def _inferring(self, model: nn.Module, inputs: Inputs, device: torch.device) -> Step:
        names = inspect.signature(model.forward).parameters
        more = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        if more:
            self.assumptions += (PROMPT,)

        dtype = building.weights_dtype(self._config, str(self._asked["precision"]))

        def step() -> object:
            with torch.no_grad(), self._autocast(device):
                return model(**inputs.make(device, dtype, learns=False), **more)

        return step

    def _training(self, model: nn.Module, base: nn.Module, inputs: Inputs, device: torch.device) -> Step:
        model.train()
        if self._asked["checkpointing"]:
            _checkpointed(model)
        config: Any = base.config
        if hasattr(config, "use_cache"):
            config.use_cache = False  # as trainers set it: keys and values of a training are not used again
        offload, ranks = self.offload, self.ranks
        model = ranks.spread(model, device)
        learned = offload.learned(model)
        optimizer, clip = _optimizer(str(self._asked["optimizer"]), learned), float(self._asked["clip"])
        scaler = torch.amp.GradScaler(device.type, enabled=self._asked["precision"] == "amp_fp16")
        parts = int(self._asked["accumulation"])
        if "labels" not in inspect.signature(base.forward).parameters:
            self.assumptions += (HEADLESS,)

        dtype = building.weights_dtype(self._config, str(self._asked["precision"]))
        if any(isinstance(module, PackedLinear) for module in base.modules()):
            dtype = torch.float32  # as all that is not packed has become: see `adapt`

        def step() -> object:
            with offload.step():
                for part in range(1, parts + 1):
                    ranks.reduce_gradients(model, part == parts)
                    batch = inputs.make(device, dtype, learns=True)
                    with self._autocast(device), offload.saving():
                        loss = _loss(model(**batch)) / parts
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's is untyped
                if clip:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(learned, clip)
                scaler.step(optimizer)
                scaler.update()
                offload.stepped(optimizer)
            return loss.detach()

        return step

    def _autocast(self, device: torch.device) -> Any:
        dtype = AUTOCAST.get(str(self._asked["precision"]))
        return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def _loss(out: Any) -> torch.Tensor:
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    first: torch.Tensor = next(value for value in out.values() if isinstance(value, torch.Tensor))
    return first.float().mean()


def _checkpointed(model: Any) -> None:
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable", "enable_gradient_checkpointing")
    switch = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    try:
        if switch is not None:
            switch()
            return
    except ValueError:  # as transformers says that a model of its own has none
        pass
    raise refused(f"{type(model).__name__} has no activation checkpointing.", "Leave --checkpointing out.")


def _optimizer(name: str, parameters: Iterable[nn.Parameter]) -> Any:
    if name == "adamw8bit":
        return EightBitAdamW(parameters)
    if name == "adafactor":
        optimization: Any = importlib.import_module("transformers.optimization")
        return optimization.Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "momentum" else 0.0)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True if name == "adamw_fused" else None)

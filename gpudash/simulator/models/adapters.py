"""Adapters of low rank (LoRA) on a model, by the peft library itself.

peft knows the packed layers of bitsandbytes by their classes, for which layers of its own stand in here: they are told
to it as custom modules, and do what its `peft.tuners.lora.bnb` does.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gpudash.simulator.dry_run.refusals import CannotPredictError
from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt, PackedLinear

ALL_LINEAR = "all-linear"
"""As peft writes it: every linear layer but the one that gives the outputs."""

GET_PEFT = "Install it there: pip install peft, or name a Python that has it with --python."

MOST_NAMED = 12
"""Names that a refusal lists at most."""


def adapt(model: nn.Module, *, rank: int, targets: str = ALL_LINEAR, checkpointing: bool = False) -> nn.Module:
    """``model`` with adapters, of which nothing else learns; packed models are prepared for it first.

    What is not packed then becomes float32, and the inputs of checkpoints ask for gradients
    (`peft.prepare_model_for_kbit_training`). Adapters are float32 where their layer is packed or has 16 bits.

    Args:
        model: of transformers or diffusers, without numbers; it is changed.
        rank: of the adapters.
        targets: `ALL_LINEAR`, names of modules with commas between them, or "" for those that peft chooses for the
            architecture.
        checkpointing: whether activations are to be computed again in the backward pass.

    Raises:
        CannotPredictError: one sentence, when this Python has no peft, a name is not there, or peft refuses.
    """
    peft = _peft()
    if rank < 1:
        raise _refused(f"The rank of adapters is 1 or more, not {rank}.", "Give a rank such as 16.")
    wanted = targets.strip() if targets.strip().lower() == ALL_LINEAR else _names(model, targets)
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=wanted)
    settings._register_custom_module({Linear4bit: _over_packed(clones=True), Linear8bitLt: _over_packed(clones=False)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls transformers by its old names
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys")  # of experts, which it leaves alone
        if any(isinstance(module, PackedLinear) for module in model.modules()):
            peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
        try:
            adapted: nn.Module = peft.get_peft_model(model, settings, low_cpu_mem_usage=_is_without_numbers(model))
        except (ValueError, NotImplementedError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            told = f"peft puts no adapters on {type(model).__name__} ({first})."
            raise _refused(told, "Name modules that take one with --lora-targets.") from error
    return adapted


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise _refused("This Python has no peft, which LoRA needs.", GET_PEFT) from error
    return peft


def _refused(message: str, remedy: str) -> CannotPredictError:
    return CannotPredictError("adapters", message, remedy)


def _names(model: nn.Module, targets: str) -> list[str] | None:
    """The names in ``targets``, each of which ends that of a module, as peft looks for it; ``None`` for none."""
    wanted = [name.strip() for name in targets.split(",") if name.strip()]
    there = [name for name, _ in model.named_modules()]
    for name in wanted:
        if not any(found == name or found.endswith(f".{name}") for found in there):
            known = ", ".join(_linear_names(model)) or "none"
            told = f"{type(model).__name__} has no module {name!r} to put an adapter on."
            raise _refused(told, f"Its linear layers are: {known}; {ALL_LINEAR} means all of them.")
    return wanted or None


def _linear_names(model: nn.Module) -> Sequence[str]:
    """Last parts of the names of linear layers, each once."""
    found = dict.fromkeys(
        name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)
    )
    names = [name for name in found if name and not name.isdigit()]
    return names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], "…"]


def _is_without_numbers(model: nn.Module) -> bool:
    return any(weight.is_meta for weight in model.parameters())


@functools.cache
def _over_packed(*, clones: bool) -> type[nn.Module]:
    """The class of peft's layer over a packed one.

    Args:
        clones: whether what the layer gives is copied before the adapter's share is added, as over 4 bits.
    """
    from peft.tuners import lora

    class OverPacked(lora.Linear):
        """As ``Linear4bit`` and ``Linear8bitLt`` of `peft.tuners.lora.bnb`, for one adapter that is not merged."""

        def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = self.base_layer(x, *args, **kwargs)
            if clones:
                result = result.clone()
            converts = not torch.is_autocast_enabled(x.device.type)
            for name in self.active_adapters:
                if name not in self.lora_A:
                    continue
                first: Any = self.lora_A[name]
                second, dtype = self.lora_B[name], result.dtype
                given = x.to(first.weight.dtype) if converts else x
                made = second(first(self.lora_dropout[name](given))) * self.scaling[name]
                result = result + (made.to(dtype) if converts else made)
            return result

    return OverPacked

"""Which quantisation a config or a user asks for, and the layers of a model that it replaces.

Layers are replaced on a model that has no numbers yet, as transformers does before it loads weights, so that the
unpacked model takes memory nowhere. Also an optimizer whose state is packed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
from torch import nn

from gpudash.simulator.dry_run.refusals import CannotPredictError
from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt, MarlinLinear, PackedLinear

FOUR_BIT, EIGHT_BIT, GPTQ, AWQ = "4-bit", "8-bit", "gptq", "awq"

GPTQ_BITS = (2, 3, 4, 8)

STORAGES = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
"""What `transformers.BitsAndBytesConfig` takes for ``bnb_4bit_quant_storage``."""

FUSED_SINCE = (0, 50)
"""The bitsandbytes that multiplies by ``gemm_4bit``; 0.49.2 still unpacks into the type before quantisation."""

KNOWN = "bitsandbytes (4 and 8 bits), gptq and awq"
WITHOUT = "Predict the model without its quantization_config, or with another: --quantisation nf4, fp4 or int8."
MEND = "Mend the quantization_config of config.json."


@dataclass(frozen=True)
class Quantisation:
    """How the weights of linear layers are packed.

    Attributes:
        method: `FOUR_BIT` or `EIGHT_BIT` by bitsandbytes, `GPTQ` or `AWQ`.
        bits: of a weight.
        group: weights that share a scale, of GPTQ and AWQ; below 1 for all of a column.
        nested: whether scales of 4 bits are quantised in turn (double quantisation).
        storage, compute: types that 4-bit weights are packed into, and that are computed in; the latter is the
            input's where it is ``None``.
        threshold: magnitude of outliers, of 8 bits.
        zeros, ordered: as of `gpudash.simulator.models.packed_layers.MarlinLinear`.
        kept: names of modules that stay as they are; ``None`` for those that transformers keeps by itself.
        kept_too: whether those that transformers keeps by itself stay beside `kept`.
    """

    method: str
    bits: int
    group: int = -1
    nested: bool = False
    storage: torch.dtype = torch.uint8
    compute: torch.dtype | None = None
    threshold: float = 6.0
    zeros: bool = False
    ordered: bool = False
    kept: tuple[str, ...] | None = None
    kept_too: bool = False

    @property
    def learns(self) -> bool:
        """Whether adapters can be trained on it here."""
        return self.method in (FOUR_BIT, EIGHT_BIT)


CHOICES = {
    "nf4": Quantisation(FOUR_BIT, 4),
    "nf4-double": Quantisation(FOUR_BIT, 4, nested=True),
    "fp4": Quantisation(FOUR_BIT, 4),
    "int8": Quantisation(EIGHT_BIT, 8),
    "gptq": Quantisation(GPTQ, 4, group=128),
    "awq": Quantisation(AWQ, 4, group=128, zeros=True, kept_too=True),
}
"""What ``--quantisation`` offers. Both 4-bit types have the same sizes; GPTQ and AWQ are the usual: 4 bits in groups of
128, symmetric without an order of activations, and with zero points."""


def chosen(name: str, compute: torch.dtype | None = None) -> Quantisation:
    """One of `CHOICES`, computing in ``compute``.

    Raises:
        CannotPredictError: there is none of that name.
    """
    if name not in CHOICES:
        raise _refused(f"There is no quantisation {name!r}.", f"Choose one of {', '.join(CHOICES)}.")
    return replace(CHOICES[name], compute=compute)


def read(config: Mapping[str, Any]) -> Quantisation:
    """What the ``quantization_config`` of a ``config.json`` asks for.

    Raises:
        CannotPredictError: one sentence, when the method is not known, or what it says makes no sense.
    """
    if not isinstance(config, Mapping):
        raise _refused(f"The quantization_config is no object but {_shown(config)}.", MEND)
    method = config.get("quant_method")
    # Older configs name no method and only say how they were loaded.
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        method = "bitsandbytes"
    if method == "bitsandbytes":
        return _bitsandbytes(config)
    if method == "gptq":
        return _gptq(config)
    if method == "awq":
        return _awq(config)
    if method is None:
        said = "names no quant_method"
    else:
        said = f"names the method {_shown(method)}"
    raise _refused(f"The quantization_config {said}, and only {KNOWN} are known here.", WITHOUT)


def _bitsandbytes(config: Mapping[str, Any]) -> Quantisation:
    four, eight = (_truth(config, f"load_in_{bits}bit") for bits in (4, 8))
    # Both false or both true: neither says how many bits.
    if four is eight:
        said = "neither load_in_4bit nor load_in_8bit"
        if four:
            said = "both load_in_4bit and load_in_8bit"
        raise _refused(f"The quantization_config asks for {said}.", MEND)
    kept = _names(config, "llm_int8_skip_modules")
    if eight:
        if _truth(config, "llm_int8_has_fp16_weight"):
            raise _refused(
                "The quantization_config keeps weights in 16 bits (llm_int8_has_fp16_weight), which is not followed.",
                WITHOUT,
            )
        threshold = config.get("llm_int8_threshold", 6.0)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not threshold >= 0:
            raise _refused(f"llm_int8_threshold is a number from 0 on, not {_shown(threshold)}.", MEND)
        return Quantisation(EIGHT_BIT, 8, threshold=float(threshold), kept=kept)
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if kind not in ("fp4", "nf4"):
        raise _refused(f"bnb_4bit_quant_type is fp4 or nf4, not {_shown(kind)}.", MEND)
    return Quantisation(
        FOUR_BIT,
        4,
        nested=_truth(config, "bnb_4bit_use_double_quant"),
        storage=_dtype(config, "bnb_4bit_quant_storage", "uint8", STORAGES),
        compute=_dtype(config, "bnb_4bit_compute_dtype", "float32", ("float16", "bfloat16", "float32")),
        kept=kept,
    )


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    bits = config.get("bits", 4)
    if isinstance(bits, bool) or bits not in GPTQ_BITS:
        raise _refused(f"GPTQ packs weights of 2, 3, 4 or 8 bits, not {_shown(bits)}.", MEND)
    symmetric = config.get("sym", True) is not False
    return Quantisation(
        GPTQ, bits, group=_group(config), zeros=not symmetric, ordered=_truth(config, "desc_act"), kept=None
    )


def _awq(config: Mapping[str, Any]) -> Quantisation:
    bits = config.get("bits", config.get("w_bit", 4))
    if isinstance(bits, bool) or bits != 4:
        raise _refused(f"AWQ packs weights of 4 bits, not {_shown(bits)}.", MEND)
    return Quantisation(
        AWQ,
        4,
        group=_group(config),
        zeros=config.get("zero_point", True) is not False,
        kept=_names(config, "modules_to_not_convert"),
        kept_too=True,
    )


def _group(config: Mapping[str, Any]) -> int:
    group = config.get("group_size", config.get("q_group_size", 128))
    # Multiples of 8; -1, a column as one group, has the remainder 7.
    if isinstance(group, bool) or not isinstance(group, int) or group == 0 or group < -1 or group % 8 not in (0, 7):
        raise _refused(f"group_size is -1 or a whole number of weights such as 128, not {_shown(group)}.", MEND)
    return group


def _truth(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise _refused(f"{name} is true or false, not {_shown(value)}.", MEND)
    return bool(value)


def _names(config: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise _refused(f"{name} is a list of names of modules, not {_shown(value)}.", MEND)
    return tuple(value)


def _dtype(config: Mapping[str, Any], name: str, usual: str, known: Collection[str]) -> torch.dtype:
    value = config.get(name) or usual
    if isinstance(value, str) and value.startswith("torch."):
        found = value[len("torch.") :]
    else:
        found = value
    if not isinstance(found, str) or found not in known:
        raise _refused(f"{name} is one of {', '.join(known)}, not {_shown(value)}.", MEND)
    dtype: torch.dtype = getattr(torch, found)
    return dtype


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


def _refused(message: str, remedy: str) -> CannotPredictError:
    return CannotPredictError("quantisation", message, remedy)


def quantise(model: nn.Module, how: Quantisation, *, packed: Collection[str] | None = None) -> tuple[str, ...]:
    """Replace the linear layers of ``model`` that transformers would, by layers with packed weights.

    What is packed is made on torch's device ``meta`` too, to be moved with the rest.

    Args:
        model: on torch's device ``meta``.
        how: the weights are packed.
        packed: names of the modules that a checkpoint has packed weights for; by transformers' rule unless given.

    Returns:
        the names of the layers.

    Raises:
        CannotPredictError: when ``model`` has no such layer, or one whose sizes do not fit the words.
    """
    # A list of the user's replaces transformers' own for bitsandbytes, and adds to it for AWQ.
    if how.kept is not None and not how.kept_too:
        kept = how.kept
    else:
        kept = (*kept_by_itself(model), *(how.kept or ()))
    # What a model keeps in float32 by its class is never packed.
    kept = (*kept, *(getattr(model, "_keep_in_fp32_modules", None) or ()))
    blocks = None
    if how.method == GPTQ and packed is None:
        blocks = _blocks(model)
    replaced: list[str] = []
    # A copy of the list: replacing a module while walking over its siblings would skip some.
    for name, module in list(model.named_modules()):
        sizes = _sizes(module)
        if sizes is None or (packed is not None and name not in packed):
            continue
        # With a checkpoint its own names decide; transformers' rule serves only where none is there.
        if packed is None and (_stays(name, kept) or (blocks is not None and not name.startswith(blocks))):
            continue
        # Conv1D holds its weight transposed, which GPTQ and AWQ do not pack.
        if packed is None and how.method in (GPTQ, AWQ) and type(module).__name__ == "Conv1D":
            continue
        model.set_submodule(name, _packed(name, module, sizes, how))
        replaced.append(name)
    if not replaced:
        raise _refused(f"{type(model).__name__} has no linear layer that is quantised.", WITHOUT)
    if how.learns:  # what peft and transformers look for
        setattr(model, "is_loaded_in_4bit" if how.method == FOUR_BIT else "is_loaded_in_8bit", True)
        model.is_quantized = True  # type: ignore[assignment]  # a plain attribute, as transformers sets it
    return tuple(replaced)


def kept_by_itself(model: nn.Module) -> tuple[str, ...]:
    """Modules that transformers does not quantise unless told otherwise (``get_keys_to_not_convert``): those that share
    a weight, the one of the last parameter, and the one that gives the outputs."""
    named: dict[int, list[str]] = {}
    last = ""
    # Duplicates included: a tied weight has to be found under all of its names.
    for name, weight in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(weight), []).append(name)
    for name, _ in model.named_parameters():
        last = name
    # As transformers does: the module of the last parameter counts as an output.
    found = {name for names in named.values() if len(names) > 1 for name in names} | {last}
    output = getattr(model, "get_output_embeddings", lambda: None)()
    found |= {name for name, module in model.named_modules() if output is not None and module is output}
    return tuple(sorted({name.removesuffix(".weight") for name in found}))


def _stays(name: str, kept: Collection[str]) -> bool:
    """Whether a module stays as it is, after ``should_convert_module`` of transformers: a name is the module's own or a
    parent's from the start, as a regular expression too, or the end of it."""
    # A regular expression of the user's must end where a part of the dotted name ends.
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return any(name.endswith(one) or _matches(rf"(?:{one}){boundary}", name) for one in kept)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(pattern, name) is not None
    except re.error as error:
        raise _refused(f"A name of a module to leave as it is cannot be read ({error}).", MEND) from None


def _blocks(model: nn.Module) -> tuple[str, ...]:
    """Beginnings of the names within the repeated blocks of a model, which are all that GPTQ quantises."""
    return tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.ModuleList))


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of what transformers takes for a linear layer; ``None`` for everything else."""
    if type(module) is nn.Linear:
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        weight: Any = module.weight
        return int(weight.shape[0]), int(weight.shape[1])
    return None


def _packed(name: str, module: nn.Module, sizes: tuple[int, int], how: Quantisation) -> PackedLinear:
    weight: Any = module.weight
    if how.method == FOUR_BIT:
        return Linear4bit(
            module,
            *sizes,
            nested=how.nested,
            storage=how.storage,
            compute=how.compute,
            unpacked=weight.dtype,
            fused=_bitsandbytes_version() >= FUSED_SINCE,
            device="meta",
        )
    if how.method == EIGHT_BIT:
        return Linear8bitLt(module, *sizes, threshold=how.threshold, device="meta")
    # Words of 32 bits are filled along either dimension, so both have to come out even.
    if sizes[0] * how.bits % 32 or sizes[1] * how.bits % 32:
        raise _refused(
            f"{name} has {sizes[0]} inputs and {sizes[1]} outputs, which do not fill words of 32 bits with {how.bits} "
            "bits each.",
            WITHOUT,
        )
    return MarlinLinear(
        module,
        *sizes,
        bits=how.bits,
        group=how.group,
        zeros=how.zeros,
        ordered=how.ordered,
        transposed=how.method == AWQ,
        # Marlin has kernels for 16-bit scales alone.
        dtype=weight.dtype if weight.dtype in (torch.float16, torch.bfloat16) else torch.float16,
        device="meta",
    )


def _bitsandbytes_version() -> tuple[int, ...]:
    """Of the bitsandbytes of this Python; the newest known where there is none."""
    try:
        found = re.findall(r"\d+", metadata.version("bitsandbytes"))
    except metadata.PackageNotFoundError:
        return FUSED_SINCE
    return tuple(int(part) for part in found[:2])


def parameter_count(model: nn.Module) -> int:
    """Parameters of a model as it was before any of its layers were packed; shared ones once."""
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    # A packed weight is a parameter too, of another number of elements: it is counted by what it stands for.
    stored = {id(getattr(module, "weight", None)) for module in packed}
    plain = sum(one.numel() for one in model.parameters() if id(one) not in stored)
    return plain + sum(module.weights for module in packed)


STATE_BLOCK = 256
"""Numbers of an optimizer's state that share a scale (``blocksize`` of bitsandbytes)."""

SMALLEST_STATE = 4096
"""Parameters with fewer numbers keep their state in 32 bits (bitsandbytes' ``min_8bit_size``)."""

STATE_CODES = 256
"""Numbers that eight bits stand for; a table of each kind lies on the device once."""

_Optimizer: Any = torch.optim.Optimizer


class EightBitAdamW(_Optimizer):  # type: ignore[misc]  # a base that torch gives no type
    """AdamW with its state in 8 bits, as bitsandbytes lays it out: its sizes, without its kernels.

    It holds what ``bitsandbytes.optim.AdamW8bit`` holds, whose update is one kernel that allocates nothing. Names and
    order are those of ``Optimizer2State.init_state`` in bitsandbytes/optim/optimizer.py of 0.50.2.

    Args:
        parameters: what is optimised.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._tables: dict[torch.device, list[torch.Tensor]] = {}

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:
        """Make the state of each parameter that has a gradient, where it has none yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                # State comes with the first step in which a parameter has a gradient, as in bitsandbytes.
                if parameter.grad is not None and not self.state[parameter]:
                    self._begin(parameter)

    def _begin(self, parameter: torch.nn.Parameter) -> None:
        state, count, device = self.state[parameter], parameter.numel(), parameter.device
        if count < SMALLEST_STATE:
            state["state1"], state["state2"] = (torch.zeros_like(parameter, dtype=torch.float32) for _ in range(2))
            return
        # The tables of codes are one for each device, shared by all parameters there.
        if device not in self._tables:
            self._tables[device] = [torch.zeros(STATE_CODES, device=device) for _ in range(2)]
        state["qmap1"], state["qmap2"] = self._tables[device]
        for name in ("state1", "state2"):
            state[name] = torch.zeros_like(parameter, dtype=torch.uint8)
        for name in ("absmax1", "absmax2"):
            state[name] = torch.zeros(-(-count // STATE_BLOCK), device=device)

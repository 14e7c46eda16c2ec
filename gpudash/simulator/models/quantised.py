"""Replaces a model's layers according to its quantisation, which `gpudash.memory.quantisation` parses.

Layers are replaced in a model without numbers, as transformers does before it loads weights, so that the unpacked
model takes no memory anywhere. The module also has optimizers with packed state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import metadata
from typing import Any

import torch
from torch import nn

from gpudash.memory import quantisation
from gpudash.memory.quantisation import (
    AWQ,
    CHOICES,
    EIGHT_BIT,
    FOUR_BIT,
    GPTQ,
    MEND,
    WITHOUT,
    Quantisation,
    QuantisationError,
)
from gpudash.simulator.models.packed_layers import Linear4bit, Linear8bitLt, MarlinLinear, PackedLinear
from gpudash.simulator.refusal import CannotPredictError

FUSED_SINCE = (0, 50)
"""The bitsandbytes that first multiplies with ``gemm_4bit``; 0.49.2 still unpacks to the dtype before quantisation."""

KNOWN = "bitsandbytes (4 and 8 bits), gptq and awq"


def chosen(name: str, compute: torch.dtype | None = None) -> Quantisation:
    """One of `CHOICES`, which computes in ``compute``.

    Raises:
        CannotPredictError: there is none with that name.
    """
    computing = None
    if compute is not None:
        computing = str(compute).removeprefix("torch.")
    try:
        return quantisation.chosen(name, CHOICES, computing)
    except QuantisationError as error:
        raise _refused(str(error), error.remedy) from None


def read(config: Mapping[str, Any]) -> Quantisation:
    """Parse the ``quantization_config`` of a ``config.json``.

    Raises:
        CannotPredictError: in one sentence, if it is invalid, or its layers are unknown here.
    """
    try:
        how = quantisation.read(config)
    except QuantisationError as error:
        raise _refused(str(error), error.remedy) from None
    if how.method not in (FOUR_BIT, EIGHT_BIT, GPTQ, AWQ):
        reason = f"names the method {how.name!r}, of which only servers' weights are known here"
        raise _refused(f"The quantization_config {reason}; training and running know {KNOWN}.", WITHOUT)
    return how


def _refused(message: str, remedy: str) -> CannotPredictError:
    return CannotPredictError("quantisation", message, remedy)


def quantise(model: nn.Module, how: Quantisation, *, packed: Collection[str] | None = None) -> tuple[str, ...]:
    """Replace the linear layers of ``model`` that transformers would replace with layers with packed weights.

    Packed tensors are created on torch's device ``meta`` too, to be moved with the rest.

    Args:
        model: on torch's device ``meta``.
        how: how the weights are packed.
        packed: names of the modules with packed weights in a checkpoint; by default transformers' rule applies.

    Returns:
        the names of the layers.

    Raises:
        CannotPredictError: ``model`` has no such layer, or one with sizes that do not fill whole words.
    """
    # A list from the user replaces transformers' own for bitsandbytes, and extends it for AWQ.
    if how.kept is not None and not how.kept_too:
        kept = how.kept
    else:
        kept = (*kept_by_itself(model), *(how.kept or ()))
    # Modules that the model's class keeps in float32 are never packed.
    kept = (*kept, *(getattr(model, "_keep_in_fp32_modules", None) or ()))
    blocks = None
    if how.method == GPTQ and packed is None:
        blocks = _blocks(model)
    replaced: list[str] = []
    # A copy of the list: replacing a module during the iteration would skip some of its siblings.
    for name, module in list(model.named_modules()):
        sizes = _sizes(module)
        if sizes is None or (packed is not None and name not in packed):
            continue
        # The names in a checkpoint decide if there is one, otherwise transformers' rule.
        if packed is None and (_stays(name, kept) or (blocks is not None and not name.startswith(blocks))):
            continue
        # Conv1D stores its weight transposed, which GPTQ and AWQ do not pack.
        if packed is None and how.method in (GPTQ, AWQ) and type(module).__name__ == "Conv1D":
            continue
        model.set_submodule(name, _packed(name, module, sizes, how))
        replaced.append(name)
    if not replaced:
        raise _refused(f"{type(model).__name__} has no linear layer that is quantised.", WITHOUT)
    if how.learns:  # peft and transformers read these attributes
        setattr(model, "is_loaded_in_4bit" if how.method == FOUR_BIT else "is_loaded_in_8bit", True)
        model.is_quantized = True  # type: ignore[assignment]  # a plain attribute, as in transformers
    return tuple(replaced)


def kept_by_itself(model: nn.Module) -> tuple[str, ...]:
    """Modules that transformers does not quantise by default (``get_keys_to_not_convert``): those that share a weight,
    the one of the last parameter, and the output layer."""
    named: dict[int, list[str]] = {}
    last = ""
    # Duplicates included: a tied weight must be found under each of its names.
    for name, weight in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(weight), []).append(name)
    for name, _ in model.named_parameters():
        last = name
    # As in transformers, the module of the last parameter counts as an output.
    found = {name for names in named.values() if len(names) > 1 for name in names} | {last}
    output = getattr(model, "get_output_embeddings", lambda: None)()
    found |= {name for name, module in model.named_modules() if output is not None and module is output}
    return tuple(sorted({name.removesuffix(".weight") for name in found}))


def _stays(name: str, kept: Collection[str]) -> bool:
    """Whether a module stays unquantised, as in ``should_convert_module`` of transformers: an entry matches the start
    of the module's or a parent's name, also as a regular expression, or the end of the name."""
    # A user's regular expression must end at a boundary of the dotted name.
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return any(name.endswith(one) or _matches(rf"(?:{one}){boundary}", name) for one in kept)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(pattern, name) is not None
    except re.error as error:
        raise _refused(f"A name of a module to leave as it is cannot be read ({error}).", MEND) from None


def _blocks(model: nn.Module) -> tuple[str, ...]:
    """Name prefixes of modules within a model's repeated blocks, the only ones that GPTQ quantises."""
    return tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.ModuleList))


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a module that transformers treats as linear; ``None`` for all others."""
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
            storage=getattr(torch, how.storage),
            compute=None if how.compute is None else getattr(torch, how.compute),
            unpacked=weight.dtype,
            fused=_bitsandbytes_version() >= FUSED_SINCE,
            device="meta",
        )
    if how.method == EIGHT_BIT:
        return Linear8bitLt(module, *sizes, threshold=how.threshold, device="meta")
    # 32-bit words are filled along either dimension, so both must be divisible.
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
        # Marlin only has kernels for 16-bit scales.
        dtype=weight.dtype if weight.dtype in (torch.float16, torch.bfloat16) else torch.float16,
        device="meta",
    )


def _bitsandbytes_version() -> tuple[int, ...]:
    """Version of bitsandbytes in this Python; the newest known one if there is none."""
    try:
        found = re.findall(r"\d+", metadata.version("bitsandbytes"))
    except metadata.PackageNotFoundError:
        return FUSED_SINCE
    return tuple(map(int, found[:2]))


def parameter_count(model: nn.Module) -> int:
    """Number of parameters in a model before any layers were packed; shared ones count once."""
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    # A packed weight is a parameter too, but with another number of elements: count the weights it stands for.
    stored = {id(getattr(module, "weight", None)) for module in packed}
    plain = sum(one.numel() for one in model.parameters() if id(one) not in stored)
    return plain + sum(module.weights for module in packed)


STATE_BLOCK = 256
"""How many numbers of an optimizer's state share a scale (``blocksize`` of bitsandbytes)."""

SMALLEST_STATE = 4096
"""Smaller parameters keep their state in 32 bits (bitsandbytes' ``min_8bit_size``)."""

STATE_CODES = 256
"""Numbers that eight bits can represent; there is one table of each kind per device."""

_Optimizer: Any = torch.optim.Optimizer


SMALLEST_PAGED = 100_000
"""Smaller parameters keep their state on the card, paged or not (bitsandbytes' ``get_state_buffer``)."""


class BitsandbytesAdamW(_Optimizer):  # type: ignore[misc]  # a base that torch gives no type
    """AdamW with its state in the layout of bitsandbytes: the sizes, without the kernels.

    It has the state of ``AdamW8bit``, ``PagedAdamW8bit`` and ``PagedAdamW`` in ``bitsandbytes.optim``, which update it
    in one kernel that allocates nothing. Names and order are those of ``Optimizer2State.init_state`` in
    bitsandbytes/optim/optimizer.py of 0.50.2.

    Paged state is allocated by ``cudaMallocManaged``, not by torch's allocator: its pages are on the card while they
    are used there and nothing else needs the room. Here it is on torch's device ``meta``.

    Args:
        parameters: the parameters to optimise.
        bits: of each number in the state, 8 or 32.
        paged: whether the state is paged.

    Attributes:
        paged_bytes: size of the paged state.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, bits: int = 8, paged: bool = False) -> None:
        super().__init__(parameters, {})
        self._bits = bits
        self._paged = paged
        self.paged_bytes = 0
        self._tables: dict[torch.device, list[torch.Tensor]] = {}

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:
        """Create the state of each parameter that has a gradient and no state yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                # State is created in the first step in which a parameter has a gradient, as in bitsandbytes.
                if parameter.grad is not None and not self.state[parameter]:
                    self._begin(parameter)

    def _begin(self, parameter: torch.nn.Parameter) -> None:
        state, count, device = self.state[parameter], parameter.numel(), parameter.device
        if self._bits == 32 or count < SMALLEST_STATE:
            for name in ("state1", "state2"):
                state[name] = self._buffer(parameter, torch.float32)
            return
        # The code tables exist once per device, shared by all parameters there.
        if device not in self._tables:
            self._tables[device] = [torch.zeros(STATE_CODES, device=device) for _ in range(2)]
        state["qmap1"], state["qmap2"] = self._tables[device]
        for name in ("state1", "state2"):
            state[name] = self._buffer(parameter, torch.uint8)
        for name in ("absmax1", "absmax2"):
            state[name] = torch.zeros(-(-count // STATE_BLOCK), device=device)

    def _buffer(self, parameter: torch.nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        if not self._paged or parameter.numel() < SMALLEST_PAGED:
            return torch.zeros_like(parameter, dtype=dtype)
        made = torch.empty(parameter.shape, dtype=dtype, device="meta")
        self.paged_bytes += made.numel() * made.element_size()
        return made

"""The layers of a model that a quantisation replaces, which `gpudash.memory.quantisation` reads.

Layers are replaced on a model that has no numbers yet, as transformers does before it loads weights, so that the
unpacked model takes memory nowhere. Also an optimizer whose state is packed.
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
"""The bitsandbytes that multiplies by ``gemm_4bit``; 0.49.2 still unpacks into the type before quantisation."""

KNOWN = "bitsandbytes (4 and 8 bits), gptq and awq"


def chosen(name: str, compute: torch.dtype | None = None) -> Quantisation:
    """One of `CHOICES`, computing in ``compute``.

    Raises:
        CannotPredictError: there is none of that name.
    """
    computing = None
    if compute is not None:
        computing = str(compute).removeprefix("torch.")
    try:
        return quantisation.chosen(name, CHOICES, computing)
    except QuantisationError as error:
        raise _refused(str(error), error.remedy) from None


def read(config: Mapping[str, Any]) -> Quantisation:
    """What the ``quantization_config`` of a ``config.json`` asks for.

    Raises:
        CannotPredictError: one sentence, when what it says makes no sense, or its layers are not known here.
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
            storage=getattr(torch, how.storage),
            compute=None if how.compute is None else getattr(torch, how.compute),
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
    return tuple(map(int, found[:2]))


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


SMALLEST_PAGED = 100_000
"""Parameters with fewer numbers keep their state on the card, paged or not (bitsandbytes' ``get_state_buffer``)."""


class BitsandbytesAdamW(_Optimizer):  # type: ignore[misc]  # a base that torch gives no type
    """AdamW with its state as bitsandbytes lays it out: its sizes, without its kernels.

    It holds what ``AdamW8bit``, ``PagedAdamW8bit`` and ``PagedAdamW`` of ``bitsandbytes.optim`` hold, whose update is
    one kernel that allocates nothing. Names and order are those of ``Optimizer2State.init_state`` in
    bitsandbytes/optim/optimizer.py of 0.50.2.

    A paged state is made by ``cudaMallocManaged``, not by torch's allocator: its pages are on the card while they are
    used there and something else does not need the room. Here it is on torch's device ``meta``.

    Args:
        parameters: what is optimised.
        bits: of each number of the state, 8 or 32.
        paged: whether the state is paged.

    Attributes:
        paged_bytes: of the state that is paged.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, bits: int = 8, paged: bool = False) -> None:
        super().__init__(parameters, {})
        self._bits = bits
        self._paged = paged
        self.paged_bytes = 0
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
        if self._bits == 32 or count < SMALLEST_STATE:
            for name in ("state1", "state2"):
                state[name] = self._buffer(parameter, torch.float32)
            return
        # The tables of codes are one for each device, shared by all parameters there.
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

"""Builds a model of transformers or diffusers from its config on a device, without initialising any numbers.

The libraries' own code creates the modules on torch's device ``meta``. Each parameter and buffer then gets its memory
in the order and with the dtype that loading the weights would use; shared ones get it once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gpudash.memory.quantisation import Quantisation
from gpudash.simulator.models import flash_attention
from gpudash.simulator.models.config import ModelConfig, refused
from gpudash.simulator.models.quantised import chosen, quantise
from gpudash.simulator.models.quantised import read as read_quantisation
from gpudash.simulator.refusal import OR_ANOTHER_PYTHON, CannotPredictError
from gpudash.simulator.replacing import Replacements
from gpudash.system.foreign_text import error_text
from gpudash.system.garbage import without_collection

GET_MODELS = f"Install it there: pip install 'gpudash[models]'{OR_ANOTHER_PYTHON}"

HEADS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_CLASSIFICATION")
"""The heads for a model whose config names no class, in order of preference."""

QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "DO_NOT_TRACK": "1"}
"""Variables set before the libraries are imported: nothing is downloaded or reported."""

TRUST = "Read that code, then allow it with --trust-remote-code."


def build(
    config: ModelConfig,
    device: torch.device,
    options: Mapping[str, Any],
    *,
    draws: bool = False,
    places: bool = True,
) -> nn.Module:
    """Build the model of a config on ``device``, in evaluation mode as its library returns it.

    Args:
        config: of the model.
        device: the device for its parameters.
        options: ``precision``, ``attention``, ``quantisation`` and ``trust_remote_code`` as in
            `gpudash.specs.model.ModelSpec.options`.
        draws: whether to initialise its weights, for a run with numbers.
        places: whether to allocate its memory; otherwise it stays on torch's device ``meta``.

    Raises:
        CannotPredictError: in one sentence, if there is no such model, the library is missing, or its own code fails.
    """
    # Thousands of modules are loaded and created, and stay: garbage collections would find nothing.
    with without_collection():
        return _built(config, device, options, draws=draws, places=places)


def _built(
    config: ModelConfig, device: torch.device, options: Mapping[str, Any], *, draws: bool, places: bool
) -> nn.Module:
    os.environ.update(QUIET)
    dtype = weights_dtype(config, str(options["precision"]))
    how = quantisation_of(config, dtype, options)
    if how is not None and options.get("parallel") == "fsdp1":
        # Like setting `bnb_4bit_quant_storage`: a flat parameter has a single floating-point dtype.
        how = replace(how, storage=str(dtype).removeprefix("torch."))
    if draws and how is not None:
        raise refused("A model with packed weights is predicted, not run.", "Give it unquantised, or predict it.")
    meta = torch.device("meta")
    where = meta
    if draws:
        where = device
    if config.is_diffusers and options["attention"] not in ("auto", "sdpa"):
        raise refused("A model of diffusers attends by torch's fused kernels here.", "Leave --attention out.")
    if config.is_diffusers:
        made = _of_diffusers(config, dtype, where)
    else:
        made = _of_transformers(config, dtype, where, options)
    if options["attention"] == flash_attention.NAME and not draws:
        flash_attention.use_flash_attention(made, _library("transformers"))
    if how is not None:
        quantise(made, how)
    placed(made, device if places else meta, _kept_wide(made, dtype))
    return made.eval()


def quantisation_of(config: ModelConfig, dtype: torch.dtype, options: Mapping[str, Any]) -> Quantisation | None:
    """How the weights of linear layers are packed: as requested, otherwise by the config; ``None`` if they are not."""
    name = str(options["quantisation"])
    if name:
        return chosen(name, dtype if dtype in (torch.float16, torch.bfloat16) else None)
    if config.quantisation:
        return read_quantisation(config.quantisation)
    return None


def weights_dtype(config: ModelConfig, precision: str) -> torch.dtype:
    """The dtype of the weights at ``precision``."""
    if precision == "auto":
        found = getattr(torch, config.dtype or "float32", None)
        if isinstance(found, torch.dtype) and found.is_floating_point:
            return found
        return torch.float32
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def placed(model: nn.Module, device: torch.device, wide: re.Pattern[str] | None = None) -> None:
    """Allocate every parameter and buffer of ``model`` that is on ``meta`` on ``device``.

    Args:
        model: its modules are changed.
        device: for all of them.
        wide: names of parameters that stay in float32.
    """
    made: dict[int, torch.Tensor] = {}
    for path, module in model.named_modules():
        for kept in (module._parameters, module._buffers):
            for name, tensor in kept.items():
                if tensor is None:
                    continue
                is_wide = wide is not None and wide.search(f"{path}.{name}") is not None
                if is_wide:
                    dtype = torch.float32
                else:
                    dtype = tensor.dtype
                if (tensor.device, tensor.dtype) == (device, dtype):
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = _on(tensor, device, dtype)
                kept[name] = made[id(tensor)]


def _on(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    new = torch.empty(tensor.shape, dtype=dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new


def _kept_wide(model: nn.Module, dtype: torch.dtype) -> re.Pattern[str] | None:
    """Names of the parameters that transformers keeps in float32 if the others have 16 bits; ``None`` for none."""
    if dtype not in (torch.float16, torch.bfloat16):
        return None
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype is torch.float16:
        names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if names:
        return re.compile(rf"(^|\.)({'|'.join(map(re.escape, sorted(names)))})(\.|$)")
    return None


def _of_transformers(
    config: ModelConfig, dtype: torch.dtype, where: torch.device, options: Mapping[str, Any]
) -> nn.Module:
    transformers = _library("transformers")
    values, kind = dict(config.values), config.values["model_type"]
    values.pop("quantization_config", None)  # the quantised layers are inserted later
    trusted = bool(options.get("trust_remote_code"))
    known = kind in transformers.CONFIG_MAPPING
    if not known and "auto_map" not in values:
        problem = f"{config.file} is of the kind {kind!r}, which transformers {transformers.__version__} does not know."
        raise refused(problem, f"Update transformers there{OR_ANOTHER_PYTHON}")
    if not known and not trusted:
        raise refused(f"The model of {config.file} comes with code of its own, which is not run unasked.", TRUST)
    if trusted and "auto_map" in values:
        return _of_remote_code(config, dtype, where, options)
    try:
        settings = transformers.CONFIG_MAPPING[kind].from_dict(values)
        chosen = _class_of(settings, values, transformers)
        # Not on a device: what is frozen holds the first model's weights as well.
        if where.type == "meta":
            _keep_libraries()
        with warnings.catch_warnings(), where, _undrawn(transformers, where):
            warnings.simplefilter("ignore")
            model = chosen._from_config(settings, dtype=dtype, **_attention(options, where))
            model.tie_weights()
    except CannotPredictError:
        raise
    except Exception as error:  # its own code may reject the config in any way
        raise _unbuildable(config, error) from error
    return _module(model)


@functools.cache
def _keep_libraries() -> None:
    """Leave what is imported by now out of all garbage collections: it stays, and is most of what there is."""
    gc.freeze()


@contextlib.contextmanager
def _undrawn(transformers: Any, where: torch.device) -> Iterator[None]:
    """Let models on ``meta`` be built without drawing their weights.

    transformers leaves that out on ``meta`` by itself, but takes the device for the CPU within a dry run.
    """
    with Replacements() as replaced:
        if where.type == "meta":
            replaced.put(transformers.PreTrainedModel, "initialize_weights", _draws_nothing)
        yield


def _draws_nothing(_model: nn.Module) -> None:
    """In place of drawing weights."""


def _of_remote_code(
    config: ModelConfig, dtype: torch.dtype, where: torch.device, options: Mapping[str, Any]
) -> nn.Module:
    """A model whose code comes with its config; only on request."""
    if options["attention"] == flash_attention.NAME:
        problem = f"The code that comes with {config.file} may call flash-attn itself, which is not followed."
        raise refused(problem, "Leave --attention out.")
    transformers = _library("transformers")
    named = [name for name in config.values["auto_map"] if name.startswith("AutoModel")]
    auto = next((name for name in ("AutoModelForCausalLM", *named) if name in named), "AutoModel")
    try:
        folder = str(config.file.parent)
        settings = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
        with where:
            chosen = getattr(transformers, auto)
            model = chosen.from_config(settings, trust_remote_code=True, dtype=dtype, **_attention(options, where))
            model.tie_weights()
    except Exception as error:
        raise _unbuildable(config, error) from error
    return _module(model)


def _of_diffusers(config: ModelConfig, dtype: torch.dtype, where: torch.device) -> nn.Module:
    diffusers = _library("diffusers")
    name = config.values["_class_name"]
    chosen = getattr(diffusers, name, None)
    if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
        problem = f"{config.file} is a {name!r}, which is no model that diffusers {diffusers.__version__} knows."
        raise refused(problem, f"Update diffusers there{OR_ANOTHER_PYTHON}")
    try:
        with warnings.catch_warnings(), where, _default(dtype):
            warnings.simplefilter("ignore")
            model = chosen.from_config(dict(config.values))  # type: ignore[attr-defined]  # from another library
    except Exception as error:
        raise _unbuildable(config, error) from error
    return _module(model)


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise refused(f"{sys.executable} has no {name} ({error}).", GET_MODELS) from error


def _class_of(settings: Any, values: Mapping[str, Any], transformers: Any) -> Any:
    """The class that the config names, or the first available head for its model type."""
    for name in values.get("architectures") or ():
        found = None
        if isinstance(name, str):
            found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    for head in HEADS:
        mapping = getattr(transformers, f"MODEL_FOR_{head}_MAPPING", {})
        if type(settings) in mapping:
            return mapping[type(settings)]
    return transformers.MODEL_MAPPING[type(settings)]


def _attention(options: Mapping[str, Any], where: torch.device) -> dict[str, Any]:
    chosen = options["attention"]
    later = chosen == flash_attention.NAME and where.type == "meta"
    if chosen == "auto" or later:
        return {}
    return {"attn_implementation": chosen}


def _module(made: Any) -> nn.Module:
    assert isinstance(made, nn.Module)
    return made


def _unbuildable(config: ModelConfig, error: BaseException) -> CannotPredictError:
    said = error_text(error).rstrip(".")
    return refused(f"{config.file} describes no model that can be built ({said}).", "Fix what the config says.")

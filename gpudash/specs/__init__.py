"""The settings of each workload: one pydantic model per workload.

Form, command-line flags, validation, recording and repetition all read these models. A field carries its
default, range, unit and one line of help; `Spec.refusals` says what a device cannot do, so that the form can
disable a choice with the reason and the terminal can refuse it in the same words.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from gpudash.specs.base import (
    CPU_FLOPS,
    DTYPE_BYTES,
    NEEDS_CUDA,
    NEEDS_GPU,
    Bytes,
    Dtype,
    FloatDtype,
    Spec,
    field,
)
from gpudash.specs.comparison import ComparisonSpec
from gpudash.specs.invalid import did_you_mean, flag, invalid_fields
from gpudash.specs.matmul import MatmulSpec
from gpudash.specs.model import ModelSpec
from gpudash.specs.pipeline import PipelineSpec
from gpudash.specs.pressure import PressureSpec
from gpudash.specs.training import TrainingSpec
from gpudash.specs.transfer import TransferSpec

__all__ = [
    "BUILT_IN",
    "CPU_FLOPS",
    "DEFAULT_WORKLOAD",
    "DTYPE_BYTES",
    "ENTRY_POINTS",
    "NEEDS_CUDA",
    "NEEDS_GPU",
    "Bytes",
    "ComparisonSpec",
    "Dtype",
    "FloatDtype",
    "MatmulSpec",
    "ModelSpec",
    "PipelineSpec",
    "PressureSpec",
    "Spec",
    "TrainingSpec",
    "TransferSpec",
    "broken_entry_points",
    "build",
    "field",
    "flag",
    "invalid_fields",
    "workloads",
]

logger = logging.getLogger(__name__)

ENTRY_POINTS = "gpudash.workloads"
"""Entry-point group: each entry names a module with one `Spec` subclass and without heavy imports; see the guide's
page on plug-ins for an example."""

BUILT_IN: tuple[type[Spec], ...] = (
    TrainingSpec,
    PipelineSpec,
    TransferSpec,
    MatmulSpec,
    PressureSpec,
    ModelSpec,
    ComparisonSpec,
)
NEEDED = ("name", "title", "summary", "run")
"""Attributes that every spec sets."""

RESERVED = frozenset(("verbose", "json", "device"))
"""Names that a plug-in's fields must not have."""

DEFAULT_WORKLOAD = TrainingSpec.name


def workloads() -> dict[str, type[Spec]]:
    """Spec classes by name: the built-in ones, then those of installed entry points, sorted by name.

    Unusable entry points are left out; `broken_entry_points` gives the reasons.
    """
    return _offered()[0]


@functools.cache
def installed() -> tuple[EntryPoint, ...]:
    """The entry points of `ENTRY_POINTS`, sorted by name; cached, as the search reads a file of every package."""
    return tuple(sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name))


def broken_entry_points() -> list[str]:
    """One sentence for each workload of another package that cannot be offered: which, why, and what to do."""
    return _offered()[1]


def _offered() -> tuple[dict[str, type[Spec]], list[str]]:
    found = {spec.name: spec for spec in BUILT_IN}
    refused = []
    for point in installed():
        spec = _outcome(point.value)
        if not isinstance(spec, str) and spec.name in found:
            spec = f"there is a workload {spec.name!r} already; call it something else"
        if isinstance(spec, str):
            package = ""
            if point.dist is not None:
                package = f" of the package {point.dist.name}"
            refused.append(f"The workload {point.name}{package} is left out: {spec}.")
        else:
            found[spec.name] = spec
    return found, refused


class _PlugInError(ValueError):
    """Why a workload of another package cannot be offered, and what to do, without a full stop."""


@functools.cache
def _outcome(module: str) -> type[Spec] | str:
    """The spec of another package's module, or why it cannot be offered; a module that fails is not imported again."""
    try:
        return _entry_point_spec(module)
    except _PlugInError as error:
        return str(error)


def _entry_point_spec(module: str) -> type[Spec]:
    """The spec of another package's module.

    Raises:
        _PlugInError: if it has none that can be offered.
    """
    try:
        contents = vars(importlib.import_module(module))
    except Exception as error:  # another package's module may raise anything; go on without it
        logger.exception("the module of a workload does not import")
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise _PlugInError(f"{module} does not import ({why}); correct or uninstall the package") from error
    own = [value for value in contents.values() if isinstance(value, type) and value.__module__ == module]
    specs = [value for value in dict.fromkeys(own) if issubclass(value, Spec)]
    if not specs:
        others = ""
        if own:
            others = f" ({', '.join(value.__name__ for value in own)} is none)"
        raise _PlugInError(f"{module} holds no subclass of gpudash.specs.Spec{others}; derive one from it")
    if len(specs) > 1:
        names = ", ".join(spec.__name__ for spec in specs)
        raise _PlugInError(f"{module} holds {len(specs)} specs ({names}); give each a module and an entry point")
    (spec,) = specs
    missing = [name for name in NEEDED if not isinstance(getattr(spec, name, None), str)]
    if missing:
        raise _PlugInError(f"{spec.__name__} has no text as {', '.join(missing)}; set it in the class")
    if RESERVED & spec.model_fields.keys():
        name = min(RESERVED & spec.model_fields.keys())
        raise _PlugInError(f"{spec.__name__} has a field {name!r}, which is a flag of every command; rename it")
    return spec


def build(spec: type[Spec], values: Mapping[str, Any], preset: str | None = None) -> Spec:
    """A validated spec from a preset and the values that differ from it.

    Raises:
        ValueError: one sentence naming the field, the wrong value and what is allowed.
    """
    base: Mapping[str, Any] = {}
    if preset is not None:
        if preset not in spec.presets:
            hint = did_you_mean(preset, spec.presets)
            raise ValueError(f"{spec.name} has no preset {preset!r}{hint}; it has {', '.join(spec.presets)}")
        base = spec.presets[preset]
    try:
        return spec.model_validate({**base, **values})
    except ValidationError as error:
        raise ValueError("; ".join(invalid_fields(error, spec.model_fields).values())) from None

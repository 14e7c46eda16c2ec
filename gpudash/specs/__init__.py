"""What a workload may be asked: one pydantic model per workload.

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
"""Entry-point group: each names a module that holds one `Spec` subclass and imports nothing heavy."""

BUILT_IN: tuple[type[Spec], ...] = (
    TrainingSpec,
    PipelineSpec,
    TransferSpec,
    MatmulSpec,
    PressureSpec,
    ModelSpec,
    ComparisonSpec,
)
DEFAULT_WORKLOAD = TrainingSpec.name


def workloads() -> dict[str, type[Spec]]:
    """Name → spec class: the built-in ones, then those of installed entry points, in order of name.

    An entry point that cannot be imported, or holds no spec, is left out; `broken_entry_points` says why.
    """
    found = {spec.name: spec for spec in BUILT_IN}
    for point in installed():
        spec = _entry_point_spec(point.value)
        if not isinstance(spec, str):
            found.setdefault(spec.name, spec)
    return found


@functools.cache
def installed() -> tuple[EntryPoint, ...]:
    """The entry points of `ENTRY_POINTS`, in order of name; looked for once, for that reads a file of every package."""
    return tuple(sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name))


def broken_entry_points() -> list[str]:
    """One sentence for each third-party workload that cannot be offered."""
    outcomes = {point.name: _entry_point_spec(point.value) for point in installed()}
    return [f"Workload {name} is left out: {why}" for name, why in outcomes.items() if isinstance(why, str)]


def _entry_point_spec(module: str) -> type[Spec] | str:
    try:
        contents = vars(importlib.import_module(module))
    except Exception as error:  # a third party's module may raise anything; the program goes on without it
        logger.exception("the workload of an installed package does not import")
        return f"{module} does not import ({type(error).__name__}: {error})"
    for value in contents.values():
        if isinstance(value, type) and issubclass(value, Spec) and value is not Spec and value.__module__ == module:
            return value
    return f"{module} holds no subclass of gpudash.specs.Spec"


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

"""Variants of the workload that a comparison runs: fewer steps, other sizes, data that stay on the device."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gpudash.specs import Spec

GROWING = {"training": ("batch", 4), "matmul": ("size", 2), "pipeline": ("size", 4)}
"""Workload → the field that a sweep makes larger, and by which factor at a time."""


def changed(spec: Spec, fields: dict[str, Any]) -> Spec:
    """``spec`` with other values in some fields.

    Raises:
        ValidationError: when that is no valid spec.
    """
    return type(spec).model_validate({**spec.model_dump(exclude_unset=True), **fields})


def with_steps(spec: Spec, steps: int) -> Spec:
    """``spec`` with ``steps`` steps, in one epoch where there are such; as it is where it is not made of steps."""
    name = type(spec).steps_field
    if name is None:
        return spec
    fields: dict[str, Any] = {name: steps}
    if "epochs" in type(spec).model_fields:
        fields["epochs"] = 1
    return changed(spec, fields)


def whole_steps(spec: Spec) -> int | None:
    """Steps of the whole run; ``None`` where it is not made of such."""
    name = type(spec).steps_field
    return None if name is None else int(getattr(spec, name))


def resident(spec: Spec) -> Spec | None:
    """``spec`` with its data on the device from the start; ``None`` where they are already, or cannot be."""
    if getattr(spec, "batches", "resident") == "resident":
        return None
    return changed(spec, {"batches": "resident"})


def size_of(spec: Spec) -> tuple[str, int] | None:
    """The field that makes the pieces of work larger, and its value; ``None`` where none is known."""
    name, _factor = GROWING.get(spec.name, ("", 0))
    if not name:
        return None
    value = getattr(spec, name)
    return name, int(spec.bytes if value is None else value)  # type: ignore[attr-defined]  # a pipeline by rows


def enlarged(spec: Spec, size: int) -> Spec | None:
    """``spec`` with larger pieces of work; ``None`` beyond the largest that is allowed."""
    name, _factor = GROWING[spec.name]
    try:
        return changed(spec, {name: size})
    except ValidationError:
        return None

"""The flags of a workload that another one runs: those of ``run comparison`` depend on its ``--workload``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import create_model

from gpudash.cli.output import RequestError
from gpudash.specs import Spec
from gpudash.specs.comparison import spec_of

WORDS = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
"""What is left of a command line when the command's own flags are taken."""

FIELDS = "fields"
"""The field of a spec that holds those of another workload."""


def has_fields(spec_type: type[Spec]) -> bool:
    """Whether a spec holds the fields of another workload."""
    return FIELDS in spec_type.model_fields


def without_fields(spec_type: type[Spec]) -> type[Spec]:
    """``spec_type`` whose ``--help`` does not show the field that holds another workload's."""
    if not has_fields(spec_type):
        return spec_type
    hidden = Annotated[dict[str, Any], Parameter(show=False)]
    shown: type[Spec] = create_model(spec_type.__name__, __base__=spec_type, **{FIELDS: (hidden, {})})  # type: ignore[call-overload]  # a field by a name that is a constant
    return shown


def with_nested(
    spec_type: type[Spec], words: Sequence[str], given: Mapping[str, Any], preset: str | None
) -> dict[str, Any]:
    """``given`` and the fields of the chosen workload that ``words`` name.

    Args:
        spec_type: the spec that holds them.
        words: flags and values that are not the command's own.
        given: the command's own fields.
        preset: the preset they differ from.

    Raises:
        ValueError, RequestError, CycloptsError: one sentence, when there is no such workload or field, or its value
            is not allowed.
    """
    if not has_fields(spec_type):
        return dict(given)
    start: Mapping[str, Any] = spec_type.presets.get(preset or "", {})
    default = start.get("workload", spec_type.model_fields["workload"].default)
    chosen = given.get("workload", default)
    kept = start.get(FIELDS, {}) if chosen == default else {}
    if words and not words[0].startswith("-"):
        raise RequestError(f"{words[0]!r} is no flag.", f"gpudash run {spec_type.name} --help lists what is allowed.")
    found = _parsed(spec_of(chosen), words) if words else {}
    fields = {**kept, **found}
    return {**given, FIELDS: fields} if fields else dict(given)


def _parsed(chosen: type[Spec], words: Sequence[str]) -> dict[str, Any]:
    app = App(name=f"run {chosen.name}", help_flags=[], version_flags=[])

    def take(*, spec: Any = None) -> dict[str, Any]:
        return {} if spec is None else {name: getattr(spec, name) for name in spec.model_fields_set}

    take.__annotations__ = {"spec": Annotated[chosen | None, Parameter(name="*")], "return": dict[str, Any]}
    app.default(take)
    found = app(list(words), exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value")
    return dict(found)

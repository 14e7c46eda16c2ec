"""The flags of a workload: its device; those made from its spec, also for the workload that another one runs (``run
comparison`` depends on its ``--workload``); and sizes in ``--help``.

Annotations are evaluated at run time, as in `gpudash.cli.terminal.flags`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.help import DefaultFormatter
from pydantic import create_model

from gpudash.cli.terminal.flags import SimulateOptions, size_text
from gpudash.cli.terminal.output import RequestError
from gpudash.specs import Spec
from gpudash.specs.comparison import spec_of
from gpudash.specs.invalid import did_you_mean, flag
from gpudash.specs.memory_cap import MemoryCap

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

ARGUMENTS = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
"""The arguments that remain after the command's own flags."""

FIELDS = "fields"
"""Name of the spec's field that holds the fields of another workload."""


def has_fields(spec_type: type[Spec]) -> bool:
    """Whether a spec has the fields of another workload."""
    return FIELDS in spec_type.model_fields


def without_fields(spec_type: type[Spec]) -> type[Spec]:
    """``spec_type`` with the field for another workload's fields hidden in ``--help``."""
    if not has_fields(spec_type):
        return spec_type
    hidden = Annotated[dict[str, Any], Parameter(show=False)]
    shown: type[Spec] = create_model(spec_type.__name__, __base__=spec_type, **{FIELDS: (hidden, {})})  # type: ignore[call-overload]  # a field by a name that is a constant
    return shown


def with_nested(
    spec_type: type[Spec], arguments: Sequence[str], given: Mapping[str, Any], preset: str | None
) -> dict[str, Any]:
    """``given`` plus the fields of the chosen workload that ``arguments`` set.

    Args:
        spec_type: spec with the fields of another workload.
        arguments: flags and values that are not the command's own.
        given: the command's own fields.
        preset: preset to start from.

    Raises:
        ValueError, RequestError, CycloptsError: one sentence, if there is no such workload or field, or its value is
            invalid.
    """
    if not has_fields(spec_type):
        return dict(given)
    start: Mapping[str, Any] = spec_type.presets.get(preset or "", {})
    default = start.get("workload", spec_type.model_fields["workload"].default)
    # Fields of a preset are for the preset's workload; another one may not have them.
    chosen = given.get("workload", default)
    kept = {}
    if chosen == default:
        kept = start.get(FIELDS, {})
    if arguments and not arguments[0].startswith("-"):
        raise RequestError(
            f"{arguments[0]!r} is no flag.", f"gpudash run {spec_type.name} --help lists what is allowed."
        )
    # A separate parser, since the allowed flags depend on the chosen workload.
    found = parsed_fields(spec_of(chosen), arguments)
    fields = {**kept, **found}
    if fields:
        return {**given, FIELDS: fields}
    return dict(given)


def no_workload(name: str, there: Sequence[str]) -> RequestError:
    """The error for a workload name that is none of ``there``."""
    listed = f"There is: {', '.join(there)}."
    return RequestError(f"There is no workload {name!r}{did_you_mean(name, there)}.", listed)


def parsed_fields(chosen: type[Spec], arguments: Sequence[str]) -> dict[str, Any]:
    """The fields of ``chosen`` that flags and their values set.

    Raises:
        ValueError, CycloptsError: if there is no such field, or its value is invalid.
    """
    if not arguments:
        return {}
    app = App(name=f"run {chosen.name}", help_flags=[], version_flags=[])

    def take(*, spec: Any = None) -> dict[str, Any]:
        return given_fields(spec)

    take.__annotations__ = {"spec": Annotated[chosen | None, Parameter(name="*")], "return": dict[str, Any]}
    app.default(take)
    found = app(
        list(arguments), exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value"
    )
    return dict(found)


def _cap(_type: Any, tokens: Any) -> MemoryCap:
    return MemoryCap.parse(tokens[0].value)


Cap = Annotated[
    MemoryCap, Parameter(converter=_cap, metavar="SIZE|PERCENT", accepts_keys=False, allow_leading_hyphen=True)
]
"""A flag's size or share. Without ``accepts_keys=False``, each attribute of the class would become a flag."""


@Parameter(name="*")
@dataclass(kw_only=True)
class WorkloadOptions(SimulateOptions):
    """The device of a workload, and the initial values of its fields."""

    device: str | None = None
    """cpu, cuda:0 or sim:0; default: sim:0 with --simulate, else the CUDA device with most free memory, else cpu."""

    preset: str | None = None
    """Named set of field values to start from."""

    memory_cap: Cap | None = None
    """Limit on what torch may reserve on the GPU (2GiB or 50%), so that an out-of-memory does not affect others."""

    def chosen_device(self, own_device: str | None = None) -> str | None:
        """The requested device; ``None`` for the best available.

        Args:
            own_device: device named by the workload's fields, used unless the options name one.
        """
        return self.device or own_device or ("sim:0" if self.simulate else None)


ESSENTIALS, THE_REST = "Essentials", "How and where it runs"
"""Headings of the essential fields, and of flags that are not fields of the workload."""


PARAMETERS = "Parameters"
"""The parser's heading for flags without a group."""


class SpecHelp(DefaultFormatter):
    """Help that shows the fields of a spec by group, essential ones first, as in the window's form, and sizes as
    sizes. Specs do not depend on the command line.
    """

    def __init__(self, spec_type: type[Spec]) -> None:
        super().__init__()
        self._spec_type = spec_type
        self._defaults = {
            flag(name): found.default
            for name, found in spec_type.model_fields.items()
            if isinstance(extra := found.json_schema_extra, dict) and extra.get("unit") == "bytes"
        }

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        if panel.format != "parameter" or panel.title != PARAMETERS:
            super().__call__(console, options, panel)
            return
        left = list(map(self._of_spec, panel.entries))
        for group, names in self._spec_type.tiers().items():
            flags = set(map(flag, names))
            found = [entry for entry in left if not flags.isdisjoint(entry.positive_names)]
            left = [entry for entry in left if entry not in found]
            if group is None:
                title = ESSENTIALS
            else:
                title = group.capitalize()
            if found:
                super().__call__(console, options, panel.copy(title=title, entries=found))
        if left:
            super().__call__(console, options, panel.copy(title=THE_REST, entries=left))

    def _of_spec(self, entry: "HelpEntry") -> "HelpEntry":
        if "--preset" in entry.positive_names:
            presets = ", ".join(self._spec_type.presets)
            return entry.copy(description=f"Named set of field values to start from: {presets}.")
        name = next((name for name in entry.positive_names if name in self._defaults), None)
        if name is None:
            return entry
        return entry.copy(metavar="SIZE", default=size_text(self._defaults[name]))


def given_fields(spec: Spec | None) -> dict[str, Any]:
    """The fields that were set, so that defaults do not override a preset's values."""
    if spec is None:
        return {}
    return {name: getattr(spec, name) for name in spec.model_fields_set}

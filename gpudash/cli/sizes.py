"""Sizes as flags take them and as ``--help`` shows them: 64MiB instead of a count of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.help import DefaultFormatter

from gpudash.devices import SimulatedCard, parse_card, parse_simulated, size_of
from gpudash.specs import Spec
from gpudash.specs.invalid import flag
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import format_bytes, parse_size

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions


def size_text(size: int | None) -> str | None:
    """A size as one would type it; ``None`` as it is, for ``--help`` shows no such default."""
    if not size:
        return None if size is None else "0"
    return format_bytes(size).replace(" ", "")


def _size(_type: Any, tokens: Any) -> int:
    return parse_size(tokens[0].value)


def _card_size(_type: Any, tokens: Any) -> int:
    return size_of(parse_card(tokens[0].value))


def _simulated(_type: Any, tokens: Any) -> list[SimulatedCard]:
    return [parse_simulated(part) for token in tokens for part in token.value.split(",")]


def _cap(_type: Any, tokens: Any) -> MemoryCap:
    return MemoryCap.parse(tokens[0].value)


Size = Annotated[int, Parameter(converter=_size, metavar="SIZE", show_default=size_text, allow_leading_hyphen=True)]
"""A flag's bytes. A leading hyphen is let through, to be refused as a size."""

CardSize = Annotated[
    int, Parameter(converter=_card_size, metavar="SIZE|GPU", show_default=size_text, allow_leading_hyphen=True)
]
"""A flag's bytes, as a size or as the name of a GPU that has as many."""

Simulated = Annotated[
    list[SimulatedCard],
    Parameter(
        converter=_simulated,
        metavar="SIZE|GPU",
        show_default=False,
        negative="",
        allow_leading_hyphen=True,
        n_tokens=1,
        json_list=False,
    ),
]
"""GPUs to simulate, each as a size or by name; a flag that may be repeated."""

Cap = Annotated[
    MemoryCap, Parameter(converter=_cap, metavar="SIZE|PERCENT", accepts_keys=False, allow_leading_hyphen=True)
]
"""A flag's size or share. Without ``accepts_keys=False`` each attribute of the class would be a flag."""


class SpecHelp(DefaultFormatter):
    """Shows the size fields of a workload's spec as sizes; a spec knows nothing of the command line."""

    def __init__(self, spec_type: type[Spec]) -> None:
        super().__init__()
        self._defaults = {
            flag(name): found.default
            for name, found in spec_type.model_fields.items()
            if isinstance(extra := found.json_schema_extra, dict) and extra.get("unit") == "bytes"
        }

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        super().__call__(console, options, panel.copy(entries=[self._in_sizes(entry) for entry in panel.entries]))

    def _in_sizes(self, entry: HelpEntry) -> HelpEntry:
        name = next((name for name in entry.positive_names if name in self._defaults), None)
        if name is None:
            return entry
        return entry.copy(metavar="SIZE", default=size_text(self._defaults[name]))

"""What the flags of several commands have in common: sizes as they are written and shown (64MiB instead of a count of
bytes), the flags that simulate GPUs, those that serve a session's figures, and those of a workload that another
one runs (``run comparison`` depends on its ``--workload``).

Annotations are evaluated: the parser of command lines reads them from dataclasses that other modules extend.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.help import DefaultFormatter
from pydantic import create_model

from gpudash.cli.terminal.output import RequestError, print_notice
from gpudash.devices.names import SimulatedCard, Simulation, parse_card, parse_simulated, size_of
from gpudash.specs import Spec
from gpudash.specs.comparison import spec_of
from gpudash.specs.invalid import flag
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import format_bytes, parse_size

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

    from gpudash.session import Session
    from gpudash.session.serving import Serving
    from gpudash.specs import Spec


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

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        super().__call__(console, options, panel.copy(entries=[self._in_sizes(entry) for entry in panel.entries]))

    def _in_sizes(self, entry: "HelpEntry") -> "HelpEntry":
        name = next((name for name in entry.positive_names if name in self._defaults), None)
        if name is None:
            return entry
        return entry.copy(metavar="SIZE", default=size_text(self._defaults[name]))


@Parameter(name="*")
@dataclass(kw_only=True)
class SimulateOptions:
    """Which GPUs are simulated."""

    simulate: Simulated = field(default_factory=list)
    """Simulate a GPU with this much memory (8GiB), or one by its name (h100; gpudash devices --known lists them).
    Repeat it for sim:1 and so on. Left out: one of 8 GiB where there is no GPU."""

    simulate_others: Size = 0
    """Memory of sim:0 that simulated other processes hold (2GiB)."""

    def simulation(self) -> Simulation:
        """What was asked for.

        Raises:
            RequestError: when it cannot be.
        """
        try:
            return Simulation(tuple(self.simulate), self.simulate_others)
        except ValueError as error:
            raise RequestError(str(error), "Write for example --simulate 8GiB.") from None


@Parameter(name="*")
@dataclass(kw_only=True)
class ServeOptions:
    """Whether and where the figures are served for Prometheus."""

    serve: Annotated[str | bool, Parameter(negative="", show_default=False, metavar="[ADDRESS:PORT]")] = False
    """Serve the figures for Prometheus: alone at 127.0.0.1:10950, with :9500 at another port of this machine. An
    address that other machines can reach needs a token and TLS."""

    serve_token_file: Path | None = None
    """File with the token that requests must bring; the variable GPUDASH_SERVE_TOKEN may hold it instead. A command
    line may not: everybody on the machine can see it."""

    serve_cert: Path | None = None
    """Certificate (PEM) to encrypt with."""

    serve_key: Path | None = None
    """Its key (PEM)."""

    @contextmanager
    def served(self) -> "Iterator[Served]":
        """What serves until the block is left; it listens at once where that was asked for.

        Raises:
            RequestError: when nobody can or may be served there.
        """
        served = Served(self._begun())
        try:
            yield served
        finally:
            served.close()

    def _begun(self) -> "Serving | None":
        if self.serve is False:
            if self.serve_token_file or self.serve_cert or self.serve_key:
                raise RequestError("A token, certificate or key is for serving.", "Give --serve as well.")
            return None
        from gpudash.session.serving import ServeRequest, Serving, ServingError

        address = "" if self.serve is True else self.serve
        if not address and self.serve is not True:
            raise RequestError("--serve was given an empty address.", "Leave it out, or write ADDRESS:PORT.")
        try:
            return Serving(ServeRequest(address, self.serve_token_file, self.serve_cert, self.serve_key))
        except ServingError as error:
            raise RequestError(str(error), error.remedy) from None


class Served:
    """What serves a command's session, or nothing where that was not asked for.

    Attributes:
        joined: false when closing left a thread behind.
    """

    def __init__(self, serving: "Serving | None") -> None:
        self.joined = True
        self._serving = serving

    def begin(self, session: "Session") -> None:
        """Serve ``session``, and say where."""
        if self._serving is None:
            return
        from gpudash.session.serving import companions

        self._serving.start(session)
        print_notice(f"Serving at {self._serving.url}; Grafana dashboard and alert rules: {companions()}")

    def predict(self, spec: Spec, device: str) -> None:
        """Have the run's peak predicted, where it is served."""
        if self._serving is not None:
            self._serving.predict(spec, device)

    def close(self) -> None:
        """Serve no longer; may be called again."""
        if self._serving is not None:
            self.joined = self._serving.close() and self.joined
            self._serving = None

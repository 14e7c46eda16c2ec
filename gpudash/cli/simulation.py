"""The flags that simulate GPUs, the same for every command that has them."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from cyclopts import Parameter

from gpudash.cli.output import RequestError
from gpudash.devices import Simulation
from gpudash.units import parse_size


def _sizes(_type: Any, tokens: Any) -> list[int]:
    return [parse_size(token.value) for token in tokens]


def _size(_type: Any, tokens: Any) -> int:
    return parse_size(tokens[0].value)


@Parameter(name="*")
@dataclass(kw_only=True)
class SimulateOptions:
    """Which GPUs are simulated."""

    simulate: Annotated[list[int], Parameter(converter=_sizes, negative="", allow_leading_hyphen=True)] = field(
        default_factory=list
    )
    """Simulate a GPU with this much memory (8GiB); repeat for sim:1 and so on. Left out: one where there is no GPU."""

    simulate_others: Annotated[int, Parameter(converter=_size, allow_leading_hyphen=True)] = 0
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

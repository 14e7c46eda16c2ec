"""The flags that simulate GPUs, the same for every command that has them."""

from dataclasses import dataclass, field

from cyclopts import Parameter

from gpudash.cli.output import RequestError
from gpudash.cli.sizes import Simulated, Size
from gpudash.devices import Simulation


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

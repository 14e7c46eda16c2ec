"""AdamW with its state in 8 bits, as bitsandbytes lays it out: its sizes, without its kernels.

Names are those of ``Optimizer2State.init_state`` in bitsandbytes/optim/optimizer.py of 0.50.2, which makes them in this
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

BLOCK = 256
"""Numbers of the state that share a scale (``blocksize`` there)."""

SMALLEST = 4096
"""Parameters with fewer numbers keep their state in 32 bits (``min_8bit_size``)."""

CODES = 256
"""Numbers that eight bits stand for; a table of each kind lies on the device once."""

_Optimizer: Any = torch.optim.Optimizer


class EightBitAdamW(_Optimizer):  # type: ignore[misc]  # a base that torch gives no type
    """Holds what ``bitsandbytes.optim.AdamW8bit`` holds; its update is one kernel that allocates nothing.

    Args:
        parameters: what is optimised.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._tables: dict[torch.device, list[torch.Tensor]] = {}

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:
        """Make the state of each parameter that has a gradient, where it has none yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self._begin(parameter)

    def _begin(self, parameter: torch.nn.Parameter) -> None:
        state, count, device = self.state[parameter], parameter.numel(), parameter.device
        if count < SMALLEST:
            state["state1"], state["state2"] = (torch.zeros_like(parameter, dtype=torch.float32) for _ in range(2))
            return
        if device not in self._tables:
            self._tables[device] = [torch.zeros(CODES, device=device) for _ in range(2)]
        state["qmap1"], state["qmap2"] = self._tables[device]
        for name in ("state1", "state2"):
            state[name] = torch.zeros_like(parameter, dtype=torch.uint8)
        for name in ("absmax1", "absmax2"):
            state[name] = torch.zeros(-(-count // BLOCK), device=device)

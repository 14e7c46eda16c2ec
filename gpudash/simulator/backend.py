"""Making the simulated device known to torch: done once in a process, at the first use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpudash.simulator import accelerator, attention, autocast, autograd, compilation, construction, kernels, modules
from gpudash.simulator.card import Card
from gpudash.simulator.device_module import DeviceModule
from gpudash.simulator.operations import Engine
from gpudash.simulator.storage import DEVICE


class Backend:
    """The simulated device of this process.

    Attributes:
        engine: runs its operations.
        module: ``torch.sim``.
    """

    def __init__(self, engine: Engine) -> None:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        self.engine = engine
        self.module = DeviceModule(engine)
        _setup_privateuseone_for_python_backend(DEVICE, backend_module=self.module)
        self._libraries = [
            *kernels.install(engine),
            *construction.install(engine),
            *attention.install(engine),
            *autocast.install(),
        ]
        accelerator.install(self.module)
        autograd.install()
        compilation.install()
        modules.install()

    @property
    def cards(self) -> list[Card]:
        """The simulated cards."""
        return self.engine.cards


_backend: Backend | None = None


def registered() -> Backend | None:
    """The device of this process; ``None`` before `register`."""
    return _backend


def register(cards: Sequence[Card], *, computes: bool = True, trusting: bool = False) -> Backend:
    """Add the device ``sim`` to torch.

    Args:
        cards: ``sim:0``, ``sim:1``, and so on.
        computes, trusting: of `Engine`.

    Returns:
        the backend; when there is one already, that one with ``cards`` in place of its own, all of which must be empty.

    Raises:
        RuntimeError: one sentence, when another device has been added to torch already, or this torch cannot.
        ValueError: when a card that is in use would be taken away.
    """
    global _backend
    if _backend is None:
        taken = torch._C._get_privateuse1_backend_name()
        if taken not in ("privateuseone", DEVICE):
            raise RuntimeError(f"torch has been given another device already ({taken}), so no GPU can be simulated.")
        try:
            _backend = Backend(Engine(cards, computes=computes, trusting=trusting))
        except (ImportError, AttributeError) as error:
            raise RuntimeError(
                f"torch {torch.__version__} cannot be given a device from Python ({error}); torch 2.9 or newer can."
            ) from error
        return _backend
    _backend.engine.replace(cards)
    return _backend

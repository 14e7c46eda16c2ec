"""Making the simulated device known to torch: done once in a process, at the first use."""

from __future__ import annotations

from collections.abc import Sequence

from gpudash.simulator.device import accelerator, autograd, compilation, construction, modules, probe
from gpudash.simulator.device.device_module import DeviceModule
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.storage import DEVICE
from gpudash.simulator.operations import attention, autocast, encoder_layers, functional, kernels, recurrent
from gpudash.simulator.operations.operations import Engine


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
        _setup_privateuseone_for_python_backend(
            DEVICE, backend_module=self.module, device_guard=autograd.device_guard()
        )
        self._libraries = [
            *kernels.install(engine),
            *construction.install(engine),
            *attention.install(engine),
            *encoder_layers.install(engine),
            *recurrent.install(engine),
            *functional.install(),
            *autocast.install(),
        ]
        accelerator.install(self.module)
        autograd.install()
        compilation.install()
        modules.install()

    @property
    def cards(self) -> list[SimulatedGpu]:
        """The simulated cards."""
        return self.engine.cards


TRIAL_BYTES = 2**30

_backend: Backend | None = None


def registered() -> Backend | None:
    """The device of this process; ``None`` before `register`."""
    return _backend


def register(cards: Sequence[SimulatedGpu], *, computes: bool = True, trusting: bool = False) -> Backend:
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
        reason = probe.problem()
        if reason is not None:
            raise RuntimeError(reason)
        _backend = Backend(Engine([], computes=computes, trusting=trusting))
        reason = _tried(_backend) if computes else None
        if reason is not None:
            raise RuntimeError(reason)
    _backend.engine.replace(cards)
    return _backend


def _tried(backend: Backend) -> str | None:
    """What went wrong on a card of its own."""
    backend.engine.replace([SimulatedGpu(0, TRIAL_BYTES, context=0)])
    return probe.tried()

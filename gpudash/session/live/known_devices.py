"""What a session says of the machine's devices."""

from __future__ import annotations

from gpudash.devices.names import Device, Gpu
from gpudash.session.live.machine import Machine
from gpudash.session.live.programs import program_of
from gpudash.specs import Spec


class KnownDevices:
    """The devices as a session's users ask for them; any thread may.

    Args:
        machine: knows them.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def torch_ready(self) -> bool:
        """Whether torch has been imported (or has been found to be missing)."""
        return self._machine.torch is not None

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""
        return self._machine.host_capacity_source

    def devices(self) -> list[Device]:
        """The devices a run can use: the CPU, torch's CUDA devices in torch's order, the simulated ones."""
        return self._machine.devices()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU NVML lists, also those torch does not see, and behind them the simulated ones."""
        return self._machine.gpus

    def default_device(self) -> str:
        """The usable CUDA device with most free memory, else the CPU."""
        return self._machine.default_device()

    @property
    def gpu_problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""
        return self._machine.problem

    def gpu_facts(self) -> list[tuple[str, str]]:
        """What driver, library, torch and environment say of GPUs: (what, answer) pairs for a bug report."""
        return self._machine.gpu_facts()

    def check_gpus(self) -> None:
        """Look for GPUs at once where there were none."""
        self._machine.check_gpus()

    def device_words(self, device: str) -> str:
        """How a reading's device (a GPU's UUID or "host") is called in a sentence."""
        return self._machine.words(device)

    def code(self, spec: Spec, device: str) -> str:
        """The plain PyTorch program that a run of ``spec`` on ``device`` amounts to.

        Raises:
            ValueError: one sentence, for a workload that is not built in.
        """
        return program_of(spec, device, self.devices(), self._machine.simulated.others_bytes)

    def product_of(self, name: str) -> str | None:
        """What the device called ``name`` is; ``None`` when there is none of that name."""
        return next((device.product for device in self.devices() if device.name == name), None)

    def find_device(self, name: str) -> Device:
        """The device called ``name``.

        Raises:
            ValueError: one sentence saying which devices there are and why this one is not.
        """
        return self._machine.find(name)

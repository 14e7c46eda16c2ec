"""Giving the program's torch simulated GPUs, with a simulator that its environment need not have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from ..importing import found_by_others

NAME = "gpudash"


class Lender:
    """A finder that knows one package, for when the others know none.

    It is asked first, since they would find one in any folder of that name, such as an installation leaves behind.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package, unless another one has its name; a folder without code does not count."""
        if name != NAME:
            return None
        for spec in found_by_others(self, name, path, target):
            if spec.loader is not None:
                return spec
        return spec_from_file_location(name, f"{self._folder}/__init__.py", submodule_search_locations=[self._folder])


def simulate(folder: str, capacities: Sequence[int | str], others: int, *, as_cuda: bool = False) -> str | None:
    """Register the devices.

    Args:
        folder: of the package `NAME`.
        capacities: bytes of each GPU, or the name of one that is known.
        others: bytes that other processes hold on the first.
        as_cuda: whether they answer for CUDA.

    Returns:
        why that was not possible, in one sentence; ``None`` when it was.
    """
    if not any(isinstance(finder, Lender) for finder in sys.meta_path):
        sys.meta_path.insert(0, Lender(folder))
    try:
        from gpudash.simulator import simulate as register

        # one that the program's own environment has may be older
        options: dict[str, Any] = {}
        if as_cuda:
            options = {"as_cuda": True}
        register(*capacities, others=others, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    except Exception as error:
        return f"No GPU can be simulated in this program: {type(error).__name__}: {error}."
    return None


def backend() -> Any:
    """The simulated devices of this process, also those the program registered itself; ``None`` without any."""
    module = sys.modules.get("gpudash.simulator.device.backend")
    # while another thread imports it, not all of it is there
    registered = getattr(module, "registered", None)
    if registered is None:
        return None
    return registered()


def cards() -> tuple[Any, ...]:
    """Those of the simulated devices."""
    found = backend()
    if found is None:
        return ()
    return tuple(found.cards)


def answers_for_cuda() -> bool:
    """Whether the simulated devices are what this process calls ``cuda``."""
    module = sys.modules.get("gpudash.simulator.as_cuda.answering")
    is_answering = getattr(module, "is_answering", None)
    return is_answering is not None and bool(is_answering())


def called_here(device: str) -> str:
    """What a device is called among the figures of the allocators: a simulated one ``sim``, also as ``cuda``."""
    kind, colon, index = device.partition(":")
    if kind == "cuda" and answers_for_cuda():
        return f"sim{colon}{index}"
    return device


def in_collectives_s() -> float | None:
    """Seconds that this process has spent in collectives of simulated devices; ``None`` where it has had none."""
    module = sys.modules.get("gpudash.simulator.operations.collectives")
    spent = getattr(module, "spent", None)
    if spent is None:
        return None
    return float(spent.seconds)


def notices() -> Sequence[str]:
    """What does nothing, or runs otherwise, on the simulated devices, of what the program asked for so far."""
    return tuple(getattr(sys.modules.get("gpudash.simulator.as_cuda.notices"), "emitted", ()))

"""Provides simulated GPUs to the program's torch, with a simulator that its environment need not have."""

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
    """A finder for one package, if the other finders do not have it.

    It is asked first, since they would accept any folder of that name, such as one left by an installation.
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
    """Register the simulated devices.

    Args:
        folder: folder of the package `NAME`.
        capacities: bytes of each GPU, or the name of a known one.
        others: bytes of other processes on the first one.
        as_cuda: whether they stand in for CUDA.

    Returns:
        Why that was impossible, in one sentence; ``None`` if it was not.
    """
    if not any(isinstance(finder, Lender) for finder in sys.meta_path):
        sys.meta_path.insert(0, Lender(folder))
    try:
        from gpudash.simulator import simulate as register

        # The program's own environment may have an older version.
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
    """The simulated devices of this process, including those the program registered itself; ``None`` for none."""
    module = sys.modules.get("gpudash.simulator.device.backend")
    # While another thread imports it, it is incomplete.
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
    """Whether this process's ``cuda`` devices are simulated."""
    module = sys.modules.get("gpudash.simulator.as_cuda.answering")
    is_answering = getattr(module, "is_answering", None)
    return is_answering is not None and bool(is_answering())


def called_here(device: str) -> str:
    """A device's name among the allocators' figures: ``sim`` for a simulated one, even if it is called ``cuda``."""
    kind, colon, index = device.partition(":")
    if kind == "cuda" and answers_for_cuda():
        return f"sim{colon}{index}"
    return device


def in_collectives_s() -> float | None:
    """Seconds that this process has spent in collectives of simulated devices; ``None`` if there were none."""
    module = sys.modules.get("gpudash.simulator.operations.collectives")
    spent = getattr(module, "spent", None)
    if spent is None:
        return None
    return float(spent.seconds)


def notices() -> Sequence[str]:
    """What the program used so far that the simulated devices ignore, or do differently."""
    return tuple(getattr(sys.modules.get("gpudash.simulator.as_cuda.notices"), "emitted", ()))

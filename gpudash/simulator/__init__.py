"""The simulated GPU: a torch device named ``sim`` whose arithmetic is done on the CPU and whose memory is a model.

Real code runs on it and real numbers come out, while allocated and reserved memory, out-of-memory errors and memory
snapshots are those of a GPU of a chosen capacity. It needs the standard library and torch only, from Python 3.9 on.
"""

from __future__ import annotations


def simulate(*capacities: int) -> None:
    """Give torch the devices ``sim:0``, ``sim:1`` and so on, for the rest of the process.

    Called again, it puts other GPUs in their place.

    Args:
        capacities: memory of each GPU, bytes.

    Raises:
        ValueError: one sentence, when a capacity is not between 1 byte and 2**50 bytes, or a GPU that would be
            replaced still holds memory.
        RuntimeError: one sentence, when this torch cannot be given a device from Python.
    """
    from gpudash.simulator.backend import register
    from gpudash.simulator.card import Card

    register([Card(index, capacity) for index, capacity in enumerate(capacities)])

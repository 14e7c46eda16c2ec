"""What is known of a model that is predicted by its config."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpudash.devices.names import LANE_BYTES_PER_SECOND
from gpudash.units import format_bytes

LANES = 16
"""Of the link of a card that is alone in its slot."""


@dataclass(frozen=True)
class ModelFacts:
    """A model as its own code builds it, and as its files say it is.

    Attributes:
        architecture: the class that was built.
        parameters: how many numbers its weights have, shared ones counted once.
        weight_bytes: what they take.
        dtype: of most of them that are not packed, as torch calls it.
        packed_bits: of a weight of the linear layers that are packed; 0 where none is.
        sequence: tokens that were followed; ``None`` where it takes none.
        longest: the most tokens that it takes; ``None`` where it does not say.
        stored_parameters: numbers in the files with the weights; ``None`` where no file is there.
        stored_bytes: what they take there; ``None`` where neither files nor their index are there.
        flops: floating-point operations of a step, as torch's own counter knows them.
        to_host_bytes, to_device_bytes: copied each way over a GPU's bus in a step, of what is kept on the host.
        pinned_bytes, pageable_bytes: what that takes of the host's memory at most, in pages that stay and in others; of
            all ranks, where there are several.
        link, bus_seconds: see `on_link`.
        assumptions: what is taken for granted; sentences without a full stop.
    """

    architecture: str
    parameters: int
    weight_bytes: int
    dtype: str
    sequence: int | None = None
    longest: int | None = None
    stored_parameters: int | None = None
    stored_bytes: int | None = None
    flops: int = 0
    packed_bits: int = 0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    pinned_bytes: int = 0
    pageable_bytes: int = 0
    link: str = ""
    bus_seconds: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int:
        """All that it takes of the host's memory."""
        return self.pinned_bytes + self.pageable_bytes

    def on_link(self, capability: tuple[int, int]) -> ModelFacts:
        """The same with the least time that a step's copies take, both ways at once, on the link that GPUs of a compute
        capability come with, by NVIDIA's data sheets: PCIe 3.0 of Volta and Turing (V100, T4), 4.0 of Ampere and Ada
        (A100, L4), 5.0 of Hopper and Blackwell.

        Args:
            capability: compute capability of the GPU, (major, minor).
        """
        generation = 3 if capability < (8, 0) else 4 if capability < (9, 0) else 5
        seconds = max(self.to_host_bytes, self.to_device_bytes) / (LANES * LANE_BYTES_PER_SECOND[generation])
        return replace(self, link=f"PCIe {generation}.0 x{LANES}", bus_seconds=seconds)

    def lines(self) -> list[str]:
        """What it is, and how its files compare, each in a line."""
        long = "" if self.sequence is None else f"; sequences of {self.sequence} tokens"
        kind = f"in {self.packed_bits} bits, the rest {self.dtype}" if self.packed_bits else f"as {self.dtype}"
        weights = f"{self.parameters:,} parameters, {format_bytes(self.weight_bytes)} {kind}"
        found = [f"{self.architecture}: {weights}{long}"]
        if self.stored_parameters is not None and self.stored_bytes is not None:
            same = self.stored_parameters == self.parameters
            how = "as many" if same else f"{self.stored_parameters:,}"
            found.append(f"its files hold {how} parameters, {format_bytes(self.stored_bytes)}")
        elif self.stored_bytes is not None:
            found.append(f"the index of its files says {format_bytes(self.stored_bytes)}")
        if self.host_bytes:
            paged = f" and {format_bytes(self.pageable_bytes)}" if self.pageable_bytes else ""
            copied = f"{format_bytes(self.to_device_bytes)} to the GPU, {format_bytes(self.to_host_bytes)} from it"
            found.append(f"on the host: {format_bytes(self.pinned_bytes)} of pinned memory{paged}")
            found.append(f"over the bus each step: {copied}; {self.bus_seconds:.2g} s or more on {self.link}")
        return found

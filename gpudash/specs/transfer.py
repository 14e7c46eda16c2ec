"""The spec of the bandwidth measurement."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from gpudash.specs.base import COPY_BYTES_PER_SECOND, Presets, Spec, cuda_only, field, gpu_only, long_operation
from gpudash.units import GIB, MIB, format_bytes, parse_size

SERIES_BYTES = 64 * MIB
"""Least bytes copied in a sample, in up to `SERIES` copies, so that the cost of timing is negligible."""

SERIES = 64

COMPUTE_SIZE = 2048
"""Rows of the matrices multiplied during an overlapped copy: a few milliseconds a product on any GPU."""

COMPUTE_MARGIN = 1.5
"""Duration of that computation, relative to the copies."""

COPY_STEPS = 20
"""Steps of the comparison between copying every step and copying once."""

COMPARED_BYTES = 16 * MIB
"""Largest block of that comparison."""


class TransferSpec(Spec):
    """Copy blocks between host and device and measure the rate."""

    name = "transfer"
    title = "Transfer bandwidth"
    summary = "Copies blocks between host and device, pageable and pinned, and compares the rate with the link."
    run = "gpudash.workloads.programs.transfer:run"
    presets: ClassVar[Presets] = {
        "Sweep": {},
        "Large blocks": {"blocks": "256MiB", "samples": 10},
        "Small blocks": {"blocks": "4KiB,64KiB,1MiB", "samples": 20},
    }

    blocks: str = field("1MiB,4MiB,16MiB,64MiB", "Block sizes, separated by commas")
    directions: Literal["all", "h2d", "d2h", "h2h"] = field(
        "all",
        "Which copies are measured",
        labels={"all": "all", "h2d": "host → device", "d2h": "device → host", "h2h": "host → host"},
    )
    memory: Literal["both", "pageable", "pinned"] = field("both", "Host memory the copies use")
    blocking: Literal["both", "blocking", "overlapped"] = field(
        "both", "Copies alone, overlapped with compute, or both"
    )
    samples: int = field(7, "Samples of each figure; the median is reported", ge=3, le=1000)

    @model_validator(mode="after")
    def _blocks_are_sizes(self) -> TransferSpec:
        for size in self.block_sizes:
            if not 1024 <= size <= 16 * GIB:
                raise ValueError(f"blocks: {format_bytes(size)} is outside 1 KiB to 16 GiB")
        return self

    @property
    def block_sizes(self) -> list[int]:
        """Size of each block in bytes, ascending.

        Raises:
            ValueError: if a part of `blocks` is not a size.
        """
        try:
            return sorted(set(map(parse_size, self.blocks.split(","))))
        except ValueError as error:
            raise ValueError(f"blocks: {error}") from None

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        return gpu_only(device, ("directions", "h2d"), ("directions", "d2h")) | cuda_only(
            device, ("memory", "pinned"), ("blocking", "overlapped")
        )

    def cautions(self, device: str) -> list[str]:
        largest = self.block_sizes[-1]
        return long_operation(largest / COPY_BYTES_PER_SECOND, f"a copy of {format_bytes(largest)}")

"""The work of a step, operation by operation: recorded by a dry run, and the basis for the time on a card.

Only the standard library, for Python 3.9: the dry run is in the user's own Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PRODUCT = "product"
CONVOLUTION = "convolution"
DEPTHWISE = "depthwise convolution"
GROUPED = "grouped convolution"
ATTENTION = "attention"
RECURRENT = "recurrent layer"
NORMALISATION = "normalisation"
ELEMENTWISE = "elementwise"
REDUCTION = "reduction"
EMBEDDING = "embedding"
SORT = "sort"
OPTIMIZER = "optimizer"
COPY = "copy"
UNKNOWN = "unknown"

KINDS = (
    PRODUCT,
    CONVOLUTION,
    DEPTHWISE,
    GROUPED,
    ATTENTION,
    RECURRENT,
    NORMALISATION,
    ELEMENTWISE,
    REDUCTION,
    EMBEDDING,
    SORT,
    OPTIMIZER,
    COPY,
    UNKNOWN,
)
"""Classes of kernels, each with its own share of a card's performance."""

BOUNDS = ("compute", "memory bandwidth", "launches", "copies", "communication")
"""What may limit a step."""


class Operation(NamedTuple):
    """An operation on the device; equal ones are counted together.

    Attributes:
        name: torch's name without namespace: "addmm".
        kind: one of `KINDS`.
        dtype: type of the arithmetic: "float32", "float16", "bfloat16".
        flops: floating-point operations, counting a multiply-add as two.
        read_bytes: bytes of device memory that it reads, each tensor once.
        written_bytes: bytes of device memory that it writes.
        shape: what decides its kernel: of a product (batch, m, n, k); of a convolution (batch, channels in, channels
            out, groups, elements of the kernel, positions out); of attention (batch, heads, queries, keys, width of a
            head); of cuDNN's recurrent layers (layers times directions, steps, batch, rows of the gates' matrices,
            inputs, columns of the hidden state's matrix); of a bilinear or bicubic resize (images times
            channels, positions out); of an operation over a list of tensors (tensors,); else ().
        launches: number of CUDA kernels.
        phase: "forward", "backward" or "optimizer"; "" if unknown.
        channels_last: whether a convolution has that memory format.
    """

    name: str
    kind: str
    dtype: str
    flops: int
    read_bytes: int
    written_bytes: int
    shape: tuple[int, ...] = ()
    launches: int = 1
    phase: str = ""
    channels_last: bool = False


@dataclass(frozen=True)
class StepWork:
    """The work of a step for the device and the host, in the steady state.

    Attributes:
        operations: operations, with how often each occurs in a step.
        items: samples, images or tokens per step.
        unit: plural of what `items` counts: "samples".
        copied_in_bytes: bytes copied from the host to the device per step.
        copied_out_bytes: bytes copied from the device to the host per step.
        copies: number of copies in both directions.
        pinned: whether copies to the device are from pinned memory.
        synchronisations: how often the host waits for the device in a step, as in ``.item()``.
        exchanged_bytes: bytes of gradients exchanged between ranks per step; 0 for one device.
        ranks: number of devices that share the work.
        batch: batch size of each forward pass on each device, as set by the user; 0 if unknown.
    """

    operations: Mapping[Operation, int]
    items: int = 1
    unit: str = "samples"
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0
    copies: int = 0
    pinned: bool = False
    synchronisations: int = 0
    exchanged_bytes: int = 0
    ranks: int = 1
    batch: int = 0

    @property
    def flops(self) -> int:
        """FLOPs of a step, in matrix products, convolutions, attention and recurrent layers."""
        return sum(count * operation.flops for operation, count in self.operations.items())

    def to_dict(self) -> dict[str, Any]:
        """As JSON; read by `from_dict`."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "operations"}
        return {**document, "operations": [[*operation, count] for operation, count in self.operations.items()]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StepWork:
        """Read the output of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: if it is malformed.
        """
        operations = {}
        for *values, count in document["operations"]:
            operation = Operation(*values)
            operations[operation._replace(shape=tuple(operation.shape))] = int(count)
        return cls(**{**document, "operations": operations})


@dataclass(frozen=True)
class HostSpeed:
    """The host's speed.

    Attributes:
        operation_s: seconds that PyTorch takes to start an operation from Python.
        backward_operation_s: the same in a backward pass, which runs in C++.
        source: source of the figures: "measured on this computer", or whose the defaults are.
    """

    operation_s: float = 7e-6
    backward_operation_s: float = 5e-6
    source: str = "a usual workstation"


@dataclass(frozen=True)
class Gain:
    """A change that would help.

    Attributes:
        change: the change in words: "mixed precision (AMP)".
        factor: items per second, relative to the unchanged step.
        fits: whether it fits in the device's memory; ``None`` if unknown.
    """

    change: str
    factor: float
    fits: bool | None = True


@dataclass(frozen=True)
class StepTime:
    """Predicted time of a step on a card. Times in seconds.

    Attributes:
        median_s: median of the prediction.
        low_s, high_s: interval that should contain nine of ten steps; the guide says how many of the measured ones it
            does.
        bound: what limits the step, one of `BOUNDS`.
        by_kind: the device's time by kind of operation, as in `KINDS`.
        host_s: the host's time.
        device_s: the device's time, if it never had to wait.
        copy_s: time of copies between host and device.
        communication_s: time of exchanges between devices that nothing hides.
        unknown: number of operations of unknown kind per step, which count by their bytes.
        unknown_s: their part of `device_s`.
        items: number of items per step, in `unit`.
        unit: as in `StepWork`.
        gains: changes that would help, the largest gain first.
        source: basis of the constants, in a sentence.
    """

    median_s: float
    low_s: float
    high_s: float
    bound: str
    by_kind: Mapping[str, float]
    host_s: float
    device_s: float
    copy_s: float
    communication_s: float
    unknown: int
    unknown_s: float
    items: int
    unit: str
    gains: tuple[Gain, ...] = field(default=())
    source: str = ""

    @property
    def items_per_s(self) -> float:
        """Items per second."""
        return self.items / self.median_s

    def to_dict(self) -> dict[str, Any]:
        """The JSON key ``time`` of an estimate."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "gains"}
        document["by_kind"] = dict(self.by_kind)
        document["gains"] = [[gain.change, gain.factor, gain.fits] for gain in self.gains]
        return {"predicted": True, **document, "items_per_s": self.items_per_s}

"""What a step does, operation by operation: what a dry run writes down and a card's time is worked out from.

Standard library alone, Python 3.9: the dry run is in the user's own Python.
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
"""Classes of kernels, each with its own share of what a card can do."""

BOUNDS = ("compute", "memory bandwidth", "launches", "copies", "communication")
"""What may hold a step back."""


class Operation(NamedTuple):
    """One operation on the device; equal ones are counted together.

    Attributes:
        name: of torch, without its namespace: "addmm".
        kind: one of `KINDS`.
        dtype: of the arithmetic: "float32", "float16", "bfloat16".
        flops: floating-point operations, a multiplication with its addition counted as two.
        read_bytes: of the device's memory that it reads, each tensor once.
        written_bytes: that it writes.
        shape: what decides its kernel: of a product (batch, m, n, k); of a convolution (batch, channels in, channels
            out, groups, elements of the kernel, positions out); of attention (batch, heads, queries, keys, width of a
            head); of cuDNN's recurrent layers (layers times directions, steps, batch, rows of the gates' matrices,
            inputs, columns of the hidden state's matrix); of a bilinear or bicubic resize (images times
            channels, positions out); of an operation over a list of tensors (tensors,); else ().
        launches: kernels that CUDA starts for it.
        phase: "forward", "backward" or "optimizer"; "" where that is not known.
        channels_last: of a convolution, whether its tensors lie so in memory.
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
    """What one step asks of the device and of the host, in the steady state.

    Attributes:
        operations: each with how often it is done in a step.
        items: samples, images or tokens a step.
        unit: what `items` counts, in the plural: "samples".
        copied_in_bytes: from the host to the device a step.
        copied_out_bytes: from the device to the host a step.
        copies: how many of either.
        pinned: whether what is copied in lies in pinned memory.
        synchronisations: times that the host waits for the device a step, as at ``.item()``.
        exchanged_bytes: of gradients that ranks exchange a step; 0 for one device.
        ranks: devices that share the work.
        batch: of each forward pass on each of them, as its user sets it; 0 where that is not known.
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
        """Floating-point operations a step, of matrix products, convolutions, attention and recurrent layers."""
        return sum(count * operation.flops for operation, count in self.operations.items())

    def to_dict(self) -> dict[str, Any]:
        """As JSON; see `from_dict`."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "operations"}
        return {**document, "operations": [[*operation, count] for operation, count in self.operations.items()]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StepWork:
        """What `to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it is none.
        """
        operations = {}
        for *values, count in document["operations"]:
            operation = Operation(*values)
            operations[operation._replace(shape=tuple(operation.shape))] = int(count)
        return cls(**{**document, "operations": operations})


@dataclass(frozen=True)
class HostSpeed:
    """What the host adds to a step.

    Attributes:
        operation_s: seconds that PyTorch takes to start an operation, from Python.
        backward_operation_s: the same in a backward pass, which C++ drives.
        source: where they are from: "measured on this computer", or of whom the defaults are.
    """

    operation_s: float = 7e-6
    backward_operation_s: float = 5e-6
    source: str = "a usual workstation"


@dataclass(frozen=True)
class Gain:
    """A change that would help.

    Attributes:
        change: in words: "mixed precision (AMP)".
        factor: items a second with it, of those without.
        fits: whether the device has memory for it; ``None`` where that is not known.
    """

    change: str
    factor: float
    fits: bool | None = True


@dataclass(frozen=True)
class StepTime:
    """How long a step is predicted to take on one card. Times in seconds.

    Attributes:
        median_s: as likely too long as too short.
        low_s, high_s: nine in ten steps are to lie between; how many of those measured do, the guide says.
        bound: what holds the step back, of `BOUNDS`.
        by_kind: the device's time by kind of operation, see `KINDS`.
        host_s: the host's time.
        device_s: the device's time, were it never to wait.
        copy_s: of copies between host and device.
        communication_s: of exchanges between devices that nothing hides.
        unknown: operations of no known kind a step, which count by their bytes.
        unknown_s: their share of `device_s`.
        items: a step, of `unit`.
        unit: as of `StepWork`.
        gains: changes that would help, the largest first.
        source: what the constants come from, in a sentence.
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
        """Items a second."""
        return self.items / self.median_s

    def to_dict(self) -> dict[str, Any]:
        """The JSON key ``time`` of an estimate."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "gains"}
        document["by_kind"] = dict(self.by_kind)
        document["gains"] = [[gain.change, gain.factor, gain.fits] for gain in self.gains]
        return {"predicted": True, **document, "items_per_s": self.items_per_s}

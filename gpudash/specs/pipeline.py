"""The spec of the tensor pipeline."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import model_validator

from gpudash.specs.base import (
    COPY_BYTES_PER_SECOND,
    CPU_FLOPS,
    DTYPE_BYTES,
    Bytes,
    Dtype,
    Presets,
    Spec,
    field,
    gpu_only,
    long_operation,
)
from gpudash.units import GIB, MIB, format_bytes

COUNT_LIMIT = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "int64": 2**53, "int32": 2**31}
"""Up to this integer (2 to the length of its mantissa) a type represents every integer: counting restarts there."""


class PipelineSpec(Spec):
    """Create a tensor on the CPU, move it, operate on it, bring it back."""

    name = "pipeline"
    title = "Tensor pipeline"
    summary = (
        "Creates a tensor on the CPU, moves it to the device, computes, brings it back; each stage timed and checked."
    )
    run = "gpudash.workloads.programs.pipeline:run"
    steps_field = "repeat"
    presets: ClassVar[Presets] = {
        "3×3": {},
        "Visible": {"size": 200 * MIB, "repeat": 50},
        "Prediction": {"scalar": 5.0},
    }

    rows: int = field(3, "Rows of the tensor", ge=1, le=1_000_000)
    columns: int = field(3, "Columns of the tensor", ge=1, le=1_000_000)
    size: Bytes | None = field(
        None,
        "Bytes of the tensor, as a square; takes the place of rows and columns",
        more="data",
        unit="bytes",
        ge=8,
        le=256 * GIB,
    )
    dtype: Dtype = field("float32", "Type of the elements")
    fill: Literal["count", "ones", "random"] = field(
        "count", "What the tensor holds: 1, 2, 3 …; ones; or random numbers", more="data"
    )
    move: Literal["to", "to_dtype", "to_other", "cuda", "cuda_index", "pinned", "direct"] = field(
        "to",
        "How the tensor gets to the device",
        labels={
            "to": ".to(device)",
            "to_dtype": ".to(device, dtype): to float64",
            "to_other": ".to(other_tensor)",
            "cuda": ".cuda()",
            "cuda_index": ".cuda(i)",
            "pinned": "pinned: non_blocking",
            "direct": "direct: created on the device",
        },
    )
    back: Literal["cpu", "to_cpu"] = field(
        "cpu", "How the result comes back", more="data", labels={"cpu": ".cpu()", "to_cpu": '.to("cpu")'}
    )
    operation: Literal["add", "multiply", "matmul", "relu"] = field(
        "add",
        "What is computed on the device",
        labels={"add": "add scalar", "multiply": "multiply by scalar", "matmul": "x @ xᵀ", "relu": "relu"},
    )
    scalar: float = field(
        10.0, "Number to add or multiply by", more="data", when={"operation": ("add", "multiply")}, ge=-1e6, le=1e6
    )
    repeat: int = field(1, "How often the pipeline runs", more="measuring", ge=1, le=1_000_000)
    pitfall: Literal["none", "unassigned", "mixed_devices", "leaf", "numpy", "current_device"] = field(
        "none",
        "A common mistake, made for real, with torch's own words and the fix",
        labels={
            "none": "none",
            "unassigned": "unassigned: the result of .to() is dropped",
            "mixed_devices": "devices mixed",
            "leaf": "leaf moved: it requires grad",
            "numpy": ".numpy(): of a tensor on the device",
            "current_device": "current device: where .cuda() lands",
        },
    )

    @model_validator(mode="after")
    def _scalar_fits_the_type(self) -> PipelineSpec:
        if self.dtype.startswith("int") and self.operation in ("add", "multiply") and not self.scalar.is_integer():
            raise ValueError(f"scalar: {self.scalar:g} is no whole number, and the elements are {self.dtype}")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, from `size` if it is given."""
        if self.size is None:
            return self.rows, self.columns
        side = max(1, math.isqrt(self.size // DTYPE_BYTES[self.dtype]))
        return side, side

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        rows, columns = self.shape
        return rows * columns * DTYPE_BYTES[self.dtype]

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        pitfalls = ("unassigned", "mixed_devices", "leaf", "numpy", "current_device")
        moves = ("cuda", "cuda_index", "pinned")
        return gpu_only(device, *(("pitfall", value) for value in pitfalls), *(("move", value) for value in moves))

    def problems(self, device: str) -> list[str]:
        found = super().problems(device)
        if device.startswith("cuda") and self.operation == "matmul" and self.dtype.startswith("int"):
            found.append(f"--operation matmul: CUDA multiplies no matrices of {self.dtype}; choose a floating type")
        return found

    def cautions(self, device: str) -> list[str]:
        rows, columns = self.shape
        seconds = self.bytes / COPY_BYTES_PER_SECOND
        if self.operation == "matmul" and not device.startswith("cuda"):
            seconds = max(seconds, 2 * rows * rows * columns / CPU_FLOPS)
        return long_operation(seconds, f"one operation on {format_bytes(self.bytes)}")

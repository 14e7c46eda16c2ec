"""What a workload may be asked: one pydantic model per workload.

Form, command-line flags, validation, recording and repetition all read these models. A field carries its
default, range, unit and one line of help; `Spec.refusals` says what a device cannot do, so that the form can
disable a choice with the reason and the terminal can refuse it in the same words.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpudash.units import GIB, MIB, format_bytes, parse_size

ENTRY_POINTS = "gpudash.workloads"
"""Entry-point group: each names a module that holds one `Spec` subclass and imports nothing heavy."""

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
Dtype = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32"]
FloatDtype = Literal["float64", "float32", "float16", "bfloat16"]

CPU_FLOPS = 20e9
"""Deliberately low estimate of one CPU core group's float32 FLOP/s; only decides whether to caution."""

COPY_BYTES_PER_SECOND = 1e9
"""Deliberately low estimate of a copy's rate; only decides whether to caution."""

MIN_PANEL_ROWS = 128
"""Fewest rows of a matrix product computed at once: with fewer, the product would be measured as slower than it is."""

LONG_OPERATION_S = 1.0
"""Stop takes effect between operations, so one longer than this earns a caution."""


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_size)]


def field(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    when: Mapping[str, tuple[str, ...]] | None = None,
    words: Mapping[str, str] | None = None,
    **limits: Any,
) -> Any:
    """A spec field.

    Args:
        default: its default value.
        help: one line: tooltip, ``--help`` and documentation.
        unit: shown behind the value; "bytes" marks a size, written and read as 512MiB.
        when: other field → values for which this one matters; the form hides it otherwise.
        words: value → what the form shows for a choice.
        limits: pydantic's ``ge``, ``le``, ``gt``, ``lt``.
    """
    extra: dict[str, Any] = {}
    if unit:
        extra["unit"] = unit
    if when:
        extra["when"] = {name: list(values) for name, values in when.items()}
    if words:
        extra["words"] = dict(words)
    return Field(default, description=help, json_schema_extra=extra, **limits)


class Spec(BaseModel):
    """Base of every workload's spec.

    Class attributes: `name` (command and recording), `title` and `summary` (form), `run` (text
    ``package.module:function``, imported by the worker only), `presets` (name → field values; at most three).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    run: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    seed: int = field(0, "Seed of every random number of the run", ge=0, le=2**31 - 1)
    threads: int = field(0, "CPU threads torch uses; 0 lets the workload choose", ge=0, le=1024)

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        """(field, value) → why that choice cannot be run on ``device`` ("cpu", "cuda:0")."""
        return {}

    def problems(self, device: str) -> list[str]:
        """Sentences saying why this spec cannot run on ``device``; empty when it can."""
        refused = self.refusals(device)
        return [
            f"{flag(name)} {value}: {refused[name, value]}"
            for name in type(self).model_fields
            if (name, value := str(getattr(self, name))) in refused
        ]

    def cautions(self, device: str) -> list[str]:
        """Sentences worth reading before the run, such as an operation that Stop cannot interrupt soon."""
        return []


def flag(name: str) -> str:
    """The command-line flag of field ``name``."""
    return f"--{name.replace('_', '-')}"


NEEDS_CUDA = "needs a CUDA device, and {device} is not one"


def _cuda_only(device: str, *choices: tuple[str, str]) -> dict[tuple[str, str], str]:
    if device.startswith("cuda"):
        return {}
    return dict.fromkeys(choices, NEEDS_CUDA.format(device=device))


class PipelineSpec(Spec):
    """Create a tensor on the CPU, move it, operate on it, bring it back."""

    name = "pipeline"
    title = "Tensor pipeline"
    summary = (
        "Creates a tensor on the CPU, moves it to the device, computes, brings it back; each stage timed and checked."
    )
    run = "gpudash.workloads.pipeline:run"
    presets = {
        "3×3": {},
        "Visible": {"size": 200 * MIB, "repeat": 50},
        "Prediction": {"scalar": 5.0},
    }

    rows: int = field(3, "Rows of the tensor", ge=1, le=1_000_000)
    columns: int = field(3, "Columns of the tensor", ge=1, le=1_000_000)
    size: Bytes | None = field(
        None, "Bytes of the tensor, as a square; takes the place of rows and columns", unit="bytes", ge=8, le=256 * GIB
    )
    dtype: Dtype = field("float32", "Type of the elements")
    fill: Literal["count", "ones", "random"] = field(
        "count", "What the tensor holds: 1, 2, 3 …; ones; or random numbers"
    )
    move: Literal["to", "to_dtype", "to_other", "cuda", "cuda_index", "pinned", "direct"] = field(
        "to",
        "How the tensor gets to the device",
        words={
            "to": ".to(device)",
            "to_dtype": ".to(device, float64)",
            "to_other": ".to(other_tensor)",
            "cuda": ".cuda()",
            "cuda_index": ".cuda(i)",
            "pinned": "pinned, non_blocking",
            "direct": "created on the device",
        },
    )
    back: Literal["cpu", "to_cpu"] = field(
        "cpu", "How the result comes back", words={"cpu": ".cpu()", "to_cpu": '.to("cpu")'}
    )
    operation: Literal["add", "multiply", "matmul", "relu"] = field(
        "add",
        "What is computed on the device",
        words={"add": "add scalar", "multiply": "multiply by scalar", "matmul": "x @ xᵀ", "relu": "relu"},
    )
    scalar: float = field(
        10.0, "Number to add or multiply by", when={"operation": ("add", "multiply")}, ge=-1e6, le=1e6
    )
    repeat: int = field(1, "How often the pipeline runs", ge=1, le=1_000_000)
    pitfall: Literal["none", "unassigned", "mixed_devices", "leaf", "numpy", "current_device"] = field(
        "none",
        "A common mistake, made for real, with torch's own words and the mend",
        words={
            "none": "none",
            "unassigned": "result of .to() not assigned",
            "mixed_devices": "devices mixed",
            "leaf": "a leaf that requires grad is moved",
            "numpy": ".numpy() on a device tensor",
            "current_device": ".cuda() lands on the current device",
        },
    )

    @model_validator(mode="after")
    def _scalar_fits_the_type(self) -> PipelineSpec:
        if self.dtype.startswith("int") and self.operation in ("add", "multiply") and not self.scalar.is_integer():
            raise ValueError(f"scalar: {self.scalar:g} is no whole number, and the elements are {self.dtype}")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, from `size` when it is given."""
        if self.size is None:
            return self.rows, self.columns
        side = max(1, math.isqrt(self.size // DTYPE_BYTES[self.dtype]))
        return side, side

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        rows, columns = self.shape
        return rows * columns * DTYPE_BYTES[self.dtype]

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        return _cuda_only(
            device,
            *(("move", value) for value in ("cuda", "cuda_index", "pinned")),
            *(("pitfall", value) for value in ("unassigned", "mixed_devices", "leaf", "numpy", "current_device")),
        )

    def problems(self, device: str) -> list[str]:
        found = super().problems(device)
        if device.startswith("cuda") and self.operation == "matmul" and self.dtype.startswith("int"):
            found.append(f"--operation matmul: CUDA multiplies no matrices of {self.dtype}; choose a floating type")
        return found

    def cautions(self, device: str) -> list[str]:
        rows, columns = self.shape
        seconds = self.bytes / COPY_BYTES_PER_SECOND
        if self.operation == "matmul" and device == "cpu":
            seconds = max(seconds, 2 * rows * rows * columns / CPU_FLOPS)
        return _long_operation(seconds, f"one operation on {format_bytes(self.bytes)}")


class TransferSpec(Spec):
    """Copy blocks between host and device and measure the rate."""

    name = "transfer"
    title = "Transfer bandwidth"
    summary = "Copies blocks between host and device, pageable and pinned, and compares the rate with the link."
    run = "gpudash.workloads.transfer:run"
    presets = {
        "Sweep": {},
        "Large blocks": {"blocks": "256MiB", "samples": 10},
        "Small blocks": {"blocks": "4KiB,64KiB,1MiB", "samples": 20},
    }

    blocks: str = field("1MiB,4MiB,16MiB,64MiB", "Block sizes, separated by commas")
    directions: Literal["all", "h2d", "d2h", "h2h"] = field(
        "all",
        "Which copies are measured",
        words={"all": "all", "h2d": "host → device", "d2h": "device → host", "h2h": "host → host"},
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
        """Bytes of each block, ascending.

        Raises:
            ValueError: when a part of `blocks` is no size.
        """
        try:
            return sorted({parse_size(part) for part in self.blocks.split(",")})
        except ValueError as error:
            raise ValueError(f"blocks: {error}") from None

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        return _cuda_only(
            device,
            ("directions", "h2d"),
            ("directions", "d2h"),
            ("memory", "pinned"),
            ("blocking", "overlapped"),
        )

    def cautions(self, device: str) -> list[str]:
        largest = self.block_sizes[-1]
        return _long_operation(largest / COPY_BYTES_PER_SECOND, f"a copy of {format_bytes(largest)}")


class MatmulSpec(Spec):
    """Multiply square matrices and report FLOP/s."""

    name = "matmul"
    title = "Matrix product"
    summary = "Multiplies square matrices and reports the achieved FLOP/s, median and spread."
    run = "gpudash.workloads.matmul:run"
    presets = {
        "Quick": {},
        "Large": {"size": 4096, "repeat": 50},
        "Half precision": {"size": 4096, "dtype": "bfloat16", "repeat": 100},
    }

    size: int = field(1024, "Rows and columns of each matrix", ge=1, le=65536)
    dtype: FloatDtype = field("float32", "Type of the elements")
    repeat: int = field(30, "Products measured, after a warm-up", ge=3, le=1_000_000)

    def panel_rows(self, device: str) -> int:
        """Rows multiplied in one operation: on the CPU as many as are expected to take no longer than a second."""
        if device != "cpu":
            return self.size
        return min(self.size, max(MIN_PANEL_ROWS, int(LONG_OPERATION_S * CPU_FLOPS / (2 * self.size**2))))

    def cautions(self, device: str) -> list[str]:
        if device != "cpu":
            return []
        seconds = 2 * self.size**2 * self.panel_rows(device) / CPU_FLOPS
        return _long_operation(seconds, f"part of a product of {self.size} × {self.size}")


class TrainingSpec(Spec):
    """Train a small model, or run it for inference."""

    name = "training"
    title = "Training"
    summary = "Trains a small model on real text or generated classes; plots loss and accuracy step by step."
    run = "gpudash.workloads.training:run"
    presets = {
        "Transformer": {},
        "MLP": {"model": "mlp", "width": 256, "depth": 3, "batch": 64, "steps": 600},
        "Inference": {"mode": "inference", "steps": 200},
    }

    model: Literal["transformer", "mlp"] = field(
        "transformer", "Transformer on text (next character) or MLP on generated classes", words={"mlp": "MLP"}
    )
    mode: Literal["train", "inference"] = field("train", "Train, or run eval() under no_grad")
    width: int = field(128, "Width of the hidden layers", ge=8, le=16384)
    depth: int = field(4, "Number of layers", ge=1, le=256)
    batch: int = field(16, "Sequences or samples per step", ge=1, le=65536)
    sequence: int = field(
        64, "Length of a sequence", unit="characters", when={"model": ("transformer",)}, ge=4, le=8192
    )
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = field(
        "adamw",
        "What updates the weights",
        words={"sgd": "SGD", "momentum": "SGD + momentum", "adam": "Adam", "adamw": "AdamW"},
        when={"mode": ("train",)},
    )
    learning_rate: float = field(0.003, "Step size of the optimizer", when={"mode": ("train",)}, ge=0, le=100)
    precision: Literal["fp32", "bf16"] = field("fp32", "fp32, or bfloat16 autocast", words={"bf16": "bf16 autocast"})
    batches: Literal["resident", "moved", "pingpong"] = field(
        "moved",
        "Where batches live: on the device from the start, moved each step, or there and back each step",
        words={"pingpong": "ping-pong"},
    )
    keep_intermediates: bool = field(
        False, "Keep each step's loss and outputs instead of deleting them", when={"mode": ("train",)}
    )
    move_at_epoch: int = field(
        0,
        "Start on the CPU and move model and optimizer state at this epoch; 0: never",
        when={"mode": ("train",)},
        ge=0,
        le=10_000,
    )
    steps: int = field(300, "Steps of the run", ge=1, le=10_000_000)
    epochs: int = field(
        3,
        "Passes over the training set, which holds steps ÷ epochs batches",
        when={"mode": ("train",)},
        ge=1,
        le=10_000,
    )
    deterministic: bool = field(False, "Ask torch for deterministic algorithms (slower on CUDA)")
    on_nan: Literal["stop", "continue"] = field(
        "stop", "What happens when the loss is NaN or infinite", when={"mode": ("train",)}
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> TrainingSpec:
        if self.epochs > self.steps and "epochs" in self.model_fields_set:
            raise ValueError(f"epochs: {self.epochs} epochs need at least as many steps, and there are {self.steps}")
        if self.move_at_epoch > self.passes:
            raise ValueError(f"move_at_epoch: epoch {self.move_at_epoch} never comes, there are {self.passes}")
        return self

    def problems(self, device: str) -> list[str]:
        found = super().problems(device)
        if self.move_at_epoch and not device.startswith("cuda"):
            found.append(f"--move-at-epoch {self.move_at_epoch}: {NEEDS_CUDA.format(device=device)}")
        return found

    @property
    def passes(self) -> int:
        """Epochs that take place: never more than there are steps."""
        return min(self.epochs, self.steps)

    @property
    def heads(self) -> int:
        """Attention heads of the transformer: about one per 32 of width, as many as divide it."""
        return next(heads for heads in range(max(1, self.width // 32), 0, -1) if self.width % heads == 0)

    @property
    def parameters(self) -> int:
        """Weights of the hidden layers, without embeddings: 12 w² a transformer block, w² an MLP layer."""
        return self.depth * self.width**2 * (12 if self.model == "transformer" else 1)

    def cautions(self, device: str) -> list[str]:
        if device != "cpu":
            return []
        items = self.batch * (self.sequence if self.model == "transformer" else 1)
        # Forward and backward cost about 6 FLOP per weight and item (Kaplan et al. 2020, arXiv:2001.08361, 2.1);
        # a step is cut into per-layer operations, of which the largest is about a third of a layer.
        return _long_operation(6 * self.parameters / self.depth * items / 3 / CPU_FLOPS, "one layer's operation")


class PressureSpec(Spec):
    """Fill memory by a pattern until a cap."""

    name = "pressure"
    title = "Memory pressure"
    summary = "Fills memory step by step up to a cap, so that the warnings and the guard can be seen."
    run = "gpudash.workloads.pressure:run"
    presets = {
        "Gentle": {},
        "Fast": {"step": 256 * MIB, "rate": 8.0},
        "1 GiB": {"cap": GIB},
    }

    pattern: Literal["ramp"] = field("ramp", "How memory grows", words={"ramp": "ramp: steady steps"})
    step: Bytes = field(64 * MIB, "Bytes of each allocation", unit="bytes", ge=1024, le=64 * GIB)
    rate: float = field(4.0, "Allocations a second", unit="/s", gt=0, le=1000)
    hold: float = field(2.0, "Time the full level is held", unit="s", ge=0, le=86400)
    cap: Bytes | None = field(
        None,
        "Bytes to reach; empty: the warning level and 5 % more, never above 80 % of what is free",
        unit="bytes",
        ge=1024,
        le=1024 * GIB,
    )


def _long_operation(seconds: float, what: str) -> list[str]:
    if seconds <= LONG_OPERATION_S:
        return []
    return [f"Stop waits for the current operation: {what} may take about {seconds:.0f} s."]


BUILT_IN: tuple[type[Spec], ...] = (TrainingSpec, PipelineSpec, TransferSpec, MatmulSpec, PressureSpec)
DEFAULT_WORKLOAD = TrainingSpec.name


def workloads() -> dict[str, type[Spec]]:
    """Name → spec class: the built-in ones, then those of installed entry points, in order of name.

    An entry point that cannot be imported, or holds no spec, is left out; `broken_entry_points` says why.
    """
    found = {spec.name: spec for spec in BUILT_IN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        spec = _entry_point_spec(point.value)
        if not isinstance(spec, str):
            found.setdefault(spec.name, spec)
    return found


def broken_entry_points() -> list[str]:
    """One sentence for each third-party workload that cannot be offered."""
    outcomes = {point.name: _entry_point_spec(point.value) for point in entry_points(group=ENTRY_POINTS)}
    return [f"Workload {name} is left out: {why}" for name, why in outcomes.items() if isinstance(why, str)]


def _entry_point_spec(module: str) -> type[Spec] | str:
    try:
        contents = vars(importlib.import_module(module))
    except Exception as error:  # a third party's module may raise anything; the program goes on without it
        return f"{module} does not import ({type(error).__name__}: {error})"
    for value in contents.values():
        if isinstance(value, type) and issubclass(value, Spec) and value is not Spec and value.__module__ == module:
            return value
    return f"{module} holds no subclass of gpudash.specs.Spec"


def build(spec: type[Spec], values: Mapping[str, Any], preset: str | None = None) -> Spec:
    """A validated spec from a preset and the values that differ from it.

    Raises:
        ValueError: one sentence naming the field, the wrong value and what is allowed.
    """
    base: Mapping[str, Any] = {}
    if preset is not None:
        if preset not in spec.presets:
            raise ValueError(f"{spec.name} has no preset {preset!r}; it has {', '.join(spec.presets)}")
        base = spec.presets[preset]
    try:
        return spec.model_validate({**base, **values})
    except ValidationError as error:
        raise ValueError("; ".join(invalid_fields(error).values())) from None


def invalid_fields(error: ValidationError) -> dict[str, str]:
    """Field → sentence for each thing pydantic found wrong; a field named "" concerns the whole spec."""
    found: dict[str, str] = {}
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ")
        if not name and ": " in message and message.split(": ")[0].isidentifier():
            name, message = message.split(": ", 1)
        elif name and problem["type"] == "extra_forbidden":
            message = "there is no such field"
        elif name and problem["type"] != "value_error":
            message = f"{problem['input']!r}: {message[0].lower()}{message[1:]}"
        found[name] = f"{flag(name)} {message}" if name else message
    return found

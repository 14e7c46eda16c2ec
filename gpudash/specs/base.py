"""The base of every workload's spec: fields with help and limits, refusals and cautions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import PydanticCustomError

from gpudash.specs.invalid import OWN_SENTENCE, describe, flag
from gpudash.units import read_size

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
Dtype = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32"]
FloatDtype = Literal["float64", "float32", "float16", "bfloat16"]

CPU_FLOPS = 20e9
"""Deliberately low estimate of one CPU core group's float32 FLOP/s; only decides whether to caution."""

COPY_BYTES_PER_SECOND = 1e9
"""Deliberately low estimate of a copy's rate; only decides whether to caution."""

LONG_OPERATION_S = 1.0
"""Stop takes effect between operations, so one longer than this earns a caution."""

Bytes = Annotated[int, BeforeValidator(read_size)]


Group = Literal["data", "optimizer", "memory", "several devices", "measuring", "reproducibility"]
"""Subject of a field that is not essential."""

GROUPS: tuple[Group, ...] = get_args(Group)

MOST_DEVICES = 32
"""Most devices of a run on one machine; larger runs are started by torchrun itself and watched."""

_DEVICE = re.compile(r"cpu|(cuda|sim):\d{1,3}")


def field(
    default: Any,
    help: str,
    *,
    more: Group | None = None,
    unit: str | None = None,
    when: Mapping[str, tuple[str, ...]] | None = None,
    labels: Mapping[str, str] | None = None,
    **limits: Any,
) -> Any:
    """A spec field.

    Args:
        default: its default value.
        help: one line for tooltip, ``--help`` and documentation.
        more: group of the field; without one it is essential, and shown first.
        unit: unit shown after the value; "bytes" marks a size, written and read as 512MiB.
        when: other field → values for which this one matters; otherwise the form disables it.
        labels: value → label of a choice in the form.
        limits: pydantic's ``ge``, ``le``, ``gt``, ``lt``.
    """
    extra: dict[str, Any] = {}
    if more:
        extra = {"more": more}
    if unit:
        extra["unit"] = unit
    if when:
        extra["when"] = {name: list(values) for name, values in when.items()}
    if labels:
        extra["labels"] = dict(labels)
    return Field(default, description=help, json_schema_extra=extra, **limits)


Presets = Mapping[str, Mapping[str, Any]]
"""Name → field values that differ from the defaults."""


class Spec(BaseModel):
    """Base of every workload's spec.

    Class attributes: `name` (command and recording), `title` and `summary` (form), `run` (text
    ``package.module:function``, imported by the worker only), `presets` (name → field values; at most three),
    `steps_field` (the field with the number of equal steps of a run; ``None`` if it has none), `undisturbed` (whether
    it measures so precisely that a window drawn in the same process would affect its figures: by default it then runs
    in a separate process), `alternatives` (an essential field → the field whose row of the form it takes when that one
    does not matter).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    run: ClassVar[str]
    presets: ClassVar[Presets] = {}
    undisturbed: ClassVar[bool] = False
    steps_field: ClassVar[str | None] = None
    alternatives: ClassVar[Mapping[str, str]] = {}

    seed: int = field(0, "Seed of every random number of the run", more="reproducibility", ge=0, le=2**31 - 1)
    threads: int = field(0, "CPU threads torch uses; 0 lets the workload choose", more="reproducibility", ge=0, le=1024)

    @field_validator("*", mode="wrap")
    @classmethod
    def _validate_field(cls, value: Any, accept: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return accept(value)
        except ValidationError as error:
            extra = cls.model_fields[str(info.field_name)].json_schema_extra
            unit = None
            if isinstance(extra, dict):
                unit = extra.get("unit")
            sentence = describe(error.errors()[0], value, str(unit) if unit is not None else None)
            raise PydanticCustomError(OWN_SENTENCE, "{sentence}", {"sentence": sentence}) from None

    @classmethod
    def tiers(cls) -> dict[Group | None, list[str]]:
        """Its fields by group: the essential ones under ``None``, then every group that has any."""
        own = [name for name in cls.model_fields if name not in Spec.model_fields]
        found: dict[Group | None, list[str]] = {}
        for group in (None, *GROUPS):
            for name in (*own, *Spec.model_fields):
                extra = cls.model_fields[name].json_schema_extra
                if (extra.get("more") if isinstance(extra, dict) else None) == group:
                    found.setdefault(group, []).append(name)
        return found

    @classmethod
    def refusals(cls, device: str) -> dict[tuple[str, str], str]:
        """(field, value) → why that choice cannot run on ``device`` ("cpu", "cuda:0", "sim:0")."""
        return {}

    def problems(self, device: str) -> list[str]:
        """Sentences saying why this spec cannot run on ``device``; empty if it can."""
        refused = self.refusals(device)
        found = [
            f"{flag(name)} {value}: {refused[name, value]}"
            for name in type(self).model_fields
            if (name, value := str(getattr(self, name))) in refused
        ]
        if self.device_names and device not in self.device_names:
            where = ",".join(self.device_names)
            found.append(f"--device {device}: the run takes place on {where}; leave --device out")
        return found

    def run_problems(self, device: str) -> list[str]:
        """`problems`, and reasons against running (but not predicting) this spec on ``device``, with alternatives."""
        return self.problems(device)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of its ranks, in order; empty for a run on one device."""
        return ()

    @property
    def rank_devices(self) -> tuple[str, ...]:
        """`device_names`, unless a single process without ranks uses them."""
        return self.device_names

    @property
    def own_device(self) -> str | None:
        """The device set by its own fields; ``None`` if any device will do."""
        names = self.device_names
        if names:
            return names[0]
        return None

    @property
    def predicted(self) -> Spec:
        """The run that has the same memory as this one, for the prediction."""
        return self

    @property
    def missing(self) -> str:
        """Why there is nothing to predict or run yet; "" if there is."""
        return ""

    def cautions(self, device: str) -> list[str]:
        """Sentences worth reading before the run, such as an operation that Stop cannot interrupt soon."""
        return []


NEEDS_CUDA = "needs a CUDA device, and {device} is not one"
NEEDS_GPU = "needs a CUDA device or a simulated GPU, and {device} is neither"

Choice = tuple[str, str]
"""Field and value."""


def cuda_only(device: str, *choices: Choice) -> dict[Choice, str]:
    """The refusals of choices that only run on a CUDA device."""
    if device.startswith("cuda"):
        return {}
    return dict.fromkeys(choices, NEEDS_CUDA.format(device=device))


def gpu_only(device: str, *choices: Choice) -> dict[Choice, str]:
    """The refusals of choices that run on a CUDA device or a simulated GPU."""
    if device.startswith(("cuda", "sim")):
        return {}
    return dict.fromkeys(choices, NEEDS_GPU.format(device=device))


class StopCaution(str):
    """A caution of use only during a run that has no process of its own to kill: how long stopping it may take."""


def long_operation(seconds: float, what: str) -> list[str]:
    """The caution for an operation expected to take ``seconds``; empty if it is short."""
    if seconds <= LONG_OPERATION_S:
        return []
    return [StopCaution(f"Stop takes effect after the current operation, up to {seconds:.0f} s ({what}).")]


def several_devices(text: str) -> tuple[str, ...]:
    """The devices in ``text``, in order; empty if it is empty.

    Raises:
        ValueError: one sentence, if they cannot be used in one data-parallel run.
    """
    if not text.strip():
        return ()
    names = tuple(part.strip() for part in text.split(","))
    wrong = next((name for name in names if not _DEVICE.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is not a device; write cuda:0,cuda:1 or cpu,cpu")
    if len(names) == 1:
        raise ValueError(f"{names[0]} is only one device; name two or more, or choose it with --device")
    if len(names) > MOST_DEVICES:
        raise ValueError(f"{len(names)} devices: at most {MOST_DEVICES} ranks are started on one machine")
    _require_one_kind(names)
    twice = next((name for name in names if name != "cpu" and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; each GPU holds one rank (only cpu may be repeated)")
    return names


Devices = Annotated[str, AfterValidator(lambda text: ",".join(several_devices(text)))]
"""A spec's field for several devices, without blanks; "" for one."""


def _require_one_kind(names: tuple[str, ...]) -> None:
    kinds = {name.partition(":")[0] for name in names}
    if {"cuda", "sim"} <= kinds:
        raise ValueError("simulated GPUs and real ones cannot train together; name only one kind")
    gpu = next((name for name in names if name != "cpu"), None)
    if gpu is not None and "cpu" in names:
        raise ValueError(
            f"cpu and {gpu} cannot train together, since one backend connects all ranks (Gloo on the CPU, NCCL on "
            "GPUs); name only GPUs, or only cpu"
        )

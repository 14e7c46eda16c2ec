"""Several devices as they are written: ``cuda:0,cuda:1``, one rank of a data-parallel run on each."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

MOST = 32
"""Devices of one run on one machine; larger ones are started by torchrun itself and watched."""

_DEVICE = re.compile(r"cpu|(cuda|sim):\d{1,3}")


def several(text: str) -> tuple[str, ...]:
    """The devices that ``text`` names, in their order; none when it is empty.

    Raises:
        ValueError: one sentence, when they cannot be the devices of one data-parallel run.
    """
    if not text.strip():
        return ()
    names = tuple(part.strip() for part in text.split(","))
    wrong = next((name for name in names if not _DEVICE.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is not a device; write cuda:0,cuda:1 or cpu,cpu")
    if len(names) == 1:
        raise ValueError(f"{names[0]} is only one device; name two or more, or choose it with --device")
    if len(names) > MOST:
        raise ValueError(f"{len(names)} devices: at most {MOST} ranks are started on one machine")
    _require_one_kind(names)
    twice = next((name for name in names if name != "cpu" and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; each GPU holds one rank (only cpu may be repeated)")
    return names


Devices = Annotated[str, AfterValidator(lambda text: ",".join(several(text)))]
"""A spec's field of several devices, without blanks; empty for one."""


def unconnected(names: tuple[str, ...]) -> str | None:
    """Why ranks on these devices can be predicted, but cannot work together; ``None`` when they can."""
    simulated = next((name for name in names if name.startswith("sim")), None)
    if simulated is None:
        return None
    return (
        f"{simulated} is simulated, and the backends that connect ranks (Gloo, NCCL) know no such device; name "
        "cpu,cpu to see ranks work together"
    )


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

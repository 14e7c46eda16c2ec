"""Meanings of the NVIDIA driver's health codes: XID errors, and reasons for lower clocks. Calls no driver."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Xid(NamedTuple):
    """Meaning of an XID error.

    Attributes:
        label: what happened.
        advice: what to do.
        level: severity; "program" if programs usually cause it, and the GPU is fine.
    """

    label: str
    advice: str
    level: Literal["program", "warning", "critical"]


_CHECK_PROGRAM = "look for the fault in the program, with compute-sanitizer"
_RESET = "reset the GPU, and have it checked if it happens again"
_RESTART = "restart the machine, and have the GPU, its power and its slot checked"

XIDS = {
    13: Xid("a kernel did something illegal, such as to read beyond an array", _CHECK_PROGRAM, "program"),
    31: Xid("a program used an address of the GPU's memory that it does not have", _CHECK_PROGRAM, "program"),
    43: Xid("a program was stopped because of a fault of its own", _CHECK_PROGRAM, "program"),
    45: Xid("a program that ended was cleared away", "look at the error before this one, if there is one", "program"),
    48: Xid("its memory has an error that ECC could not correct", _RESET, "critical"),
    61: Xid("its inner controller stopped at a breakpoint", _RESET, "warning"),
    62: Xid("its inner controller halted", _RESET, "critical"),
    63: Xid("a bad row of its memory is to be replaced", "reset the GPU when it is idle, which replaces it", "warning"),
    64: Xid("a bad row of its memory could not be replaced", _RESET, "critical"),
    74: Xid("an NVLink failed", "reset the GPU, and look at the GPU or switch at the link's other end too", "critical"),
    79: Xid("it has fallen off the bus", _RESTART, "critical"),
    94: Xid(
        "a memory error hit one program alone", "start that program again; reset the GPU when it is idle", "warning"
    ),
    95: Xid("a memory error may have hit every program on it", _RESET, "critical"),
    119: Xid("its system processor (GSP) does not answer the driver", _RESET, "critical"),
}
"""The most common ones, by NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html;
61 occurs on older GPUs, and is in the archived version)."""

_UNKNOWN = Xid(
    "see NVIDIA's catalogue of XID errors", "the kernel's log says more: sudo dmesg | grep -i xid", "warning"
)


def xid(number: int) -> Xid:
    """Meaning of an XID error, including uncommon ones."""
    return XIDS.get(number, _UNKNOWN)


HEAT = 0x20 | 0x40
HARDWARE = 0x8
POWER_CAP = 0x4
POWER_BRAKE = 0x80
"""Bits of ``nvmlClocksEventReasons`` (nvml.h). The others mean that a GPU is idle, or was set to lower clocks."""


def slowed_by(reasons: int) -> str:
    """Reasons for reduced clocks, by these bits: "power cap, heat"; "" if there are none that were not requested."""
    known = {POWER_CAP: "power cap", POWER_BRAKE: "power brake", HEAT: "heat"}
    found = [text for bits, text in known.items() if reasons & bits]
    if reasons & HARDWARE and not reasons & (POWER_BRAKE | HEAT):
        found.append("hardware")
    return ", ".join(found)


def marks(last_xid: float | None, reasons: float | None) -> list[str]:
    """Labels on the card of a GPU with problems: "XID 79", "slowed by heat"; empty for others."""
    found = []
    if last_xid:
        found = [f"XID {last_xid:.0f}"]
    slowed = slowed_by(int(reasons or 0))
    if slowed:
        return [*found, f"slowed by {slowed}"]
    return found

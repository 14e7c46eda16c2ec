"""The registers that a debugger may save and restore around a call in a program.

gdb before 14 assumes that AVX-512 registers are saved where Intel's processors save them (XSAVE), but AMD's use
another place: a program that was copying memory lost values about once in a hundred calls. gdb does not touch
registers that are not described to it.
"""

from __future__ import annotations

import platform
from pathlib import Path

_WHOLE = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15"
_POINTERS = {"rbp": "data_ptr", "rsp": "data_ptr"}
_SEGMENTS = "cs ss ds es fs gs"
_FLOAT = "fctrl fstat ftag fiseg fioff foseg fooff fop"


def described_registers() -> str | None:
    """A target description (gdb's manual, Standard Target Features, i386) without AVX-512; ``None`` except on
    x86-64."""
    if platform.machine() != "x86_64":
        return None
    core = [_register(name, 64, _POINTERS.get(name, "int64")) for name in _WHOLE.split()]
    core += [_register("rip", 64, "code_ptr"), _register("eflags", 32, "int32")]
    core += [_register(name, 32, "int32") for name in _SEGMENTS.split()]
    core += [_register(f"st{number}", 80, "i387_ext") for number in range(8)]
    core += [_register(name, 32, "int") for name in _FLOAT.split()]
    sse = [_register(f"xmm{number}", 128, "uint128") for number in range(16)]
    features = {
        "core": core,
        "sse": [*sse, _register("mxcsr", 32, "int32")],
        "linux": [_register("orig_rax", 64, "int")],
        "segments": [_register(name, 64, "int") for name in ("fs_base", "gs_base")],
    }
    if " avx " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"):
        features["avx"] = [_register(f"ymm{number}h", 128, "uint128") for number in range(16)]
    written = "".join(
        f'<feature name="org.gnu.gdb.i386.{name}">{"".join(registers)}</feature>'
        for name, registers in features.items()
    )
    return (
        '<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target><architecture>i386:x86-64</architecture>'
        f"<osabi>GNU/Linux</osabi>{written}</target>"
    )


def _register(name: str, bits: int, kind: str) -> str:
    return f'<reg name="{name}" bitsize="{bits}" type="{kind}"/>'

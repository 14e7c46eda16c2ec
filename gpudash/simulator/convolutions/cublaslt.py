"""A stub of cuBLASLt, generated in memory: cuDNN considers its engines only if one can be loaded.

Without a GPU the real library fails, and cuDNN then answers for 1×1 convolutions as if it did not exist: 4 to 21 MiB
where a card needs none. This stub has the functions that cuDNN looks up, by their names in NVIDIA's public header, and
each reports success. It is an ELF file for x86-64, assembled byte by byte, because there may be no compiler.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SOLVES = "x86_64"
"""The processor that the code below is for."""

VERSIONS = {12: 120_900, 13: 130_101}
"""``cublasLtGetVersion`` by the major version in a library's name."""

SUCCEEDING = (
    "Destroy",
    "Matmul",
    *(f"MatmulDesc{name}" for name in ("Destroy", "GetAttribute", "Init_internal", "SetAttribute")),
    *(f"MatmulPreference{name}" for name in ("Destroy", "Init_internal", "SetAttribute")),
    *(f"MatrixLayout{name}" for name in ("Destroy", "GetAttribute", "Init_internal", "SetAttribute")),
    "MatrixTransform",
    *(f"MatrixTransformDesc{name}" for name in ("Destroy", "GetAttribute", "Init_internal", "SetAttribute")),
)
"""Functions that return success; each name follows "cublasLt"."""

MAKING = ("Create", "MatmulDescCreate", "MatmulPreferenceCreate", "MatrixLayoutCreate", "MatrixTransformDescCreate")
"""Those that also return a handle."""

_PAGE = 4096
_RETURN_SUCCESS = bytes.fromhex("31c0 c3")
"""``xor eax, eax; ret``."""

_HEURISTIC = bytes.fromhex("488b7c2418 488b542420 31c0 b90c000000 f348ab c747ec0000803f c70201000000 c3")
"""``cublasLtMatmulAlgoGetHeuristic``: one algorithm, of no workspace and one wave.

Its ninth argument, on the stack at rsp + 24, points to the result: 96 bytes of zeros, with 1.0 twenty bytes before
their end (``cublasLtMatmulHeuristicResult_t.wavesCount``). Its tenth, at rsp + 32, points to the number of results.
"""


def load() -> None:
    """Load the stub in this process, under every name by which cuDNN looks it up.

    Raises:
        OSError: in one sentence, if that fails.
    """
    if platform.machine() != SOLVES:
        raise OSError(f"Without a GPU cuDNN can be asked on {SOLVES} only, and this is {platform.machine()}.")
    for major, version in VERSIONS.items():
        # It stays open: if its number were reused, the loader would take a second file for the first one.
        file = os.memfd_create("cublaslt", os.MFD_CLOEXEC)
        os.write(file, _library(f"libcublasLt.so.{major}", major, version))
        ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)


def _library(name: str, major: int, version: int) -> bytes:
    """The ELF file: a page with headers, names and code, then a writable page."""
    functions = dict.fromkeys(SUCCEEDING, _RETURN_SUCCESS)
    functions["GetVersion"] = b"\xb8" + struct.pack("<I", version) + b"\xc3"
    functions["GetProperty"] = _property(major)
    functions["MatmulAlgoGetHeuristic"] = _HEURISTIC
    names = [*functions, *MAKING]
    strings = b"\0" + b"".join(b"cublasLt" + one.encode() + b"\0" for one in names) + name.encode() + b"\0"
    headers = 64 + 3 * 56
    symbols_at = headers
    strings_at = symbols_at + 24 * (len(names) + 1)
    hash_at = _aligned(strings_at + len(strings), 8)
    code_at = _aligned(hash_at + 4 * (2 + 1 + len(names) + 1), 16)
    code = b""
    symbols = bytes(24)
    for one in names:
        at = code_at + len(code)
        body = functions.get(one) or _making(at)
        # st_name, st_info (global function), st_other, st_shndx (any but 0: defined), st_value, st_size
        symbols += struct.pack(
            "<IBBHQQ", strings.index(b"\0cublasLt" + one.encode() + b"\0") + 1, 0x12, 0, 1, at, len(body)
        )
        code += body.ljust(_aligned(len(body), 16), b"\xcc")
    # a single bucket, in which every symbol leads to the next
    chain = struct.pack("<3I", 1, len(names) + 1, 1) + struct.pack("<I", 0)
    chain += b"".join(struct.pack("<I", one % (len(names) + 1)) for one in range(2, len(names) + 2))
    first = (symbols + strings).ljust(hash_at - symbols_at, b"\0") + chain
    first = first.ljust(code_at - symbols_at, b"\0") + code
    # DT_SONAME, DT_HASH, DT_STRTAB, DT_STRSZ, DT_SYMTAB, DT_SYMENT; DT_NULL
    named = strings.index(name.encode() + b"\0")
    entries = ((14, named), (4, hash_at), (5, strings_at), (10, len(strings)), (6, symbols_at), (11, 24), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    read = headers + len(first)
    assert read <= _PAGE
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0
    )
    programs = _segment(1, 5, 0, read, read) + _segment(1, 6, _PAGE, len(dynamic), 2 * _PAGE)
    programs += _segment(2, 6, _PAGE, len(dynamic), len(dynamic))
    return (header + programs + first).ljust(_PAGE, b"\0") + dynamic


def _segment(kind: int, flags: int, at: int, in_file: int, in_memory: int) -> bytes:
    """A program header: loaded (1) or dynamic (2), with flags to read (4), write (2) and execute (1)."""
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, in_file, in_memory, _PAGE)


def _property(major: int) -> bytes:
    """``cublasLtGetProperty``: the major version for type 0, 1 for the minor one, otherwise 0."""
    first = bytes.fromhex("31c0 85ff 7507 c706") + struct.pack("<I", major) + b"\xc3"
    return first + bytes.fromhex("83ff01 0f94c0 8906 31c0 c3")


def _making(at: int) -> bytes:
    """A function at ``at`` that sets its first argument to unused space in the second page."""
    room = _PAGE + 1024
    return b"\x48\x8d\x05" + struct.pack("<i", room - (at + 7)) + bytes.fromhex("488907 31c0 c3")


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to

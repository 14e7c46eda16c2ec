"""Builds the stand-in for the CUDA libraries: all that a CUDA build of torch leaves undefined.

    python -m tests.cuda_standin.build SITE/torch/lib OUT

A function that the sources here define as ``standin_NAME`` is exported as NAME; any other that torch wants returns
success at once, or hands out a piece of memory when it is named after creating something. Every exported function goes
through the gate (gate.S), where faults strike. Needs gcc, nm and readelf; Linux on x86-64.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

from gpudash.simulator.convolutions.cublaslt import MAKING, SUCCEEDING

SOURCES = Path(__file__).parent / "src"

ASKING = (
    "libc10_cuda",
    "libtorch_cuda",
    "libtorch_cuda_linalg",
    "libtorch_python",
    "libtorch_cpu",
    "libcaffe2_nvrtc",
    "libtorch_nvshmem",
)
"""torch's libraries that call CUDA's."""

RUNTIME = ("memory.c", "streams.c", "kernels.c", "device.c", "cards.c", "board.c", "gate.c", "results.c")

OWN_SOURCES = {
    "cudart": RUNTIME,
    "nccl": ("nccl.c", "board.c"),
    "cudnn": ("cudnn.c", "real_cudnn.c", "cards.c"),
    **{name: (f"{name}.c",) for name in ("cublas", "cublasLt", "cufft", "cupti", "cusolver", "cusparse", "nvrtc")},
    "nvidia-ml": ("nvml.c", "cards.c", "board.c", "gate.c"),
}

SONAMES = {"cuda": "libcuda.so.1", "cusolver": "libcusolver.so.12", "nvidia-ml": "libnvidia-ml.so.1"}
"""Libraries that torch loads by name, without being linked to them."""

UNVERSIONED = {"nccl": "nccl", "nvshmem": "nvshmem_host", "cuFile": "cufile", "cusparseLt": "cusparseLt"}
"""Functions without a version, by how they begin, and their library."""

REFUSED = ("nvshmem_host", "cufile", "cusparseLt")
"""Libraries that the stand-in does not play; every call is refused."""

NO_STATUS = re.compile(
    r"__cuda(Register|Unregister|InitModule|Push|Pop)|nvshmem|cuda_standin_|cudnnGetVersion$|cudnnGetCudartVersion$|cublasLtGetVersion$"
    r"|cudnnGetLastErrorString$|(cuda|cudnn|cusparse|nccl|nvrtc)GetError(String|Name)$|ncclGetLastError$|nvmlErrorString$"
)
"""Functions that return something else than a status, so that none may be returned in their place."""

BY_NAME = """
standin_succeed:
    xor %eax, %eax
    ret
standin_refuse:
    mov $5, %eax
    ret
standin_create: # puts memory where the first argument points
    push %rdi
    mov $1, %edi
    mov $256, %esi
    call calloc@PLT
    pop %rdi
    mov %rax, (%rdi)
    xor %eax, %eax
    ret
"""
"""What the functions do that no source defines."""

OLDEST_CUDNN = 92000
"""Of whose version the workspaces are that the stand-in asks for: cudnnGetVersion of cuDNN 9.20.0."""

FLAGS = ("-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wno-unused", "-D_GNU_SOURCE")


def build(torch_libraries: Path, out: Path) -> Path:
    """The folder ``out``, in which the stand-in for this torch lies; made anew only when something has changed.

    Raises:
        RuntimeError: a tool failed; its output is in the message.
    """
    stamp = out / "built-from"
    now = _fingerprint(torch_libraries)
    if not stamp.exists() or stamp.read_text() != now:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        _build_all(torch_libraries, out)
        stamp.write_text(now)
    return out


def _fingerprint(torch_libraries: Path) -> str:
    """Of the sources, and of torch's libraries by size: a version of torch has its own."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for source in sorted(SOURCES.iterdir()):
        found.update(source.name.encode() + source.read_bytes())
    for name in ASKING:
        library = torch_libraries / f"{name}.so"
        found.update(f"{library} {library.stat().st_size if library.exists() else 0}\n".encode())
    return found.hexdigest()


def _cudnn_of(torch_libraries: Path) -> int:
    """The version that torch was built for, as ``cudnnGetVersion`` tells it: torch refuses an older one."""
    site = torch_libraries.parent.parent
    for torch in Distribution.discover(name="torch", path=[str(site)]):
        if found := re.search(r"nvidia-cudnn-\S+==(\d+)\.(\d+)\.(\d+)", "\n".join(torch.requires or ())):
            major, minor, patch = (int(number) for number in found.groups())
            return max(OLDEST_CUDNN, 10_000 * major + 100 * minor + patch)
    return OLDEST_CUDNN


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}\n{done.stderr}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return done.stdout


def wanted_of(torch_libraries: Path) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """What torch leaves undefined: library → function → version of the symbol; and library → its file's name."""
    functions: dict[str, dict[str, str]] = defaultdict(dict)
    files: set[str] = set()
    for name in ASKING:
        library = torch_libraries / f"{name}.so"
        if not library.exists():
            continue
        files |= set(re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "-d", library)))
        for line in _run("nm", "-D", "--undefined-only", library).splitlines():
            function, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if function.startswith("_Z"):
                continue
            if version.startswith("lib") and ".so" in version:
                functions[version[3:].partition(".so")[0]][function] = version
            for beginning, key in UNVERSIONED.items():
                if function.startswith(beginning):
                    functions[key][function] = version
    # NVIDIA's own cuDNN looks these up before it looks at engines.
    for name in (*SUCCEEDING, *MAKING):
        functions["cublasLt"].setdefault(f"cublasLt{name}", "")
    sonames = {file[3:].partition(".so")[0]: file for file in files if file.startswith(("libcu", "libnv", "libnccl"))}
    return functions, {**SONAMES, **sonames}


def _build_all(torch_libraries: Path, out: Path) -> None:
    functions, sonames = wanted_of(torch_libraries)
    runtime = _build_library("cudart", sonames["cudart"], functions["cudart"], out, ())
    defined = {"cudnn": (f"-DCUDNN_VERSION={_cudnn_of(torch_libraries)}",)}
    for library, soname in sorted(sonames.items()):
        if library != "cudart":
            needs = () if library == "nvidia-ml" else ("-Wl,--no-as-needed", runtime)
            _build_library(library, soname, functions[library], out, needs, defined.get(library, ()))
    _build_results(torch_libraries, out)


def _build_results(torch_libraries: Path, out: Path) -> None:
    """What computes results: against torch itself, whose functions it finds in the process that loads it."""
    headers = torch_libraries.parent / "include"
    target = out / "libcuda_standin_results.so"
    _run(
        *("g++", "-shared", "-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", f"-I{headers}"),
        *(SOURCES / "results.cpp", "-o", target, f"-L{torch_libraries}", "-ltorch_cpu", "-lc10"),
    )


def _build_library(
    library: str,
    soname: str,
    wanted: dict[str, str],
    out: Path,
    needs: Iterable[object],
    defined: Iterable[str] = (),
) -> Path:
    made = out / "objects" / library
    made.mkdir(parents=True)
    objects = []
    for source in OWN_SOURCES.get(library, ()):
        _run("gcc", *FLAGS, *defined, "-c", SOURCES / source, "-o", made / f"{source}.o")
        objects.append(made / f"{source}.o")
    own = set()
    for line in _run("nm", "--defined-only", *objects).splitlines() if objects else ():
        if line.split()[-1:] and line.split()[-1].startswith("standin_") and " T " in line:
            own.add(line.split()[-1].removeprefix("standin_"))
    own -= {"gate"}
    (made / "exports.S").write_text(_exports(library, sorted(own | set(wanted)), own))
    versions = sorted({version for version in wanted.values() if version})
    script: tuple[str, ...] = ()
    if versions:
        (made / "versions.map").write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
        script = (f"-Wl,--version-script={made / 'versions.map'}",)
    target = out / soname
    _run(
        *("gcc", "-shared", f"-Wl,-soname,{soname}", "-Wl,-Bsymbolic", *script, "-o", target),
        *(*objects, made / "exports.S", SOURCES / "gate.S", *needs, "-ldl", "-lpthread"),
    )
    return target


def _exports(library: str, functions: list[str], own: set[str]) -> str:
    """Assembly: each function puts its name in r10 and where it leads in r11, and enters the gate."""
    lines = ["    .text"]
    for number, function in enumerate(functions):
        target = f"standin_{function}" if function in own else _by_name(library, function)
        lines += [f"    .globl {function}", f"    .type {function}, @function", f"{function}:"]
        if NO_STATUS.match(function):
            lines.append(f"    jmp {target}")
        else:
            lines += [f"    lea .Lname{number}(%rip), %r10", f"    lea {target}(%rip), %r11", "    jmp standin_enter"]
    lines += [
        BY_NAME,
        "    .section .rodata",
        *(f'.Lname{number}: .string "{function}"' for number, function in enumerate(functions)),
        '    .section .note.GNU-stack, "", @progbits\n',
    ]
    return "\n".join(lines)


def _by_name(library: str, function: str) -> str:
    if library in REFUSED:
        return "standin_refuse"
    return "standin_create" if "create" in function.lower() else "standin_succeed"


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))

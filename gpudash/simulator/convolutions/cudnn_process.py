"""The process that queries cuDNN: ``python -I -S cudnn_process.py LIBRARY CAPABILITY [ANSWERS]``.

NVIDIA documents how to query cuDNN (9.8 and newer) for a card that is not present: "deviceless ahead-of-time
compilation", CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR. LIBRARY is the user's own libcudnn.so.9, CAPABILITY is such as 8.6,
ANSWERS is a folder in which answers are cached. The process reads one JSON object per line and answers each with one:

* first, without a question: ``{"version": 91900}``, or ``{"problem": sentence}`` and it ends;
* for ``{"part", "dtype", "x", "w", "y", "last", "padding", "stride", "dilation", "benchmark", "deterministic",
  "tf32"}``: ``{"workspace": bytes, "clusters": bool, "tried": bytes}``, or ``{"refused": message}``.

One process serves one card, because cuDNN keeps what it learned about its first: after a Turing card it answers for a
Hopper card without tensor cores. The process is limited to 512 MiB besides the files that it maps, 300 s of processor
time and no GPU, and ends when its standard input closes. It uses only the standard library and runs in the user's
Python.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 512 * 2**20
"""RLIMIT_DATA: its own memory without mapped files, of which the library has half a GiB."""

MOST_PROCESSOR_S = 300

OLDEST = 90_800
"""``cudnnGetVersion`` of the first version with the descriptor."""

MOST_ANSWERS_BYTES = 8 * 2**20
"""Size of a card's answer file from which no answers are added."""

MOST_WORKSPACE = 2**44

# cudnnBackendAttributeType_t
DATA_TYPE, BOOLEAN, INT64, FLOAT, DOUBLE = 1, 2, 3, 4, 5
CONVOLUTION_MODE, HEURISTIC_MODE, KNOB_TYPE, NUMERICAL_NOTE, DESCRIPTOR, CHAR = 7, 8, 9, 11, 15, 24

# cudnnBackendDescriptorType_t
CONVOLUTION, ENGINE, CONFIG, HEURISTICS, PLAN, KNOB_CHOICE, GRAPH, TENSOR, DEVICE = 1, 2, 3, 4, 5, 7, 15, 17, 38
DEVICE_JSON = 2702
"""``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``."""

OPERATIONS = {"forward": 10, "of_weight": 11, "of_input": 12}

OPERANDS = {"forward": (700, 703, 704, 705), "of_input": (706, 709, 710, 711), "of_weight": (712, 715, 716, 717)}
"""Attributes of an operation. The first is followed by those of the result's factor and the convolution's descriptor;
then come the weight, and what torch calls x and y (cudnnBackendAttributeName_t)."""

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}

INSTANT, FALLBACK = 0, 2
"""``cudnnBackendHeurMode_t``."""

TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC = 0, 1, 4
"""``cudnnBackendNumericalNote_t``."""

ERRATA = (("forward", 23, 90_800, 91_500), ("of_input", 23, 0, 92_300))
"""Engines that torch never takes for volumes, by what they compute and by cuDNN's versions, from the first up to before
the last.

They are the rules in torch 2.11 and 2.13, of cuDNN's frontend (``plan_errata_exception``, Conv_v8.cpp); on the stand-in
torch 2.13 keeps to them for volumes only. torch 2.15 has other ones, from 9.23 on, which are not followed here."""

CLUSTER_KNOBS = {27, 28}
"""``CUDNN_KNOB_TYPE_TILE_CGA_M`` and ``_N``: those of kernels with clusters of thread blocks."""

MOST_CONFIGS, MOST_KNOBS = 200, 32

ALIGNMENT = 32
"""Alignment of torch's blocks, as far as ``getAlignment`` of Conv_v8.cpp considers it."""

DESIGNS = {
    "7.5": (40, 1024, 16, 65_536, 1590, 5001),
    "8.0": (108, 2048, 32, 166_912, 1410, 1593),
    "8.6": (82, 1536, 16, 101_376, 1695, 9751),
    "8.7": (16, 1536, 16, 166_912, 1700, 5000),
    "8.9": (128, 1536, 24, 101_376, 2520, 10_501),
    "9.0": (132, 2048, 32, 232_448, 1980, 2619),
    "10.0": (148, 2048, 32, 232_448, 1965, 3996),
    "10.3": (148, 2048, 32, 232_448, 1965, 3996),
    "12.0": (170, 1536, 24, 101_376, 2407, 14_001),
    "12.1": (48, 1536, 24, 101_376, 1700, 5000),
}
"""Multiprocessors of a typical card; threads, blocks and bytes of shared memory of one (CUDA Programming Guide,
"Technical Specifications per Compute Capability"); clocks of multiprocessors and memory in MHz.

On 9.0 the memory clock changes one answer in a hundred, all of kernels with clusters of thread blocks;
multiprocessors, cache and memory size change none."""


CALLS = (
    "cudnnGetErrorString",
    "cudnnGetVersion",
    "cudnnGetLastErrorString",
    *(f"cudnnBackend{name}" for name in ("CreateDescriptor", "DestroyDescriptor", "Finalize")),
    *(f"cudnnBackend{name}" for name in ("GetAttribute", "SetAttribute")),
)
"""Functions that are called."""


class CudnnRefusedError(Exception):
    """cuDNN refused to answer; holds its own message."""


class CudnnLibrary:
    """The calls of cuDNN's backend that are needed.

    Args:
        path: of libcudnn.so.9.

    Raises:
        OSError, AttributeError: it is not such a library.
    """

    def __init__(self, path: str) -> None:
        self._calls = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        for name in CALLS:
            # A library that lacks one is told as such, before a question meets that.
            getattr(self._calls, name)
        self._calls.cudnnGetErrorString.restype = ctypes.c_char_p
        self._calls.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self._calls.cudnnGetVersion())

    def make(self, kind: int) -> Descriptor:
        """Create a descriptor."""
        handle = ctypes.c_void_p()
        self.check(self._calls.cudnnBackendCreateDescriptor(kind, ctypes.byref(handle)))
        return Descriptor(self, handle)

    def check(self, status: int) -> None:
        """Raise cuDNN's error message unless ``status`` is success."""
        if status:
            text = ctypes.create_string_buffer(1024)
            self._calls.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
            name = (self._calls.cudnnGetErrorString(status) or b"").decode(errors="replace")
            said = f"{name} {text.value.decode(errors='replace')}".strip()
            raise CudnnRefusedError(said or f"status {status}")

    def set(self, handle: ctypes.c_void_p, name: int, kind: int, values: Any) -> None:
        self.check(self._calls.cudnnBackendSetAttribute(handle, name, kind, ctypes.c_int64(len(values)), values))

    def finalize(self, handle: ctypes.c_void_p) -> None:
        self.check(self._calls.cudnnBackendFinalize(handle))

    def get(self, handle: ctypes.c_void_p, name: int, kind: int, most: int, values: Any) -> int:
        count = ctypes.c_int64()
        found = self._calls.cudnnBackendGetAttribute(
            handle, name, kind, ctypes.c_int64(most), ctypes.byref(count), values
        )
        self.check(found)
        return count.value

    def destroy(self, handle: ctypes.c_void_p) -> None:
        self._calls.cudnnBackendDestroyDescriptor(handle)


_MADE_OF: dict[int, Any] = {
    INT64: ctypes.c_int64,
    FLOAT: ctypes.c_float,
    DOUBLE: ctypes.c_double,
    BOOLEAN: ctypes.c_bool,
}


class Descriptor:
    """A descriptor of cuDNN, destroyed with this object."""

    def __init__(self, library: CudnnLibrary, handle: ctypes.c_void_p) -> None:
        self._library = library
        self.handle = handle

    def __del__(self) -> None:
        self._library.destroy(self.handle)

    def numbers(self, name: int, kind: int, *values: float) -> None:
        made = _MADE_OF.get(kind, ctypes.c_int)
        self._library.set(self.handle, name, kind, (made * len(values))(*values))

    def descriptor(self, name: int, other: Descriptor) -> None:
        self._library.set(self.handle, name, DESCRIPTOR, (ctypes.c_void_p * 1)(other.handle.value))

    def text(self, name: int, value: str) -> None:
        written = value.encode()
        self._library.set(self.handle, name, CHAR, ctypes.create_string_buffer(written, len(written)))

    def finalize(self) -> None:
        self._library.finalize(self.handle)

    def number(self, name: int, kind: int = INT64) -> int:
        value = (_MADE_OF.get(kind, ctypes.c_int) * 1)()
        self._library.get(self.handle, name, kind, 1, value)
        return int(value[0])

    def some(self, name: int, kind: int, most: int) -> list[int]:
        values = (ctypes.c_int * most)()
        count = self._library.get(self.handle, name, kind, most, values)
        return list(values[:count])

    def descriptors(self, name: int, kind: int, most: int) -> list[Descriptor]:
        """The descriptors of an attribute, read into new ones of ``kind``."""
        made = [self._library.make(kind) for _ in range(most)]
        handles = (ctypes.c_void_p * most)(*(one.handle.value for one in made))
        count = self._library.get(self.handle, name, DESCRIPTOR, most, handles)
        return made[:count]


class DevicelessCard:
    """A card that need not be present, and what cuDNN would do on it.

    Args:
        library: the library to query.
        properties: of the card, as from `properties_of`.

    Raises:
        CudnnRefusedError: cuDNN does not know such a card.
    """

    def __init__(self, library: CudnnLibrary, properties: Mapping[str, Any]) -> None:
        self._library = library
        self._device = library.make(DEVICE)
        self._device.text(DEVICE_JSON, json.dumps(properties))
        self._device.finalize()

    def workspace(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The workspace in bytes of the plan that torch would take first, and the one in which it tries all of them.

        The order is torch's (``run_single_conv``, aten/src/ATen/native/cudnn/Conv_v8.cpp): the plans of the
        heuristics, then the fallback plans; with ``benchmark`` it allocates for the largest of both and times each in
        it. Which of them wins is unknown without a card.

        Raises:
            CudnnRefusedError: there is no plan.
        """
        graph, parts = self._graph(question)
        found: list[dict[str, Any]] = []
        for config in self._configs(graph, question):
            plan = self._library.make(PLAN)
            # Plans that cuDNN cannot build are skipped, as in torch (``try_configs``).
            with suppress(CudnnRefusedError):
                plan.descriptor(401, config)
                plan.descriptor(407, self._device)
                plan.finalize()
                found.append({"workspace": plan.number(402), "clusters": _has_clusters(config)})
                if not question["benchmark"]:
                    break
        del parts
        if not found:
            raise CudnnRefusedError("no engine")
        tried = 0
        if question["benchmark"]:
            tried = max(int(one["workspace"]) for one in found)
        return {**found[0], "tried": tried}

    def _configs(self, graph: Descriptor, question: Mapping[str, Any]) -> Iterator[Descriptor]:
        for mode in (INSTANT, FALLBACK):
            heuristics = self._library.make(HEURISTICS)
            heuristics.descriptor(201, graph)
            heuristics.numbers(200, HEURISTIC_MODE, mode)
            heuristics.descriptor(204, self._device)
            heuristics.finalize()
            many = self._library.get(heuristics.handle, 202, DESCRIPTOR, 0, None)
            if not many:
                continue
            for config in heuristics.descriptors(202, CONFIG, min(many, MOST_CONFIGS)):
                if _is_taken(config, question, self._library.version):
                    yield config

    def _graph(self, question: Mapping[str, Any]) -> tuple[Descriptor, list[Descriptor]]:
        """The graph of one convolution, and its parts, which must outlive it."""
        part = question["part"]
        dtype = question["dtype"]
        tensors = {name: self._tensor(name, question) for name in "wxy"}
        convolution = self._library.make(CONVOLUTION)
        # float16 is accumulated in float32 (``getConvDescriptor``)
        convolution.numbers(100, DATA_TYPE, DATA_TYPES["float64" if dtype == "float64" else "float32"])
        convolution.numbers(101, CONVOLUTION_MODE, 1)
        convolution.numbers(106, INT64, len(question["stride"]))
        for attribute, key in ((105, "padding"), (104, "padding"), (102, "dilation"), (103, "stride")):
            convolution.numbers(attribute, INT64, *question[key])
        convolution.finalize()
        operation = self._library.make(OPERATIONS[part])
        first, *places = OPERANDS[part]
        scalar = FLOAT
        if dtype == "float64":
            scalar = DOUBLE
        operation.numbers(first, scalar, 1.0)
        operation.numbers(first + 1, scalar, 0.0)
        operation.descriptor(first + 2, convolution)
        for place, name in zip(places, "wxy", strict=True):
            operation.descriptor(place, tensors[name])
        operation.finalize()
        graph = self._library.make(GRAPH)
        graph.descriptor(801, operation)
        graph.finalize()
        return graph, [*tensors.values(), convolution, operation]

    def _tensor(self, name: str, question: Mapping[str, Any]) -> Descriptor:
        sizes = question[name]
        made = self._library.make(TENSOR)
        made.numbers(901, DATA_TYPE, DATA_TYPES[question["dtype"]])
        made.numbers(902, INT64, *sizes)
        made.numbers(903, INT64, *_strides(sizes, last=question["last"]))
        made.numbers(906, INT64, ord(name))
        made.numbers(900, INT64, ALIGNMENT)
        made.finalize()
        return made


def _is_taken(config: Descriptor, question: Mapping[str, Any], version: int) -> bool:
    """Whether torch tries a plan of this version of cuDNN (``filterEngineConfigs``, Conv_v8.cpp)."""
    engine = config.descriptors(300, ENGINE, 1)[0]
    number = engine.number(1301)
    is_of_volumes = len(question["x"]) == 5
    for part, wrong, first, end in ERRATA:
        if is_of_volumes and part == question["part"] and number == wrong and first <= version < end:
            return False
    notes = engine.some(1303, NUMERICAL_NOTE, 16)
    if DOWN_CONVERT in notes or (question["deterministic"] and NONDETERMINISTIC in notes):
        return False
    return question["dtype"] != "float32" or bool(question["tf32"]) or TENSOR_CORE not in notes


def _has_clusters(config: Descriptor) -> bool:
    choices = config.descriptors(302, KNOB_CHOICE, MOST_KNOBS)
    return any(choice.number(600, KNOB_TYPE) in CLUSTER_KNOBS for choice in choices)


def _strides(sizes: Sequence[int], *, last: bool) -> list[int]:
    """Strides of a tensor with channels first, or last."""
    order = list(range(len(sizes)))
    if last:
        order = [0, *order[2:], 1]
    strides = [0] * len(sizes)
    reached = 1
    for axis in reversed(order):
        strides[axis] = reached
        reached *= sizes[axis]
    return strides


def properties_of(capability: str) -> dict[str, Any]:
    """A card in the format of ``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``."""
    multiprocessors, threads, blocks, shared, clock, memory_clock = DESIGNS[capability]
    major, minor = map(int, capability.split("."))
    return {
        "deviceName": "GPU",
        "maxGridSize": [2_147_483_647, 65_535, 65_535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65_536,
        "multiProcessorCount": multiprocessors,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49_152,
        "maxSharedMemoryPerBlockOptin": shared,
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0,
        "maxRegistersPerSM": 65_536,
        "maxCtasPerSM": blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 24 * 2**30,
        "smClockRateKHz": 1000 * clock,
        "memClockRateKHz": 1000 * memory_clock,
        "l2CacheSize": 40 * 2**20,
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13_000,
    }


class AnswerFile:
    """Cached answers, one JSON object per line; foreign lines are ignored.

    Args:
        folder: created if missing; "" for no cache.
        name: of the file for one version of cuDNN and one compute capability.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._file = -1
        self._known: dict[str, dict[str, Any]] = {}
        if not folder:
            return
        with suppress(OSError):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.open(Path(folder, name), flags, 0o600)
            self._read()

    def _read(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self._file = -1
            return
        written = os.pread(self._file, MOST_ANSWERS_BYTES, 0)
        for line in written.splitlines():
            with suppress(ValueError, RecursionError, TypeError, KeyError):
                found = json.loads(line)
                workspace = found["workspace"]
                clusters = found["clusters"]
                tried = found["tried"]
                sizes = (workspace, tried)
                are_sizes = all(type(size) is int and 0 <= size < MOST_WORKSPACE for size in sizes)
                if are_sizes and type(clusters) is bool:
                    self._known[str(found["of"])] = {"workspace": workspace, "clusters": clusters, "tried": tried}
        if written and not written.endswith(b"\n"):
            # A truncated line must not corrupt the next one.
            os.write(self._file, b"\n")

    def get(self, key: str) -> dict[str, Any] | None:
        """The cached answer, if any."""
        return self._known.get(key)

    def keep(self, key: str, answer: Mapping[str, Any]) -> None:
        """Add an answer; a full disk only prevents caching it."""
        if self._file < 0:
            return
        with suppress(OSError):
            if os.fstat(self._file).st_size < MOST_ANSWERS_BYTES:
                os.write(self._file, json.dumps({"of": key, **answer}).encode() + b"\n")


def main(library: str, capability: str, folder: str = "") -> int:
    """Answer questions until the standard input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_S, MOST_PROCESSOR_S))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    try:
        cudnn = _library(library, capability)
    except (OSError, AttributeError, CudnnRefusedError) as error:
        _report(answers, {"problem": str(error)})
        return 1
    # answers of before the errata were known are in files without this ending
    known = AnswerFile(folder, f"{cudnn.version}-{capability}-errata.jsonl")
    _report(answers, {"version": cudnn.version})
    card = None
    for line in sys.stdin:
        question = json.loads(line)
        key = json.dumps(question, sort_keys=True)
        answer = known.get(key)
        if answer is None:
            try:
                card = card or DevicelessCard(cudnn, properties_of(capability))
                answer = card.workspace(question)
                known.keep(key, answer)
            except CudnnRefusedError as error:
                answer = {"refused": str(error)}
            except MemoryError:
                answer = {"refused": "CUDNN_STATUS_ALLOC_FAILED"}
        _report(answers, answer)
    return 0


def _library(path: str, capability: str) -> CudnnLibrary:
    """Load the user's cuDNN.

    Raises:
        OSError, AttributeError: it cannot be loaded.
        CudnnRefusedError: in one sentence, if it cannot be queried.
    """
    if capability not in DESIGNS:
        raise CudnnRefusedError(f"What a card of capability {capability} looks like to cuDNN is not known.")
    found = CudnnLibrary(path)
    if found.version < OLDEST:
        name = f"{found.version // 10_000}.{found.version // 100 % 100}"
        raise CudnnRefusedError(f"cuDNN {name} tells nothing of cards that are not there; 9.8 and newer do.")
    # The folder of this file, which isolated Python does not search by itself.
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("cublaslt").load()
    return found


def _report(answers: Any, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The processes that query cuDNN, one for each compute capability, and their answers."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

ASK_VARIABLE = "GPUDASH_ASK_CUDNN"
"""Set to 1 if the user allows querying cuDNN without an NVIDIA driver."""

LIBRARY_VARIABLE = "GPUDASH_CUDNN"
"""The path of a libcudnn.so.9 to use in place of this Python's."""

PART_MISSING = "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"
"""Part of an error that all further queries would get too."""

OUT_OF_MEMORY = ("ALLOC_FAILED", "ALLOCATION_FAILED")
"""The same, once cuDNN has what its process may take."""

MOST_WORKSPACE = 2**44
"""Bytes beyond which an answer is none."""

ANSWERS_VARIABLE = "GPUDASH_CUDNN_ANSWERS"
"""The folder in which answers are cached."""

DRIVER = Path("/proc/driver/nvidia/version")

NAME = "libcudnn.so.9"

READY_S = 30.0
"""Longest wait in seconds until the library is loaded."""

ANSWER_S = 30.0
"""Longest wait in seconds for an answer: the first loads half a GiB of kernel tables, others take milliseconds."""

ENDING_S = 0.5
"""Longest wait in seconds for the process to end by itself."""

_PROCESS = Path(__file__).with_name("cudnn_process.py")

_CHUNK = 65_536


@dataclass(frozen=True)
class CudnnAnswer:
    """What cuDNN allocates for a convolution.

    Attributes:
        workspace: in bytes.
        clusters: whether its kernel uses clusters of thread blocks, and may allocate more because it queries the card.
        tried: bytes in which all plans are timed once with ``torch.backends.cudnn.benchmark``; 0 without it.
    """

    workspace: int
    clusters: bool
    tried: int = 0


class CudnnClient:
    """Queries cuDNN about cards of one compute capability, and caches the answers.

    Args:
        capability: (major, minor).

    Attributes:
        version: of the library, such as "9.20"; "" until known.
        problem: why it cannot be queried, a sentence without a full stop; "" if it can.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self.version = ""
        self.problem = ""
        self._capability = ".".join(map(str, capability))
        self._known: dict[str, CudnnAnswer | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._begun = b""

    def ask(self, question: Mapping[str, Any]) -> CudnnAnswer | None:
        """What a convolution allocates; ``None`` if cuDNN does not answer or cannot be queried."""
        key = json.dumps(question)
        if key not in self._known:
            self._known[key] = self._request(key)
        return self._known[key]

    def close(self) -> None:
        """End the process if there is one; the next query starts another."""
        if self._process is not None and self._owner == os.getpid():
            self._stopped()
        self._process = None
        self._owner = 0

    def _request(self, question: str) -> CudnnAnswer | None:
        # A forked child must not write to the pipe of the process its parent started.
        if self._owner != os.getpid() and not self.problem:
            self._start()
        found = self._exchange(question.encode() + b"\n", ANSWER_S)
        workspace = found.get("workspace")
        clusters = found.get("clusters")
        tried = found.get("tried")
        if type(workspace) is int and type(clusters) is bool and type(tried) is int:
            if min(workspace, tried) >= 0 and max(workspace, tried) < MOST_WORKSPACE:
                return CudnnAnswer(workspace, clusters, tried)
            self._end(f"cuDNN {self.version} answered with a size that no workspace has")
            return None
        refused = str(found.get("refused", ""))
        if PART_MISSING in refused:
            self._end(f"cuDNN {self.version} cannot load a part of itself, as 9.28 cannot without an NVIDIA driver")
        elif any(status in refused for status in OUT_OF_MEMORY):
            self._end(f"cuDNN {self.version} needs more memory than the 512 MiB that it may take to answer")
        elif refused:
            logger.info("cuDNN does not answer %s: %s", question, refused)
        return None

    def _start(self) -> None:
        library = cudnn_path()
        if library is None:
            self.problem = f"this Python has no cuDNN ({NAME}), which PyTorch's CUDA build brings"
            return
        folder = os.environ.get(ANSWERS_VARIABLE, "")
        command = [sys.executable, "-I", "-S", str(_PROCESS), str(library), self._capability, folder]
        pipe = subprocess.PIPE
        try:
            # It sees no GPU, so none is woken and answers are the same everywhere.
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, env={"CUDA_VISIBLE_DEVICES": ""}
            )
        except OSError as error:
            self.problem = f"the process that asks cuDNN cannot be started ({error.strerror})"
            return
        self._owner = os.getpid()
        found = self._exchange(b"", READY_S)
        version = found.get("version")
        if type(version) is int:
            self.version = f"{version // 10_000}.{version // 100 % 100}"
        elif not self.problem:
            self._end(str(found.get("problem", "it says nothing of its version")).rstrip("."))

    def _exchange(self, question: bytes, limit_s: float) -> dict[str, Any]:
        """Write a question and read the next line; an empty object if none arrives."""
        if self.problem or self._process is None:
            return {}
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(question)
            line = self._line(self._process.stdout.fileno(), time.monotonic() + limit_s)
            found = json.loads(line)
        except TimeoutError:
            self._end(f"cuDNN did not answer within {limit_s:.0f} s")
            return {}
        except (OSError, ValueError):
            code = self._stopped()
            self._end(f"cuDNN's process ended while it was asked ({_ending(code)})")
            return {}
        if isinstance(found, dict):
            return found
        return {}

    def _line(self, output: int, until: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._begun:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(output, _CHUNK)
                if not chunk:
                    raise ValueError("it has ended")
                self._begun += chunk
        line, _, self._begun = self._begun.partition(b"\n")
        return line

    def _end(self, problem: str) -> None:
        self.problem = problem
        logger.warning("%s", problem)
        self._stopped()

    def _stopped(self) -> int:
        """The exit code of the process, which is killed if it has not ended."""
        process = self._process
        if process is None:
            return 0
        # Closing its standard input ends it unless it hangs.
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(ENDING_S)
        process.kill()
        return process.wait()


def may_ask() -> bool:
    """Whether cuDNN may be queried: NVIDIA licenses it for systems with its GPUs; on others the user must allow it."""
    return os.environ.get(ASK_VARIABLE) == "1" or DRIVER.exists()


def cudnn_path() -> Path | None:
    """The cuDNN of this Python's torch: NVIDIA's wheel, or beside torch's own libraries, or conda's."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    folders = [Path(sys.prefix) / "lib"]
    for package, inside in (("torch", "lib"), ("nvidia.cudnn", "lib")):
        with suppress(ImportError, ValueError):
            found = importlib.util.find_spec(package)
            if found is not None and found.submodule_search_locations:
                folders = [*(Path(one) / inside for one in found.submodule_search_locations), *folders]
    return next((folder / NAME for folder in folders if (folder / NAME).exists()), None)


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"

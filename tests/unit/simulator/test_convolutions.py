"""Convolutions asked of cuDNN: the process that asks, what limits it, and what is said where it cannot be asked."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import gpudash.simulator.convolutions
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.convolutions import cublaslt, cudnn_client, cudnn_process, workspaces
from gpudash.simulator.convolutions.cudnn_client import ASK_VARIABLE, LIBRARY_VARIABLE, CudnnAnswer, CudnnClient
from gpudash.simulator.convolutions.workspaces import BEYOND_OPERANDS, Scratch
from gpudash.simulator.operations.scripts import EMPTY_CACHE, after_blocks
from tests.gpu.cudnn import questions

PROCESS = Path(gpudash.simulator.convolutions.__file__).with_name("cudnn_process.py")

pytestmark = pytest.mark.process


def library() -> str:
    """The cuDNN that there is; "" for none."""
    named = os.environ.get(LIBRARY_VARIABLE, "")
    if named:
        return named
    for package in ("nvidia", "nvidia.cudnn"):
        if importlib.util.find_spec(package) is None:
            return ""
    found = importlib.util.find_spec("nvidia.cudnn")
    assert found is not None and found.submodule_search_locations
    file = Path(found.submodule_search_locations[0]) / "lib" / "libcudnn.so.9"
    return str(file) if file.exists() else ""


needs_cudnn = pytest.mark.skipif(not library(), reason=f"needs NVIDIA's cuDNN, in this Python or as {LIBRARY_VARIABLE}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuDNN may be asked."""
    monkeypatch.setenv(ASK_VARIABLE, "1")
    if library():
        monkeypatch.setenv(LIBRARY_VARIABLE, library())
    yield
    workspaces.scratch.close()
    workspaces.scratch.begin()


def blocks(size: int) -> int:
    return -(-size // 512)


@needs_cudnn
def test_cudnn_says_without_a_gpu_what_an_h100_took(asked: None) -> None:
    same = 0
    missed = []
    for case in questions.recorded():
        bytes_, part = case["taken"], case["part"]
        workspaces.scratch.begin()
        script = workspaces.workspace(
            questions.arguments(case), part, torch.contiguous_format, Architecture((9, 0), 132)
        )
        assert 0 not in script  # there the results would be made once more
        said = sum(script)
        if blocks(said) == blocks(bytes_):
            same += 1
            continue
        # Less than the card took, by no more than is said to be unknown: they are "at least".
        missed.append(part)
        assert said < bytes_ <= said + workspaces.scratch.found().unknown_bytes
    assert same >= 29
    assert missed.count("of_weight") >= len(missed) - 1
    assert workspaces.scratch.found().cudnn.startswith("9.")


@needs_cudnn
def test_the_settings_of_torch_reach_cudnn(asked: None) -> None:
    card = CudnnClient((8, 0))
    question = {
        "part": "forward",
        "dtype": "float32",
        "x": [32, 64, 56, 56],
        "w": [64, 64, 3, 3],
        "y": [32, 64, 56, 56],
    }
    question |= {"last": False, "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
    usual = {"benchmark": False, "deterministic": False, "tf32": True}
    sizes, tried = {}, {}
    for name, changed in (
        ("", {}),
        ("benchmark", {"benchmark": True}),
        ("plain", {"tf32": False}),
        ("halves", {"dtype": "float16"}),
        ("last", {"dtype": "float16", "last": True}),
    ):
        answer = card.ask({**question, **usual, **changed})
        assert answer is not None
        sizes[name] = answer.workspace
        tried[name] = answer.tried
    assert tried["benchmark"] > max(sizes[""], sizes["plain"]) and sizes["benchmark"] == sizes[""]
    assert sizes["last"] < sizes["halves"]
    card.close()


@needs_cudnn
def test_an_engine_that_torch_never_takes_for_volumes_is_passed_over_for_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudnn = cudnn_process.CudnnLibrary(library())
    cublaslt.load()
    card = cudnn_process.DevicelessCard(cudnn, cudnn_process.properties_of("12.0"))
    question = {"part": "of_input", "dtype": "bfloat16", "x": [2, 128, 8, 16, 16], "y": [2, 128, 8, 16, 16]}
    question |= {"w": [128, 128, 1, 3, 3], "last": True, "padding": [0, 1, 1], "stride": [1] * 3, "dilation": [1] * 3}
    question |= {"benchmark": False, "deterministic": False, "tf32": True}
    taken = card.workspace(question)["workspace"]
    assert any(part == "of_input" and first <= cudnn.version < end for part, _, first, end in cudnn_process.ERRATA)
    images = {"x": [2, 256, 7, 7], "y": [2, 512, 4, 4], "w": [512, 256, 3, 3]}
    images |= {"padding": [1] * 2, "stride": [2] * 2, "dilation": [1] * 2}
    # torch was seen to request it on the stand-in, with cuDNN 9.20
    assert card.workspace({**question, **images})["workspace"] > 0
    monkeypatch.setattr(cudnn_process, "ERRATA", ())
    assert card.workspace(question)["workspace"] > taken == 0


@needs_cudnn
def test_answers_are_kept_and_a_damaged_file_is_asked_anew(asked: None, tmp_path: Path) -> None:
    question = {"part": "forward", "dtype": "float16", "x": [8, 64, 28, 28], "w": [64, 64, 3, 3], "y": [8, 64, 28, 28]}
    question |= {"last": False, "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
    question |= {"benchmark": False, "deterministic": False, "tf32": True}

    def answer() -> dict[str, Any]:
        command = [sys.executable, "-I", "-S", str(PROCESS), library(), "8.6", str(tmp_path / "answers")]
        done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout.splitlines()[1]))

    first = answer()
    (file,) = (tmp_path / "answers").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    kept = file.read_text()
    file.write_text(kept.replace(str(first["workspace"]), str(first["workspace"] + 512)))
    assert answer()["workspace"] == first["workspace"] + 512  # it was not asked
    for damaged in ("\0" * 100, kept[:40], kept.replace(str(first["workspace"]), "-1"), "[" * 100_000, '{"of": 1}\n'):
        file.write_text(damaged)
        assert answer() == first
        assert json.loads(file.read_text().splitlines()[-1])["workspace"] == first["workspace"]


def test_a_card_that_cudnn_cannot_be_asked_about_is_told_in_a_sentence(
    asked: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    question = {"part": "forward"}
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "libcudnn.so.9"))
    for capability, words in (((8, 0), "cannot open shared object file"), ((3, 5), "capability 3.5")):
        card = CudnnClient(capability)
        assert card.ask(question) is None
        assert words in card.problem and not card.problem.endswith(".") and not card.version
    monkeypatch.setenv(LIBRARY_VARIABLE, ctypes.util.find_library("m") or "libm.so.6")
    card = CudnnClient((8, 0))
    assert card.ask(question) is None
    assert "cudnnGetErrorString" in card.problem


def test_a_library_that_crashes_or_is_too_old_ends_its_process_alone(
    asked: None, monkeypatch: pytest.MonkeyPatch, compiled: Any
) -> None:
    for body, words in (("*(volatile int *)0 = 1;", "signal 11"), ("return 90100;", "cuDNN 9.1 tells nothing")):
        monkeypatch.setenv(LIBRARY_VARIABLE, str(compiled(body)))
        card = CudnnClient((8, 0))
        assert card.ask({"part": "forward"}) is None
        assert words in card.problem


HANGS = "for (;;) pause();"
"""Body of a function of C that never returns, and takes no time."""


@pytest.mark.parametrize(
    ("version", "asked_for", "words"),
    [
        pytest.param(HANGS, "", "cuDNN did not answer within 1 s", id="hangs-when-loaded"),
        pytest.param("", HANGS, "cuDNN did not answer within 1 s", id="hangs-when-asked"),
        pytest.param("", "abort();", "ended while it was asked (signal 6)", id="crashes"),
        pytest.param("", "_exit(3);", "ended while it was asked (exit code 3)", id="exits"),
        pytest.param(
            "",
            "while (malloc(1 << 20)); return 4;",
            "cuDNN 9.20 needs more memory than the 512 MiB",
            id="is-out-of-memory",
        ),
        pytest.param(
            "", "for (;;) *(volatile char *)malloc(1 << 20) = 1;", "while it was asked (signal 11)", id="eats-memory"
        ),
        pytest.param("", "*made = made; return 0;", "with a size that no workspace has", id="answers-nonsense"),
    ],
)
def test_whatever_a_library_does_is_one_sentence_and_leaves_the_unknown_bytes(
    asked: None, monkeypatch: pytest.MonkeyPatch, compiled: Any, version: str, asked_for: str, words: str
) -> None:
    monkeypatch.setattr(cudnn_client, "READY_S" if version else "ANSWER_S", 1.0)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(compiled(f"{version} return 92000;", asked_for)))
    workspaces.scratch.begin()
    values, weight = torch.empty(2, 64, 28, 28, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    given = {"input": values, "weight": weight, "stride": [1], "padding": [1], "dilation": [1], "transposed": False}
    given |= {"output_padding": [0], "groups": 1}
    for _ in range(2):
        assert workspaces.workspace(given, "forward", torch.contiguous_format, Architecture((8, 0), 100)) == ()
    found = workspaces.scratch.found()
    assert words in found.problem and "\n" not in found.problem and not found.problem.endswith(".")
    assert found.unknown_bytes == 2 * 4 * (2 * values.numel() + weight.numel()) + BEYOND_OPERANDS
    assert not [one for one in psutil.Process().children() if str(PROCESS) in one.cmdline()]


def test_a_library_without_what_is_called_is_told_before_it_is_asked(
    asked: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tmp_path / "libcudnn.so.9"
    source = "long cudnnGetVersion(void) { return 92000; }\nconst char *cudnnGetErrorString(int status) { return 0; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", made, "-"], input=source, text=True, check=True)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(made))
    card = CudnnClient((8, 0))
    assert card.ask({"part": "forward"}) is None
    assert "undefined symbol: cudnnGetLastErrorString" in card.problem


def test_the_process_that_asks_has_half_a_gibibyte_and_five_minutes_of_a_processor(compiled: Any) -> None:
    counts = {
        "memory": "long many = 0; while (many < 4096 && malloc(1 << 20)) many++; return 90800 + many;",
        "time": "long limits[2]; getrlimit(0, limits); return 90800 + limits[0];",
    }
    found = {}
    for name, body in counts.items():
        command = [sys.executable, "-I", "-S", str(PROCESS), str(compiled(body)), "8.6"]
        done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout)["version"] - 90800
    assert 384 < found["memory"] <= 512
    assert found["time"] == 300


def test_a_library_that_cannot_load_a_part_of_itself_is_told_in_a_sentence_and_not_asked_on(
    asked: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = """
    long cudnnGetVersion(void) { return 92801; }
    const char *cudnnGetErrorString(int status) { return "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"; }
    void cudnnGetLastErrorString(char *text, long size) { *text = 0; }
    int cudnnBackendCreateDescriptor(int kind, void **made) { return 1; }
    int cudnnBackendDestroyDescriptor(void *one) { return 0; }
    int cudnnBackendFinalize(void *one) { return 0; }
    int cudnnBackendSetAttribute(void) { return 0; }
    int cudnnBackendGetAttribute(void) { return 0; }
    """
    made = tmp_path / "libcudnn.so.9"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", made, "-"], input=source, text=True, check=True)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(made))
    card = CudnnClient((8, 0))
    sizes = {"x": [1, 1, 4, 4], "w": [1, 1, 3, 3], "y": [1, 1, 4, 4], "last": False}
    settings = {"benchmark": False, "deterministic": False, "tf32": True}
    steps = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
    assert card.ask({"part": "forward", "dtype": "float32", **sizes, **steps, **settings}) is None
    assert card.problem.startswith("cuDNN 9.28 cannot load a part of itself") and not card.problem.endswith(".")


@pytest.fixture
def compiled(tmp_path: Path) -> Any:
    """Makes a library of a body of C for ``cudnnGetVersion``, and of one for what is called first by a question.

    Where that returns, all else succeeds, and the workspace has -512 bytes.
    """

    def make(body: str, asked_for: str = "return 1;") -> Path:
        made = tmp_path / f"lib{len(list(tmp_path.iterdir()))}.so"
        source = f"""
        #include <stdlib.h>
        #include <sys/resource.h>
        #include <unistd.h>
        const char *cudnnGetErrorString(int status) {{ return status == 4 ? "CUDNN_STATUS_ALLOC_FAILED" : 0; }}
        long cudnnGetVersion(void) {{ {body} }}
        void cudnnGetLastErrorString(char *text, long size) {{ *text = 0; }}
        int cudnnBackendCreateDescriptor(int kind, void **made) {{ {asked_for} }}
        int cudnnBackendDestroyDescriptor(void *one) {{ return 0; }}
        int cudnnBackendFinalize(void *one) {{ return 0; }}
        int cudnnBackendSetAttribute(void *one, int name, int kind, long count, void *values) {{ return 0; }}
        int cudnnBackendGetAttribute(void *one, int name, int kind, long most, long *count, void *values) {{
            *count = 1;
            if (name == 402) *(long *)values = -512;
            return 0;
        }}
        """
        command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-o", str(made), "-"]
        subprocess.run(command, input=source, text=True, check=True)
        return made

    return make


def test_nothing_is_asked_unless_a_driver_is_there_or_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASK_VARIABLE, raising=False)
    monkeypatch.setattr(gpudash.simulator.convolutions.cudnn_client, "DRIVER", Path("/proc/driver/nothing"))
    assert Scratch().ask({"part": "forward"}, (8, 0)) is None


def test_what_is_not_known_of_convolutions_is_said_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASK_VARIABLE, raising=False)
    monkeypatch.setattr(gpudash.simulator.convolutions.cudnn_client, "DRIVER", Path("/proc/driver/nothing"))
    values, weight = torch.empty(2, 64, 28, 28, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    given = {"input": values, "weight": weight, "stride": [1], "padding": [1], "dilation": [1], "transposed": False}
    given |= {"output_padding": [0], "groups": 1}
    operands = 4 * (2 * values.numel() + weight.numel())
    # In float32 cuDNN takes far more on cards that are neither of 8.x nor of 9.x.
    for capability, times in (((7, 5), 5), ((8, 0), 2), ((9, 0), 2), ((12, 0), 5)):
        workspaces.scratch.begin()
        taken = workspaces.workspace(given, "forward", torch.contiguous_format, Architecture(capability, 100))
        assert bool(taken) is (capability == (9, 0))
        found = workspaces.scratch.found()
        unknown = times * operands + BEYOND_OPERANDS - sum(taken)
        assert (found.cudnn, found.unknown_bytes, found.problem) == ("", unknown, "")


def test_a_kernel_with_clusters_may_take_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASK_VARIABLE, "1")
    found = Scratch()
    card = CudnnClient((9, 0))
    card.version = "9.20"
    card._known[json.dumps({"part": "of_weight", "benchmark": False})] = CudnnAnswer(1000, clusters=True)
    found._cards[(9, 0)] = card
    assert found.ask({"part": "of_weight", "benchmark": False}, (9, 0)) == (1000,)
    assert (found.found().cudnn, found.found().unknown_bytes) == ("9.20", 170)


def test_plans_are_timed_once_in_the_largest_workspace_and_the_cache_is_emptied_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ASK_VARIABLE, "1")
    found = Scratch()
    card = CudnnClient((8, 0))
    question = {"part": "forward", "benchmark": True}
    card._known[json.dumps(question)] = CudnnAnswer(1000, clusters=False, tried=5000)
    found._cards[(8, 0)] = card
    assert found.ask(question, (8, 0)) == (5000, -1, EMPTY_CACHE, 1000)
    assert found.ask(question, (8, 0)) == (1000,)
    assert found.found().unknown_bytes == 4000, "another plan may win"
    found.begin()
    assert found.ask(question, (8, 0)) == (5000, -1, EMPTY_CACHE, 1000), "another run has a table of its own"
    assert after_blocks(2, (5000, -1, EMPTY_CACHE, 1000)) == (5000, -3, EMPTY_CACHE, 1000)


@pytest.mark.skipif(os.uname().machine != cublaslt.SOLVES, reason=f"made for {cublaslt.SOLVES}")
def test_the_cublaslt_that_is_made_in_memory_says_that_all_is_well() -> None:
    code = """
import ctypes, cublaslt
cublaslt.load()
for major, version in cublaslt.VERSIONS.items():
    made = ctypes.CDLL(f"libcublasLt.so.{major}")
    made.cublasLtGetVersion.restype = ctypes.c_size_t
    assert made.cublasLtGetVersion() == version
    value = ctypes.c_int(7)
    assert made.cublasLtGetProperty(0, ctypes.byref(value)) == 0 and value.value == major
    assert made.cublasLtGetProperty(2, ctypes.byref(value)) == 0 and value.value == 0
    handle = ctypes.c_void_p()
    assert made.cublasLtMatmulDescCreate(ctypes.byref(handle)) == 0 and handle.value
    result, count, none = (ctypes.c_ubyte * 100)(*[255] * 100), ctypes.c_int(), ctypes.c_void_p()
    assert made.cublasLtMatmulAlgoGetHeuristic(*[none] * 7, 1, result, ctypes.byref(count)) == 0 and count.value == 1
    assert bytes(result) == bytes(76) + b"\\0\\0\\x80\\x3f" + bytes(16) + b"\\xff" * 4
    assert made.cublasLtMatmul() == 0
"""
    subprocess.run([sys.executable, "-c", code], cwd=PROCESS.parent, check=True)

"""``gpudash estimate --callable``: models far larger than this computer, and the Python of the user's choice."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from gpudash.simulator.predict import PredictionError, ask
from gpudash.units import GIB
from gpudash.workloads.predicting.own_code_process import NAME_ANOTHER
from tests.end_to_end.conftest import Command, environment
from tests.unit.simulator.models import library_trainings

LIBRARIES = Path(library_trainings.__file__)

DEADLINE_S = 30
"""Of processor time, all processes together: on a computer that has nothing else to do it takes no longer."""

MOST_RSS = GIB

DECODER = '''
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, groups, hidden):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, groups * self.size, bias=False)
        self.values = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        split = lambda y, heads: y.view(*x.shape[:2], heads, self.size).transpose(1, 2)
        h = self.before(x)
        k, v = split(self.keys(h), self.groups), split(self.values(h), self.groups)
        q = split(self.queries(h), self.heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """70.6 billion parameters."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128256, 8192)
        self.blocks = nn.Sequential(*(Block(8192, 64, 8, 28672) for _ in range(80)))
        self.norm = nn.RMSNorm(8192)
        self.head = nn.Linear(8192, 128256, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.trunc_normal_(weight, std=0.02)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.embed(words))))


def training(model, device):
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        words = torch.randint(0, 128256, (1, 512), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())

    return step


def moved(device):
    return training(Decoder().to(device), device)


def made_there(device):
    with torch.device(device):
        model = Decoder()
    return training(model, device)
'''

PARAMETERS = 70_553_706_496


def measured(arguments: list[str], home: Path) -> tuple[str, str, float, int]:
    """What a command writes to its outputs, and of all its processes together the processor time in seconds and the
    most memory that they held at a time, in bytes."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(arguments, env=environment(home), stdout=pipe, stderr=pipe, text=True)
    watched, peak = psutil.Process(process.pid), 0
    seconds: dict[int, float] = {}
    while process.poll() is None:
        held = 0
        for one in [watched, *_children(watched)]:
            try:
                with one.oneshot():
                    spent = one.cpu_times()
                    held += one.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
            seconds[one.pid] = spent.user + spent.system
        peak = max(peak, held)
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate()
    return out, err, sum(seconds.values()), peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


@pytest.mark.table
@pytest.mark.parametrize("function", ["moved", "made_there"])
def test_seventy_billion_parameters_are_predicted_in_half_a_minute_and_a_gibibyte(
    function: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text(DECODER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    asked = ["--callable", f"large:{function}", "--device", "sim:0", "--simulate", "80GiB"]
    command = [sys.executable, "-m", "gpudash", "estimate", *asked, "--time-limit", "300", "--json"]
    out, err, seconds, peak = measured(command, home)
    found = json.loads(out)
    assert found["status"] == "finished", err
    assert found["by_category"]["weights"] == found["by_category"]["gradients"] == 4 * PARAMETERS
    assert found["fits"] is False
    assert 0 < peak <= MOST_RSS
    assert 0 < seconds <= DEADLINE_S


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own without any library."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with torch, a library that this one lacks, and none of gpudash's own."""
    folder = tmp_path_factory.mktemp("with_torch")
    venv.create(folder, with_pip=False)
    theirs = next(folder.glob("lib/python*/site-packages"))
    ours = Path(next(entry for entry in site.getsitepackages() if (Path(entry) / "torch").is_dir()))
    for entry in ours.iterdir():
        if not entry.name.lower().startswith(("pydantic", "psutil", "numpy", "gpudash", "_")):
            (theirs / entry.name).symlink_to(entry)
    (theirs / "only_there.py").write_text("WIDTH = 1024\n", encoding="utf-8")
    return folder / "bin" / "python"


THEIRS = """
import importlib.util
import torch
from torch import nn
from only_there import WIDTH

def build(device):
    for name in ("pydantic", "psutil", "numpy"):
        assert importlib.util.find_spec(name) is None, name
    model = nn.Linear(WIDTH, WIDTH, bias=False).to(device)
    def step():
        model(torch.ones(8, WIDTH, device=device)).sum().backward()
    return step
"""


def test_code_is_followed_by_the_python_that_has_its_libraries(
    gpudash: Command, with_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    asked = ("estimate", "--callable", "theirs:build", "--device", "sim:0", "--simulate", "1GiB", "--json")
    found = gpudash(*asked, "--python", str(with_torch))
    assert found.code == 0, found.stderr
    assert found.document["by_category"]["weights"] == 4 * 1024 * 1024
    refused = gpudash(*asked)
    assert "No module named 'only_there'" in refused.document["error"]["message"]


CHOOSING = """
from torch import nn
from shelf import choose

def build(device):
    model = nn.Linear(8, 8).to(device)
    return lambda: choose(model.weight)
"""


def test_a_decision_inside_a_library_is_told_with_its_line_and_something_that_can_be_done(
    gpudash: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "site-packages"
    (libraries / "shelf").mkdir(parents=True)
    (libraries / "shelf" / "__init__.py").write_text("def choose(x):\n    return 1 if x.sum() > 3 else 2\n")
    (tmp_path / "choosing.py").write_text(CHOOSING, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(libraries), *filter(None, [os.environ.get("PYTHONPATH")])])
    asked = ("estimate", "--callable", "choosing:build", "--device", "sim:0", "--simulate", "1GiB", "--json")
    told = gpudash(*asked, env={"PYTHONPATH": path}).document["error"]
    assert "at shelf/__init__.py:2, called from choosing.py:7; a dry run has none" in told["message"]
    assert "Leave out the argument or setting that makes shelf look at numbers" in told["remedy"]
    assert "gpudash watch -- python" in told["remedy"]


def test_a_program_that_is_no_python_is_told_in_one_sentence(gpudash: Command) -> None:
    echo = shutil.which("echo")
    found = gpudash("estimate", "--callable", "mine:build", "--simulate", "1GiB", "--json", "--python", str(echo))
    assert found.code == 1
    assert found.document["error"]["message"] == f"{echo} ended without an answer (exit code 0)."
    assert found.document["error"]["remedy"] == NAME_ANOTHER


def test_a_script_whose_python_has_no_torch_is_told_so_and_without_its_traceback(
    gpudash: Command, bare: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    found = gpudash("estimate", "--simulate", "1GiB", "--json", "--", str(bare), str(script))
    assert found.code == 1
    error = found.document["error"]
    assert error["message"] == f"{bare} has no torch, which train.py imports."
    assert error["remedy"].startswith("Begin the command with a Python that has torch 2.9 or newer")
    assert "Traceback" not in found.stderr


def test_a_python_that_cannot_follow_code_is_told_in_one_sentence(
    gpudash: Command, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("estimate", "--callable", "theirs:build", "--device", "sim:0", "--simulate", "1GiB", "--json")
    found = gpudash(*asked, "--python", str(bare))
    assert found.code == 1
    assert found.document["error"]["message"] == f"{bare} has no torch."
    assert found.document["error"]["remedy"] == NAME_ANOTHER
    (next(bare.parents[1].glob("lib/python*/site-packages")) / "torch.py").write_text('__version__ = "2.8.1+cpu"\n')
    old = gpudash(*asked, "--python", str(bare))
    assert old.document["error"]["message"] == f"{bare} has torch 2.8.1+cpu; 2.9 or newer is needed."
    nothing = gpudash(*asked, "--python", os.fspath(tmp_path / "nothing"))
    assert nothing.code == 2
    assert "is no program. Name a Python, such as .venv/bin/python." in nothing.stderr


def test_without_torch_a_prediction_by_a_function_says_how_to_install_it_and_names_no_flag(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def build(device): ...\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PredictionError) as raised:
        ask(["--callable", "mine:build", "--simulate", "1GiB", "--python", str(bare), "--json"])
    said = str(raised.value)
    assert said.startswith(f"{bare} has ") and said.endswith("pip install torch.") and "--" not in said


@pytest.mark.table
@pytest.mark.parametrize("name", library_trainings.ALLOCATED)
def test_code_that_chooses_a_gpu_by_itself_is_predicted_as_cuda(gpudash: Command, name: str) -> None:
    done = gpudash(
        *("estimate", "--callable", f"{LIBRARIES}:{name}", "--as-cuda", "--device", "sim:0", "--simulate", "24GiB"),
        *("--time-limit", "120", "--no-alternatives", "--json"),
    )
    assert done.code == 0, done.stderr
    found = done.document["peak_allocated_bytes"], done.document["peak_reserved_bytes"]
    for predicted, taken in zip(found, library_trainings.ALLOCATED[name], strict=True):
        assert abs(predicted - taken) <= 0.001 * taken, (found, library_trainings.ALLOCATED[name])


MISSES = """
import torch

def says_cuda(device):
    return step_of(torch.nn.Linear(512, 512).to("cuda"))

def looks(device):
    return step_of(torch.nn.Linear(512, 512).to("cuda" if torch.cuda.is_available() else "cpu"))

def step_of(layer):
    return lambda: layer(torch.ones(8, 512, device=layer.weight.device)).sum().backward()
"""


def test_code_that_misses_cuda_is_told_of_the_option_and_predicted_with_it(gpudash: Command, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(MISSES, encoding="utf-8")
    card = ("--device", "sim:0", "--simulate", "h100", "--no-alternatives")
    for name, told in (
        ("says_cuda", "Torch not compiled with CUDA enabled. Add --as-cuda, and"),
        ("looks", "; or add --as-cuda, and code that looks for"),
    ):
        done = gpudash("estimate", "--callable", f"{file}:{name}", *card)
        assert done.code == 1 and told in done.stderr, done.stderr
    done = gpudash("estimate", "--callable", f"{file}:looks", *card, "--as-cuda", "--json")
    assert done.code == 0, done.stderr
    assert done.document["by_category"]["weights"] >= 512 * 512 * 4


ASKS = """
import torch

free, total = torch.cuda.mem_get_info()
about = torch.cuda.get_device_properties(0)
if not free == total == about.total_memory < 2**37:
    raise SystemExit(f"{free} of {total} bytes")
if "H100" not in torch.cuda.get_device_name() or torch.cuda.get_device_capability() != (9, 0):
    raise SystemExit(torch.cuda.get_device_name())


def build(device):
    layer = torch.compile(torch.nn.Linear(512, 512).cuda())

    def step():
        values = torch.ones(8, 512, device=device)
        layer(values).sum().backward()
        if not values.is_cuda or values.device != device or torch.cuda.max_memory_allocated() == 0:
            raise SystemExit(f"{values}")

    return step
"""


def test_as_cuda_the_code_is_told_of_the_card_that_is_asked_for_and_what_is_otherwise_has_its_line(
    gpudash: Command, tmp_path: Path
) -> None:
    file = tmp_path / "asks.py"
    file.write_text(ASKS, encoding="utf-8")
    asked = ("estimate", "--callable", f"{file}:build", "--as-cuda", "--device", "sim:0", "--simulate", "h100")
    done = gpudash(*asked, "--no-alternatives", "--json")
    assert done.code == 0, done.stderr
    (assumed,) = done.document["assumptions"]
    line = 1 + ASKS.splitlines().index("    layer = torch.compile(torch.nn.Linear(512, 512).cuda())")
    assert assumed.startswith(f"{file}:{line}: torch.compile is left out")


FAULTY = """
import torch
from tests.unit.simulator.failing_families import failing


def build(device):
    x = torch.ones(8, device=device)

    def step():
        with failing("operations.reductions", []):
            return x.sum()

    return step
"""


def test_a_fault_of_the_simulator_goes_to_the_log_with_its_traceback(
    gpudash: Command, home: Path, tmp_path: Path
) -> None:
    code = tmp_path / "faulty.py"
    code.write_text(FAULTY)
    root = str(Path(__file__).parents[2])
    answer = gpudash("estimate", "--callable", f"{code}:build", "--simulate", "1GiB", env={"PYTHONPATH": root})
    assert "gpudash cannot predict the code at" in answer.stderr
    log = home / "gpudash.log"
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text()
    assert "Traceback (most recent call last)" in text and "IndexError" in text

"""A notebook, run by a real kernel: what its cells take, what its names hold, and why one ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

SETUP = (
    "%load_ext gpudash",
    'import gpudash, torch\ncard = gpudash.simulate("2GiB", as_cuda=True)\ncard',
    """\
model = torch.nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.AdamW(model.parameters())
""",
)

TRAINING = """\
for i in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 2048, device="cuda")).sum().backward()
    optimizer.step()
"""

LEAK = """\
def train():
    kept = []
    while True:
        out = model(torch.randn(8192, 2048, device="cuda"))
        kept.append(out)
        out.sum().backward()
        optimizer.step()
train()
"""

THREADS = "import os; len(os.listdir('/proc/self/task'))"

STATE = "torch.cuda.memory_allocated(), torch.get_rng_state().sum().item(), sorted(n for n in globals() if n[0] != '_')"


def run(folder: Path, cells: Sequence[str]) -> list[list[NotebookNode]]:
    """The outputs of cells, run one after another in a kernel."""
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def texts(outputs: Sequence[NotebookNode], kind: str = "text/plain") -> str:
    """What a cell shows, as one text."""
    return "\n".join(output["data"][kind] for output in outputs if kind in output.get("data", {}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_is_told_what_its_cells_take_and_what_its_names_hold(tmp_path: Path) -> None:
    cells = (
        *SETUP,
        STATE,
        f"%%fits l4 rtx4090\n{TRAINING}",
        f"%%fits l4\n{TRAINING}",
        STATE,
        f"%%measure\n{TRAINING}",
        "model(torch.ones(4096, 2048, device='cuda'))",
        THREADS,
        "%gpudash",
        THREADS,
        "%gpudash stop",
        THREADS,
        "%gpudash table",
        "%%fits nonsense\n1",
        "%gpudash nonsense",
    )
    outputs = run(tmp_path, cells)
    card, _model, before, several, one, after, measured = outputs[1:8]
    threads, figure, more_threads, _stopped, as_before, held, refused, no_command = outputs[9:]
    assert "application/vnd.jupyter.widget-view+json" in figure[0]["data"]
    assert figure[0]["data"]["text/plain"] == held[0]["data"]["text/plain"]
    assert texts(as_before) == texts(threads) != texts(more_threads)
    assert "'nonsense' is none of them" in no_command[0]["text"]
    assert texts(card) == "SIMULATED GPU cuda:0: 2.00 GiB"
    assert [line.split()[0] for line in texts(several).splitlines()] == ["card", "L4", "RTX"]
    assert texts(one).startswith("This cell fits: it needs ")
    assert "line 3 of the cell" in texts(one)
    assert texts(after) == texts(before)  # nothing was allocated, no name came
    assert texts(measured).startswith("Peak 96 MiB, 80 MiB more than before")
    assert "In[8], line" in texts(measured)
    assert "<svg" in texts(measured, "text/html")
    rows = texts(held).splitlines()
    assert rows[1].split()[:3] == ["model", "32", "MiB"]  # with its gradients
    assert rows[2].split()[:3] == ["optimizer", "32", "MiB"]
    assert rows[-1].split()[0] == "Out[…],"
    assert rows[-1].endswith("%reset -f out")
    assert "'nonsense' is not a size" in refused[0]["text"]
    assert not any(output["output_type"] == "error" for output in refused)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_cell_that_runs_out_ends_with_its_own_frames_and_the_reason(tmp_path: Path) -> None:
    cells = (*SETUP, LEAK, "%gpudash", "raise RuntimeError('plain')", "gpudash.explain(ValueError())")
    outputs = run(tmp_path, cells)
    failed, held, plain, refused = outputs[3:]
    error = next(output for output in failed if output["output_type"] == "error")
    assert error["ename"] == "OutOfMemoryError"
    frames = "\n".join(error["traceback"])
    assert "out.sum().backward()" in frames
    assert "simulated_gpu" not in frames
    explained = texts(failed)
    assert "In[4], line 5: write kept.append(out.detach().cpu())" in explained
    assert "This would have fit" in explained
    assert "In[4], line 4" in texts(failed, "text/html")
    last = texts(held).splitlines()[-1]
    assert last.startswith("the last traceback")
    assert "sys.last_exc" in last
    assert plain[0]["ename"] == "RuntimeError"
    assert "ValueError is no out-of-memory" in "".join(refused[0]["traceback"])

"""``gpudash watch``: unchanged scripts under the dashboard, from their first line to a report that helps."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Command, Stub
from tests.nvml_stub.build import GIB, Scenario, StubGpu

SCRIPTS = Path(__file__).parent / "watched_scripts"
LEAK = SCRIPTS / "leak.py"
LEAKING_LINE = "history.append(inputs.repeat(16, 1))"


def events(recording: str) -> list[dict[str, Any]]:
    with sqlite3.connect(recording) as database:
        return [json.loads(text) for (text,) in database.execute("select json from event order by rowid")]


def test_a_leak_is_named_before_memory_is_full_caught_explained_and_fixed(gpudash: Command, tmp_path: Path) -> None:
    outcome = gpudash("watch", "--simulate", "1400MiB", "--json", "--", sys.executable, str(LEAK), "2000")
    assert outcome.code == 1, outcome.stderr
    found = outcome.document
    assert (found["workload"], found["device"], found["simulated"]) == ("watch", "sim:0", True)
    assert (found["status"], found["exit_code"]) == ("out_of_memory", 1)
    assert found["spec"]["command"][1] == str(LEAK)
    assert found["steps"] > 100 and found["metrics"]["loss"]["last"] is not None
    assert 300 * 2**20 < found["memory"]["peak_allocated_bytes"] < found["memory"]["capacity_bytes"] == 1400 * 2**20
    error = found["error"]
    assert error["kind"] == "sim" and "leak.py:21" in error["message"]
    assert error["remedy"].startswith("The report says what filled the memory")
    assert (error["frames"][0]["file"], error["frames"][0]["line"]) == (str(LEAK), 21)

    explanation = error["explanation"]
    assert explanation["verdict"] == "leak"
    assert f"leak.py:21 ({LEAKING_LINE})" in explanation["headline"]
    assert any("leak.py:21" in remedy["change"] for remedy in explanation["remedies"])
    assert sum(part["bytes"] for part in explanation["parts"]) == 1400 * 2**20

    told = events(found["recording"])
    place = {event["kind"]: number for number, event in reversed(list(enumerate(told)))}
    named = next(n for n, event in enumerate(told) if event["kind"] == "Warning" and "leak.py:21" in event["text"])
    full = next(n for n, event in enumerate(told) if event.get("topic") == "out of memory")
    assert place["RunStarted"] < place["StepFinished"] < named < full < place["OutOfMemory"]
    with sqlite3.connect(found["recording"]) as database:
        assert database.execute("select max(allocated_bytes) from allocator where device = 'sim:0'").fetchone()[0] > 0

    folder = Path(found["report"])
    assert {file.name for file in folder.iterdir()} == {
        "snapshot.pickle",
        "fix.patch",
        "curves.csv",
        "settings.json",
        "processes.json",
        "steps.json",
        "shapes.json",
        "explanation.json",
        "report.txt",
        "output.txt",
    }
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder]
    assert explanation["headline"] in (folder / "report.txt").read_text()
    assert "OutOfMemoryError" in (folder / "output.txt").read_text()

    mended = tmp_path / "mended.py"
    mended.write_text(LEAK.read_text().replace(LEAKING_LINE, "inputs.repeat(16, 1)"))
    outcome = gpudash("watch", "--simulate", "1400MiB", "--json", "--", sys.executable, str(mended), "500")
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert found["status"] == "finished"
    assert not any("keeps" in text for text in found["warnings"])
    assert f"peak {found['memory']['peak_allocated_bytes']}\n" in outcome.stderr, "as the program has printed it"


def test_a_leak_is_named_also_in_a_script_that_tells_no_steps(gpudash: Command, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    told = [line for line in LEAK.read_text().splitlines() if "logging" not in line]
    script.write_text("\n".join(told))
    outcome = gpudash("watch", "--simulate", "1400MiB", "--no-record", "--json", "--", sys.executable, str(script))
    assert outcome.code == 1, outcome.stderr
    found = outcome.document
    assert found["steps"] > 100 and "loss" not in found["metrics"]
    place = f"plain.py:{told.index(f'    {LEAKING_LINE}') + 1}"
    assert any(text.startswith(f"{place} ({LEAKING_LINE}) keeps") for text in found["warnings"])
    assert found["error"]["explanation"]["verdict"] == "leak"
    assert found["error"]["explanation"]["headline"].startswith(place)
    assert {frame["file"] for frame in found["error"]["frames"]} == {str(script)}
    assert any("steps are those of its optimizer" in text for text in found["notes"])


def test_an_out_of_memory_that_a_program_handles_is_a_note_and_a_report(gpudash: Command) -> None:
    outcome = gpudash("watch", "--simulate", "1GiB", "--json", "--", sys.executable, str(SCRIPTS / "search.py"))
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert (found["status"], found["error"]) == ("finished", None)
    assert (Path(found["report"]) / "snapshot.pickle").is_file()
    assert "gpudash: Memory of sim:0 ran out" in outcome.stderr


def test_steps_and_losses_of_a_cpu_training_come_by_one_line(gpudash: Command) -> None:
    outcome = gpudash("watch", "--json", "--", sys.executable, str(SCRIPTS / "train.py"), "200")
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert (found["device"], found["steps"], found["report"]) == ("cpu", 200, None)
    assert found["metrics"]["loss"]["last"] < found["metrics"]["loss"]["first"]
    assert "loss " in outcome.stderr, "what the command prints goes to standard error"
    assert found["memory"]["peak_used_bytes"] > 50 * 2**20


def torchrun(script: Path, *words: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*command, str(script), *words]


def test_a_rank_that_fails_is_the_cause_and_not_the_launcher(gpudash: Command, tmp_path: Path) -> None:
    script = tmp_path / "one_fails.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('nan')\ntime.sleep(30)\n")
    outcome = gpudash("watch", "--no-record", "--json", "--", *torchrun(script))
    assert outcome.code == 1, outcome.stderr
    error = outcome.document["error"]
    assert error["kind"] == "ValueError"
    assert error["message"].startswith("Rank 1 (pid ")
    assert error["message"].endswith("ValueError: nan (one_fails.py:3).")


def test_a_torch_that_cannot_simulate_is_refused_in_a_sentence(gpudash: Command, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.2.0'\nclass version:\n    cuda = None\n")
    script = tmp_path / "uses.py"
    script.write_text("import torch, time\ntime.sleep(60)\n")
    outcome = gpudash("watch", "--simulate", "1GiB", "--no-record", "--json", "--", sys.executable, str(script))
    assert outcome.code == 1
    found = outcome.document
    assert (found["status"], found["error"]["kind"]) == ("failed", "simulation")
    assert "Traceback" not in outcome.stderr


def test_a_python_without_torch_is_told_with_the_way_out(gpudash: Command, tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text("import sys\nsys.modules['torch'] = None\nimport torch\n")
    outcome = gpudash("watch", "--no-record", "--json", "--", sys.executable, str(script))
    assert outcome.code == 1
    assert outcome.document["error"]["kind"] == "ModuleNotFoundError"
    assert "the Python that has it" in outcome.document["error"]["remedy"]


def test_it_works_where_the_recording_cannot_go_and_says_so(gpudash: Command, tmp_path: Path) -> None:
    target = tmp_path / "none" / "x.gpudash"
    (tmp_path / "none").write_text("a file in the way")
    outcome = gpudash("watch", "--record", str(target), "--json", "--", sys.executable, "-c", "pass")
    assert outcome.code == 2
    assert "--no-record" in outcome.document["error"]["remedy"]


def test_the_flags_of_the_command_are_its_own(gpudash: Command) -> None:
    outcome = gpudash("watch", "--no-record", "--", sys.executable, "-c", "import sys; print(sys.argv)", "--json", "-h")
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout == "['-c', '--json', '-h']\n"


def test_a_program_that_waits_for_its_loader_is_told_so_now_and_from_its_recording(
    gpudash: Command, tmp_path: Path
) -> None:
    outcome = gpudash("watch", "--json", "--", sys.executable, str(SCRIPTS / "waiting.py"))
    assert outcome.code == 0, outcome.stderr
    found = outcome.document["step_parts"]
    assert (found["bound"], max(found["shares"], key=found["shares"].get)) == ("input", "input")
    assert set(found["shares"]) == {"input", "forward", "backward", "optimizer", "other"}
    assert found["sentence"].endswith("waits for the DataLoader.") and "num_workers=0" in found["help"][0]
    assert {stage["count"] for stage in outcome.document["stages"]} == {31}, "the first step begins nobody knows where"

    page = tmp_path / "page.html"
    assert gpudash("export", outcome.document["recording"], "--to", "html", "-o", str(page)).code == 0
    assert found["sentence"] in page.read_text(encoding="utf-8")


@pytest.mark.skipif(not os.access("/bin/sh", os.X_OK), reason="needs a shell")
def test_any_command_can_be_watched(gpudash: Command) -> None:
    outcome = gpudash("watch", "--no-record", "--json", "--", "/bin/sh", "-c", "echo hi; exit 7")
    assert outcome.code == 7
    found = outcome.document
    assert (found["exit_code"], found["error"]["message"]) == (7, "sh ended with exit code 7.")
    assert any("Nothing was heard of the program" in text for text in found["notes"])


def test_its_exit_code_is_handed_on_unless_gpudash_s_own_is_asked_for(gpudash: Command) -> None:
    def code(script: str, *flags: str) -> int:
        return gpudash("watch", "--no-record", *flags, "--", "/bin/sh", "-c", script).code

    assert [code("exit 7"), code("kill -TERM $$")] == [7, 143]
    assert [code(script, "--exit-code", "gpudash") for script in ("exit 7", "exit 0")] == [1, 0]


def test_a_program_that_uses_no_gpu_of_the_machine_ran_on_the_cpu(gpudash: Command, stub: Stub) -> None:
    driver = stub(Scenario([StubGpu(0, used=3 * GIB)]))
    program = "import time; held = bytearray(100 * 2**20); time.sleep(0.5)"
    found = gpudash("watch", "--json", "--no-record", "--", sys.executable, "-c", program, env=driver).document
    assert (found["status"], found["device"]) == ("finished", "cpu")
    assert 100 * 2**20 < found["memory"]["peak_used_bytes"] < GIB < found["memory"]["capacity_bytes"]
    assert "The program used no GPU." in found["notes"]


SAYS_CUDA = """import torch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
assert device == "cpu" or next(model.parameters()).is_cuda
"""


def test_a_script_that_says_cuda_runs_on_a_simulated_gpu_and_is_told_of_it_where_it_does_not(
    gpudash: Command, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAYS_CUDA)
    command = ("--no-record", "--json", "--", sys.executable, str(script))
    outcome = gpudash("watch", "--simulate", "24GiB", "--as-cuda", *command)
    assert outcome.code == 0, outcome.stderr
    found = outcome.document
    assert (found["device"], found["seen_as"], found["simulated"]) == ("sim:0", "cuda:0", True)
    assert found["spec"]["as_cuda"] and found["memory"]["peak_allocated_bytes"] > 64 * 64 * 4 * 4
    assert found["memory"]["capacity_bytes"] == 24 * GIB
    assert "The program allocates on sim:0, which it calls cuda:0." in found["notes"]

    ignored = gpudash("watch", "--simulate", "24GiB", *command).document
    assert (ignored["device"], ignored["seen_as"], ignored["simulated"]) == ("cpu", "cpu", False)
    assert ignored["metrics"]["loss"] == found["metrics"]["loss"], "its numbers are the CPU's"
    assert any(text.startswith("The script never used sim:0.") and "--as-cuda" in text for text in ignored["notes"])

    script.write_text("import torch\ntorch.ones(1).cuda()\n")
    failed = gpudash("watch", *command).document
    assert failed["error"]["remedy"].startswith(
        "Without a GPU a simulated one can answer as cuda: add --simulate 24GiB"
    )

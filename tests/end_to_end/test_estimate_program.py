"""``gpudash estimate -- COMMAND``: programs predicted as they are, and what stays of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpudash
from gpudash.session.api.estimating import PredictedRun, predict_cell
from gpudash.simulator.predict import PredictionError, predict_program
from gpudash.system.sandbox import can_hold_back
from gpudash.units import GIB
from tests.end_to_end.conftest import Outcome, environment, run_python, start_python
from tests.end_to_end.cuda_scripts.__main__ import CASES, as_cuda
from tests.end_to_end.cuda_scripts.predicting import predicted
from tests.json_page import undescribed
from tests.unit.test_sandbox import FORBIDDEN

HEAD = """
import os, sys, time
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
def step():
    x, y = torch.randn(256, 512).cuda(), torch.randint(0, 10, (256,)).cuda()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    return loss
"""


@pytest.fixture
def estimate(home: Path, tmp_path: Path) -> Any:
    """Predict a script of this text in a folder of its own; its outcome."""

    def command(text: str, *flags: str, arguments: tuple[str, ...] = (), launch: tuple[str, ...] = ()) -> Outcome:
        (tmp_path / "train.py").write_text(text)
        flags = ("--json", *flags) if "--simulate" in flags else ("--json", "--simulate", "8GiB", *flags)
        words = ("estimate", *flags, "--", sys.executable, *launch, "train.py", *arguments)
        done = run_python(home, "-m", "gpudash", *words, cwd=tmp_path)
        if done.stdout:
            assert undescribed(("estimate",), json.loads(done.stdout)) == []
        return Outcome(done.returncode, done.stdout, done.stderr)

    return command


@pytest.mark.table
@pytest.mark.parametrize("name", ["mnist.py", "dcgan.py", "acgan.py", "pix2pix.py", "imagenet.py"])
def test_a_script_is_predicted_unchanged_to_the_byte_and_leaves_no_file(name: str) -> None:
    case = next(case for case in CASES if case.name == name)

    found = predicted(case)

    assert (found.failure, found.files) == ("", ())
    assert found.peak == as_cuda(case).peak


@pytest.mark.table
@pytest.mark.timeout(600)  # nine processes that import torch, on a machine that may be busy
@pytest.mark.parametrize(
    "name",
    [
        "sharded.py, 2 ranks",
        "sharded.py --strategy load, 2 ranks",
        "sharded.py --strategy meta, 2 ranks",
        "padded.py, 2 ranks",
    ],
)
def test_ranks_of_a_mesh_and_ranks_of_unequal_batches_are_predicted_within_half_a_per_cent(name: str) -> None:
    case = next(case for case in CASES if case.name == name)

    found, ran = predicted(case), as_cuda(case)

    assert (found.failure, ran.failure) == ("", "")
    assert found.peak == pytest.approx(ran.peak, rel=0.005)


def test_the_largest_batch_of_an_epoch_decides_though_it_comes_late_and_that_is_said(estimate: Any) -> None:
    text = """
import torch
from torch.utils.data import DataLoader
lengths = [8, 9] * 20 + [200] + [8, 9] * 20
data = [torch.rand(length, 256) for length in lengths]
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader({data}, batch_size=1):
    model(batch.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
    late, early = (estimate(text.replace("{data}", order)) for order in ("data", "data[40:]"))

    assert late.code == early.code == 0, late.stderr + early.stderr
    assert late.document["peak_allocated_bytes"] == early.document["peak_allocated_bytes"]
    assert late.document["peak_allocated_bytes"] > 200 * 4096 * 4
    assert "the last batch was the largest of 78 more" in late.document["remark"]


@pytest.mark.timeout(600)  # five processes that import torch, on a machine that may be busy
def test_a_script_that_does_not_fit_is_told_the_largest_batch_with_which_it_runs_to_its_end(
    estimate: Any, home: Path, tmp_path: Path
) -> None:
    text = f"batch_size = 65536\n{HEAD.replace('256', 'batch_size')}\nfor i in range(3): print(step().item())"

    found = estimate(text, "--simulate", "700MiB").document

    assert found["fits"] is False
    if not can_hold_back():  # no overlays here: an edit cannot be tried, and what is not verified is not said
        assert not any(one.get("patch") for one in found["alternatives"])
        return
    first = found["alternatives"][0]
    assert first["fits"] is True and first["change"].startswith("train.py:1: a batch of ")
    assert "+batch_size = " in first["patch"] and first["changes_training"]
    assert (tmp_path / "train.py").read_text() == text
    subprocess.run(["patch", "-p0", "-s"], cwd=tmp_path, input=first["patch"], text=True, check=True, timeout=60)
    words = ("watch", "--simulate", "700MiB", "--as-cuda", "--json", "--", sys.executable, "train.py")
    done = run_python(home, "-m", "gpudash", *words, cwd=tmp_path)
    assert json.loads(done.stdout)["status"] == "finished", done.stderr


def test_what_is_only_printed_needs_no_numbers_and_is_held_back_unless_a_flag_shows_it(estimate: Any) -> None:
    text = f"""{HEAD}
import logging
from torch import nn
right = 0
for i in range(4):
    right += (step() > 0).sum().item()
    print("loss %d of %d, %i" % (right, i, right), file=(sys.stdout, sys.stderr)[i % 2])
    logging.warning("%d right", right)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).cuda()
for trains in (False, True):
    print(torch.jit.trace(net.train(trains), torch.randn(1, 3, 8, 8).cuda()).graph)
step()
"""
    held, shown = estimate(text), estimate(text, "--show-output")

    assert "on sizes alone" in held.document["method"]
    assert "loss" not in held.stderr.replace("losses", "")
    assert "What train.py printed is held back" in held.stderr
    assert shown.stderr.count("loss ") == 4 and "held back" not in shown.stderr


@pytest.mark.parametrize(
    ("stream", "ends", "code"), [("stdout", "sys.exit(7)", 7), ("stderr", "os._exit(sys.stderr.flush() or 3)", 3)]
)
def test_a_program_that_fails_has_no_prediction_and_its_last_lines_are_shown_wherever_it_printed_them(
    estimate: Any, stream: str, ends: str, code: int
) -> None:
    bar = "for i in range(3): print(f'\\rstep {i}', end='', file=sys.stderr)\n"
    end = f"print('\\rno such data set', file=sys.{stream}); {ends}\n"
    failed = estimate(f"{HEAD}\nstep()\n{bar if stream == 'stderr' else ''}{end}")

    assert failed.code == 1
    assert f"train.py ended with exit code {code}" in failed.document["error"]["message"]
    assert "no such data set" in failed.stderr.splitlines()
    assert "step 1" not in failed.stderr


def test_the_line_that_keeps_something_of_every_step_is_named_with_what_it_keeps_and_no_other(estimate: Any) -> None:
    text = f"""{HEAD}
kept = []
for i in range(40):
    loss = step()
    kept.append(loss.repeat(25000))
    newest = loss.repeat(25000)
"""
    ((line, rate),) = estimate(text).document["keeps"].items()

    assert f"train.py:{text.splitlines().index('    kept.append(loss.repeat(25000))') + 1} " in f"{line} "
    assert rate == pytest.approx(100_352, rel=0.05)


def test_what_a_program_writes_is_read_back_by_it_and_is_not_there_afterwards(estimate: Any, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("before\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept.txt").write_text("kept")
    text = f"""{HEAD}
import json, pathlib, shutil
for i in range(2):
    step()
    os.makedirs("out/run", exist_ok=True)
    torch.save({{"model": model.state_dict(), "epoch": i}}, "out/run/last.pt")
    shutil.copyfile("out/run/last.pt", "out/run/best.pt")
    with open("log.txt", "a") as log: log.write("epoch\\n")
    pathlib.Path("metrics.json").write_text(json.dumps({{"epoch": i}}))
model.load_state_dict(torch.load("out/run/best.pt")["model"])
os.rename("metrics.json", "renamed.json")
shutil.rmtree("old")
seen = [open("log.txt").read(), open("renamed.json").read(), os.path.exists("metrics.json"), os.path.exists("old"),
        sorted(os.listdir("out/run")), sorted(p.name for p in pathlib.Path(".").iterdir() if p.name != "home")]
print("SEEN", json.dumps(seen), file=sys.stderr)
"""

    outcome = estimate(text, "--show-output")

    assert outcome.code == 0, outcome.stderr
    seen = json.loads(outcome.stderr.split("SEEN ")[1].splitlines()[0])
    assert seen[:4] == ["before\nepoch\nepoch\n", '{"epoch": 1}', False, False]
    assert seen[4:] == [["best.pt", "last.pt"], ["log.txt", "out", "renamed.json", "train.py"]]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["log.txt", "old", "train.py"]
    assert (tmp_path / "log.txt").read_text() == "before\n"
    assert (tmp_path / "old" / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize("allowed", [True, False], ids=["namespaces", "no namespaces"])
def test_what_holds_back_its_writing_is_said_and_where_the_system_does_it_holds_for_any_code(
    home: Path, tmp_path: Path, allowed: bool
) -> None:
    allowed = allowed and can_hold_back()
    folder = tmp_path / "project"
    folder.mkdir()
    by_others = (
        "os.system('echo x > by_shell'); sqlite3.connect('by.db').execute('create table t (x)').connection.close()"
    )
    text = f"{HEAD}\nimport sqlite3\nopen('by_python', 'w').write('x')\n{by_others if allowed else ''}\nstep()\n"
    (folder / "train.py").write_text(text)
    command = (sys.executable, "-m", "gpudash", "estimate", "--simulate", "8GiB", "--json")
    done = subprocess.run(
        [*(() if allowed else FORBIDDEN), *command, "--", sys.executable, "train.py"],
        env=environment(home),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    held = "held back by overlays, whichever code wrote it" if allowed else "what it wrote through Python was held back"
    assert held in json.loads(done.stdout)["remark"]
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_program_that_may_write_writes_all_but_checkpoints(estimate: Any, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"of a real run")

    estimate(
        f"{HEAD}\nstep()\nopen('log.txt', 'w').write('log')\ntorch.save(model.state_dict(), 'model.pt')",
        "--let-it-write",
    )

    assert (tmp_path / "log.txt").read_text() == "log"
    assert (tmp_path / "model.pt").read_bytes() == b"of a real run"


def test_a_program_that_decides_by_a_number_is_predicted_with_numbers_and_that_is_said(estimate: Any) -> None:
    outcome = estimate(f"{HEAD}\nfor i in range(50):\n    if step().item() > 100: break")

    assert outcome.code == 0
    assert "started again, with numbers" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "run with numbers on a simulated GPU" in outcome.document["method"]


def test_one_too_large_for_this_computer_goes_on_by_guesses_that_are_listed(estimate: Any) -> None:
    text = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(26))).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(5):
    loss = model(torch.randn(4, 16384, device="cuda", dtype=torch.bfloat16)).square().mean()
    if loss.item() > 100: break
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""
    outcome = estimate(text, "--simulate", "h100")

    assert outcome.code == 0, outcome.stderr
    assert outcome.document["peak_allocated_bytes"] > 24 * GIB
    assert any(said.startswith("train.py:7: what is asked of a number") for said in outcome.document["assumptions"])


def test_seven_billion_parameters_take_less_than_a_gibibyte_of_this_computer(estimate: Any) -> None:
    text = """
import resource, sys, torch
model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(26))).to(torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for i in range(3):
    model(torch.randn(4, 16384, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
    print("RSS", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
    optimizer.step(); optimizer.zero_grad()
"""
    outcome = estimate(text, "--show-output", "--simulate", "h100")

    assert outcome.code == 0, outcome.stderr
    assert outcome.document["by_category"]["optimizer state"] > 25 * GIB
    assert max(int(line.split()[1]) for line in outcome.stderr.splitlines() if line.startswith("RSS")) * 1024 < GIB


def test_each_rank_under_torchrun_has_a_card_of_its_own(estimate: Any) -> None:
    text = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank], find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters())
for i in range(5):
    model(torch.randn(64, 256, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")

    outcome = estimate(text, launch=launch)

    assert outcome.code == 0, outcome.stderr
    assert [rank["device"] for rank in outcome.document["ranks"]] == ["sim:0", "sim:1"]
    assert len({rank["peak_allocated_bytes"] for rank in outcome.document["ranks"]}) == 1
    assert any("does not look for unused parameters" in said for said in outcome.document["assumptions"])


def test_a_rank_that_needs_what_another_sends_is_predicted_with_numbers_and_that_is_said(estimate: Any) -> None:
    text = """
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
sent = [{"width": 256} if dist.get_rank() == 0 else None]
dist.broadcast_object_list(sent, src=0)
model = torch.nn.Linear(256, sent[0]["width"]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    model(torch.randn(64, 256, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")

    outcome = estimate(text, "--simulate", "8GiB", launch=launch)

    assert outcome.code == 0, outcome.stderr
    assert "What rank 0 sends at train.py:7 had not come" in outcome.stderr
    assert len({rank["peak_allocated_bytes"] for rank in outcome.document["ranks"]}) == 1


def test_ranks_that_a_program_spawns_have_cards_of_their_own(estimate: Any) -> None:
    text = """
import os, torch
import torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
def main(rank, count):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
    dist.init_process_group("nccl", rank=rank, world_size=count)
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(256, 256).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters())
    for i in range(5):
        model(torch.randn(64, 256, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
if __name__ == "__main__":
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""
    outcome = estimate(text, "--simulate", "8GiB", "--simulate", "8GiB")

    assert outcome.code == 0, outcome.stderr
    assert [rank["device"] for rank in outcome.document["ranks"]] == ["sim:0", "sim:1"]
    assert all(rank["peak_allocated_bytes"] > 2**20 for rank in outcome.document["ranks"])


def test_an_evaluation_behind_a_long_epoch_counts(estimate: Any) -> None:
    text = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.rand(200_000, 64), torch.randint(0, 8, (200_000,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step(); optimizer.zero_grad()
    with torch.no_grad():
        for x, _ in DataLoader(data, batch_size=20_000):
            model(x.cuda())
"""
    outcome = estimate(text)

    assert outcome.code == 0, outcome.stderr
    assert outcome.document["peak_allocated_bytes"] > 2 * 20_000 * 2048 * 4
    assert "what follows an epoch was" in outcome.document["remark"]


def test_layers_without_a_size_yet_and_line_searches_are_followed(estimate: Any) -> None:
    text = """
import torch
model = torch.nn.Sequential(torch.nn.LazyLinear(64), torch.nn.ReLU(), torch.nn.LazyLinear(1)).cuda()
x, y = torch.randn(50, 100).cuda(), torch.randn(50, 1).cuda()
model(x)
optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss
for i in range(3): print(optimizer.step(closure).item())
"""
    outcome = estimate(text)

    assert outcome.code == 0, outcome.stderr
    assert "started again" not in outcome.stderr
    assert any("L-BFGS goes on to its last iteration" in said for said in outcome.document["assumptions"])


def test_an_inference_that_goes_on_and_on_is_ended_once_its_batches_are_equal(estimate: Any) -> None:
    text = """
import torch
model = torch.nn.Linear(256, 256).cuda().eval()
with torch.no_grad():
    while True:
        model(torch.randn(64, 256).cuda())
"""
    outcome = estimate(text)

    assert outcome.code == 0, outcome.stderr
    assert "forward passes took the same memory" in outcome.document["remark"]


def test_one_that_takes_no_step_says_where_it_stands_and_is_ended_with_what_it_started(
    estimate: Any, tmp_path: Path
) -> None:
    text = f"""{HEAD}
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("CHILD", child.pid, file=sys.stderr, flush=True)
try:
    while True:
        sum(range(1000))
except KeyboardInterrupt:
    print("INTERRUPTED", file=sys.stderr, flush=True)
"""
    outcome = estimate(text, "--time-limit", "8")

    assert outcome.code == 1
    error = outcome.document["error"]
    assert error["kind"] == "no_step"
    assert "it stands at train.py:1" in error["message"]
    assert "--time-limit 32" in error["remedy"]
    assert "INTERRUPTED" in outcome.stderr
    assert not psutil.pid_exists(int(outcome.stderr.split("CHILD ")[1].split()[0]))


def test_a_training_on_the_cpu_alone_says_so_and_is_ended(estimate: Any) -> None:
    outcome = estimate(f"{HEAD.replace('cuda', 'cpu').replace('.cpu()', '')}\nwhile True: step()")

    assert outcome.code == 1
    assert outcome.document["error"]["kind"] == "left_the_device"
    assert "steps of its optimizer and has asked nothing of a GPU" in outcome.document["error"]["message"]


def test_steps_on_the_cpu_before_a_gpu_is_used_are_none_that_are_followed(estimate: Any) -> None:
    text = f"""{HEAD.replace('to("cuda")', 'to("cpu")').replace(".cuda()", ".to(next(model.parameters()).device)")}
for i in range(7): step()
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for i in range(4): step()
large = torch.empty(2**24, device="cuda")
step()
"""

    assert estimate(text).document["peak_allocated_bytes"] > 2**26


def test_what_is_copied_to_the_host_passes_through_the_gpu_in_order(estimate: Any) -> None:
    text = 'import torch; torch.rand(3, 2**11, 2**11, device="cuda").permute(1, 2, 0).to("cpu", torch.uint8)'

    assert estimate(text).document["peak_allocated_bytes"] == 2 * 3 * 2**22 * 4


def test_a_count_that_the_program_goes_by_needs_numbers(estimate: Any) -> None:
    text = f"{HEAD}\nfor i in range(4): print(list(range((step() > 0).sum().item())))"

    assert "with numbers" in estimate(text).document["method"]


def test_an_error_of_the_program_is_its_own_and_names_its_line(estimate: Any) -> None:
    outcome = estimate(f"{HEAD}\nmodel(torch.zeros(3, 3).cuda())")

    assert outcome.code == 1
    assert outcome.document["error"]["message"].startswith("At train.py:12 the code raised RuntimeError")
    assert "started again" not in outcome.stderr


def test_ctrl_c_ends_the_program_by_one_sigint(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, torch\n"
        "print('READY', file=sys.stderr, flush=True)\n"
        "try:\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    print('INTERRUPTED', file=sys.stderr, flush=True)\n"
    )
    words = ("-m", "gpudash", "estimate", "--show-output", "--simulate", "8GiB", "--", sys.executable, "train.py")
    with start_python(home, *words, cwd=tmp_path, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(line.strip() == "READY" for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        code = process.wait(60)

    assert code == 130
    assert rest.count("INTERRUPTED") == 1
    assert "nothing was predicted" in rest


def test_a_program_ends_with_a_gpudash_that_is_killed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, sys, torch\nprint('PID', os.getpid(), file=sys.stderr, flush=True)\nsignal.pause()\n"
    )
    words = ("-m", "gpudash", "estimate", "--show-output", "--simulate", "8GiB", "--", sys.executable, "train.py")
    with start_python(home, *words, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        pid = int(next(line for line in iter(process.stderr.readline, "") if line.startswith("PID")).split()[1])
        program = psutil.Process(pid)
        process.kill()
        process.stderr.read()
        program.wait(30)

    assert not psutil.pid_exists(pid)


def test_a_test_or_a_cell_asks_by_a_function_and_lines_that_hold_memory_at_the_peak_add_up_to_it_nearly(
    tmp_path: Path, predict_program: Any
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\nfor i in range(100): print(step().item())")

    found = predict_program(sys.executable, "train.py", gpu="8GiB", folder=tmp_path)

    assert found.fits is True
    assert "ended after step" in found.document["remark"]
    assert any(line.startswith("train.py:4") for line in found.by_line)
    assert sum(found.by_line.values()) == pytest.approx(found.peak_allocated_bytes, rel=0.02)
    assert found.by_category["optimizer state"] == 2 * found.by_category["weights"]
    with pytest.raises(PredictionError, match="has asked nothing of a GPU"):
        predict_program(sys.executable, "-c", "import torch", gpu="8GiB", folder=tmp_path)


def test_a_cell_is_predicted_where_the_cells_before_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sizes.py").write_text("WIDTH = 512")
    monkeypatch.chdir(tmp_path)
    made, trained = HEAD.replace("512), torch.nn.ReLU()", "WIDTH), torch.nn.ReLU()"), "for i in range(4): step()"
    failed = "raise SystemExit('it is not run again')"

    cell = predict_cell(trained, ["from sizes import WIDTH", made, failed, f"{trained}\n{failed}"], cards=["8GiB"])
    assert isinstance(cell, PredictedRun)
    script = predict_program(sys.executable, "-c", f"WIDTH = 512\n{made}\n{trained}", gpu="8GiB")

    assert cell.fits is True
    assert cell.peak_allocated_bytes == script.peak_allocated_bytes
    assert any("earlier_cells.py" in line for line in cell.by_line)


def test_a_python_that_cannot_be_predicted_does_not_run_the_program(tmp_path: Path) -> None:
    inject = Path(gpudash.__file__).parent / "agent" / "inject"
    surroundings = {**os.environ, "PYTHONPATH": str(inject), "GPUDASH_PREDICT": str(tmp_path / "nobody")}

    done = subprocess.run([sys.executable, "-c", "print('ran')"], env=surroundings, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (1, "")
    assert "is not run, since it cannot be predicted" in done.stderr

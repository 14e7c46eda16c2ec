"""``gpudash run --isolate``: the same outcome from a process of its own, and nothing left behind whatever happens."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import Command, run_python, start_python
from tests.end_to_end.test_interruption import events_of, wait_until

RUN = ("--device", "cpu", "--isolate", "--json")
PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def nothing_is_left(home: Path) -> Iterator[None]:
    """No process of a run outlives its test."""
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := hosts(home)) and time.monotonic() < deadline:
        psutil.wait_procs(left, 0.1)
    assert not left


def hosts(home: Path) -> set[psutil.Process]:
    """Every process of a run that is alive and writes under ``home``: other tests and windows have theirs."""
    return {
        process
        for process in psutil.process_iter(["cmdline", "status", "environ"])
        if any("gpudash.workloads.running.hosted.host_process" in word for word in process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("GPUDASH_HOME") == str(home)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    }


def host_of(process: subprocess.Popen[str]) -> psutil.Process:
    everyone = psutil.Process(process.pid).children()
    (found,) = {one for one in everyone if any("hosted.host_process" in word for word in one.cmdline())}
    return found


def test_the_document_is_the_same_and_so_are_those_who_torch_is_loaded_by(gpudash: Command) -> None:
    run = ("run", "matmul", "--size", "64", "--device", "cpu", "--no-record", "--json")
    apart, here = gpudash(*run, "--isolate"), gpudash(*run, "--no-isolate")
    assert (apart.code, here.code) == (0, 0), apart.stderr
    assert apart.document.keys() == here.document.keys()
    assert apart.document["result"].keys() == here.document["result"].keys()
    assert [stage["name"] for stage in apart.document["stages"]] == [stage["name"] for stage in here.document["stages"]]
    assert apart.document["memory"].keys() == here.document["memory"].keys()
    assert apart.stderr == here.stderr == ""


THIRD_PARTY = {
    "third-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: third\nVersion: 1.0\n",
    "third-1.0.dist-info/entry_points.txt": "[gpudash.workloads]\nthird = third_spec\n",
    "third_spec.py": (
        "from gpudash.specs import Spec, field\n"
        "class ThirdSpec(Spec):\n"
        "    name, title, summary, run = 'third', 'Third', 'Says which process it is.', 'third_run:run'\n"
        "    times: int = field(2, 'Times')\n"
    ),
    "third_run.py": (
        "import os\n"
        "def run(spec, context):\n"
        "    print('printed by the workload')\n"
        "    return {'times': spec.times, 'parent': os.getppid()}\n"
    ),
}


def test_a_workload_of_a_third_party_runs_there_and_its_words_are_kept_from_the_document(
    home: Path, tmp_path: Path, gpudash: Command
) -> None:
    for name, text in THIRD_PARTY.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    outcome = gpudash(
        *("run", "third", "--times", "7", "--device", "cpu", "--isolate", "--no-record", "--json"),
        env={"PYTHONPATH": str(tmp_path / "site")},
    )
    assert outcome.code == 0, outcome.stderr
    assert outcome.document["result"]["times"] == 7 and outcome.document["result"]["parent"] != os.getpid()
    assert outcome.stderr == "printed by the workload\n"


def test_a_dashboard_that_is_killed_takes_the_runs_process_with_it(home: Path, tmp_path: Path) -> None:
    recording = tmp_path / "orphan.gpudash"
    script = (
        "import sys; from gpudash import specs\n"
        "from tests.unit.workloads.hosted_workloads import EndingSpec\n"
        "specs.BUILT_IN = (*specs.BUILT_IN, EndingSpec)\n"
        "from gpudash.cli import run; sys.exit(run(sys.argv[1:]))\n"
    )
    command = ("-c", script, "run", "ending", "--way", "deaf in C", *RUN, "--record", str(recording))
    process = start_python(home, *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(process, lambda: events_of(recording, "StepFinished") == 2)
    host = os.pidfd_open(host_of(process).pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    try:
        assert select.select([host], [], [], PATIENCE_S)[0], "a descriptor of a process can be read once it has ended"
    finally:
        os.close(host)


def test_a_process_that_has_no_torch_itself_runs_on_every_kind_of_device(home: Path) -> None:
    script = (
        "import sys\n"
        "from gpudash.devices.names import Simulation\n"
        "from gpudash.session import Session\n"
        "from gpudash.specs import MatmulSpec\n"
        "session = Session(simulation=Simulation((2**30,)))\n"
        "session.start()\n"
        "session.load_torch(isolate=True)\n"
        "assert session.wait_ready(60)\n"
        "for device in ('sim:0', 'cpu'):\n"
        "    session.start_run(MatmulSpec(size=32), device, isolate=True)\n"
        "    assert session.runs.wait(60)\n"
        "    print(device, session.store.run.status)\n"
        "assert session.close()\n"
        "print('torch' in sys.modules)\n"
    )
    done = run_python(home, "-c", script)
    assert done.stdout.splitlines() == ["sim:0 finished", "cpu finished", "False"], done.stderr
    assert done.stderr == ""

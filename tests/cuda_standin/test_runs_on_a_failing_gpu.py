"""The program's own runs where a GPU fails, is lost, or is somebody else's: no real card does it when asked to."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from tests.cuda_standin.conftest import Program
from tests.cuda_standin.machine import ILLEGAL_ADDRESS

GIB = 2**30

APART = """
    import json
    from tests.cuda_standin.machine import Machine
    from tests.gpu.isolation import Apart, specs
    machine, apart = Machine.here(), Apart("cuda:0")
    training, _stop = specs()["training"]
"""


def test_a_run_that_loses_its_context_ends_alone_and_the_next_one_works(program: Program) -> None:
    program.machine.fail("*cudaLaunchKernel*", ILLEGAL_ADDRESS, call=300, sticky=True)
    script = """
        ends = [apart.run(training), apart.run(training)]
        print(json.dumps([ends, machine.used(0), apart.close()]))
    """
    (lost, after), used, closed = program(APART, script)
    assert lost["error"] == "cuda_error" and "an illegal memory access was encountered" in lost["message"]
    assert lost["remedy"].startswith("Start the run again: it had a process of its own")
    assert after["status"] == "finished" and used == 0 and closed


def test_a_run_on_a_lost_gpu_ends_in_words_and_works_when_the_gpu_is_back(program: Program) -> None:
    program.machine.lose(0)
    script = """
        lost = apart.run(training)
        machine.mend()
        print(json.dumps([lost, apart.run(training), apart.close()]))
    """
    lost, back, closed = program(APART, script)
    assert lost["kind"] == "RunFailed" and "CUDA error" in lost["message"] and lost["remedy"]
    assert back["status"] == "finished" and closed


COMMAND = """
    import json, subprocess, sys
    done = subprocess.run([sys.executable, "-m", "gpudash", *{words}], capture_output=True, text=True)
    print(json.dumps([done.returncode, json.loads(done.stdout), done.stderr]))
"""


def gpudash(program: Program, *words: str) -> tuple[int, dict[str, Any], str]:
    code, told, errors = program(COMMAND.format(words=json.dumps([*words, "--json"])))
    return code, told, errors


def test_what_another_process_has_of_a_full_gpu_is_its_own_part_of_the_explanation(program: Program) -> None:
    program.machine.hold(0, 20 * GIB)
    fast = ("--step", "256MiB", "--rate", "500")
    run = ("run", "pressure", "--until", "oom", *fast, "--device", "cuda:0", "--no-record")
    _code, told, errors = gpudash(program, *run)
    explanation = told["error"]["explanation"]
    others = [part for part in explanation["parts"] if part["kind"] == "process"]
    assert [(part["bytes"], part["pid"]) for part in others] == [(20 * GIB, os.getpid())], errors


def test_devices_are_listed_while_a_gpu_is_lost(program: Program, gpus: int) -> None:
    program.machine.lose(gpus - 1)
    code, told, errors = gpudash(program, "devices")
    assert code == 0 and "Traceback" not in errors
    assert f"cuda:{gpus - 1}" in json.dumps(told)


def test_a_gpu_without_nvml_has_the_memory_that_torch_tells_of_it(program: Program, tmp_path: Path) -> None:
    libraries = tmp_path / "without-nvml"
    libraries.mkdir()
    for library in program.machine.libraries.iterdir():
        if not library.name.startswith("libnvidia-ml"):
            (libraries / library.name).symlink_to(library)
    recording = tmp_path / "run.gpudash"
    script = """
        import json, subprocess, sys
        run = ["run", "training", "--device", "cuda:0", "--steps", "60", "--record", sys.argv[1], "--json"]
        done = subprocess.run([sys.executable, "-m", "gpudash", *run], capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stderr]))
    """
    code, errors = program(script.replace("sys.argv[1]", repr(str(recording))), LD_LIBRARY_PATH=str(libraries))
    assert code == 0, errors
    with sqlite3.connect(recording) as database:
        rows = database.execute("select used_bytes, total_bytes from gpu where device = 'cuda:0'").fetchall()
        busy = database.execute("select count(*) from gpu where gpu_utilisation is not null").fetchone()
    assert busy == (0,), "what torch does not tell is a gap"
    assert {total for _used, total in rows if total} == {24 * GIB} and max(used or 0 for used, _total in rows) > 0

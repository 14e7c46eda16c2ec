"""The commands, as a user types them."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path

import pytest

from gpudash.telemetry.recording.reading import open_recording
from tests.end_to_end.conftest import Command, run_python, start_python
from tests.programs import python


@pytest.mark.sample
def test_the_default_pipeline_gives_the_matrix_and_its_four_stages(gpudash: Command) -> None:
    outcome = gpudash("run", "pipeline", "--device", "cpu", "--json")
    assert outcome.code == 0
    document = outcome.document
    assert document["status"] == "finished"
    assert [stage["name"] for stage in document["stages"]] == ["create", "move", "operate", "return"]
    assert document["result"]["values"] == [[11, 12, 13], [14, 15, 16], [17, 18, 19]]
    assert document["result"]["equal"] is True
    assert document["result"]["original_unchanged"] is True
    move = document["stages"][1]
    assert move["copied"] is False
    assert move["bytes_per_second"] is None
    assert Path(document["recording"]).exists()


def test_a_wrong_request_is_one_sentence_or_one_document_and_exit_2(gpudash: Command) -> None:
    told = gpudash("run", "nonsense")
    assert (told.code, told.stdout) == (2, "") and told.stderr.startswith("There is no workload 'nonsense'.")
    assert len(told.stderr.splitlines()) == 1
    assert gpudash("run", "nonsense", "--json").document["error"]["message"] == "There is no workload 'nonsense'."


def test_a_full_disk_costs_the_recording_but_not_the_run(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.gpudash"

    flags = ("--steps", "60", "--epochs", "1", "--device", "cpu", "--width", "64")

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    command = ("-m", "gpudash", "run", "training", *flags, "--record", str(target), "--json")
    done = run_python(home, *command, extra={"PYTHONDONTWRITEBYTECODE": "1"}, preexec_fn=small_files)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert any("run.gpudash" in warning for warning in document["warnings"])
    with open_recording(target) as opened:
        assert list(opened.events())


def test_two_programs_do_not_write_one_recording(gpudash: Command, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "shared.gpudash"
    first = start_python(home, "-m", "gpudash", "monitor", "--record", str(target), "--json-lines")
    assert first.stdout is not None
    first.stdout.readline()
    second = gpudash("run", "pipeline", "--device", "cpu", "--record", str(target))
    first.terminate()
    first.communicate(timeout=20)
    assert second.code == 2
    assert str(target) in second.stderr


def test_monitor_prints_each_reading_as_a_line_of_json(gpudash: Command) -> None:
    outcome = gpudash("monitor", "--seconds", "1.5", "--rate", "10", "--json-lines", "--no-record")
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    host = [line for line in lines if line.get("table") == "host"]
    assert outcome.code == 0
    assert len(host) >= 8
    assert all(isinstance(line["used_bytes"], int) for line in host)


def test_monitor_shows_a_person_one_row_per_device(gpudash: Command) -> None:
    outcome = gpudash("monitor", "--seconds", "1", "--no-record")
    assert outcome.code == 0
    rows = outcome.stdout.splitlines()
    assert rows[0].split()[:3] == ["device", "memory", "busy"]
    assert rows[1].startswith("cpu")
    assert "GiB" in rows[1]


def test_devices_and_doctor_tell_why_there_is_no_gpu(gpudash: Command) -> None:
    devices = gpudash("devices", "--json")
    assert devices.code == 0
    assert devices.document["devices"][0]["name"] == "cpu"
    assert devices.document["default"] == "cpu" or devices.document["default"].startswith("cuda")
    doctor = gpudash("doctor", "--json")
    assert {"Python", "torch", "pynvml", "Qt"} <= {check["name"] for check in doctor.document["checks"]}


def test_the_printed_program_runs_by_itself(gpudash: Command, tmp_path: Path) -> None:
    outcome = gpudash("run", "pipeline", "--device", "cpu", "--show-code")
    assert outcome.code == 0
    done = python("-c", outcome.stdout, check=True)
    assert "11" in done.stdout


def test_the_printed_program_keeps_within_the_cap_and_the_others_of_the_run_it_stands_for(
    gpudash: Command,
) -> None:
    flags = ("--device", "sim:0", "--simulate", "1GiB", "--simulate-others", "256MiB", "--memory-cap", "25%")
    shown = {}
    for until in ("cap", "oom"):
        outcome = gpudash("run", "pressure", *flags, "--until", until, "--rate", "1000", "--hold", "0", "--show-code")
        assert outcome.code == 0, outcome.stderr
        shown[until] = python("-c", outcome.stdout)
    assert shown["cap"].returncode == 0, shown["cap"].stderr
    assert shown["cap"].stdout.splitlines()[-1] == "205 MiB"  # 80 % of 256 MiB
    assert shown["oom"].stdout.splitlines()[-1] == "256 MiB"
    last = shown["oom"].stderr.strip().splitlines()[-1]
    assert "OutOfMemoryError" in last and "256.00 MiB allowed" in last


def test_profiled_steps_are_told_and_their_trace_lies_beside_the_recording(gpudash: Command, tmp_path: Path) -> None:
    recording = tmp_path / "run.gpudash"
    outcome = gpudash(
        "run", "matmul", "--size", "64", "--device", "cpu", "--profile-steps", "2", "--record", str(recording)
    )
    assert (outcome.code, "Traceback" in outcome.stderr) == (0, False)
    assert "operators: Profiled steps 2 to 3: " in outcome.stdout
    with gzip.open(tmp_path / "run-step-2.trace.json.gz") as file:
        assert {"step 2", "step 3", "aten::mm"} <= {event.get("name") for event in json.load(file)["traceEvents"]}

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpudash.sources.nvml.gpu_reader import process_rows
from gpudash.sources.processes import SCAN_PERIOD_S, ProcessReader, container_in
from gpudash.telemetry.records import Sample, State

GIB = 1024**3


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], stdin=-1, stdout=-1
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def by_pid(samples: list[Sample]) -> dict[object, Sample]:
    return {sample.values["pid"]: sample for sample in samples}


@pytest.mark.process
@pytest.mark.parametrize("use_proc", [pytest.param(True, id="proc"), pytest.param(False, id="psutil")])
def test_our_process_and_its_children_are_among_the_rows(use_proc: bool, child: subprocess.Popen[bytes]) -> None:
    if use_proc and not sys.platform.startswith("linux"):
        pytest.skip("no /proc here")
    reader = ProcessReader(use_proc=use_proc)
    found = by_pid(reader.read(0.0))
    for pid in (os.getpid(), child.pid):
        row = found[pid]
        assert row.table == "process" and row.device is None
        assert isinstance(row.values["memory_bytes"], int) and row.values["memory_bytes"] > 0
        assert row.values["name"] and row.values["user"]
    assert reader.family >= {os.getpid(), child.pid}


def test_a_process_has_a_cpu_share_only_from_its_second_reading_on() -> None:
    reader = ProcessReader()
    assert "cpu_utilisation" not in by_pid(reader.read(0.0))[os.getpid()].values
    share = by_pid(reader.read(1.0))[os.getpid()].values["cpu_utilisation"]
    assert isinstance(share, float) and share >= 0


@pytest.mark.process
def test_a_process_that_ended_leaves_the_list(child: subprocess.Popen[bytes]) -> None:
    reader = ProcessReader()
    assert child.pid in by_pid(reader.read(0.0))
    end(child)
    assert child.pid not in by_pid(reader.read(1.0))
    reader.read(SCAN_PERIOD_S + 1)
    assert child.pid not in reader.family


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere psutil reads processes")
def test_looking_through_all_processes_interns_no_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    interned: list[str] = []
    intern = sys.intern
    monkeypatch.setattr(sys, "intern", lambda text: interned.append(text) or intern(text))
    reader = ProcessReader()
    assert reader.read(0.0) and reader.read(1.0)
    assert interned == []


def test_memory_the_driver_does_not_tell_is_a_gap_not_zero() -> None:
    ours, rows = process_rows({os.getpid(): None}, "GPU-1", 2.0, shared=True)
    assert ours is None
    assert rows[0].values["memory_bytes"] is None
    assert rows[0].states == {"memory_bytes": State.NOT_SUPPORTED}


def test_our_share_is_the_sum_over_our_family_and_zero_without_a_context() -> None:
    found = {11: 3 * GIB, 12: GIB, 99: 7 * GIB}
    assert process_rows(found, "GPU-1", 0.0, lambda: frozenset({11, 12}), shared=True)[0] == 4 * GIB
    assert process_rows(found, "GPU-1", 0.0, lambda: frozenset({10}), shared=True)[0] == 0


def test_in_a_container_no_process_is_taken_for_one_of_ours() -> None:
    ours, rows = process_rows({os.getpid(): GIB}, "GPU-1", 0.0, shared=False)
    assert ours is None
    assert rows[0].values["name"] == f"host pid {os.getpid()} (not visible)"
    assert rows[0].values["user"] is None and rows[0].values["memory_bytes"] == GIB


ID, POD = "3f2a9c1b4d5e" + "0" * 52, "0f1e2d3c-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("cgroup", "words"),
    [
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        ("0::/\n", None),
        ("", None),
        (f"0::/system.slice/docker-{ID}.scope\n", "docker 3f2a9c1b4d5e"),
        (f"12:memory:/docker/{ID}\n11:cpuset:/docker/{ID}\n", "docker 3f2a9c1b4d5e"),
        (f"0::/../docker-{ID}.scope\n", "docker 3f2a9c1b4d5e"),
        (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n",
            "podman 3f2a9c1b4d5e",
        ),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope\n", None),
        (
            f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{ID}.scope\n",
            f"kubernetes pod {POD} container 3f2a9c1b4d5e",
        ),
        (f"9:memory:/kubepods/besteffort/pod{POD}/{ID}\n", f"kubernetes pod {POD} container 3f2a9c1b4d5e"),
        ("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_0\n", "slurm job 812 step 0"),
        ("4:memory:/slurm/uid_1000/job_812/step_batch\n", "slurm job 812 step batch"),
        (f"4:memory:/slurm/uid_1000/job_7/docker-{ID}.scope\n", "slurm job 7, docker 3f2a9c1b4d5e"),
    ],
)
def test_a_control_group_names_container_pod_and_job(cgroup: str, words: str | None) -> None:
    assert container_in(cgroup) == words

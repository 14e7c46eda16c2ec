"""What the nodes of one run record, each on its own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpudash.telemetry.ranks import RankMemory, Ranks, RankStep
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, RunEnd, RunStarted, Sample

MIB = 2**20
BEGAN_S = 1_800_000_000.0
STEPS = 60


def recorded(
    path: Path,
    ranks: tuple[int, ...],
    *,
    run: str | None = "job7",
    shift_s: float = 0.0,
    computing_s: float = 0.08,
    failed: bool = False,
    world_size: int = 4,
) -> Path:
    """What ``gpudash watch`` records on a node: all ranks of the run take 0.1 s a step, ending together.

    Args:
        path: the file.
        ranks: of this node.
        run: the run's id.
        shift_s: of its beginning by the wall clock.
        computing_s: of every rank here.
        failed: whether the program failed.
        world_size: of the run.
    """
    origin = datetime.fromtimestamp(BEGAN_S + shift_s, UTC).isoformat()
    recorder = Recorder(path, meta={"wall_clock_origin": origin, "host_product": path.stem})
    rows = [{"rank": rank, "pid": 100 + rank, "host": path.stem, "device": "cpu"} for rank in ranks]
    about = {"world_size": world_size, "strategy": "ddp", "backend": "gloo", "run": run, "restarts": 0}
    recorder.add(RunStarted(time_s=1.0 - shift_s, run_id=1, workload="watch", device="cpu", spec={}))
    recorder.add(Note(time_s=2.0, run_id=1, topic="ranks", text="2 here", details={**about, "ranks": rows}))
    recorder.add(Sample(2.5, "host", None, {"used_bytes": 5}))
    here = Ranks(world_size, ranks)
    for number in range(1, STEPS + 1):
        when = 10.0 - shift_s + number / 10
        for rank in ranks:
            told = RankStep(rank, number, when, 0.1, computing_s, 0.1 - computing_s, float(rank))
            joined = here.take_step(told)
            for sample in joined.samples if joined is not None else ():
                recorder.add(sample)
    for rank in ranks:
        for sample in here.take_memory(RankMemory(rank, 18.0 - shift_s, used_bytes=(300 + 200 * (rank == 3)) * MIB)):
            recorder.add(sample)
    end: dict[str, Any] = {"time_s": 20.0 - shift_s, "run_id": 1, "seconds": 19.0, "steps": STEPS}
    result = {"exit_code": 0, "ranks": [{**row, "peak_used_bytes": 999} for row in rows], "straggler": None}
    if failed:
        recorder.add(
            RunEnd(status="failed", **end, error="ValueError", message="Rank 3: no.", remedy="", result=result)
        )
    else:
        recorder.add(RunEnd(**end, status="finished", result=result))
    recorder.close()
    return path

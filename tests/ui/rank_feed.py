"""Puts a run with ranks into a fake session: hand-made steps and memory of each rank, joined as a real run's are."""

from __future__ import annotations

import math
from typing import Any

from gpudash.telemetry.ranks import RankMemory, Ranks, RankStep
from gpudash.telemetry.records import Note, RunStarted, StepFinished
from gpudash.units import GIB, MIB
from tests.ui.fake_session import FakeSession

STEPS = 300
PERIOD_S = 0.1


class RankFeed:
    """A run of ``world`` ranks whose last one is slow.

    Args:
        session: is fed.
        world: how many ranks.
        gpus: whether they are on GPUs.
        slow: share by which the last rank computes longer.
        workload: "training", or "watch" for a program of the user's.
    """

    def __init__(
        self,
        session: FakeSession,
        world: int,
        *,
        gpus: bool = False,
        slow: float = 0.2,
        workload: str = "training",
        hosts: int = 1,
    ) -> None:
        self.session, self.world, self.gpus, self.slow = session, world, gpus, slow
        self.ranks = Ranks(world)
        self.step = 0
        names = [f"cuda:{rank}" if gpus else "cpu" for rank in range(world)]
        session.running = True
        spec = {"devices": ",".join(names), "steps": STEPS} if workload == "training" else {"command": ["torchrun"]}
        session.apply(RunStarted(time_s=session.now_s, run_id=1, workload=workload, device=names[0], spec=spec))
        self.places = [
            {
                "rank": rank,
                "local_rank": rank,
                "device": name,
                "host": f"node-{rank * hosts // world}",
                "pid": 4000 + rank,
                "capacity_bytes": 24 * GIB if gpus else 128 * GIB,
            }
            for rank, name in enumerate(names)
        ]
        self.report("ranks", f"{world} ranks", world_size=world, strategy="ddp", backend="gloo", ranks=self.places)

    def report(self, topic: str, text: str, **details: Any) -> None:
        """A note of the run."""
        self.session.apply(Note(time_s=self.session.now_s, run_id=1, topic=topic, text=text, details=details))

    def memory(self, silent: int | None = None) -> None:
        """Every rank but a ``silent`` one tells its memory."""
        now = self.session.now_s
        for rank in range(self.world):
            if rank != silent:
                used = (700 + 25 * rank + round(20 * math.sin(now + rank))) * MIB
                told = RankMemory(rank, now, used, *((used * 10, used * 12) if self.gpus else (None, None)))
                self.session.apply(*self.ranks.take_memory(told))

    def train(self, steps: int) -> None:
        """So many steps, ten a second, with readings between them."""
        for _ in range(steps):
            self.session.feed(PERIOD_S)
            self.step += 1
            self.memory()
            slowest = 0.050 * (1 + self.slow)
            for rank in range(self.world):
                last = rank == self.world - 1
                jitter = 0.002 * math.sin(self.step * 1.3 + rank)
                compute = (slowest if last else 0.050) + jitter
                blocked = 0.006 + slowest + 0.002 - compute
                loss = 1.6 + 2.6 * math.exp(-self.step / 60) + 0.15 * math.sin(self.step * 1.7 + rank * 2)
                told = RankStep(
                    rank, self.step, self.session.now_s, compute + blocked, compute, blocked, loss, accuracy=0.3
                )
                joined = self.ranks.take_step(told)
            assert joined is not None
            self.session.apply(
                *joined.samples,
                StepFinished(
                    time_s=joined.time_s,
                    run_id=1,
                    step=self.step,
                    steps=STEPS,
                    seconds=joined.seconds,
                    loss=joined.loss,
                    accuracy=joined.accuracy,
                    throughput=900.0,
                ),
            )
        straggler = self.ranks.straggler()
        if straggler is not None:
            self.report("straggler", straggler.text, rank=straggler.rank, slower=straggler.slower)

    def result(self) -> dict[str, Any]:
        """What the run found."""
        straggler = self.ranks.straggler()
        found = None if straggler is None else {"rank": straggler.rank, "slower": straggler.slower, "text": "..."}
        rows = [{**row, **place} for row, place in zip(self.ranks.summary(), self.places, strict=True)]
        return {"ranks": rows, "straggler": found, "memory_imbalance": None, "parameters_equal": True}

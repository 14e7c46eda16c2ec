"""A rank of NCCL's that waits for a slow one: how long its stream was held, by CUDA's events."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.cuda_standin.conftest import Program

SCRIPT = """
    import json, os, sys, time, torch, torch.distributed as dist
    from gpudash.agent.stepping.distributed import EVERY_WITH_EVENTS, Distributed
    from gpudash.agent.stepping.steps import Steps
    if "RANK" not in os.environ:
        import subprocess
        started = [subprocess.Popen([sys.executable, "-c", os.environ["SCRIPT"]], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
        print(json.dumps([json.loads(one.communicate()[0]) for one in started]))
        sys.exit()
    rank, how = int(os.environ["RANK"]), os.environ["HOW"]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
    posted = []
    told = Distributed(posted.append, posted.append, Steps())
    told.follow_waits(dist.Work)
    told.follow_streams(dist.ProcessGroup, torch.cuda.Stream)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for layer in (*model, model):
            fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2 * EVERY_WITH_EVENTS + 2):
        time.sleep(0.2 * rank)
        optimizer.zero_grad()
        model(torch.ones(2, 8).cuda()).sum().backward()
        for parameter in model.parameters() if how != "fsdp" else ():
            if how == "blocking":
                dist.all_reduce(parameter.grad)
            else:
                dist.all_reduce(parameter.grad, async_op=True).wait()
        optimizer.step()
        told.stepped(optimizer)
        torch.cuda.synchronize()
    told.report({}, last=True)
    rows = [row for message in posted if message["type"] == "rank_steps" for row in message["steps"]]
    print(json.dumps([[row[2], row[4]] for row in rows if row[4] is not None]), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_the_rank_that_waits_is_told_from_the_one_that_is_waited_for(
    program: Program, tmp_path: Any, gpus: int, how: str
) -> None:
    waits, is_waited_for = _measured(program, tmp_path, gpus, how)
    assert all(held_s > step_s / 2 for step_s, held_s in waits)
    assert all(held_s < step_s / 2 for step_s, held_s in is_waited_for)


def test_what_fsdp2_puts_behind_its_collectives_is_measured(program: Program, tmp_path: Any, gpus: int) -> None:
    """The stand-in's ranks wait within the collective's call, on FSDP2's own streams: how long cannot be seen here."""
    for rows in _measured(program, tmp_path, gpus, "fsdp"):
        assert all(0 < held_s < step_s for step_s, held_s in rows)


def _measured(program: Program, tmp_path: Any, gpus: int, how: str) -> Any:
    """(seconds, of them held) of each measured step of both ranks."""
    if gpus < 2:
        pytest.skip("needs two GPUs")
    script = textwrap.dedent(SCRIPT)
    ranks = program(script, SCRIPT=script, MEETING=str(tmp_path / "meeting"), HOW=how)
    assert [len(rows) for rows in ranks] == [2, 2]
    return ranks

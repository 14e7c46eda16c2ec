"""One rank: ``python -c ... FOLDER``, started by torchrun, which sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR.

It reports to the run over the socket in FOLDER, in the frames of `gpudash.agent.wire`: ``hello``; ``beat`` {time_s,
used_bytes, allocated_bytes, reserved_bytes, card, step, phase, where} ten times a second; ``ready`` {items, facts,
memory}, when the first step can start; ``step`` {step, time_s, step_s, compute_s, blocked_s, loss, accuracy};
``event`` {event}, stages and notes of rank 0; and finally ``done`` {steps, digest, difference} or ``failed``, with the
fields of `facts_of`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpudash.devices.names import kind_of
from gpudash.simulator.device.process_table import table_of_program
from gpudash.system.folders import log_file
from gpudash.system.log import log_uncaught, start_log
from gpudash.system.processes import TORCH_IMPORT_S, die_with
from gpudash.telemetry.records import EpochFinished, Event, StepFinished
from gpudash.workloads.programs.parallel.job import BACKENDS, SOCKET, TORCHRUN, Job, read_job
from gpudash.workloads.programs.parallel.rank_link import COLLECTIVE, LEAVING, STARTING, Link, facts_of
from gpudash.workloads.running import sim_backend
from gpudash.workloads.running.accelerators import AllocatorProbe, capped, module_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

NAME = b"gpudash-rank"

START = timedelta(seconds=TORCH_IMPORT_S)


def main() -> None:
    """Train as one rank; never returns."""
    die_with(int(os.environ.get(TORCHRUN, str(os.getppid()))), NAME)
    start_log(str(log_file()))
    log_uncaught()
    folder = Path(sys.argv[1])
    job = read_job(folder)
    link = Link(folder / SOCKET, job.origin_s)
    device = job.spec.device_names[link.local_rank]
    link.start(device)
    try:
        result = _train(job, link, device)
    except BaseException as error:  # whatever ends a rank is reported, and then left to torchrun
        logger.warning("rank %d ended with an error", link.rank, exc_info=True)
        link.phase = LEAVING
        with suppress(RuntimeError):  # a broken device raises errors from now on
            link.beat()
        link.report("failed", **facts_of(error, link, device))
        _leave(link, 1)
    link.report("done", **result)
    _leave(link, 0)


def _train(job: Job, link: Link, name: str) -> dict[str, Any]:
    import torch
    from torch import distributed

    from gpudash.workloads.programs.parallel.rank_training import RankTraining
    from gpudash.workloads.running.context import Context

    spec = job.spec
    # Divide the cores, unless requested otherwise: each rank would use all of them.
    torch.set_num_threads(spec.threads or max(1, (os.cpu_count() or 1) // link.world_size))
    device = _take_device(job, link, name)
    torch.manual_seed(spec.seed)
    # Connecting waits for the others, and is shown as a collective.
    link.phase = COLLECTIVE
    _connect(BACKENDS[kind_of(name)], device, timedelta(seconds=spec.rank_timeout))
    link.phase = STARTING
    context = Context(device, run_id=0, emit=_reporter(link), clock=link.clock, warn_ratio=job.warn_ratio)
    with capped(device, job.cap):
        result = RankTraining(spec, context, link).train()
    link.beat()
    # Destroyed only at the end of a whole run: an error exits by `os._exit`, without waiting for other ranks.
    with suppress(RuntimeError):  # another rank may have left already, and nothing is shared any more
        distributed.destroy_process_group()
    return result


def _connect(backend: str, device: torch.device, timeout: timedelta) -> None:
    """Join the other ranks of this start.

    torchrun keeps one store for all starts, in which a rank would find the addresses of an earlier start
    (https://github.com/pytorch/pytorch/issues/135712), so each start uses a part of its own.
    """
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(iter(rendezvous("env://", timeout=START)))
    own = PrefixStore(f"start_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    own.set(f"rank_{rank}", "here")
    own.wait([f"rank_{other}" for other in range(world_size)], START)
    identity: dict[str, Any] = {}
    # NCCL binds the group to this GPU at once, so a rank on a wrong one fails here.
    if device.type == "cuda":
        identity = {"device_id": device}
    distributed.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=timeout, **identity)


def _take_device(job: Job, link: Link, name: str) -> torch.device:
    import torch

    from gpudash.workloads.running.run import confirm

    if kind_of(name) == "sim":  # torch knows the name from now on
        link.card = _simulated_card(job, name)
    device = torch.device(name)
    if device.type == "cpu":
        return device
    confirm(device, job.uuids[link.local_rank])
    module_of(device).set_device(device)
    link.allocator = AllocatorProbe(device)
    return device


def _simulated_card(job: Job, name: str) -> Callable[[], dict[str, Any]]:
    """Add all simulated cards to torch, as every process sees all GPUs; returns a reader for this rank's figures."""
    table = table_of_program()
    cards = [sim_backend.card_from(fields, table) for fields in job.cards]
    sim_backend.add(cards)
    own = next(card for card in cards if f"sim:{card.index}" == name)
    return partial(sim_backend.card_figures, own)


def _reporter(link: Link) -> Any:
    """Handles what rank 0 reports of its stages, copies and data; steps and epochs belong to all ranks together."""

    def report(event: Event) -> None:
        if link.rank == 0 and not isinstance(event, (StepFinished, EpochFinished)):
            link.report("event", event=event.to_json())

    return report


def _leave(link: Link, code: int) -> NoReturn:
    """Exit at once: connections that torch still holds must not delay the rank."""
    link.leave()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

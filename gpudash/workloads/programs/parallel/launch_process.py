"""Runs torchrun as the child of a run: ``python -c ... FOLDER PARENT [torchrun's arguments]``.

It calls torchrun's own ``main`` with its own restart policy, and adds three things: it ends with the process that
started it, it checks first whether the backend is available, and it reports over the run's socket how each rank ended
(``failed_ranks`` {local_rank, pid, exit_code}), because only the process that started the ranks can know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpudash.agent.channel import Channel
from gpudash.agent.wire import PROTOCOL
from gpudash.devices.names import kind_of
from gpudash.simulator.device.process_table import VARIABLE, table_of_program
from gpudash.system.processes import die_with
from gpudash.workloads.programs.parallel.job import SOCKET, TORCHRUN, read_job

NAME = b"gpudash-torchrun"[:15]
DRAIN_S = 1.0

NO_TORCHRUN = "torchrun is missing: this torch was built without torch.distributed ({error})."
NO_GLOO = "Gloo is missing: this torch cannot connect ranks on the CPU."
NO_NCCL = "NCCL is missing: this torch cannot connect ranks on GPUs."
NO_SIMULATED = "This torch cannot connect ranks on simulated GPUs: its torch.distributed.Work has no unbox()."
INSTALL = "Install another build of torch: https://pytorch.org/get-started/locally; or name one --device."


def main() -> None:
    """Start the ranks and wait for their end; exits as torchrun does."""
    folder = Path(sys.argv[1])
    parent = int(sys.argv[2])
    arguments = sys.argv[3:]
    # First, or all ranks would outlive a run that is no longer followed.
    die_with(parent, NAME)
    channel = Channel(str(folder / SOCKET))
    channel.post({"type": "hello", "protocol": PROTOCOL, "pid": os.getpid(), "role": "torchrun"}, keep=True)
    job = read_job(folder)
    missing = what_is_missing(job.spec.device_names[0])
    if missing is not None:
        # Sent before anything is started, and flushed, since the process then exits.
        channel.post({"type": "missing", "message": missing, "remedy": INSTALL}, keep=True)
        channel.drain(DRAIN_S)
        sys.exit(1)
    from torch.distributed import run

    # Ranks use this process ID to end with the process (`die_with` in `rank_program`).
    os.environ[TORCHRUN] = str(os.getpid())
    if job.cards:
        _share_cards()
    _follow_failures(channel)
    try:
        run.main(arguments)
    # Including SystemExit: torchrun exits with it, and its own error lists the failures.
    except BaseException as error:
        _report_failures(channel, getattr(error, "failures", {}))
        raise
    finally:
        channel.drain(DRAIN_S)


def _share_cards() -> None:
    """Give the ranks a shared table of what each holds of the simulated cards; it lasts as long as this process."""
    os.environ.pop(VARIABLE, None)  # the table of a program that started this run has other cards
    table_of_program()


def what_is_missing(device: str) -> str | None:
    """What this torch lacks to connect ranks on such devices, in one sentence; ``None`` if nothing."""
    try:
        import torch.distributed as distributed
        import torch.distributed.run  # noqa: F401 - whether it can be
    except (ImportError, AttributeError, OSError) as error:
        return NO_TORCHRUN.format(error=error)
    if not distributed.is_available():
        return NO_TORCHRUN.format(error="torch.distributed is not available")
    if kind_of(device) == "cuda":
        if distributed.is_nccl_available():
            return None
        return NO_NCCL
    if not distributed.is_gloo_available():
        return NO_GLOO
    if kind_of(device) == "sim" and not hasattr(distributed.Work, "unbox"):
        return NO_SIMULATED
    return None


def _follow_failures(channel: Channel) -> None:
    """Report every process that torchrun sees fail, even if it restarts all ranks and does not report the failure."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor = getattr(LocalElasticAgent, "_monitor_workers", None)
    if monitor is None:  # another version: only failures of the last start are reported, at its end
        return

    # Torchrun calls this at every poll, and discards the failures when it restarts all ranks.
    def monitored(*arguments: Any, **more: Any) -> Any:
        found = monitor(*arguments, **more)
        _report_failures(channel, getattr(found, "failures", {}))
        return found

    LocalElasticAgent._monitor_workers = monitored  # type: ignore[method-assign]  # noqa: SLF001 - nothing public reports failures


def _report_failures(channel: Channel, failures: Mapping[int, Any]) -> None:
    for rank, failure in failures.items():
        facts = {"local_rank": int(rank), "pid": int(failure.pid), "exit_code": int(failure.exitcode)}
        channel.post({"type": "fell", **facts}, keep=True)

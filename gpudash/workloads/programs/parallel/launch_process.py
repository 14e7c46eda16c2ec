"""torchrun as the child of a run: ``python -c ... FOLDER PARENT [torchrun's arguments]``.

It is torchrun's own ``main`` with its own restart policy; around it only three things are added: it ends with the
process that started it, it looks beforehand whether the backend is there, and it tells over the run's socket which rank
has ended how (``failed_ranks`` {local_rank, pid, exit_code}), since only the process that started the ranks can know.
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
    """Start the ranks and see them to their end; exits as torchrun does."""
    folder = Path(sys.argv[1])
    parent = int(sys.argv[2])
    arguments = sys.argv[3:]
    # In time, or all ranks would outlive a run that is no longer followed.
    die_with(parent, NAME)
    channel = Channel(str(folder / SOCKET))
    channel.post({"type": "hello", "protocol": PROTOCOL, "pid": os.getpid(), "role": "torchrun"}, keep=True)
    job = read_job(folder)
    missing = what_is_missing(job.spec.device_names[0])
    if missing is not None:
        # Sent before anything is started, and waited for, since the process ends with it.
        channel.post({"type": "missing", "message": missing, "remedy": INSTALL}, keep=True)
        channel.drain(DRAIN_S)
        sys.exit(1)
    from torch.distributed import run

    # By its number the ranks know with whom they end (`die_with` in `rank_program`).
    os.environ[TORCHRUN] = str(os.getpid())
    if job.cards:
        _share_cards()
    _follow_failures(channel)
    try:
        run.main(arguments)
    # SystemExit among them: torchrun leaves by it, and its own error names the failures.
    except BaseException as error:
        _report_failures(channel, getattr(error, "failures", {}))
        raise
    finally:
        channel.drain(DRAIN_S)


def _share_cards() -> None:
    """Let the ranks find one table of what each holds of the simulated cards: it lasts as long as this process."""
    os.environ.pop(VARIABLE, None)  # that of a program by which this run was started, whose cards are others
    table_of_program()


def what_is_missing(device: str) -> str | None:
    """What this torch lacks to connect ranks on devices of this kind, in one sentence; ``None`` when nothing."""
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
    """Tell of every process that torchrun sees fail, also where it starts all anew and keeps that to itself."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor = getattr(LocalElasticAgent, "_monitor_workers", None)
    if monitor is None:  # another version: failures of the last start are reported at its end
        return

    # Torchrun asks this at every turn, and forgets the failures where it starts all ranks again.
    def monitored(*arguments: Any, **more: Any) -> Any:
        found = monitor(*arguments, **more)
        _report_failures(channel, getattr(found, "failures", {}))
        return found

    LocalElasticAgent._monitor_workers = monitored  # type: ignore[method-assign]  # noqa: SLF001 - nothing public reports failures


def _report_failures(channel: Channel, failures: Mapping[int, Any]) -> None:
    for rank, failure in failures.items():
        facts = {"local_rank": int(rank), "pid": int(failure.pid), "exit_code": int(failure.exitcode)}
        channel.post({"type": "fell", **facts}, keep=True)

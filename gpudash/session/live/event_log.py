"""What the log has of a session's records: the few that say what became of a run, a source or a program."""

from __future__ import annotations

import logging

from gpudash.telemetry.records import (
    Note,
    Record,
    RunEnd,
    RunStarted,
    SourceFailed,
    SourceRecovered,
    Topic,
    Warning,
)

logger = logging.getLogger(__name__)

LOGGED = frozenset(
    (
        Topic.DEVICE,
        Topic.FROM_OUTPUT,
        Topic.GPUS,
        Topic.NEED,
        Topic.OUT_OF_MEMORY,
        Topic.PROGRAM,
        Topic.RANKS,
        Topic.RECORDINGS,
        Topic.REPORT,
        Topic.RESTART,
        Topic.SERVING,
        Topic.SETTINGS,
        Topic.SNAPSHOT,
        Topic.TORCH,
        Topic.WORKER,
    )
)
"""Notes that come a few times a run; others may come every step, or hold a command line, which may hold anything."""


def log_record(record: Record, machine: str = "this machine") -> None:
    """Log a record, if it is one of the few.

    Args:
        machine: where it comes from.
    """
    match record:
        case RunStarted():
            logger.info("run %s began: %s on %s", record.run_id, record.workload, record.device)
        case RunEnd(status="out_of_memory"):
            _log_end(record, f"out of memory: {record.message}", logging.WARNING)
        case RunEnd(status="failed"):
            how = record.message
            # That of a watched program is the last line of its traceback, which begins with its kind.
            if not how.startswith(f"{record.error}:"):
                how = f"{record.error}: {how}"
            _log_end(record, how, logging.WARNING)
        case RunEnd():
            _log_end(record, record.status, logging.INFO)
        case SourceFailed():
            logger.warning("%s of %s: %s", record.source, machine, record.text)
        case SourceRecovered():
            logger.info("%s of %s: %s", record.source, machine, record.text)
        case Warning():
            logger.info("%s of %s: %s", record.level, machine, record.text)
        case Note() if record.topic in LOGGED:
            logger.info("%s of %s: %s", record.topic, machine, record.text)


def _log_end(ended: RunEnd, how: str, level: int) -> None:
    logger.log(level, "run %s ended after %.1f s, %d steps: %s", ended.run_id, ended.seconds, ended.steps, how)

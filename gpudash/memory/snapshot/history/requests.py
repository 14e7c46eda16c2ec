"""The requests in a snapshot, in the form used for a watched program."""

from __future__ import annotations

import numpy as np

from gpudash.memory.frames import Frame
from gpudash.memory.request_log import NEVER, RequestLog
from gpudash.memory.snapshot.history.history import History


def log_of(history: History, began_wall_s: float = 0.0) -> RequestLog:
    """The requests in a snapshot.

    Args:
        history: history of one of its devices.
        began_wall_s: session time 0 in seconds since 1970; events of a snapshot without times get their numbers.
    """
    lives = history.lives
    # Blocks freed before the first event, which were only waiting for a stream, were never seen alive.
    kept = np.flatnonzero(lives.freed > lives.born)
    kept = kept[np.argsort(lives.born[kept], kind="stable")]
    freed = np.where(lives.freed[kept] >= history.count, NEVER, lives.freed[kept])
    times = history.time_us / 1e6 - began_wall_s
    if history.time_s(0) is None:
        times = np.arange(history.count, dtype=np.float64)
    log = RequestLog()
    log.replace(
        (np.maximum.accumulate(times), history.allocated),
        (lives.born[kept], freed, lives.bytes[kept], lives.stack[kept], lives.category[kept]),
        [tuple(Frame(*frame) for frame in stack) for stack in history.device.stacks],
        history.categories,
    )
    return log

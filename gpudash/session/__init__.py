"""The application without a screen: wiring only."""

from gpudash.session.estimator import Answer
from gpudash.session.live import CLOSE_TIMEOUT_S, Session
from gpudash.session.output_log import OutputLine, OutputLog
from gpudash.session.recordings import recording_target
from gpudash.session.replay import Replay
from gpudash.session.status import Status
from gpudash.session.watch_request import WatchRequest

__all__ = [
    "CLOSE_TIMEOUT_S",
    "Answer",
    "OutputLine",
    "OutputLog",
    "Replay",
    "Session",
    "Status",
    "WatchRequest",
    "recording_target",
]

"""The application without a screen: wiring only."""

from gpudash.session.live.session import CLOSE_TIMEOUT_S, Session, Status
from gpudash.session.predicting.estimator import Answer
from gpudash.session.recordings.folder import recording_target
from gpudash.session.recordings.replay import Replay
from gpudash.session.watching.output_log import OutputLine, OutputLog
from gpudash.session.watching.request import WatchRequest

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

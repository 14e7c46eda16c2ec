"""The application without a screen: wiring only."""

from gpudash.session.estimator import Answer
from gpudash.session.live import CLOSE_TIMEOUT_S, Session
from gpudash.session.recordings import recording_target
from gpudash.session.replay import Replay
from gpudash.session.status import Status

__all__ = ["CLOSE_TIMEOUT_S", "Answer", "Replay", "Session", "Status", "recording_target"]

"""The application without a screen: wiring only.

Each name is imported when it is first asked for: a command that needs one part does not wait for all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudash.session.live.session import CLOSE_TIMEOUT_S, Session, Status
    from gpudash.session.predicting.estimator import Answer
    from gpudash.session.recordings.folder import recording_target
    from gpudash.session.recordings.replay import Replay
    from gpudash.session.watching.output.log import OutputLine, OutputLog
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

_MODULES = {
    "CLOSE_TIMEOUT_S": "live.session",
    "Answer": "predicting.estimator",
    "OutputLine": "watching.output.log",
    "OutputLog": "watching.output.log",
    "Replay": "recordings.replay",
    "Session": "live.session",
    "Status": "live.session",
    "WatchRequest": "watching.request",
    "recording_target": "recordings.folder",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

"""The stage: the demo in full screen, in type that the last row reads."""

from gpudash.ui.stage.window import StageWindow

__all__ = ["StageWindow"]

"""The stage: the demo in full screen, in type that can be read from the back row."""

from gpudash.ui.stage.window import StageWindow

__all__ = ["StageWindow"]

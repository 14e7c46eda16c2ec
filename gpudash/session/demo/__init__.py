"""The demo: scenes as data, and the show that plays them, lines in a process of their own. Qt is not needed."""

from gpudash.session.demo.pictures import StagePicture
from gpudash.session.demo.scenes import SCENES, Scene
from gpudash.session.demo.show import Show, ShowPace

__all__ = ["SCENES", "Scene", "Show", "ShowPace", "StagePicture"]

"""The demo: scenes as data, and the tour that plays them through a session. Qt is not needed."""

from gpudash.session.demo.scenes import SCENES, Act, Scene, SceneQuestion
from gpudash.session.demo.tour import State, Tour

__all__ = ["SCENES", "Act", "Scene", "SceneQuestion", "State", "Tour"]

"""What a script calls so that ``gpudash watch --attach`` can come into it later: ``open_door()``."""

from gpudash.agent.door import open_door

__all__ = ["open_door"]

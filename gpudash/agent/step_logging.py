"""``logging.getLogger("gpudash").info("step", extra={"step": i, "loss": x})``, recognised whatever the levels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "gpudash"

Told = Callable[[dict[str, Any]], None]


def listen(logging: Any, told: Told) -> None:
    """Let ``told`` hear the ``extra`` of every ``info("step", ...)`` of the logger `NAME`.

    The logger is made when the program asks for it, of the class the program chose; only then its class becomes one
    that listens and otherwise does the same.
    """
    manager = logging.Logger.manager
    found = manager.loggerDict.get(NAME)
    if isinstance(found, logging.Logger):
        found.__class__ = _listening(logging, type(found), told)
        return

    class Place(logging.PlaceHolder):  # type: ignore[misc]
        """Stands where the logger will be; the manager asks it for `loggerMap` as soon as the logger is there."""

        @property
        def loggerMap(self) -> Any:  # noqa: N802 - the name that logging asks for
            made = manager.loggerDict.get(NAME)
            if isinstance(made, logging.Logger) and not hasattr(type(made), "_gpudash_listens"):
                made.__class__ = _listening(logging, type(made), told)
            return self.children

    place = Place.__new__(Place)
    place.children = {} if found is None else found.loggerMap
    manager.loggerDict[NAME] = place


def _listening(logging: Any, base: Any, told: Told) -> Any:
    plain = base.info is logging.Logger.info

    def info(self: Any, msg: Any, *args: Any, **kwargs: Any) -> None:
        if msg == "step":
            extra = kwargs.get("extra")
            if isinstance(extra, dict):
                told(extra)
        if not plain:
            base.info(self, msg, *args, **kwargs)
        elif self.isEnabledFor(20):
            self._log(20, msg, args, **kwargs)

    # so that logging takes this frame for one of its own when it looks for the caller
    info.__code__ = info.__code__.replace(co_filename=logging._srcfile)
    members = {"info": info, "_gpudash_listens": True, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), members)

"""What a scenario plays the real window with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from gpudash.telemetry.records import Warning
from gpudash.ui.window.main_window import MainWindow

Steps = Generator[Callable[[], bool], None, None]
"""A scenario yields conditions and goes on when each has come true."""


class Player:
    """What a scenario works with."""

    def __init__(self, window: MainWindow, folder: Path) -> None:
        self.window = window
        self.session = window.workspace.session
        self.folder = folder
        self.seen: dict[str, Any] = {}

    def picture(self, name: str) -> None:
        self.window.grab().save(str(self.folder / f"{name}.png"))

    def pictures(self, name: str = "") -> Steps:
        """One in each theme, once it has been drawn: NAME-light and NAME-dark."""
        for theme in ("light", "dark"):
            self.window.menus.actions[f"view.theme.{theme}"].trigger()
            yield self.frames(8)
            self.picture(f"{name}-{theme}" if name else theme)

    def frames(self, count: int) -> Callable[[], bool]:
        """Whether so many more have been drawn."""
        dashboard = self.window.workspace.dashboard
        until = dashboard._frame + count
        return lambda: dashboard._frame >= until

    def run_ended(self) -> bool:
        return not self.session.running and self.session.store.run is not None

    def warnings(self) -> list[Warning]:
        with self.session.store.lock:
            return [event for event in self.session.store.events if isinstance(event, Warning)]

    def finish(self) -> None:
        self.seen["closed_at"] = time.time()
        (self.folder / "seen.json").write_text(json.dumps(self.seen))
        self.window.leave()

"""From a changed field to the redrawn ghost: a real session predicts, the real window shows.

``changed_ms`` is from the change of the batch until its ghost is painted, by the clock; ``dry_run_ms`` what the dry run
says that it took itself; ``pause_ms`` for how long the form has to be left alone before it is asked about. ``over_ms``
is what is left: 1.2 times the dry run, the pause, and one frame of 33 ms subtracted. Medians; 1280×800.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from gpudash.session import Session
from gpudash.system.settings import Settings
from gpudash.ui.app import build_window
from gpudash.ui.forms.fit_follower import DEBOUNCE_S
from gpudash.ui.widgets.theme import apply_colours
from tests.benchmarks.frame import application

CHANGES = 12
FRAME_MS = 33.0
ALLOWED = 1.2
LONGEST_S = 30.0


def measure() -> dict[str, float]:
    """The figure that is held, and the times it comes from."""
    app = application()
    os.environ["GPUDASH_HOME"] = tempfile.mkdtemp()
    session = Session(Settings())
    session.start()
    window = build_window(session, apply_colours(app, "dark"), lambda _choice: None)
    window.resize(1280, 800)
    window.show()
    session.load_torch(session.settings.isolate)
    dashboard = window.workspace.dashboard
    dashboard.show_form()
    fit = dashboard.fit
    assert fit is not None

    def shown(batch: int) -> float | None:
        """The dry run's own seconds, once the ghost is that of ``batch``."""
        view = fit.ghost
        answer = session.estimates.newest()
        if view is None or view.faded or view.sized is None or view.sized.size != batch:
            return None
        if answer is None or answer.estimate is None:
            return None
        return answer.estimate.seconds

    def until_shown(batch: int) -> float:
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            app.processEvents()
            found = shown(batch)
            if found is not None:
                # Painted as soon as it is known, as the window's next frame does.
                window.workspace.refresh()
                app.processEvents()
                return found
        raise RuntimeError(f"no ghost of a batch of {batch} within {LONGEST_S:g} s")

    changed = []
    own = []
    try:
        for batch in range(16, 16 + CHANGES + 2):
            began = time.monotonic()
            dashboard.panel.form.change_fields({"batch": batch})
            dashboard.panel.form.changed.emit()
            own.append(until_shown(batch) * 1e3)
            changed.append((time.monotonic() - began) * 1e3)
    finally:
        window.close()
        session.close()
    # The first prediction imports what the others use.
    changed_ms = statistics.median(changed[2:])
    dry_run_ms = statistics.median(own[2:])
    pause_ms = DEBOUNCE_S * 1e3
    over_ms = max(0.0, changed_ms - ALLOWED * dry_run_ms - pause_ms - FRAME_MS)
    return {"changed_ms": changed_ms, "dry_run_ms": dry_run_ms, "pause_ms": pause_ms, "over_ms": over_ms}

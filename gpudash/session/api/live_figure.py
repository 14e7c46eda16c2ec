"""``%gpudash``: a live figure in the notebook, of this kernel's memory and steps.

One thread reads and sends, within half a percent of a core (`Sampler`). If nobody looks at the figure and no cell
runs, nothing is sent: a visible figure reports every few seconds that it is visible; one in a closed notebook or a
hidden tab does not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from gpudash.agent.sampler import Sampler
from gpudash.session.api.live_memory import PERIOD_S, LiveMemory
from gpudash.session.api.variables import HeldMemory, holder_cells

RESTING_S = 1.0
"""Interval between two pictures while nothing changes."""

UNSEEN_S = 15.0
"""A figure that has not reported for this long counts as hidden."""

LONG_CELL_S = 600.0
"""While a cell runs longer than this, a picture is sent every `LONG_CELL_PERIOD_S`: unread messages pile up in
Jupyter's server, and a busy kernel receives no messages from a figure."""

LONG_CELL_PERIOD_S = 5.0

LONGEST_HOLDING_S = 0.1
"""Processor time that following the variables may take after each cell; beyond it, only *Refresh* does so."""

Holders = Callable[[], HeldMemory | None]

logger = logging.getLogger(__name__)


class LiveWidget(anywidget.AnyWidget):
    """The state of the figure in the browser.

    Attributes:
        columns: `LiveMemory.columns`.
        facts: `LiveMemory.facts`, whether a cell runs, and why the figure is stopped, "" while it is live.
        table: what the names hold: headline, rows of four cells, and the cell after which it was read.
    """

    _esm = Path(__file__).with_suffix(".js")

    columns = traitlets.Bytes(b"").tag(sync=True)
    facts = traitlets.Dict({}).tag(sync=True)
    table = traitlets.Dict({}).tag(sync=True)


class LiveFigure:
    """A figure that is live until `stop`.

    Args:
        holders: returns what the notebook's names hold; ``None`` without a GPU. Called in the notebook's thread.
        no_gpu: a sentence for a kernel without a GPU.
        memory: the memory to show.

    Attributes:
        widget: what the browser displays.
        plain: what the names hold as text and as HTML, for front ends without widgets.
    """

    def __init__(self, holders: Holders, memory: LiveMemory, *, no_gpu: str) -> None:
        self._memory = memory
        self.plain: dict[str, str] = {}
        self._holders = holders
        self._no_gpu = no_gpu
        self._sending = threading.Lock()
        self._running = False
        self._cell = 0
        self._began_s = 0.0
        self._sent_s = 0.0
        self._seen_s = time.monotonic()
        self._was_seen = True
        self._holding_s = 0.0
        self._why_stopped = ""
        self._sampler = Sampler(self._poll, PERIOD_S)
        self._memory.read()
        self._hold()
        self.widget = LiveWidget(columns=self._memory.columns(), facts=self._facts(), table=self._table)
        self.widget.on_msg(self._heard)
        self._sampler.start()

    @property
    def moves(self) -> bool:
        """Whether it is live."""
        return not self._why_stopped

    def cell_began(self, number: int) -> None:
        """A cell with this number starts to run."""
        self._memory.cell_began(number)
        self._cell = number
        self._was_seen = self._is_seen()
        self._began_s = time.monotonic()
        self._running = True

    def cell_ended(self) -> None:
        """The cell has ended: the names may hold something else now."""
        self._memory.cell_ended()
        self._running = False
        if not self.moves or not self._was_seen:
            return
        self._seen_s = time.monotonic()  # the browser could not report while the cell ran
        if self._holding_s <= LONGEST_HOLDING_S:
            self._hold()
        self._send()

    def stop(self, why: str) -> None:
        """Stop updating and show the reason; the thread has ended when this returns."""
        if not self.moves:
            return
        self._why_stopped = why
        self._sampler.stop()
        self._memory.stop()
        self._send()

    def close(self) -> None:
        """Stop, and remove the figure from the screen."""
        self.stop("Stopped.")
        self.widget.close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = self.widget._repr_mimebundle_(**options)
        if found is None:
            return self.plain
        data, metadata = found
        return {**data, **self.plain}, metadata

    def _poll(self) -> bool:
        """Read, and send if somebody looks at the figure; called in the thread."""
        try:
            changed = self._memory.read()
            if self._is_due(changed):
                self._send()
        except Exception:
            logger.exception("The live figure cannot be brought up to date")
        return True

    def _is_due(self, changed: bool) -> bool:
        now_s = time.monotonic()
        waited_s = now_s - self._sent_s
        if not self._is_seen():
            return False
        if self._running and now_s - self._began_s > LONG_CELL_S:
            return waited_s >= LONG_CELL_PERIOD_S
        return changed or waited_s >= RESTING_S

    def _is_seen(self) -> bool:
        return self._running or time.monotonic() - self._seen_s < UNSEEN_S

    def _send(self) -> None:
        """Update the picture, with one message."""
        with self._sending, self.widget.hold_sync():
            self._sent_s = time.monotonic()
            self.widget.columns = self._memory.columns()
            self.widget.facts = self._facts()
            self.widget.table = self._table

    def _facts(self) -> dict[str, Any]:
        return {
            **self._memory.facts(),
            "running": self._running,
            "stopped": self._why_stopped,
            "period": PERIOD_S,
            "no_gpu": self._no_gpu,
        }

    def _hold(self) -> None:
        began_s = time.thread_time()
        found = self._holders()
        self._holding_s = time.thread_time() - began_s
        if found is None:
            self.plain = {"text/plain": self._no_gpu}
            self._table: dict[str, Any] = {}
            return
        self.plain = {"text/plain": str(found), "text/html": found.to_html()}
        rows = [list(holder_cells(holder)) for holder in found.holders]
        self._table = {"headline": found.headline, "rows": rows, "after": self._cell}

    def _heard(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """Handle a message from the figure in the browser: it is visible, or one of its buttons was pressed."""
        what = message.get("what") if isinstance(message, dict) else None
        if what not in ("seen", "refresh", "stop"):
            return
        was_seen = self._is_seen()
        self._seen_s = time.monotonic()
        if what == "stop":
            self.stop("Stopped.")
        elif what == "refresh" and self.moves:
            self._hold()
            self._send()
        elif not was_seen and self.moves:
            self._send()

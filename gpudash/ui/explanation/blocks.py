"""The blocks of a fragmented memory when a request was refused, from a snapshot or from the explanation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PySide6.QtWidgets import QFrame, QWidget

from gpudash.memory.allocator.layout import SHARED
from gpudash.memory.snapshot.explaining import chosen_moment
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.lives import Ints, Piece
from gpudash.session.recordings.report_folder import sidecar_of
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.telemetry.explanation import BlockMap, Explanation
from gpudash.ui.colours import Palette, category_curve
from gpudash.ui.explanation.memory_map import IDLE, Map, MemoryMap, ScrolledMap, map_of
from gpudash.ui.widgets.labels import title_label
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_bytes, format_count

logger = logging.getLogger(__name__)

LONGEST_S = 60.0
"""Seconds; a snapshot that takes longer to read shows no map."""


@dataclass(frozen=True)
class RefusedBlocks:
    """The map of a device at the moment that is explained, and descriptions of its blocks.

    Attributes:
        found: the map.
        categories: categories that blocks can have.
        category: index of each block's category.
        label_of: describes a block by its index; its bytes are those requested, if known.
    """

    found: Map
    categories: Sequence[str]
    category: Ints
    label_of: Callable[[int], str]

    @classmethod
    def of_history(cls, history: History, found: Map) -> RefusedBlocks:
        """The blocks of a snapshot."""

        def label_of(block: int) -> str:
            lives = history.lives
            life = int(found.life[block])
            category = history.categories[int(lives.category[life])]
            line = history.sites.name(int(history.sites.of_stack[lives.stack[life]]))
            return f"{category}, {format_bytes(int(lives.bytes[life]))}\n{line}"

        category = history.lives.category[found.life].astype(np.int64)
        return cls(found, history.categories, category, label_of)

    @classmethod
    def of_map(cls, blocks: BlockMap) -> RefusedBlocks:
        """The blocks stored in an explanation."""
        labels = np.array(blocks.label, np.int64)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(blocks.categories))}
        of_label = np.array([numbers[name] for name in blocks.categories], np.int64)

        def label_of(block: int) -> str:
            label = blocks.label[block]
            text = f"{blocks.categories[label]}, {format_bytes(blocks.bytes[block])}"
            if blocks.lines[label]:
                text += f"\n{blocks.lines[label]}"
            return text

        return cls(_map_of_blocks(blocks), tuple(numbers), of_label[labels], label_of)

    def text_of(self, block: int, place: int) -> str:
        """The description of a block, or of the free memory around an offset."""
        if block == IDLE:
            low, high = self.found.idle_at(place)
            return f"free, {format_bytes(high - low)}"
        return self.label_of(block)

    def sums(self, requested: int) -> str:
        """How much is free, and in how large pieces, as a sentence."""
        gaps = self._gaps()
        free = f"{format_bytes(int(gaps.sum()))} are free in {format_count(len(gaps))} pieces"
        largest = format_bytes(int(gaps.max(initial=0)))
        request = ""
        if requested:
            request = f"; {format_bytes(requested)} were requested in one piece"
        return f"{free}, the largest of {largest}{request}."

    def _gaps(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Bytes of each free range within a segment."""
        edges = self.found.offset.astype(np.int64)
        # A free range lies between the end of a block, or the start of a segment, and the next block or end of
        # segment.
        ends = np.sort(np.concatenate((self.found.end, edges[:-1])))
        begins = np.sort(np.concatenate((self.found.begin, edges[1:])))
        gaps = begins - ends
        return gaps[gaps > 0]


def _map_of_blocks(blocks: BlockMap) -> Map:
    offset = np.concatenate(([0], np.cumsum(blocks.segments))).astype(np.int64)
    segments = tuple(
        Piece(int(place), size, stream=0, is_small=False, pool=SHARED, is_expandable=False, born=-1, freed=1)
        for place, size in zip(offset, blocks.segments, strict=False)
    )
    begin = np.array(blocks.begin, np.int64)
    end = begin + np.array(blocks.bytes, np.int64)
    return Map(segments, offset, begin, end, np.arange(len(begin)), np.array(blocks.waits, np.bool_))


class _Reading(threading.Thread):
    """Reads a snapshot and computes its map; sets `blocks` if it succeeds."""

    def __init__(self, path: Path, device: str) -> None:
        super().__init__(name="gpudash-refused-blocks", daemon=True)
        self.path = path
        self.blocks: RefusedBlocks | None = None
        self._device = device

    def run(self) -> None:
        opened = OpenedSnapshot(self.path)
        try:
            opened.start()
            snapshot = opened.wait(LONGEST_S)
            if snapshot is None:
                return
            device = snapshot.device_called(self._device)
            history = sidecar_of(self.path).history(snapshot, device)
            history.prepare()
            self.blocks = RefusedBlocks.of_history(history, map_of(history.layout(chosen_moment(history))))
        except Exception:  # the file may be anybody's: without it, the page stays as it is
            logger.exception("the blocks of a snapshot cannot be shown")
        finally:
            opened.close()


class BlocksPanel(QFrame):
    """The map; hidden until there is one.

    Attributes:
        view: the map widget.
    """

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.view = MemoryMap(palette)
        self.sums = PlainLabel(role="muted", wraps=True)
        self._palette = palette
        self._requested = 0
        self._reading: _Reading | None = None
        self._carried: BlockMap | None = None
        head = in_row(title_label("BLOCKS AT THAT MOMENT"), 1)
        in_column(head, self.sums, (ScrolledMap(self.view), 1), parent=self, margins=(10, 6, 10, 6), spacing=4)
        self.hide()

    def show_snapshot(self, found: Explanation, path: Path | None) -> None:
        """Show the blocks of an explanation: those of its snapshot once it is read, else those it contains.

        Nothing is shown unless the explanation is about fragmentation.
        """
        carried = found.blocks
        wanted = found.verdict == "fragmentation" and (path is not None or carried is not None)
        if not wanted:
            self._reading = None
            self._carried = None
            self.hide()
            return
        self._requested = found.segment_bytes or found.requested_bytes or 0
        if path is None:
            self._reading = None
            if carried is not None and carried is not self._carried and carried.consistent:
                self._show(RefusedBlocks.of_map(carried))
            self._carried = carried
            return
        self._carried = None
        if self._reading is None or self._reading.path != path:
            self.hide()
            self._reading = _Reading(path, found.device)
            self._reading.start()

    def refresh(self) -> None:
        """Show the map once it is ready; called by the window's timer."""
        reading = self._reading
        if reading is not None and reading.blocks is not None and self.isHidden():
            self._show(reading.blocks)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.view.set_palette(palette)

    def _show(self, blocks: RefusedBlocks) -> None:
        found = blocks.found
        curves = [category_curve(name, self._palette) for name in blocks.categories]
        self.view.show_map(found, blocks.category, np.ones(len(found.life), bool), curves, blocks.text_of)
        self.sums.setText(blocks.sums(self._requested))
        self.show()

"""Draws the rooms of the package on their floors, with the imports between them: ``python -m tests.floors``.

Floors are those of the import contract in ``pyproject.toml``; an arrow is there where a module of one room imports one
of another. The picture is ``resources/architecture/floors.svg``, which ``ARCHITECTURE.md`` shows.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import grimp

PROJECT = Path(__file__).parent.parent
PICTURE = PROJECT / "resources" / "architecture" / "floors.svg"

WIDTH, ROOM_WIDTH, ROOM_HEIGHT, FLOOR_HEIGHT, MARGIN = 920, 128, 34, 62, 24

LIBRARIES = {"PySide6": "Qt", "pyqtgraph": "pyqtgraph", "torch": "torch", "pynvml": "NVML", "psutil": "psutil"}
"""Packages that decide what a room is, and what the picture calls them."""

STYLE = """
.room { fill: #e8f0f8; stroke: #0b6bb3; }
.name { font: 600 13px system-ui, sans-serif; fill: #16202c; text-anchor: middle; }
.libraries { font: 10px system-ui, sans-serif; fill: #5b6672; text-anchor: middle; }
.import { fill: none; stroke: #8895a3; stroke-opacity: 0.55; }
@media (prefers-color-scheme: dark) {
  .room { fill: #1b2b3a; stroke: #56b4e9; }
  .name { fill: #e6e9ee; }
  .libraries { fill: #9aa5b1; }
  .import { stroke: #8fa3b8; }
}
"""


@dataclass(frozen=True)
class Room:
    """A box of the picture.

    Attributes:
        name: below ``gpudash``.
        x, y: its centre, pixels.
    """

    name: str
    x: float
    y: float


def floors() -> list[list[str]]:
    """Names of rooms, the highest floor first; parts of one package that lie on one floor are one room."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(found["layers"] for found in contracts["contracts"] if found["name"].startswith("Floors: a room"))
    rooms: list[list[str]] = []
    for layer in layers:
        names = [module.strip().removeprefix("gpudash.") for module in layer.split("|")]
        rooms.append(sorted({room_of(name) for name in names}))
    known: set[str] = set()
    highest_first = []
    for floor in rooms:
        highest_first.append([name for name in floor if name not in known])
        known.update(floor)
    return [floor for floor in highest_first if floor]


def room_of(module: str) -> str:
    """The room that a module below ``gpudash`` lies in."""
    return module.removeprefix("gpudash.").partition(".")[0]


def imports(rooms: Sequence[str]) -> tuple[set[tuple[str, str]], dict[str, list[str]]]:
    """Pairs of rooms of which the first imports from the second, and the libraries that each room imports."""
    graph = grimp.build_graph("gpudash", include_external_packages=True)
    pairs = set()
    libraries: dict[str, set[str]] = {name: set() for name in rooms}
    for module in graph.modules:
        importer = room_of(module)
        if not module.startswith("gpudash.") or importer not in libraries:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            if imported in LIBRARIES:
                libraries[importer].add(LIBRARIES[imported])
            elif imported.startswith("gpudash.") and room_of(imported) in libraries:
                pairs.add((importer, room_of(imported)))
    return {pair for pair in pairs if pair[0] != pair[1]}, {name: sorted(found) for name, found in libraries.items()}


def picture() -> str:
    """The picture as SVG."""
    plan = floors()
    placed = {}
    for level, names in enumerate(plan):
        step = (WIDTH - 2 * MARGIN) / len(names)
        for place, name in enumerate(names):
            # rooms of neighbouring floors stand beside one another, so that arrows do not lie upon each other
            shift = (level % 3 - 1) * ROOM_WIDTH * 0.9 if len(names) == 1 else 0.0
            x = MARGIN + step * (place + 0.5) + shift
            placed[name] = Room(name, round(x), MARGIN + level * FLOOR_HEIGHT + ROOM_HEIGHT / 2)
    pairs, libraries = imports(list(placed))
    height = MARGIN * 2 + (len(plan) - 1) * FLOOR_HEIGHT + ROOM_HEIGHT + 12
    svg = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}", "role": "img"}
    )
    ElementTree.SubElement(svg, "title").text = "Rooms of gpudash on their floors; a room imports from below only"
    ElementTree.SubElement(svg, "style").text = STYLE
    for importer, imported in sorted(pairs):
        ElementTree.SubElement(svg, "path", {"class": "import", "d": _arrow(placed[importer], placed[imported])})
    for room in placed.values():
        _draw(svg, room, libraries[room.name])
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _arrow(importer: Room, imported: Room) -> str:
    """A curve from the foot of one room to the head of another."""
    begin = importer.y + ROOM_HEIGHT / 2
    end = imported.y - ROOM_HEIGHT / 2
    middle = (begin + end) / 2
    return f"M{importer.x:g} {begin:g} C{importer.x:g} {middle:g} {imported.x:g} {middle:g} {imported.x:g} {end:g}"


def _draw(svg: ElementTree.Element, room: Room, libraries: Sequence[str]) -> None:
    left, top = room.x - ROOM_WIDTH / 2, room.y - ROOM_HEIGHT / 2
    box = {"x": f"{left:g}", "y": f"{top:g}", "width": f"{ROOM_WIDTH}", "height": f"{ROOM_HEIGHT}", "rx": "6"}
    ElementTree.SubElement(svg, "rect", {"class": "room", **box})
    baseline = room.y - 1 if libraries else room.y + 5
    name = ElementTree.SubElement(svg, "text", {"class": "name", "x": f"{room.x:g}", "y": f"{baseline:g}"})
    name.text = room.name
    if libraries:
        listed = ElementTree.SubElement(
            svg, "text", {"class": "libraries", "x": f"{room.x:g}", "y": f"{room.y + 12:g}"}
        )
        listed.text = " · ".join(libraries)


def main() -> None:
    """Write the picture."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()

"""A name means one thing in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import gpudash

PACKAGE = Path(gpudash.__file__).parent

MEANT = {
    "Block": "the model that is trained calls its blocks as anybody would, and so does torch's allocator",
    "Event": "torch.sim.Event is to the simulated device what torch.cuda.Event is to CUDA",
}
"""Names of two public classes, and why."""


def test_no_two_public_classes_have_one_name_unless_one_is_the_others_parent() -> None:
    found: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                found[node.name].append((str(path.relative_to(PACKAGE)), bases))
    twice = {
        name: [place for place, _bases in classes]
        for name, classes in found.items()
        if len(classes) > 1 and not any(name in bases for _place, bases in classes)
    }
    assert twice.keys() == MEANT.keys(), twice

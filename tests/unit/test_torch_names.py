"""What the program calls in torch's C++ module exists there, though the build that runs the tests may lack it."""

from __future__ import annotations

import ast
from pathlib import Path

import gpudash
from tests.unit.torch_names import names_in_torch_c


def names_of_cuda(source: str) -> set[str]:
    """The words and attributes of a module that look like functions of a CUDA build's ``torch._C``."""
    words = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    return {word for word in words if word.startswith("_cuda_") and word.isidentifier()}


def test_every_name_that_is_asked_of_torchs_cuda_module_is_one_of_torchs() -> None:
    asked: dict[str, str] = {}
    for file in Path(gpudash.__file__).parent.rglob("*.py"):
        own = {n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef)}
        asked |= dict.fromkeys(names_of_cuda(file.read_text()) - own, file.name)
    assert {"_cuda_record_memory_history", "_cuda_memoryStats"} <= set(asked)
    assert not {name: file for name, file in asked.items() if name not in names_in_torch_c()}

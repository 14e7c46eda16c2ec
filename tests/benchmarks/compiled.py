"""Pythons that keep what they compile, so that only the first of them compiles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.programs import python


def compiled_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python that has ended, with what it printed; ``options`` are of `subprocess.run`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    bytecode = Path(os.environ.get("GPUDASH_HOME", "build/bench")) / "bytecode"
    return python(*arguments, env={**environment, "PYTHONPYCACHEPREFIX": str(bytecode.absolute())}, **options)

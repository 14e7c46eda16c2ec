"""What is known of an installed torch without importing it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.programs import python

pytestmark = pytest.mark.process

REPORT = """
import json, sys
from gpudash.workloads.running.installed import quick_torch_report
report = quick_torch_report()
print(json.dumps({"report": report, "imported": "torch" in sys.modules}))
"""

BOTH = """
import json, sys
from gpudash.workloads.running.installed import quick_torch_report, torch_report
print(json.dumps([{**report(), "seconds": 0.0} for report in (quick_torch_report, torch_report)]))
"""


def printed(code: str, folder: Path | None = None) -> Any:
    path = os.environ.get("PYTHONPATH", "")
    environment = os.environ if folder is None else {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{path}"}
    return json.loads(python("-c", code, check=True, env=environment).stdout)


def install(folder: Path, version: str, *, libraries: bool, init: str = "") -> None:
    """A package called torch that says of itself what an installed one does."""
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(init)
    (folder / "torch" / "version.py").write_text(version)
    for name in ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so") if libraries else ():
        (folder / "torch" / "lib" / name).write_bytes(b"ELF")


def test_its_files_say_what_it_says_itself() -> None:
    by_files, by_itself = printed(BOTH)
    assert by_files == by_itself


def test_a_build_that_can_see_no_device_is_not_imported(tmp_path: Path) -> None:
    install(tmp_path, "__version__ = '2.13.0+cpu'\ncuda: str = None\nhip = None\n", libraries=True)
    found = printed(REPORT, tmp_path)
    assert not found["imported"]
    assert (found["report"]["version"], found["report"]["cuda_version"]) == ("2.13.0+cpu", None)
    assert found["report"]["problem"] is None and found["report"]["seconds"] == 0


def test_a_torch_that_lacks_a_library_is_imported_and_says_what_is_wrong(tmp_path: Path) -> None:
    broken = "raise OSError('libtorch_cpu.so: cannot open shared object file')"
    install(tmp_path, "__version__ = '2.13.0+cpu'\n", libraries=False, init=broken)
    report = printed(REPORT, tmp_path)["report"]
    assert "libtorch_cpu.so: cannot open" in report["problem"]


def test_a_torch_for_other_devices_or_of_an_unknown_version_is_asked(tmp_path: Path) -> None:
    asked = "raise OSError('it was imported')"
    for number, version in enumerate(
        (
            "__version__ = '2.13.0+rocm7'\nhip = '7.0'\n",
            "__version__ = '2.13.0+xpu'\nxpu = '2025.3'\n",
            "__version__ = '2.5.0'\n",
            "__version__ = open('version.txt').read()\n",
            "this is no Python",
        )
    ):
        folder = tmp_path / str(number)
        install(folder, version, libraries=True, init=asked)
        assert "it was imported" in printed(REPORT, folder)["report"]["problem"]

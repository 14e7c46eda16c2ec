"""The example of the guide's page on plug-ins: a package that adds a workload, installed and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpudash.system.files import resource
from tests.end_to_end.conftest import Command

PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a command that finds the package, which pip has installed into a folder of its own."""
    pytest.importorskip("setuptools", reason="pip builds the package without downloading what builds it")
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(PACKAGE, source)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=120)
    return {"PYTHONPATH": str(target)}


def test_the_example_is_installed_offered_with_its_flags_and_runs(gpudash: Command, installed: dict[str, str]) -> None:
    help_page = gpudash("run", "sorting", "--help", env=installed)
    assert "--numbers" in help_page.stdout and "Sorts random numbers" in help_page.stdout
    outcome = gpudash(
        "run", "sorting", "--device", "cpu", "--numbers", "1000", "--repeat", "3", "--json", env=installed
    )
    assert outcome.code == 0, outcome.stderr
    assert (outcome.document["workload"], outcome.document["steps"]) == ("sorting", 3)
    assert outcome.document["result"]["numbers_per_second"] > 0
    assert [stage["name"] for stage in outcome.document["stages"]] == ["sort"]


def test_the_guide_shows_the_example_as_it_is() -> None:
    page = resource("guide", "plug-ins.md").read_text(encoding="utf-8")
    for file in ("gpudash_sorting/spec.py", "gpudash_sorting/run.py"):
        _, _, code = (PACKAGE / file).read_text(encoding="utf-8").partition("annotations\n\n")
        assert f"```python\n{code}```" in page
    assert '[project.entry-points."gpudash.workloads"]\nsorting = "gpudash_sorting.spec"' in page

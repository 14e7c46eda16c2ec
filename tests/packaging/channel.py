"""A channel of conda in a folder, where conda-forge cannot be reached: conda-forge's names, this machine's interpreter,
and the files that PyPI has.

One package holds all of those files; the ones with the names that the recipe asks for hold none, and depend on it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tomllib
from pathlib import Path

from rattler.index import index_fs
from rattler_build import Stage0Recipe, assemble_package

from tests.packaging.interpreter import NAME, VERSION, copy_interpreter

RECIPE = Path("resources/packaging/recipe.yaml")

PYPI_NAMES = {"pyside6": "pyside6_essentials"}
"""conda-forge's names, where PyPI has others."""

FILES = "files-of-pypi"

PLATFORM = "linux-64"


def write_channel(folder: Path, staging: Path) -> None:
    """Fill ``folder`` with what the recipe needs to be built, and its package to be installed.

    Args:
        folder: of the channel.
        staging: an empty folder for the files that are packed.
    """
    program = copy_interpreter(staging / "python")
    packages = staging / "python/lib" / NAME / "site-packages"
    held = staging / "files/lib" / NAME / "site-packages"
    held.parent.mkdir(parents=True)
    _install(program, _dependencies())
    versions = _versions(program)
    packages.rename(held)
    build = f"py{VERSION.replace('.', '')}_0"
    common = {
        "target_platform": PLATFORM,
        "build_string": build,
        "output_dir": folder / PLATFORM,
        "compression_level": 1,
    }
    assemble_package("python", versions["python"], files_dir=staging / "python", **common)
    assemble_package(FILES, "1", files_dir=staging / "files", depends=[f"python {VERSION}.*"], **common)
    for name in _asked_names():
        if name == "python":
            continue
        version = versions[PYPI_NAMES.get(name, name).replace("-", "_").lower()]
        assemble_package(name, version, depends=[FILES], **common)
    asyncio.run(index_fs(folder))


def _asked_names() -> list[str]:
    requirements = Stage0Recipe.from_file(RECIPE).render()[0].recipe.to_dict()["requirements"]
    return sorted({line.split()[0] for line in [*requirements["host"], *requirements["run"]]})


def _dependencies() -> list[str]:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    return [*project["project"]["dependencies"], *project["build-system"]["requires"]]


def _install(program: Path, requirements: list[str]) -> None:
    subprocess.run([program, "-m", "pip", "install", "--quiet", "--no-compile", *requirements], check=True)


def _versions(program: Path) -> dict[str, str]:
    """Of what is installed for ``program``, and its own, by name in lower case with underscores."""
    code = (
        "import importlib.metadata, json, platform\n"
        "found = {held.name.replace('-', '_').lower(): held.version for held in importlib.metadata.distributions()}\n"
        "print(json.dumps({**found, 'python': platform.python_version()}))"
    )
    done = subprocess.run([program, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found

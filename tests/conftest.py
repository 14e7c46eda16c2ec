"""Every test: its tier; nothing outside the temporary folder is written, no thread outlives its test."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from gpudash.system.log import stop_log
from tests import tiers

settings.register_profile("repeatable", derandomize=True, deadline=None)  # a test fails again, here and elsewhere
settings.load_profile("repeatable")

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # no program that a test starts leaves a file beside its script

LEFT_OUT = pytest.StashKey[Counter[str]]()
PYTHONS = tiers.PythonsStarted()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what starts processes, takes long, or is the same")
    parser.addoption("--table-sample", type=int, default=1, metavar="N", help="run every N-th row of a table; 1: all")
    parser.addoption("--share", default="0/1", metavar="K/N", help="run share K of N of what starts processes")


def pytest_configure(config: pytest.Config) -> None:
    # in the background both are ignored, and so they would be in every program that a test starts and interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[LEFT_OUT] = Counter()
    for mark, words in tiers.MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {words}")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.assign(items)
    items[:], beyond_sample = tiers.sampled(items, config.getoption("--table-sample"))
    share, shares = map(int, config.getoption("--share").split("/"))
    items[:], of_other_shares = tiers.in_share(items, share, shares)
    config.hook.pytest_deselected(items=[*beyond_sample, *of_other_shares])
    if config.getoption("--quick"):
        items[:], left, config.stash[LEFT_OUT] = tiers.quick(items)
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Nothing that is there before the first test ever goes: collecting garbage, as many tests do, passes over it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:  # pytest-xdist: the process that prints has collected nothing
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    of_worker = getattr(node, "workeroutput", {}).get("left_out", {})
    node.config.stash[LEFT_OUT] = Counter(of_worker)  # type: ignore[attr-defined]  # every worker collects all


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash[LEFT_OUT]
    if left:
        terminalreporter.section("left out")
        for tier, words in tiers.LEFT_OUT.items():
            terminalreporter.line(f"{left[tier]:5d} tests {words}")
        terminalreporter.line(
            "`make test-all` runs every test; `make check` also lint, the stand-in for CUDA and the wheel."
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with tiers.place(item):
        return (yield)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder into which everything gpudash writes goes during a test."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GPUDASH_HOME", str(folder))
    yield folder
    stop_log()


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder for sockets: the way to one has to be short, which that to a test's own folder is not."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_python_is_started_where_none_is_expected(request: pytest.FixtureRequest) -> Iterator[None]:
    PYTHONS.commands.clear()
    yield
    if any(request.node.get_closest_marker(tier) for tier in ("fast", "window")):
        assert not PYTHONS.commands, f"this starts a process: mark it, @pytest.mark.process: {PYTHONS.commands}"


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and thread.name.startswith(("gpudash", "Thread-"))
    ]
    for thread in left:
        thread.join(1.0)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"left running, stop and join in the test: {alive}"

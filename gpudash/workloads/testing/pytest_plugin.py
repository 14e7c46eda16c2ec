"""The pytest plug-in: ``@pytest.mark.gpu_memory("8GiB")`` and the fixtures ``gpu_memory`` and ``predict_program``.

A run without them imports nothing for it: the first test that needs the measuring code loads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpudash.simulator.predict import PredictedProgram
    from gpudash.telemetry.comparing.baseline import Footprint
    from gpudash.telemetry.comparing.budget_report import Outcome
    from gpudash.workloads.testing.gpu_memory import GpuMemory
    from gpudash.workloads.testing.marker import MemoryBudget

MARKER = (
    "gpu_memory(size, *, baseline=FILE, tolerance='1%', as_cuda=False): run the test on a simulated GPU of this size, "
    "which it may call cuda, and fail where it takes more, or more than the baseline has stored"
)

AS_CUDA = "gpudash_as_cuda"
"""Name of the option, and of the setting in pytest's configuration."""

CALLED_CUDA = (
    "The test looks for CUDA, and there is none. Run pytest with --gpudash-as-cuda, set gpudash_as_cuda = true in its "
    "configuration, or mark the test gpu_memory(..., as_cuda=True), and the simulated GPU is what it calls cuda."
)

DEVICE = re.compile(r"sim(:0)?|cuda(:\d+)?")

FOUND = "gpu_memory"
"""Attribute of a test's report with the measurement, as JSON, so that pytest-xdist transfers it."""

_memory = pytest.StashKey["GpuMemory"]()
_budget = pytest.StashKey["MemoryBudget"]()
_remark = pytest.StashKey[str]()
_grown = pytest.StashKey[Any]()

REPORTS = ("gpu_memory_report", "gpu_memory_sarif")
"""Options that name files for the tests' memory use."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpudash", "budgets of GPU memory")
    group.addoption(
        "--gpu-memory-device",
        default="sim",
        metavar="DEVICE",
        help="where tests with a gpu_memory mark run: sim, a simulated GPU (default), or cuda:0, a real one.",
    )
    group.addoption(
        "--gpu-memory-write-baseline",
        action="store_true",
        help="store the peaks of tests with gpu_memory(baseline=FILE) there, instead of comparing; all or none.",
    )
    group.addoption(
        "--gpu-memory-report",
        metavar="FILE",
        help="write what tests with a gpu_memory mark or fixture took, with the lines that held it, as JSON.",
    )
    group.addoption(
        "--gpu-memory-sarif",
        metavar="FILE",
        help="write the tests that are beyond their budget or baseline as SARIF, for code scanning.",
    )
    text = "let a simulated GPU answer for CUDA, so that code that says cuda runs on it"
    group.addoption("--gpudash-as-cuda", action="store_true", help=f"{text}.")
    parser.addini(AS_CUDA, f"{text}; as --gpudash-as-cuda.", type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Runs before anything of the project is imported, which may check for CUDA at import."""
    given = early_config.known_args_namespace
    wanted = given.gpudash_as_cuda or early_config.getini(AS_CUDA)
    if not wanted or not given.gpu_memory_device.startswith("sim"):
        return
    try:
        from gpudash.workloads.testing.measured_device import MeasuringError, answer_for_cuda_all_along
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise pytest.UsageError("--gpudash-as-cuda needs torch, which this Python has not: install it.") from None
    try:
        early_config.add_cleanup(answer_for_cuda_all_along())
    except MeasuringError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    device = config.getoption("gpu_memory_device")
    if DEVICE.fullmatch(device) is None:
        raise pytest.UsageError(f"--gpu-memory-device {device!r} is none; write sim or cuda:0.")
    if not hasattr(config, "workerinput"):  # with pytest-xdist the main process has the reports of all workers
        config.pluginmanager.register(_Results(config), "gpudash-results")


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """The test's GPU, simulated unless ``--gpu-memory-device`` names one: its device and its peaks."""
    item: pytest.Item = request.node
    if _memory not in item.stash:
        from gpudash.workloads.testing.marker import MemoryBudget

        _begin(item, MemoryBudget(is_reported=_is_reported(item.config)))
    return item.stash[_memory]


@pytest.fixture
def predict_program() -> Callable[..., PredictedProgram]:
    """Predict an unmodified program: ``predict_program("python", "train.py", gpu="24GiB").peak_allocated_bytes``."""
    from gpudash.simulator.predict import predict_program

    return predict_program


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs after pytest has skipped tests, and before it sets up fixtures."""
    marker = item.get_closest_marker("gpu_memory")
    if marker is None:
        return
    from gpudash.workloads.testing.marker import MarkerError, MemoryBudget

    try:
        budget = MemoryBudget.of_marker(marker.args, marker.kwargs, item.config.rootpath)
    except MarkerError as error:
        raise _failure(str(error)) from None
    _begin(item, replace(budget, is_reported=_is_reported(item.config)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    if _memory in item.stash:
        _judge(item, item.stash[_memory], item.stash[_budget])
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        memory = item.stash.get(_memory, None)
        if memory is not None:
            del item.stash[_memory]
            memory.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    memory = item.stash.get(_memory, None)
    if memory is None or call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
        return (yield)
    # before pytest formats the tensors of a traceback, which also allocates on the device
    if call.excinfo is None:
        ran_out = ""
    else:
        ran_out = memory.ran_out(call.excinfo.value)
    failure = ""
    if call.excinfo is not None:
        failure = ran_out or str(call.excinfo.value)
    text = ran_out or ("" if call.excinfo is None else _misses_cuda(call.excinfo.value))
    measured = _measured(item, memory, over=bool(ran_out))
    if _is_reported(item.config):
        measured["check"] = _check(item, memory, failure, over=bool(ran_out))
    item.user_properties.append(("gpu_memory_peak_bytes", measured["peak_bytes"]))  # included in JUnit's file
    if call.excinfo is not None:
        from gpudash.workloads.testing.gpu_memory import leave_out_machinery

        leave_out_machinery(call.excinfo.value)
    found = yield
    if text and hasattr(found.longrepr, "addsection"):
        found.longrepr.addsection("GPU memory", text)
    elif text:
        found.longrepr = f"{found.longrepr}\n{text}"
    setattr(found, FOUND, measured)
    return found


class _Results:
    """The tests' memory use, in the process that prints.

    Attributes:
        config: of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._found: dict[str, dict[str, Any]] = {}
        self._failed: list[str] = []
        self._baseline_sentence = ""
        self._report_sentences: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = getattr(report, FOUND, None)
        if found is not None:
            self._found[report.nodeid] = found
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._write_reports(session)
        if not self.config.getoption("gpu_memory_write_baseline"):
            return
        measured = {name: found for name, found in self._found.items() if found["baseline"]}
        failed = [name for name in self._failed if name in measured]
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._baseline_sentence = "No baseline was written, for the run did not end by itself."
        elif failed:
            self._baseline_sentence = f"No baseline was written, for {failed[0]} failed."
        elif not measured:
            self._baseline_sentence = "No baseline was written, for no test has gpu_memory(baseline=FILE)."
        else:
            self._write(measured, session)

    def _write_reports(self, session: pytest.Session) -> None:
        """Write the requested files, even for a run without such tests."""
        if not _is_reported(self.config):
            return
        from gpudash.telemetry.comparing.budget_report import CheckedBudget, report_text, sarif_text, write_text

        checks = [CheckedBudget(**found["check"]) for _name, found in sorted(self._found.items()) if "check" in found]
        for option, text_of in zip(REPORTS, (report_text, sarif_text), strict=True):
            file = self.config.getoption(option)
            if file is None:
                continue
            try:
                write_text(Path(file), text_of(checks))
            except ValueError as error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                self._report_sentences.append(str(error))

    def _write(self, measured: dict[str, dict[str, Any]], session: pytest.Session) -> None:
        from gpudash.telemetry.comparing.baseline import BaselineError, Footprint, write_baselines

        files: dict[str, dict[str, Footprint]] = {}
        for name, found in measured.items():
            files.setdefault(found["baseline"], {})[name] = Footprint.from_json(found["footprint"])
        sentences = []
        for file, entries in files.items():
            try:
                write_baselines(Path(file), entries)
            except BaselineError as error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
                sentences.append(str(error))
            else:
                count = f"{len(entries)} test{'s' * (len(entries) > 1)}"
                sentences.append(f"{file} has the peaks of {count} now.")
        self._baseline_sentence = " ".join(sentences)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._found and not self._baseline_sentence and not self._report_sentences:
            return
        terminalreporter.section("gpu memory")
        for name, found in sorted(self._found.items()):
            terminalreporter.line(f"{name}: {found['words']}")
        for sentence in self._report_sentences:
            terminalreporter.line(sentence)
        if self._baseline_sentence:
            terminalreporter.line(self._baseline_sentence)


def _failure(text: str) -> BaseException:
    """An exception that fails a test with only this text."""
    return pytest.fail.Exception(text, pytrace=False)


def _begin(item: pytest.Item, budget: MemoryBudget) -> None:
    try:
        from gpudash.workloads.testing.gpu_memory import GpuMemory
        from gpudash.workloads.testing.measured_device import MeasuringError, device_of
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _failure("gpu_memory needs torch, which this Python has not: install it.") from None
    try:
        memory = GpuMemory(device_of(item.config.getoption("gpu_memory_device")), budget)
    except MeasuringError as error:
        raise _failure(str(error)) from None
    item.stash[_budget], item.stash[_memory] = budget, memory


def _judge(item: pytest.Item, memory: GpuMemory, budget: MemoryBudget) -> None:
    """Fail a passed test if it measured nothing, or uses more than its baseline."""
    if item.get_closest_marker("gpu_memory") is None:
        return
    if not memory.used:
        raise _failure(
            f"The test allocated nothing on {memory.device}, so that its budget says nothing: put its model and "
            "tensors on gpu_memory.device, or run pytest with --gpudash-as-cuda where the code chooses a GPU by itself."
        )
    if budget.baseline is None or item.config.getoption("gpu_memory_write_baseline"):
        return
    from gpudash.telemetry.comparing.baseline import BaselineError, Footprint, FootprintChange, read_baselines

    way = "run pytest with --gpu-memory-write-baseline to store it"
    try:
        stored = read_baselines(budget.baseline).get(item.nodeid)
    except BaselineError as error:
        raise _failure(f"{error} {way[0].upper()}{way[1:]}.") from None
    if stored is None:
        raise _failure(f"The baseline {budget.baseline} knows nothing of this test: {way}.")
    change = FootprintChange(item.nodeid, stored, Footprint(memory.peak_bytes), budget.tolerance)
    if change.grown:
        whole = FootprintChange(item.nodeid, stored, memory.footprint(item.config.rootpath), budget.tolerance)
        item.stash[_grown] = whole
        raise _failure(memory.grown(whole))
    if change.difference:
        item.stash[_remark] = change.summary


def _misses_cuda(error: BaseException) -> str:
    """What to do about an error that reports missing CUDA; "" for any other."""
    from gpudash.simulator.as_cuda.notices import misses_cuda

    if misses_cuda(str(error)):
        return CALLED_CUDA
    return ""


def _measured(item: pytest.Item, memory: GpuMemory, *, over: bool) -> dict[str, Any]:
    """What the printing process receives about a test."""
    budget, text = item.stash[_budget], memory.describe()
    if over:
        text = f"ran out of memory; {text}"
    remark = item.stash.get(_remark, "")
    sentence = text
    if remark:
        sentence = f"{text}; {remark}"
    found = {"words": sentence, "peak_bytes": memory.peak_bytes, "baseline": "", "footprint": None}
    if budget.baseline is not None and item.config.getoption("gpu_memory_write_baseline"):
        footprint = memory.footprint(item.config.rootpath).to_json()
        found |= {"baseline": str(budget.baseline), "footprint": footprint}
    return found


def _is_reported(config: pytest.Config) -> bool:
    return any(config.getoption(option) is not None for option in REPORTS)


def _check(item: pytest.Item, memory: GpuMemory, failure: str, *, over: bool) -> dict[str, Any]:
    """A test compared with its budget, as fields of `CheckedBudget`.

    Args:
        item: the test.
        memory: its memory use.
        failure: why it failed, as lines; "" if it passed.
        over: whether its card was full.
    """
    from gpudash.telemetry.comparing.budget_report import CheckedBudget

    budget = item.stash[_budget]
    change = item.stash.get(_grown, None)
    lines = memory.lines(item.config.rootpath)
    outcome: Outcome = "passed"
    message = memory.describe()
    stored = None
    if change is not None:
        outcome = "grown"
        message = change.headline
        stored = change.before.bytes
        # The line that grew most is the one to check, not the one that holds most.
        grown = {part.name: part.difference for part in change.parts if part.kind == "line"}
        lines = sorted(lines, key=lambda held: -grown.get(held.name, 0))
    elif over:
        outcome = "ran out"
        message = next((line for line in failure.splitlines()[1:] if line), "It ran out of memory.")
    elif failure:
        outcome = "failed"
        message = failure
    path, number, _name = item.location
    place = (path, (number or 0) + 1)
    if lines and outcome in ("grown", "ran out"):
        place = (lines[0].file, lines[0].line)
    sizes: dict[str, int] = {}
    for held in lines:
        where = f"{held.file}:{held.line}"
        sizes[where] = sizes.get(where, 0) + held.bytes
    return asdict(
        CheckedBudget(
            name=item.nodeid,
            outcome=outcome,
            message=message,
            peak_bytes=memory.peak_bytes,
            needed_bytes=memory.needed_bytes,
            allowed_bytes=budget.bytes,
            stored_bytes=stored,
            file=place[0],
            line=place[1],
            lines=sizes,
        )
    )

"""``gpudash doctor``: what works, what does not, and how to fix it."""

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from gpudash.cli.terminal.output import Exit, RequestError, one_line, print_json, stdout
from gpudash.devices.names import OF_AN_INSTANCE, SHARED, cuda_order_here, unread_gpus, why_torch_has_no_gpu
from gpudash.memory.predicting.torch_versions import unmeasured_torch
from gpudash.units import GIB, format_bytes


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. "note" is for findings that do not limit gpudash here."""

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""


def doctor(
    file: Path | None = None,
    /,
    *,
    report: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check driver, NVML, torch, Qt and permissions; report what does not work and how to fix it.

    Parameters
    ----------
    file
        File that --report writes; default: a new one in this folder.
    report
        Write a text file with what a bug report needs: the findings, versions, settings and the newest part of the
        log, with names of users, hosts and files replaced. Nothing is sent.
    json
        Print one JSON document.
    """
    if file is not None and not report:
        raise RequestError(f"{file} is given, but no report is asked for.", f"Write: gpudash doctor --report {file}")
    checks = list(examine())
    written = None
    if report:
        written = _write_report(file, checks)
    failed = any(check.state == "problem" for check in checks)
    if json:
        status = "finished"
        if failed:
            status = "failed"
        if written is None:
            extra = {}
        else:
            extra = {"report": str(written)}
        print_json({"status": status, "checks": list(map(asdict, checks)), **extra, "error": None})
    else:
        console = stdout()
        for check in checks:
            sign = {"ok": ("✓", "green"), "note": ("–", "yellow"), "problem": ("✗", "red")}[check.state]
            console.print(Text.assemble(sign, " ", (check.name, "bold"), one_line(f"  {check.text}")), soft_wrap=True)
            if check.remedy:
                console.print(f"  {check.remedy}", soft_wrap=True)
        if written is not None:
            console.print(one_line(f"Wrote {written}. {TO_READ}"), soft_wrap=True)
    if failed:
        return Exit.FAILED
    return Exit.FINISHED


TO_READ = "Read it, and remove anything private, before you attach it to your bug report."


def _write_report(file: Path | None, checks: Sequence[Check]) -> Path:
    """Write the report to a new file.

    Raises:
        RequestError: if it cannot be written, or the file exists.
    """
    from gpudash.session.live.bug_report import bug_report

    written = file or Path(f"gpudash-report-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    signs = {"ok": "ok", "note": "note", "problem": "PROBLEM"}
    try:
        text = bug_report(f"{signs[check.state]}: {check.name}: {check.text}" for check in checks)
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RequestError(f"{written} is there already.", "Name a new file, or remove that one.") from None
    except OSError as error:
        raise RequestError(f"{written} cannot be written ({error.strerror}).", "Name a file elsewhere.") from None
    return written


def examine() -> Iterator[Check]:
    """Run every check, in order of dependency."""
    yield Check("Python", "ok", f"{platform.python_version()} on {platform.platform()}")
    from gpudash.workloads.running.installed import quick_torch_report

    report = quick_torch_report()
    yield from _torch(report)
    yield from _nvml(report)
    for check in (_pynvml, _qt, _display, _recordings, _settings):
        yield from check()


def _torch(report: dict[str, Any]) -> Iterator[Check]:
    from gpudash.workloads.running.installed import NOT_INSTALLED, torch_text

    if report["problem"] == NOT_INSTALLED:
        sentence, _colon, command = NOT_INSTALLED.rpartition(": ")
        yield Check("torch", "note", sentence, f"Run: {command}")
        return
    if report["version"] is None:
        yield Check("torch", "problem", str(report["problem"]), "Run: pip install torch")
        return
    imported = "not imported, because it cannot see a GPU here"
    if report["seconds"]:
        imported = f"imported in {report['seconds']:.1f} s"
    yield Check("torch", "ok", f"{torch_text(report)}, {imported}")
    remark = unmeasured_torch(str(report["version"]))
    if remark:
        yield Check("predictions", "note", remark, "Compare a prediction with a run before you rely on it.")
    problem = report["simulator_problem"]
    if problem is None:
        yield Check("simulated GPU", "ok", "this torch takes one; --device sim:0 runs on it")
    else:
        yield Check("simulated GPU", "note", str(problem), "Everything else works; run on cpu instead of sim:0.")


def _nvml(report: dict[str, Any]) -> Iterator[Check]:
    from gpudash.sources.discovery import survey
    from gpudash.telemetry.records import State

    seen = survey()
    if seen.problem is not None:
        yield Check("GPU", "note", unread_gpus(report, seen.problem))
        return
    yield Check("driver", "ok", f"{seen.driver_version}, {len(seen.gpus)} GPU{'s' if len(seen.gpus) != 1 else ''}")
    order = cuda_order_here([answer.gpu for answer in seen.gpus])
    problem = why_torch_has_no_gpu(report, order)
    if problem is not None:
        yield Check("CUDA", "problem", problem)
    for answer in seen.gpus:
        missing = [f"{name} {state.value}" for name, state in answer.states.items() if state is not State.OK]
        if answer.gpu.parent:
            missing = [OF_AN_INSTANCE]
        if answer.gpu.shared_memory:
            missing.insert(0, f"{format_bytes(answer.gpu.total_bytes)} of memory {SHARED}")
        yield Check(
            f"GPU {answer.gpu.number}, {answer.gpu.product}",
            "note" if missing else "ok",
            ", ".join(missing) or "every reading is available",
        )


def _pynvml() -> Iterator[Check]:
    owners = importlib.metadata.packages_distributions().get("pynvml", [])
    foreign = [owner for owner in owners if owner != "nvidia-ml-py"]
    if foreign:
        yield Check(
            "pynvml",
            "problem",
            f"the module pynvml also comes from {', '.join(foreign)}, which hides nvidia-ml-py's",
            f"Run: pip uninstall {' '.join(foreign)} && pip install --force-reinstall nvidia-ml-py",
        )
    else:
        yield Check("pynvml", "ok", f"nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}")


def _qt() -> Iterator[Check]:
    from gpudash.cli.qt import OFFSCREEN_LIBRARIES, missing_packages

    try:
        version = importlib.metadata.version("PySide6-Essentials")
    except importlib.metadata.PackageNotFoundError:
        yield Check("Qt", "problem", "PySide6 is not installed", "Run: pip install PySide6-Essentials")
        return
    if version.startswith("6.12.") and sys.version_info < (3, 12):
        yield Check(
            "Qt",
            "problem",
            f"PySide6 {version} aborts on Python {platform.python_version()}",
            "Run: pip install 'PySide6-Essentials<6.12'",
        )
        return
    missing = missing_packages("xcb")
    needed = [package for package in missing if package in OFFSCREEN_LIBRARIES.values()]
    if missing:
        what = "a window needs"
        if needed:
            what = "a window and pictures need"
        yield Check(
            "Qt",
            "problem" if needed else "note",
            f"PySide6 {version}; {what} {len(missing)} more system libraries",
            f"Run: sudo apt install {' '.join(missing)}",
        )
    else:
        yield Check("Qt", "ok", f"PySide6 {version} with its system libraries")


def _display() -> Iterator[Check]:
    from gpudash.cli.qt import has_display, platform_name, require_qt

    if not has_display():
        yield Check("display", "note", "none; gpudash runs in the terminal and leaves a picture of the dashboard")
        return
    try:
        require_qt()
    except RequestError as error:
        yield Check("display", "problem", error.message, error.remedy)
        return
    platform = platform_name()
    if platform not in ("xcb", "wayland"):
        yield Check("display", "note", f"QT_QPA_PLATFORM is {platform}, so no window appears on a screen")
        return
    named = os.environ.get("DISPLAY" if platform == "xcb" else "WAYLAND_DISPLAY") or "wayland-0"
    yield Check("display", "ok", f"{named} answers ({platform})")


def _recordings() -> Iterator[Check]:
    import shutil

    from gpudash.system.files import make_private_folder
    from gpudash.system.settings import recordings_folder

    folder = recordings_folder()
    try:
        make_private_folder(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Check("recordings", "problem", f"{folder} cannot be written ({error.strerror})", "Set GPUDASH_HOME.")
        return
    if not os.access(folder, os.W_OK):
        yield Check("recordings", "problem", f"{folder} is not writable", "Set GPUDASH_HOME to a folder that is.")
        return
    state: Literal["ok", "note"] = "note"
    if free > GIB:
        state = "ok"
    yield Check("recordings", state, f"{folder}, {format_bytes(free)} free")


def _settings() -> Iterator[Check]:
    from gpudash.system.settings import load_settings, settings_file

    _settings_found, problems = load_settings()
    if problems:
        for problem in problems:
            yield Check("settings", "problem", problem, "Correct the line, or remove it.")
    else:
        text = "the defaults; there is no settings file"
        if settings_file().exists():
            text = str(settings_file())
        yield Check("settings", "ok", text)

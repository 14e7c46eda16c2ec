"""The peak of a program at a commit: estimated without a GPU, or measured by its tests. Answers are cached."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpudash import __version__
from gpudash.devices.names import SimulatedCard
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.bisecting.repository import BisectError, Checkout, Commit, Repository
from gpudash.session.predicting.program import ProgramQuestion, callable_command, predict_program
from gpudash.simulator.refusal import FIX, FIX_OR_WATCH
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular, read_regular_text
from gpudash.system.foreign_text import last_line
from gpudash.system.processes import end_group

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the cache's format."""

MOST_KEPT = 2000
"""Size of the cache; the newest answers stay."""

MOST_ANSWER_BYTES = 16 * 2**20
MOST_FILE_BYTES = 64 * 2**20

POLL_S = 0.1
"""Interval of the check for Ctrl+C."""

TRANSIENT = frozenset({"no_step", "time_limit"})
"""Problems that may not recur; such answers are not cached."""

ASK_VERSIONS = (
    "import sys, importlib.metadata as metadata\n"
    "print(sys.version)\n"
    "print(*sorted(f'{one.name} {one.version}' for one in metadata.distributions()), sep='\\n')\n"
)


@dataclass(frozen=True)
class Peak:
    """The most memory that tensors held at one time.

    Attributes:
        bytes: its size.
        lines: bytes by "file:line"; files in the repository are relative to its top folder.
        ran_out: whether the card was full, so that the peak would have been larger.
    """

    bytes: int
    lines: Mapping[str, int] = field(default_factory=dict)
    ran_out: bool = False


@dataclass(frozen=True)
class CommitPeaks:
    """The result for one commit.

    Attributes:
        peaks: peaks by test; a program has one, named "".
        problem: why there are no peaks; "" if there are.
        kept: whether it came from the cache.
        transient: whether a retry may succeed.
    """

    peaks: Mapping[str, Peak] = field(default_factory=dict)
    problem: str = ""
    kept: bool = False
    transient: bool = False


@dataclass(frozen=True)
class SearchedProgram:
    """The program that is run at each commit.

    Attributes:
        command: program and arguments; empty for a callable.
        callable: "file.py:function" or "package.module:function"; "" for a command.
        folder: working directory, in the user's tree.
        card: the card that it finds.
        target: the card as an estimate's target.
        steps: how many steps are simulated.
        time_limit_s: processor time for one estimate, in seconds.
        python: the Python that runs a callable.
    """

    command: tuple[str, ...]
    callable: str
    folder: Path
    card: SimulatedCard
    target: Target
    steps: int = 3
    time_limit_s: float = 120.0
    python: str = sys.executable

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.callable or " ".join(self.command)

    @property
    def runs_pytest(self) -> bool:
        """Whether the command runs pytest."""
        if not self.command:
            return False
        by_name = Path(self.command[0]).name in ("pytest", "py.test")
        return by_name or ("-m", "pytest") in pairwise(self.command)


class PeakFinder:
    """Finds the peak of a program at one commit after another.

    Args:
        repository: the repository of the commits.
        checkout: the folder that their files are put in.
        program: the program.
        newest: the last commit; a file that it lacks is the user's own and the same at every commit.
        interrupted: whether the user has cancelled.

    Attributes:
        counted: how many commits were asked about.
        kept: how many answers came from the cache.
        measures: whether the peaks are the tests' own measurements, not predictions.

    Raises:
        BisectError: if the program cannot be found, or is a file of the working tree that no commit has.
    """

    def __init__(
        self,
        repository: Repository,
        checkout: Checkout,
        program: SearchedProgram,
        newest: Commit,
        interrupted: Callable[[], bool],
    ) -> None:
        self._repository = repository
        self._checkout = checkout
        self._newest = newest
        self._interrupted = interrupted
        self._answers: dict[str, CommitPeaks] = {}
        self.counted = 0
        self.kept = 0
        self.measures = program.runs_pytest
        self._inside = Path(os.path.relpath(program.folder.resolve(), repository.root.resolve()))
        self._program = replace(program, command=self._command(program), callable=self._callable(program))
        self._versions = _versions(self._interpreter())

    def at(self, commit: Commit) -> CommitPeaks:
        """The answer for a commit, from the cache if it was asked for before.

        Raises:
            BisectError: when it has nothing to do with the commit.
            KeyboardInterrupt: if interrupted.
        """
        known = self._answers.get(commit.hash)
        if known is not None:
            return known
        answer = self._kept_answer(commit)
        if answer is None:
            self._checkout.move_to(commit)
            if self.measures:
                answer = self._measured()
            else:
                answer = self._predicted()
            if self._interrupted():
                raise KeyboardInterrupt
            if not answer.transient:
                self._keep(commit, answer)
        self.counted += 1
        self.kept += answer.kept
        self._answers[commit.hash] = answer
        return answer

    def predict_instead(self) -> None:
        """Predict the tests' GPU memory, because none of them measures its own."""
        self.measures = False
        self._answers.clear()

    def _command(self, program: SearchedProgram) -> tuple[str, ...]:
        """The command with the full path of its program, so that it means the same in every folder."""
        if not program.command:
            return ()
        first = program.command[0]
        found = None
        if "/" not in first:
            found = shutil.which(first)
        own = program.folder / first
        if "/" in first and own.exists() and not self._is_in_commits(own):
            # An environment in the tree, such as .venv/bin/python, is in no commit. Its symlinks must stay as they
            # are.
            found = str(own.absolute())
        if found is None and "/" not in first:
            raise BisectError(f"There is no program {first!r}.", "Write for example: -- python -m pytest tests")
        arguments = []
        for argument in program.command[1:]:
            self._check_word(argument, program.folder)
            arguments.append(self._with_full_path(argument, program.folder))
        return (found or first, *arguments)

    def _with_full_path(self, argument: str, folder: Path) -> str:
        """An argument of the command; if it names a file outside the repository from ``folder``, with its full path.

        The program runs in another folder, from which ``../train.py`` would be another file.
        """
        option, separator, value = argument.rpartition("=")
        path = Path(os.path.normpath(folder / value))
        if not value or not _is_file(path) or self._is_within(path):
            return argument
        return f"{option}{separator}{path}"

    def _check_word(self, word: str, folder: Path) -> None:
        """Refuse a file that no commit has: running it would import the working tree's modules, not the commit's."""
        path = folder / word.partition("::")[0]
        if not _is_file(path) or not self._is_within(path):
            return
        in_commits = self._is_in_commits(path)
        if word.endswith(".py") and not in_commits:
            raise BisectError(
                f"{word} is not in the commit {self._newest.short}.",
                "Commit it, move it out of the repository, or name a function of it by --callable.",
            )
        if Path(word).is_absolute() and in_commits:
            raise BisectError(
                f"{word} is the file of your own tree, which stays the same at every commit.", f"Name it from {folder}."
            )

    def _callable(self, program: SearchedProgram) -> str:
        """The callable; a file that the newest commit lacks gets its full path."""
        file, _, function = program.callable.rpartition(":")
        if not file.endswith(".py"):
            return program.callable
        path = (program.folder / file).absolute()
        if self._is_within(path) and self._is_in_commits(path):
            return f"{os.path.relpath(path, program.folder)}:{function}"
        if not path.is_file():
            raise BisectError(f"There is no file {file}.", "Write --callable folder/file.py:function.")
        return f"{path}:{function}"

    def _is_within(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self._repository.root.resolve())

    def _is_in_commits(self, path: Path) -> bool:
        if not self._is_within(path):
            return False
        inside = os.path.relpath(path.resolve(), self._repository.root.resolve())
        return self._repository.has_file(self._newest, inside)

    def _interpreter(self) -> str:
        """The Python that runs the program, if known; else ""."""
        if self._program.callable:
            return self._program.python
        program = Path(self._program.command[0])
        if program.name.startswith("python"):
            return str(program)
        # The programs of an environment are next to its Python.
        python = program.with_name("python")
        if python.exists():
            return str(python)
        return ""

    def _predicted(self) -> CommitPeaks:
        tree = self._checkout.folder
        program = self._program
        command = list(program.command)
        if program.callable:
            command = list(callable_command(program.python, program.callable, program.steps))
        folder = tree / self._inside
        if not folder.is_dir():
            return CommitPeaks(problem=f"It has no folder {self._inside}.")
        question = ProgramQuestion(
            command=command,
            target=program.target,
            steps=program.steps,
            time_limit_s=program.time_limit_s,
            alternatives=False,
            folder=folder,
            environment=self._environment(tree),
            is_quiet=True,
        )
        try:
            found = predict_program(question, self._interrupted, logger.info)
        except ValueError as error:
            # For example, an old commit does not have the script.
            return CommitPeaks(problem=str(error).replace(str(tree), "it"))
        if found.estimate is None or found.estimate.peak_allocated_bytes is None:
            problem = found.problem
            if problem is None:
                return CommitPeaks(problem="Nothing could be predicted.")
            text = problem.message
            if problem.remedy not in (FIX, FIX_OR_WATCH):  # a commit cannot be mended
                text = f"{text} {problem.remedy}".strip()
            return CommitPeaks(problem=text.replace(str(tree) + "/", ""), transient=problem.kind in TRANSIENT)
        lines = {self._place(place, folder, tree): size for place, size in found.estimate.by_line.items()}
        return CommitPeaks({"": Peak(found.estimate.peak_allocated_bytes, lines)})

    def _measured(self) -> CommitPeaks:
        """What gpudash's pytest plug-in reports of the tests that have a budget or measure their memory."""
        tree = self._checkout.folder
        report = tree.parent / "gpu-memory.json"
        report.unlink(missing_ok=True)
        command = [*self._program.command, f"--gpu-memory-report={report}"]
        output = tree.parent / "output"
        code = self._run(command, output)
        printed = read_regular(output, MOST_FILE_BYTES).decode("utf-8", "replace")
        last = last_line(printed) or "nothing"
        if "unrecognized arguments: --gpu-memory-report" in printed:
            raise BisectError(
                "The pytest of this command does not know gpudash.",
                "Install gpudash in its Python: pip install gpudash",
            )
        if not report.exists():
            return CommitPeaks(problem=f"pytest ended with exit code {code}, and the last that it said is: {last}")
        try:
            tests = json.loads(read_regular_text(report, MOST_FILE_BYTES))["tests"]
        except (OSError, ValueError, KeyError, TypeError):
            return CommitPeaks(problem="What its tests took cannot be read.")
        peaks = {}
        for test in tests:
            # A test that failed for another reason may have failed before its peak.
            if test["outcome"] != "failed":
                peaks[test["name"]] = Peak(test["peak_bytes"], test["lines"], test["outcome"] == "ran out")
        if tests and not peaks:
            return CommitPeaks(problem=f"{tests[0]['name']} failed: {tests[0]['message'].partition(chr(10))[0]}")
        # 0, 1 and 5: passed, failed, and nothing collected (`pytest.ExitCode`). With any other code pytest itself
        # failed.
        if not tests and code not in (0, 1, 5):
            return CommitPeaks(problem=f"pytest ended with exit code {code}, and the last that it said is: {last}")
        return CommitPeaks(peaks)

    def _run(self, command: Sequence[str], output: Path) -> int:
        tree = self._checkout.folder
        folder = tree / self._inside
        with output.open("wb") as printed:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment(tree),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        return process.wait(POLL_S)
                    if self._interrupted():
                        raise KeyboardInterrupt
            finally:
                end_group(process)

    def _environment(self, tree: Path) -> dict[str, str]:
        """Variables that make Python import the commit's modules, even if the user's tree is installed."""
        environment = dict(os.environ)
        root = self._repository.root
        entries = [str(tree / self._inside), str(tree), *(str(one) for one in [tree / "src"] if one.is_dir())]
        for entry in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)):
            if self._is_within(Path(entry)):
                entry = str(tree / os.path.relpath(Path(entry).resolve(), root.resolve()))
            entries.append(entry)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))
        # Files of two commits may have the same size and time: Python would reuse the other commit's .pyc.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        return environment

    def _place(self, place: str, folder: Path, tree: Path) -> str:
        """A position with its path relative to the repository's top; outside the repository, with its full path."""
        file, separator, rest = place.partition(":")
        if not file:
            return place
        path = Path(os.path.normpath(folder / file))
        if path.is_relative_to(tree):
            path = path.relative_to(tree)
        return f"{path}{separator}{rest}"

    def _own_files(self) -> list[tuple[str, int, int]]:
        """Path, size and time of the files that the program has outside the repository, where no commit tells them.

        They are those that the command names, such as a script or its settings, and the modules beside a script.
        """
        program = self._program
        named = [word.rpartition("=")[2] for word in program.command[1:]]
        named.append(program.callable.rpartition(":")[0])
        found: dict[str, tuple[str, int, int]] = {}
        for word in named:
            path = program.folder / word
            if not word or not _is_file(path) or self._is_within(path):
                continue
            files = [path]
            if path.suffix == ".py":
                files += path.parent.glob("*.py")
            for file in files:
                with suppress(OSError):
                    status = file.stat()
                    found[str(file.resolve())] = (str(file.resolve()), status.st_size, status.st_mtime_ns)
        return sorted(found.values())

    def _file(self, commit: Commit) -> Path:
        program = self._program
        parts = [
            *(FORMAT, __version__, commit.tree, str(self._inside), program.command, program.callable),
            self._own_files(),
            *(exact_text(program.card), repr(program.target.settings), program.steps, self.measures, self._versions),
        ]
        key = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()
        return data_folder() / "bisected" / f"{key}.json"

    def _kept_answer(self, commit: Commit) -> CommitPeaks | None:
        try:
            document = json.loads(read_regular_text(self._file(commit), MOST_ANSWER_BYTES))
            peaks = {}
            for name, one in document["peaks"].items():
                peaks[name] = Peak(int(one["bytes"]), one["lines"], bool(one["ran_out"]))
            return CommitPeaks(peaks, str(document["problem"]), kept=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _keep(self, commit: Commit, answer: CommitPeaks) -> None:
        file = self._file(commit)
        document: dict[str, Any] = {
            "peaks": {name: asdict(peak) for name, peak in answer.peaks.items()},
            "problem": answer.problem,
        }
        try:
            make_private_folder(file.parent)
            with written_whole(file, private=True) as part:
                part.write_text(json.dumps(document), encoding="utf-8", errors="surrogateescape")
            oldest_first = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for old in oldest_first[:-MOST_KEPT]:
                old.unlink()
        except OSError as error:
            # Not fatal: the next search recomputes it.
            logger.warning("an answer was not kept: %s", error)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a word of a command may be too long for a name


def _versions(python: str) -> str:
    """A digest of a Python and all its packages: another version of torch may need another amount of memory."""
    if not python:
        return ""
    try:
        done = subprocess.run(
            [python, "-c", ASK_VERSIONS], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise BisectError(f"{python} could not be started: {error.strerror}.", "Name a Python.") from None
    return hashlib.sha256(done.stdout).hexdigest()

"""The repository whose history is searched: git's answers, and commits checked out in a private folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudash.system.files import PrivateFolder
from gpudash.system.folders import data_folder

logger = logging.getLogger(__name__)

SHORT = 12
"""How many characters of a commit's hash are shown."""

LONGEST_S = 600.0
"""Time limit for a git command: checking out a large repository takes a minute."""

# Otherwise the user's hooks would run for our checkouts, and LFS would download files that a prediction never reads.
OVERRIDES = ("-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false", "-c", "advice.detachedHead=false")
VARIABLES = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}

# Git sets these inside a hook; they would redirect every command to the user's own tree and index.
GIT_VARIABLES = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE"}
)

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class BisectError(ValueError):
    """There is no answer.

    Attributes:
        remedy: one sentence on what to do; "" for none.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class Commit:
    """A commit.

    Attributes:
        hash, tree: full hashes.
        parents: hashes of its parents, the first parent first.
        author_date: ISO 8601, in the author's time zone.
        subject: the first line of its message.
    """

    hash: str
    tree: str
    parents: tuple[str, ...]
    author_date: str
    subject: str

    @property
    def short(self) -> str:
        """Its abbreviated hash."""
        return self.hash[:SHORT]


@dataclass(frozen=True)
class Hunk:
    """A hunk of a diff between two commits; lines count from 1.

    Attributes:
        old_file, new_file: paths in the repository; "" if the file is new or deleted.
        old_start, old_count, new_start, new_count: line ranges before and after, with context lines.
        text: as git shows it, the ``@@`` line first.
    """

    old_file: str
    new_file: str
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    text: str = ""


class Checkout:
    """A folder with the files of one commit at a time.

    Args:
        repository: the repository of the commits.
        folder: the worktree.
    """

    def __init__(self, repository: Repository, folder: Path) -> None:
        self._repository = repository
        self.folder = folder

    def move_to(self, commit: Commit) -> None:
        """Replace the folder's files by those of ``commit``, whatever was done to them.

        Raises:
            BisectError: if git fails.
        """
        here = ("-C", str(self.folder))
        self._repository.ask(
            *here, "checkout", "--quiet", "--force", "--detach", "--no-recurse-submodules", commit.hash
        )
        self._repository.ask(*here, "clean", "--quiet", "-ffdx")


class Repository:
    """A repository, read through git.

    Args:
        root: top folder of its working tree.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The repository that contains a folder.

        Raises:
            BisectError: if git is missing, or there is no repository with a working tree.
        """
        if shutil.which("git") is None:
            raise BisectError("There is no git, which a search through commits needs.", "Install git.")
        here = cls(folder)
        done = here._run("rev-parse", "--show-toplevel")
        if done.returncode or not done.stdout.strip():
            said = done.stderr.strip().partition("\n")[0].removeprefix("fatal: ").rstrip(".")
            if "not a git repository" in said:
                raise BisectError(f"{folder} lies in no git repository.", "Go into the repository of the program.")
            raise BisectError(
                f"git cannot use {folder}: {said or 'it has no working tree'}.", "Go into a clone with its files."
            )
        return cls(Path(done.stdout.rstrip("\n")))

    def commit(self, name: str) -> Commit:
        """The commit that a name refers to.

        Raises:
            BisectError: if there is none.
        """
        done = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if done.returncode:
            remedy = "git log --oneline lists commits."
            if self.is_shallow:
                remedy = "This clone is shallow; git fetch --unshallow brings the rest."
            raise BisectError(f"There is no commit {name!r} here.", remedy)
        found = done.stdout.strip().splitlines()[-1]
        # NUL separates the fields: no commit message can contain it.
        shown = self.ask("show", "--no-patch", "--no-show-signature", "--format=%H%x00%T%x00%P%x00%aI%x00%s", found)
        fields = shown.rstrip("\n").split("\0")
        return Commit(fields[0], fields[1], tuple(fields[2].split()), fields[3], fields[4])

    @property
    def is_shallow(self) -> bool:
        """Whether it is a shallow clone."""
        return self._run("rev-parse", "--is-shallow-repository").stdout.strip() == "true"

    @property
    def is_dirty(self) -> bool:
        """Whether tracked files have uncommitted changes."""
        return bool(self._run("status", "--porcelain", "--untracked-files=no").stdout.strip())

    def is_ancestor(self, earlier: Commit, later: Commit) -> bool:
        """Whether ``earlier`` is ``later`` or in its history."""
        return not self._run("merge-base", "--is-ancestor", earlier.hash, later.hash).returncode

    def merge_base(self, one: Commit, other: Commit) -> str:
        """Hash of the newest commit in both histories; "" if there is none."""
        return self._run("merge-base", one.hash, other.hash).stdout.strip()

    def suspects(self, raised: Commit, others: Sequence[Commit]) -> list[str]:
        """Commits that may have raised the peak: those in the history of ``raised`` and of none of ``others``.

        Args:
            raised: a commit with the raised peak; a suspect too.
            others: commits with the old peak.

        Returns:
            hashes, the one that best halves the rest first, in the order of ``git bisect`` (``git rev-list
            --bisect-all``).
        """
        excluded = [f"^{one.hash}" for one in others]
        lines = self.ask("rev-list", "--bisect-all", raised.hash, *excluded).splitlines()
        return [line.split()[0] for line in lines if line.strip()]

    def has_file(self, commit: Commit, path: str) -> bool:
        """Whether a commit has a file, by its path in the repository."""
        return not self._run("cat-file", "-e", f"{commit.hash}:{path}").returncode

    def text_of(self, commit: Commit, path: str) -> str:
        """The text of a file at a commit; "" if the commit lacks it."""
        done = self._run("cat-file", "blob", f"{commit.hash}:{path}")
        if done.returncode:
            return ""
        return done.stdout

    def hunks(self, before: Commit, after: Commit, *, around: int) -> list[Hunk]:
        """The changes between two commits.

        Args:
            before, after: the commits.
            around: how many context lines a hunk has on either side.
        """
        plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames", "--src-prefix=a/", "--dst-prefix=b/")
        text = self.ask("diff-tree", "-r", "-p", *plain, f"--unified={around}", before.hash, after.hash)
        return hunks_of(text)

    @contextmanager
    def checkout(self, first: Commit) -> Iterator[Checkout]:
        """A worktree in a private folder; removed when the block ends.

        Raises:
            BisectError: if git cannot create it.
        """
        try:
            scratch = PrivateFolder(data_folder(), ".bisect-")
        except OSError as error:
            raise BisectError(
                f"No folder can be made in {data_folder()} for the commits: {error.strerror}.",
                "Set GPUDASH_HOME to a folder that can be written.",
            ) from None
        folder = scratch.path / "gpudash-bisect"
        try:
            self.ask("worktree", "add", "--quiet", "--detach", "--no-checkout", str(folder), first.hash)
            yield Checkout(self, folder)
        finally:
            # Twice: one for changed files, one for a worktree that somebody has locked.
            done = self._run("worktree", "remove", "--force", "--force", str(folder))
            if done.returncode:
                logger.warning("the worktree %s was not removed: %s", folder, done.stderr.strip())
            scratch.remove()

    def ask(self, *arguments: str) -> str:
        """The output of a git command.

        Raises:
            BisectError: if it fails.
        """
        done = self._run(*arguments)
        if done.returncode:
            plain = [word for word in arguments if not word.startswith("-") and "/" not in word]
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise BisectError(f"git {plain[0]} failed: {last.removeprefix('fatal: ').rstrip('.')}.")
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
        try:
            return subprocess.run(
                ["git", *OVERRIDES, *arguments],
                cwd=self.root,
                env=environment | VARIABLES,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BisectError(f"git {arguments[0]} gave no answer in {LONGEST_S:.0f} s.") from None
        except OSError as error:
            raise BisectError(f"git could not be started in {self.root}: {error.strerror}.") from None


def hunks_of(text: str) -> list[Hunk]:
    """The hunks in the output of ``git diff``."""
    found = []
    for part in re.split(r"^diff --git .*\n", text, flags=re.MULTILINE)[1:]:
        begin = _HUNK.search(part)
        if begin is None:
            old_file = _name(part, "rename from ")
            # A file that only moved gets an empty hunk, so that its lines are found under the new name.
            if old_file:
                found.append(Hunk(old_file, _name(part, "rename to "), 0, 0, 0, 0))
            continue
        head = part[: begin.start()]
        old_file = _name(head, "--- a/")
        new_file = _name(head, "+++ b/")
        places = [*_HUNK.finditer(part)]
        ends = [place.start() for place in places[1:]] + [len(part)]
        for place, end in zip(places, ends, strict=True):
            old_start, old_count, new_start, new_count = (1 if size is None else int(size) for size in place.groups())
            whole = part[place.start() : end].rstrip("\n")
            found.append(Hunk(old_file, new_file, old_start, old_count, new_start, new_count, whole))
    return found


def _name(head: str, prefix: str) -> str:
    for line in head.splitlines():
        if line.startswith(prefix):
            return line.removeprefix(prefix).removesuffix("\t")
    return ""

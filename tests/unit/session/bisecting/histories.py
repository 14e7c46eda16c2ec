"""Small histories made by git, and peaks that are known in advance."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpudash.session.predicting.bisecting.peaks import CommitPeaks, Peak
from gpudash.session.predicting.bisecting.repository import Commit, Repository

PEOPLE = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", "2026-01-02T03:04:05+01:00"))
}
PLAIN = {**PEOPLE, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


class History:
    """A repository in a folder, to which commits are added.

    Args:
        folder: is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**os.environ, **PLAIN},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, subject: str, **files: str) -> str:
        """Write files, named with "__" for "." and commit everything; the hash."""
        for name, text in files.items():
            path = self.folder / name.replace("__", ".")
            path.write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    @property
    def repository(self) -> Repository:
        return Repository.around(self.folder)


class KnownPeaks:
    """PeaksByCommit by the subject of a commit; a commit without one cannot be run."""

    def __init__(self, peaks: Mapping[str, int | Peak]) -> None:
        self._peaks = peaks
        self.counted = 0
        self.kept = 0
        self.measures = False
        self._asked: set[str] = set()

    def at(self, commit: Commit) -> CommitPeaks:
        if commit.hash not in self._asked:
            self._asked.add(commit.hash)
            self.counted += 1
        peak = self._peaks.get(commit.subject)
        if peak is None:
            return CommitPeaks(problem="It cannot be imported.")
        if isinstance(peak, int):
            peak = Peak(peak)
        return CommitPeaks({"": peak})

    def predict_instead(self) -> None:
        self.measures = False

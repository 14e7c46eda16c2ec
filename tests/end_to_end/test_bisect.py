"""``gpudash bisect`` over a small history: a function of a file that no commit has, with the model of each commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.session.predicting.bisecting.search import RUNS
from tests.end_to_end.conftest import Command
from tests.json_page import undescribed
from tests.unit.session.bisecting.histories import History

MODEL = """
from torch import nn


def model():
    return nn.Linear({size}, {size})
"""

BENCH = """
import torch
from model import model


def build(device):
    net = model().to(device)
    def step():
        net(torch.ones(4, net.in_features, device=device)).sum().backward()
        net.zero_grad()
    return step
"""


def test_the_commit_and_the_line_are_found_and_the_tree_stays_as_it_is(
    gpudash: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "project")
    history.commit("first", model__py=MODEL.format(size=512))
    found = history.commit("a larger model", model__py=MODEL.format(size=2048))
    (history.folder / "bench.py").write_text(BENCH)
    (history.folder / "model.py").write_text("raise SystemExit('the user is in the midst of it')\n")
    monkeypatch.chdir(history.folder)
    words = ("bisect", "HEAD~1", "HEAD", "--callable", "bench.py:build", "--simulate", "8GiB")

    done = gpudash(*words, "--json")
    assert done.code == 0, done.stderr
    document = done.document
    assert undescribed(words, document) == []
    assert document["commit"] == {
        "hash": found,
        "subject": "a larger model",
        "author_date": "2026-01-02T03:04:05+01:00",
    }
    assert document["estimates"] == 2 and document["commits"] == 1 and document["known_estimates"] == 0
    assert document["after_bytes"] > 2 * document["before_bytes"]
    places = {(line["file"], line["line"]) for line in document["lines"]}
    assert places == {(str(history.folder / "bench.py"), 7), (str(history.folder / "bench.py"), 9)}
    assert [hunk["file"] for hunk in document["hunks"]] == ["model.py"]
    assert "Changes of the working tree that are in no commit are left out" in done.stderr

    done = gpudash(*words)
    assert done.code == 0 and "2 of them known before" in done.stdout, done.stderr
    assert f"{found[:12]} raises the peak of bench.py:build from" in done.stdout
    assert "+    return nn.Linear(2048, 2048)" in done.stdout
    assert (history.folder / "model.py").read_text().startswith("raise SystemExit")
    assert len(history.git("worktree", "list").splitlines()) == 1


def test_a_commit_that_needs_a_missing_library_is_not_said_to_be_mended(
    gpudash: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "project")
    history.commit("first", model__py=MODEL.format(size=512))
    history.commit("needs more", model__py="import not_there\n")
    (tmp_path / "bench.py").write_text(BENCH)
    monkeypatch.chdir(history.folder)
    done = gpudash("bisect", "HEAD~1", "HEAD", "--callable", "../bench.py:build", "--simulate", "8GiB")
    assert done.code == 2
    assert f"No module named 'not_there'. {RUNS}" in done.stderr and "Fix that" not in done.stderr

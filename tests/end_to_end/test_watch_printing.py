"""Scripts that tell their loss to a reader only: what they print is plotted and recorded, and nothing is changed."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.recordings.replay import Replay
from gpudash.telemetry.plots import loss
from tests.end_to_end.conftest import Command

SCRIPTS = Path(__file__).parent / "watched_scripts" / "printing"


def losses(recording: str) -> list[tuple[int, float]]:
    """Steps of a recording that have a loss."""
    with sqlite3.connect(recording) as database:
        events = [json.loads(text) for (text,) in database.execute("select json from event order by rowid")]
    return [(event["step"], event["loss"]) for event in events if event["kind"] == "StepFinished" and event["loss"]]


def watched(gpudash: Command, *command: str, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    outcome = gpudash("watch", "--json", *flags, "--", sys.executable, *command)
    assert outcome.code == 0, outcome.stderr
    assert "What is plotted is read from the output" in " ".join(outcome.document["notes"])
    return outcome.document


def test_the_lines_of_a_language_model_without_an_optimizer_are_its_steps(gpudash: Command) -> None:
    found = watched(gpudash, str(SCRIPTS / "language_model.py"))
    told = losses(found["recording"])
    assert [step for step, _ in told] == list(range(5, 51, 5))
    assert found["steps"] == 50
    assert told[-1][1] < told[0][1]


def test_nanogpts_lines_are_the_losses_of_steps_that_its_optimizer_counts(gpudash: Command) -> None:
    found = watched(gpudash, str(SCRIPTS / "gpt_loop.py"))
    told = losses(found["recording"])
    assert len(told) == 5, "iterations, without the 3 evaluations of the training data"
    assert found["metrics"]["loss/train loss"]["last"] != told[-1][1]
    assert found["metrics"]["val_loss"]["last"] != told[-1][1]
    assert found["steps"] == 41
    assert found["metrics"]["loss"]["last"] == told[-1][1] < told[0][1]
    replay = Replay(Path(found["recording"]))
    plot = loss(replay.store.run)
    replay.close()
    assert plot.title == "LOSS · from the output"
    assert [curve.name for curve in plot.curves] == [
        "training loss from the output",
        "validation loss from the output",
        "train loss from the output",
    ]


def test_the_postfix_of_a_progress_bar_is_a_loss_at_each_of_its_states(gpudash: Command) -> None:
    found = watched(gpudash, str(SCRIPTS / "progress_bar.py"))
    assert len(losses(found["recording"])) == found["steps"] == 50


def test_a_pattern_of_ones_own_is_read_and_a_bad_one_refused(gpudash: Command) -> None:
    program = "for i in range(5): print(f'it {i} L={1 / (i + 1)}')"
    found = watched(gpudash, "-c", program, flags=("--metric-pattern", r"it (?P<step>\d+) L=(?P<loss>\S+)"))
    assert losses(found["recording"]) == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25), (5, 0.2)]
    refused = gpudash("watch", "--json", "--metric-pattern", "(?P<loss>", "--", sys.executable, "-c", "pass")
    assert refused.code == 2
    assert "no regular expression" in refused.document["error"]["message"]


def test_a_loss_is_told_when_it_is_printed_though_nothing_flushes_it(gpudash: Command, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time\nfor i in range(1, 4):\n    print('step', i, 'loss', 1 / i)\n    time.sleep(0.4)\n")
    found = watched(gpudash, str(script))
    with sqlite3.connect(found["recording"]) as database:
        events = [json.loads(text) for (text,) in database.execute("select json from event order by rowid")]
    times = [event["time_s"] for event in events if event["kind"] == "StepFinished"]
    assert len(times) == 3 and times[-1] - times[0] > 0.5


@pytest.mark.parametrize("end", ["print('the end')", "import os; print('the end', flush=True); os._exit(0)"])
def test_the_last_lines_of_a_program_are_there_however_much_it_printed(gpudash: Command, end: str) -> None:
    program = f"for n in range(30_000): print('y' * 2000)\n{end}"
    outcome = gpudash("watch", "--json", "--", sys.executable, "-c", program)
    with sqlite3.connect(outcome.document["recording"]) as database:
        events = [json.loads(text) for (text,) in database.execute("select json from event order by rowid")]
    assert [event for event in events if event["kind"] == "Output"][-1]["lines"][-1] == "the end"

"""The flags of ``gpudash watch`` and those of the program behind them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpudash.cli import build_app, run, watch
from gpudash.cli.terminal.output import RequestError
from gpudash.cli.terminal.report import print_watched
from gpudash.telemetry.recording.recorder import Recorder
from tests.unit.telemetry.comparing.made import MADE


def parsed(*words: str) -> tuple[Sequence[str], watch.WatchOptions]:
    _command, bound, _ignored = build_app(["watch"]).parse_args(
        ["watch", *words], exit_on_error=False, print_error=False
    )
    return bound.args, bound.kwargs.get("options") or watch.WatchOptions()


def test_what_stands_behind_two_dashes_is_the_programs() -> None:
    command, options = parsed(
        "--simulate", "8GiB", "--json", "--", "python", "train.py", "--json", "--lr", "3", "--", "x"
    )
    assert list(command) == ["python", "train.py", "--json", "--lr", "3", "--", "x"]
    assert (options.simulate, options.json, options.memory_history) == ([8 * 2**30], True, True)


def test_memory_history_can_be_switched_off() -> None:
    _, options = parsed("--no-memory-history", "--", "true")
    assert not options.memory_history


def test_a_json_flag_of_the_program_is_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "--", "nothing_of_this_name", "--json"]) == 127
    out, err = capsys.readouterr()
    assert out == "" and "nothing_of_this_name" in err
    assert run(["watch", "--json", "--", "nothing_of_this_name"]) == 127
    out, _ = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "request"


def test_help_states_the_cost_of_the_memory_history_and_tells_of_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["watch", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "costs up to 10 % of the program's time" in text
    assert "gpudash watch [OPTIONS] -- COMMAND" in text
    assert "--exit-code" in text and "128 plus the number of a signal" in text


def test_a_recording_gets_another_name_when_somebody_takes_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.gpudash"
    somebody = Recorder(taken, meta={})
    monkeypatch.setattr("gpudash.session.recording_target", lambda *_args, **_facts: taken)
    session = watch._started(watch.WatchOptions())
    assert session.recording_path == tmp_path / "taken-2.gpudash"
    assert session.close()
    somebody.close()


def test_a_recording_that_was_named_is_not_given_another_name(tmp_path: Path) -> None:
    taken = tmp_path / "taken.gpudash"
    somebody = Recorder(taken, meta={})
    with pytest.raises(RequestError, match=r"taken\.gpudash"):
        watch._started(watch.WatchOptions(record=taken))
    somebody.close()


def test_a_program_that_cannot_be_started_ends_as_in_a_shell(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert run(["watch", "--no-record", "--", str(tmp_path / "none")]) == 127
    assert run(["watch", "--no-record", "--", str(plain)]) == 126
    assert run(["watch", "--no-record", "--exit-code", "gpudash", "--", str(tmp_path / "none")]) == 2
    assert run(["watch", "--no-record", "--no-such-flag"]) == 2


def test_a_signal_is_told_as_a_shell_reports_it_and_a_value_that_stayed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = MADE.but(workload="watch", ending="cancelled", loss=2.5).run().view
    summary = {**view.summary(), "product": "", "exit_code": -2, "report": None, "notes": []}
    print_watched(summary)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.endswith(", exit code 130") for line in lines)
    assert "loss: 2.5" in lines


def test_values_that_changed_are_told_from_first_to_last(capsys: pytest.CaptureFixture[str]) -> None:
    view = MADE.but(workload="watch", loss=2.5).run().view
    summary = {**view.summary(), "product": "", "exit_code": 0, "report": None, "notes": []}
    summary["metrics"]["loss"]["first"] = 3.0
    print_watched(summary)
    assert "loss: 3 → 2.5" in capsys.readouterr().err.splitlines()

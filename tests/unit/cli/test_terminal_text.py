"""Names that are not ours on a terminal: none clears the screen, hides its end, or adds a line that looks like ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from rich.table import Table
from rich.text import Text

from gpudash.cli import run
from gpudash.cli.terminal import output
from gpudash.cli.terminal.monitoring import LiveTable
from gpudash.cli.terminal.report import print_run, print_watched
from gpudash.telemetry.explanation import Remedy
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, RunEnd, RunStarted, StageFinished
from gpudash.units import MIB
from tests.ui.fake_session import FakeSession, gpu
from tests.unit.memory.snapshot.made import Made as MadeSnapshot
from tests.unit.memory.snapshot.made import explained
from tests.unit.telemetry.comparing.made import MADE
from tests.unit.telemetry.run_ends import RAN_OUT

Capture = pytest.CaptureFixture[str]

NAME = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202ebat\u200b\x7f[/red][bold]"
"""A window's title, a cleared screen, eight-bit colour, reversed writing, no width, a deletion, and rich's markup."""

LINE = "x\n\rGPU 1 is fine"

OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def obeyed(text: str) -> list[str]:
    return sorted({mark for mark in text if mark not in "\n\t" and category(mark) in OBEYED})


def printed(capsys: Capture) -> str:
    out, err = capsys.readouterr()
    assert obeyed(out) == [] and obeyed(err) == [], ascii(out + err)
    assert "Traceback" not in err
    return out + err


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert output.visible("plain \u00e9 \u4e2d text\n") == "plain \u00e9 \u4e2d text\n"
    assert output.visible("\x1b[2J\u202e\x9b") == "\\x1b[2J\\u202e\\x9b"
    assert output.one_line("a\nb\u2028c") == "a\\nb\\u2028c"


@pytest.mark.parametrize("make", [output.stdout, output.stderr])
def test_every_way_to_print_writes_it_out(make: Callable[[], Any], capsys: Capture) -> None:
    console = make()
    table = Table(NAME)
    table.add_row(NAME, Text(NAME))
    console.print(NAME, Text(NAME), table)
    assert "\\x1b[2J" in printed(capsys)


def test_a_name_with_a_line_s_end_adds_no_line(capsys: Capture) -> None:
    table = Table("device", box=None)
    table.add_row(LINE)
    output.stdout().print(table)
    output.stdout().print(LINE)
    output.print_notice(LINE)
    assert [line for line in printed(capsys).splitlines() if line.startswith("GPU 1")] == []


def test_json_stays_the_same_document(capsys: Capture) -> None:
    output.print_json({"name": NAME, "path": "caf\u00e9"})
    text = printed(capsys)
    assert json.loads(text)["name"] == NAME and "caf\u00e9" in text


@pytest.mark.parametrize(
    "words",
    [
        "compare {name} {name}",
        "export {name} --to csv -o out.csv",
        "snapshot {name}",
        "open {name}",
        "{name}",
        "run {name}",
        "run training --device {name}",
        "run training --{name} 3",
        "estimate training --device {name}",
        "monitor --rate {name}",
        "devices --simulate {name}",
        "watch --no-record -- {name}",
        "compare a b --tolerance {name}",
    ],
)
def test_refusals_hold_no_escape_and_no_line_of_their_own(words: str, capsys: Capture) -> None:
    assert run([word.format(name=NAME + LINE) for word in words.split()]) in (1, 2, 127)
    assert not any(line.startswith("GPU 1") for line in printed(capsys).splitlines())


def test_compare_prints_names_that_others_gave(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    made = MADE.but(workload=NAME, device=NAME, spec={NAME: NAME, "x": LINE})
    made.record(tmp_path / "a.gpudash")
    made.but(device=LINE, spec={NAME: LINE, "x": NAME}).record(tmp_path / f"{NAME.replace('/', '')}.gpudash")
    assert run(["compare", "a.gpudash", f"{NAME.replace('/', '')}.gpudash", "--tolerance", "0.1"]) in (0, 1)
    text = printed(capsys)
    assert "\\x1b[2J" in text and not any(line.startswith("GPU 1") for line in text.splitlines())


@pytest.mark.process
def test_a_snapshot_s_names_are_written_out(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    made = MadeSnapshot(200 * 2**20)
    made.until_full(16 * 2**20, 4 * 2**20)
    path = made.written(tmp_path / "run7.pickle")
    path.write_bytes(path.read_bytes().replace(b"step", b"\x1b[2J"))  # as long
    assert run(["snapshot", str(path)]) == 0
    assert "\ufffd[2J" in printed(capsys)  # the reader has replaced what no name holds


def test_an_export_says_what_it_wrote(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{LINE}{NAME.replace('/', '')}.gpudash"
    recorder = Recorder(path, meta={"host_product": NAME})
    recorder.add(RunStarted(time_s=0.1, run_id=1, workload=NAME, device=NAME, spec={}))
    recorder.close("closed")
    for to in ("csv", "html", "trace"):
        assert run(["export", str(path), "--to", to, "-o", f"{NAME.replace('/', '')}.{to}"]) == 0
    printed(capsys)


def test_devices_in_the_live_table_and_their_problem(capsys: Capture) -> None:
    session = FakeSession([gpu(0, NAME)], gpu_problem=f"{NAME} {LINE}").feed(1.0)
    table = LiveTable(session)  # type: ignore[arg-type]
    table.close()
    assert not any(line.startswith("GPU 1") for line in printed(capsys).splitlines())


def test_outcomes_of_runs(capsys: Capture) -> None:
    session = FakeSession([gpu(0, NAME)])
    session.start()
    session.apply(RunStarted(time_s=0.0, run_id=1, workload=NAME, device=NAME, spec={NAME: NAME}))
    session.apply(Note(time_s=0.1, run_id=1, topic=NAME, text=NAME))
    failed = RunEnd(status="failed", time_s=0.2, run_id=1, error=NAME, message=NAME, remedy=NAME, seconds=1.0, steps=1)
    session.apply(failed)
    told = session.store.run
    assert told is not None
    whole = {
        **told.summary(),
        "recording": NAME,
        "report": NAME,
        "notes": [NAME, LINE],
        "exit_code": 1,
        "product": NAME,
    }
    print_run(whole, told.notes)
    print_watched(whole)
    assert not any(line.startswith("GPU 1") for line in printed(capsys).splitlines())


def test_the_command_with_the_first_remedy_is_printed_as_a_shell_takes_it(capsys: Capture) -> None:
    made = MadeSnapshot(capacity=200 * MIB)
    made.until_full(60 * MIB, 0)
    remedy = Remedy("-b: a batch of 8 in place of 16", command=("python", "my train.py", "-b", "8"))
    found = explained(made.snapshot()).with_remedies((remedy,))
    session = FakeSession()
    session.start()
    session.end(replace(RAN_OUT, error="cuda", message="", steps=1, explanation=found))
    assert session.store.run is not None
    facts = {"recording": None, "report": None, "notes": (), "device": "sim:0", "exit_code": 1}
    print_watched({**session.store.run.summary(), **facts})
    assert "Command with the first change: python 'my train.py' -b 8\n" in printed(capsys)


def test_a_message_of_several_lines_keeps_them(capsys: Capture) -> None:
    session = FakeSession()
    session.start()
    session.end(
        RunEnd(status="failed", time_s=1.0, run_id=1, error="e", message="one\ntwo", remedy="", seconds=1.0, steps=1)
    )
    assert session.store.run is not None
    print_run({**session.store.run.summary(), "recording": None})
    assert "one\ntwo" in printed(capsys)


def test_where_the_time_of_a_step_went_is_said_in_a_line_and_a_sentence(capsys: Capture) -> None:
    session = FakeSession()
    session.start()
    for name, seconds in (("input", 6.0), ("forward", 2.0), ("backward", 2.0)):
        session.store.apply(StageFinished(time_s=1.0, run_id=1, name=name, seconds=seconds, count=100))
    session.end(RunEnd(status="finished", time_s=2.0, run_id=1, seconds=2.0, steps=100))
    assert session.store.run is not None
    facts = {"recording": None, "report": None, "notes": (), "exit_code": 0}
    print_watched({**session.store.run.summary(), **facts})
    lines = printed(capsys).splitlines()
    assert "a step, 100 ms: input 60 % · forward 20 % · backward 20 %" in lines
    assert "60 % of the step waits for the DataLoader." in lines

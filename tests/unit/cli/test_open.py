"""``gpudash open``: what each address opens, and what is refused before a window opens."""

from __future__ import annotations

import io
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.cli.recordings.open import open_address
from gpudash.cli.terminal.output import RequestError
from gpudash.devices.names import Simulation
from gpudash.session import Replay
from gpudash.session.addresses import parse_address
from gpudash.session.recordings.file_kinds import FoundFile
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.ui.features import file, fleet
from tests.json_page import undescribed
from tests.unit.memory.profiler_trace.traces import document, written


class FakeApp(ModuleType):
    """In place of the window: what it was given is written down."""

    def __init__(self) -> None:
        super().__init__("gpudash.ui.app")
        self.given: list[tuple[str, Any]] = []

    def open_dropped(self, paths: list[Path], arguments: str = "") -> None:
        self.given.append(("form", paths))
        if arguments:
            self.given.append(("arguments", arguments))

    def run(
        self, simulation: Simulation | None = None, file: FoundFile | None = None, begin: Any = None
    ) -> tuple[int, bool]:
        if simulation is not None and simulation.cards:
            self.given.append(("simulated", simulation.sizes))
        if file is not None:
            self.given.append(("file", file.path))
        else:
            begin(self)
        return 0, True


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    app = FakeApp()
    monkeypatch.setitem(sys.modules, "gpudash.ui.app", app)
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    return app


def snapshot(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    return folder / "snapshot.pickle"


def test_a_snapshot_and_the_folder_of_a_report_open_in_the_window(app: FakeApp, tmp_path: Path) -> None:
    path = snapshot(tmp_path / "report")
    assert run(["open", str(path)]) == 0
    assert run(["open", str(path.parent)]) == 0
    assert app.given == [("file", path)] * 2


def test_a_script_or_a_model_is_put_into_the_form_beside_the_simulated_card(app: FakeApp, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    (tmp_path / "config.json").write_text("{}")
    assert run(["open", str(script), "--simulate", "1GiB"]) == 0
    assert run(["open", str(tmp_path)]) == 0
    assert app.given == [("simulated", (1 << 30,)), ("form", [script]), ("form", [tmp_path])]


def test_what_follows_two_hyphens_are_the_arguments_of_the_script(app: FakeApp, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert run(["open", str(script), "--simulate", "1GiB", "--", "--batch", "4", "--table", "two words"]) == 0
    given = [("simulated", (1 << 30,)), ("form", [script]), ("arguments", "--batch 4 --table 'two words'")]
    assert app.given == given


def test_arguments_go_with_a_script_only(app: FakeApp, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = snapshot(tmp_path)
    assert run(["open", str(path), "--", "--batch", "4"]) == 2
    assert "are the arguments of a Python script, and" in capsys.readouterr().err and app.given == []
    assert run(["open", "--", str(path)]) == 0
    assert app.given == [("file", path)]


@pytest.mark.parametrize("line", ["train.py --simulat rtx4060", "--simulat=rtx4060 train.py"])
def test_a_mistyped_flag_is_no_file(app: FakeApp, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert run(["open", *line.split()]) == 2
    assert capsys.readouterr().err.startswith("There is no --simulat; did you mean --simulate? ")
    assert app.given == []


def test_a_recording_is_opened_by_its_name_in_the_list_of_runs(app: FakeApp, home: Path) -> None:
    path = home / "recordings" / "a.gpudash"
    Recorder(path, meta={}).close("closed")
    assert run(["open", "a.gpudash"]) == 0
    assert app.given == [("file", path)]


def test_without_a_display_a_script_is_referred_to_its_prediction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "minimal")
    script = tmp_path / "my train.py"
    script.write_text("import torch\n")
    assert run(["open", str(script)]) == 2
    assert f"gpudash estimate -- python '{script}'" in capsys.readouterr().err


def test_cards_are_not_simulated_for_other_machines(app: FakeApp, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["open", "--simulate", "1GiB", "ssh://host"]) == 2
    assert "--simulate gives the window's own runs a GPU" in capsys.readouterr().err
    assert app.given == []


def test_a_file_without_a_command_is_referred_to_the_command_that_opens_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert run(["--simulate", "1GiB", str(script)]) == 2
    assert capsys.readouterr().err == f"Nothing here takes {script}. To open it: gpudash open {script}\n"


def test_a_recording_opens_in_the_window_whatever_it_is_called(app: FakeApp, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    Recorder(path, meta={}).close("closed")
    assert run(["open", str(path)]) == 0
    assert app.given == [("file", path)]


def test_two_recordings_without_a_run_are_laid_over_one_another(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [tmp_path / "a.gpudash", tmp_path / "b.gpudash"]
    for path in paths:
        Recorder(path, meta={"host_name": path.stem}).close("closed")
    compared: list[str] = []

    def compare(_workspace: object, replays: list[Replay]) -> None:
        compared.extend(replay.host_name for replay in replays)
        for replay in replays:
            replay.close()

    monkeypatch.setattr(fleet, "compare_recordings", compare)
    assert run(["open", *map(str, paths)]) == 0
    assert compared == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.pickle", None, "There is no file"),
        ("empty.pickle", b"", "is empty"),
        ("notes.txt", b"notes", "neither a memory snapshot"),
        ("torn.gpudash", b"SQLite format 3\x00", "is not a recording"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence_and_exit_2(
    app: FakeApp, tmp_path: Path, capsys: Any, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(["open", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert app.given == []


def test_without_a_display_it_says_where_else_to_look(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["open", str(snapshot(tmp_path))]) == 2
    assert "There is no display" in capsys.readouterr().err and app.given == []


@pytest.mark.parametrize("words", [["open"], ["open", "a", "b"]])
def test_anything_but_one_file_is_refused(app: FakeApp, words: list[str], capsys: Any) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.count("\n") == 1 and app.given == []


def test_what_is_piped_in_is_shown_as_it_comes(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", stream)
    monkeypatch.setattr(file, "open_stream", lambda workspace, lines: workspace.given.append(("stream", lines)))
    assert run(["open", "-"]) == 0
    assert app.given == [("stream", stream)]


def test_nothing_piped_in_and_no_display_are_refused(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert run(["open", "-"]) == 2
    assert "Nothing is piped into gpudash open -." in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["open", "-"]) == 2
    assert "There is no display" in capsys.readouterr().err and app.given == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("prometheus:", "There is no address behind prometheus:"),
        ("prometheus:host:9090", "'host:9090' is no address of a Prometheus server"),
        ("prometheus:http://host:99999", "'http://host:99999' is no address"),
        ("prometheus:http://host:9090/graph?g0=1", "leave out everything from"),
        ("prometheus:http://host:9090?token=abc", "'http://host:9090' goes on behind the server's address"),
        ("http://host:9090", "http://host:9090 is an address, not a file"),
        ("https://host/prometheus", "write prometheus:https://host:443/prometheus if a Prometheus server is there"),
        ("ssh://-oProxyCommand=touch", "'ssh://-oProxyCommand=touch' is no address of a machine over ssh"),
        ("ssh://me:secret@host", "A password does not belong into the address of 'host'"),
        ("ssh://host:99999", "'99999' is no port"),
    ],
)
def test_an_address_that_is_none_is_refused(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["open", given]) == 2
    assert words in capsys.readouterr().err


def test_a_token_that_would_be_sent_openly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDASH_PROMETHEUS_TOKEN", "secret")
    with pytest.raises(RequestError, match="could be read on the way") as refused:
        open_address(parse_address("prometheus:http://host:9090"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("beside", ["prometheus:http://other:9090", "recording.gpudash"])
def test_a_server_is_opened_alone(beside: str) -> None:
    with pytest.raises(RequestError, match="is opened alone"):
        open_address(parse_address(beside), parse_address("prometheus:http://host:9090"))


@pytest.mark.parametrize("beside", ["-", "recording.gpudash"])
def test_what_is_piped_in_is_opened_alone(beside: str) -> None:
    with pytest.raises(RequestError, match="is opened alone"):
        open_address(parse_address(beside), parse_address("-"))


@pytest.mark.parametrize("beside", ["prometheus:http://other:9090", "recording.gpudash"])
def test_machines_over_ssh_are_opened_without_anything_else(beside: str) -> None:
    with pytest.raises(RequestError, match="are opened together, without files or servers"):
        open_address(parse_address(beside), parse_address("ssh://host"))


def test_without_a_display_it_says_so_and_where_else_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError, match="no display") as refused:
        open_address(parse_address("prometheus:http://host:9090"))
    assert refused.value.remedy == "http://host:9090/graph draws what the server knows."


def test_a_trace_opens_in_the_window(app: FakeApp, tmp_path: Path) -> None:
    path = written(tmp_path, document(), "trace.json.gz")
    assert run(["open", str(path)]) == 0
    assert app.given == [("file", path)]


@pytest.mark.process
def test_a_trace_is_printed_where_it_is_asked_for_or_there_is_no_display(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = written(tmp_path, document(), "trace.json.gz")
    assert run(["open", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert undescribed(("open",), printed) == []
    assert printed["memory"][0]["held"] == [["aten::mm", 900]] and "timeline" not in printed
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["open", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "900 B were allocated at most" in lines[0] and any(line.startswith("aten::mm") for line in lines)
    assert app.given == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.pickle", b"\x80\x04}.", "is a memory snapshot, not a trace"),
        ("notes", b"notes", "neither a memory snapshot"),
    ],
)
def test_a_table_of_anything_else_is_refused(
    app: FakeApp, tmp_path: Path, capsys: Any, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(["open", str(tmp_path / name), "--table"]) == 2
    assert words in capsys.readouterr().err and app.given == []
    assert run(["open", "ssh://host", "--table"]) == 2
    assert "print one trace" in capsys.readouterr().err

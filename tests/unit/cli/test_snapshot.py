"""``gpudash snapshot``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.memory.allocator import AllocationRefused
from gpudash.session.recordings.report_folder import write_steps
from gpudash.units import MIB
from tests.json_page import undescribed
from tests.unit.memory.snapshot.made import FORWARD, KEPT, TRAIN, Made

pytestmark = pytest.mark.process


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    made = Made(capacity=200 * MIB)
    made.until_full(16 * MIB, 4 * MIB)
    return made.written(tmp_path / "run7.pickle")


def test_the_cause_comes_first_then_what_would_have_fitted(leaking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["snapshot", str(leaking), "--capacity", "100MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run7.pickle: pickle protocol 4, ")
    assert lines[2].startswith("train.py:44 keeps 4 MiB alive per step: ")
    assert "This would have fit" in lines
    assert lines[lines.index("What if") + 1].startswith("  100 MiB for PyTorch: fails at event ")
    assert lines[lines.index("Would fit") + 1].startswith("  let go of what train.py:44 keeps: ")


def test_json_is_the_one_document_on_stdout(leaking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["snapshot", str(leaking), "--capacity", "4GiB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["replay"][0]["fits"]) == ("finished", True)
    assert told["devices"][0]["explanation"]["verdict"] == "leak"
    assert told["devices"][0]["oom"]["event"] == told["devices"][0]["events"] - 1


@pytest.mark.parametrize(("name", "is_shown"), [("train.py", True), ("link.py", False)])
def test_lines_of_source_are_shown_of_the_files_in_a_folder_alone_where_one_is_named(
    leaking: Path, tmp_path: Path, name: str, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = tmp_path / "project"
    inside.mkdir()
    for file in (tmp_path / "secret.py", inside / "train.py"):
        file.write_text("kept.append(token)\n" * 100)
    (inside / "link.py").symlink_to("../secret.py")
    # a snapshot names files as its author likes
    named = json.dumps(pickle.loads(leaking.read_bytes())).replace(TRAIN, str(inside / name))
    leaking.write_bytes(pickle.dumps(json.loads(named)))
    assert run(["snapshot", str(leaking), "--sources", str(inside), "--json"]) == 0
    assert ("kept.append(token)" in capsys.readouterr().out) == is_shown


def test_a_folder_of_a_report_is_taken_for_its_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Made()
    made.malloc(4 * MIB)
    folder = tmp_path / "report"
    folder.mkdir()
    made.written(folder / "snapshot.pickle")
    assert run(["snapshot", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("snapshot.pickle: ")


def test_a_page_is_written_and_not_replaced_unasked(
    leaking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert run(["snapshot", str(leaking), "--html", str(page)]) == 0
    assert "keeps 4 MiB alive per step" in page.read_text()
    assert run(["snapshot", str(leaking), "--html", str(page)]) == 2
    assert capsys.readouterr().err.rstrip().endswith("is there already. Name another file, or give --force.")
    page.write_text("")
    assert run(["snapshot", str(leaking), "--html", str(page), "--force"]) == 0
    assert page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["report.html", "run7.pickle"]


def test_a_page_that_cannot_be_written_is_refused(
    leaking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["snapshot", str(leaking), "--html", str(tmp_path / "none" / "report.html")]) == 2
    assert "cannot be written: No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "There is no file"),
        (b"", "is empty"),
        (b"not a pickle at all", "neither a pickle nor JSON"),
        (pickle.dumps({"loss": 1.0}, protocol=4), "segments"),
        (pickle.dumps({"segments": [1] * 1000}, protocol=4)[:-40], "cut off"),
        (pickle.dumps({"segments": [Path("somewhere")]}, protocol=4), "pathlib"),
    ],
)
def test_what_is_no_snapshot_is_refused_in_a_sentence(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.pickle"
    if content is not None:
        path.write_bytes(content)
    assert run(["snapshot", str(path), "--json"]) == 2
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert words in error["message"]
    assert len(told.err.strip().splitlines()) == 1
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--device", "4"), "The snapshot has no device 4: it has 0."),
        (("--settings", "colour:blue"), "The allocator knows no setting 'colour'"),
        (("--capacity", "0"), "--capacity 0 is no memory at all."),
        (("--capacity", "much"), "'much' is not a size"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(
    flags: tuple[str, str], words: str, leaking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["snapshot", str(leaking), *flags]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def test_what_a_hostile_file_calls_its_functions_reaches_neither_terminal_nor_reader_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = {"filename": "/tmp/\x1b[31mred.py", "line": 1, "name": "half\ud800"}
    event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": [frame]}
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}, protocol=4))
    assert run(["snapshot", str(path), "--html", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "half\ufffd" in told
    assert run(["snapshot", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["top"][0]["stack"][0]["name"] == "half\ufffd"


def test_a_name_that_is_no_text_is_told_all_the_same(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.pickle"
    Path(os.fsdecode(path)).write_bytes(pickle.dumps([], protocol=4))
    ran = subprocess.run([sys.executable, "-m", "gpudash", "snapshot", path, "--json"], capture_output=True, check=True)
    assert json.loads(ran.stdout)["file"].endswith("\udcff.pickle")


def test_paths_that_cannot_be_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, words in (
        ("a" * 300, "cannot be read: File name too long."),
        (str(tmp_path), "is a folder without a snapshot.pickle."),
    ):
        assert run(["snapshot", path]) == 2
        assert words in capsys.readouterr().err


def test_a_page_replaces_neither_the_snapshot_nor_a_device(leaking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = leaking.read_bytes()
    folder = leaking.with_name("folder")
    folder.mkdir()
    for page, words in ((leaking, "is the snapshot itself."), (folder, "is no regular file.")):
        assert run(["snapshot", str(leaking), "--html", str(page), "--force"]) == 2
        assert words in capsys.readouterr().err
    assert run(["snapshot", str(leaking), "--html", str(leaking / "page.html")]) == 2
    assert "cannot be written: Not a directory." in capsys.readouterr().err
    assert leaking.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="the system has no /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_disk_is_told_in_a_sentence(leaking: Path, flags: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "gpudash", "snapshot", leaking, *flags],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, b"What was to be printed cannot be written: No space left on device.\n")


def test_what_lies_beside_the_snapshot_of_a_report_is_heeded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, times = Made(capacity=200 * MIB), []
    with suppress(AllocationRefused):
        while True:
            times.append((made.now_us, len(times) + 1))
            made.free(made.malloc(16 * MIB, FORWARD), FORWARD)
            made.malloc(6 * MIB, KEPT)
    path = made.written(tmp_path / "snapshot.pickle")
    write_steps(tmp_path, times)
    for file in (tmp_path, path):
        assert run(["snapshot", str(file)]) == 0
        assert capsys.readouterr().out.splitlines()[2].startswith("train.py:44 keeps 6 MiB alive per step")
    (tmp_path / "steps.json").write_text("[")
    assert run(["snapshot", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "steps.json beside the snapshot was left aside: it is no list of times and numbers of steps."
    assert "alive per step" not in told[3]


def test_a_second_snapshot_is_compared_by_call_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = Made(), Made()
    before.malloc(4 * MIB, stack=KEPT)
    after.malloc(4 * MIB, stack=KEPT)
    after.malloc(6 * MIB, stack=KEPT)
    after.malloc(2 * MIB, stack=FORWARD)
    files = [str(made.written(tmp_path / name)) for made, name in ((before, "a.pickle"), (after, "b.pickle"))]
    assert run(["snapshot", *files]) == 0
    told = capsys.readouterr().out
    assert "allocated grew by 8 MiB: +6 MiB train.py:44" in told
    assert [line.split()[-2:] for line in told.splitlines()[-2:]] == [["+6", "MiB"], ["+2", "MiB"]]
    assert run(["snapshot", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert undescribed(["snapshot", *files], document) == []
    assert document["second_allocated_bytes"] - document["first_allocated_bytes"] == 8 * MIB
    assert [change["grown_bytes"] for change in document["changes"]] == [6 * MIB, 2 * MIB]


def test_two_snapshots_are_compared_as_they_are(leaking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["snapshot", str(leaking), str(leaking), "--capacity", "1GiB"]) == 2
    assert capsys.readouterr().err.startswith("--capacity is for one snapshot.")
    assert run(["snapshot", str(leaking), str(leaking)]) == 0
    assert "nothing changed" in capsys.readouterr().out

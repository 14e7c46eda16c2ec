"""What a file is, told by its content."""

from __future__ import annotations

import getpass
import gzip
import hashlib
import json
import os
import pickle
import platform
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.snapshot.reading.reader import read_snapshot
from gpudash.memory.snapshot.summary import studied
from gpudash.session import Replay
from gpudash.session.recordings import samples as samples_module
from gpudash.session.recordings.file_kinds import HEAD_BYTES, find_file, kind_of
from gpudash.session.recordings.report_folder import sidecar_of
from gpudash.session.recordings.samples import SampleRecording, sample, samples
from gpudash.system.files import resource

ROOT = Path(__file__).resolve().parents[3]

RECORDINGS = [found for found in samples() if found.path.suffix == ".gpudash"]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_of_the_profiler_is_told_from_a_snapshot_in_json(compressed: bool) -> None:
    trace = b' {\n  "schemaVersion": 1,\n  "deviceProperties": [],\n' + b" " * 3 * HEAD_BYTES
    other = b'{"segments": [], "device_traces": []}'
    if compressed:
        trace, other = gzip.compress(trace, mtime=0), gzip.compress(other, mtime=0)
    assert kind_of(trace[:HEAD_BYTES]) == "trace"
    assert kind_of(other[:HEAD_BYTES]) == "snapshot"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"segments": []}, [[]], {}])
def test_a_dict_or_a_list_in_any_pickle_may_be_a_snapshot(protocol: int, value: object) -> None:
    assert kind_of(pickle.dumps(value, protocol)) == "snapshot"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"SQLite format 3\x00\x10\x00", "recording"),
        (gzip.compress(b"x", mtime=0), "snapshot"),
        (json.dumps({"segments": []}).encode(), "snapshot"),
        (b"\xef\xbb\xbf\n  [1]", "snapshot"),
        (b"# GPU memory", None),
        (b"PK\x03\x04", None),
        (b"\x7fELF", None),
        (b"SQLite format 2\x00", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_what_a_file_is(head: bytes, kind: str | None) -> None:
    assert kind_of(head) == kind


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_are_told_without_an_exception(head: bytes) -> None:
    assert kind_of(head) in ("recording", "snapshot", None)


def test_a_name_says_nothing_about_what_a_file_is(tmp_path: Path) -> None:
    file = tmp_path / "memory.gpudash"
    file.write_bytes(pickle.dumps({"segments": []}))
    found = find_file(file)
    assert (found.kind, found.path, found.title) == ("snapshot", file, "memory.gpudash")


def test_the_folder_of_a_report_means_the_snapshot_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "2026-11-21-train"
    folder.mkdir()
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    found = find_file(folder)
    assert (found.kind, found.path, found.title) == ("snapshot", folder / "snapshot.pickle", "2026-11-21-train")


def test_a_relative_path_is_the_same_file_as_the_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({}))
    monkeypatch.chdir(tmp_path)
    assert find_file(Path("a.pickle")).path == find_file(tmp_path / "sub" / ".." / "a.pickle").path


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+\.$") as error:
        find_file(path)
    return str(error.value)


def test_what_cannot_be_opened_is_told_in_one_sentence(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.pickle", tmp_path / "notes.txt"
    empty.touch()
    text.write_text("notes")
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert refused(tmp_path / "gone.pickle") == f"There is no file {tmp_path / 'gone.pickle'}."
    assert "without a snapshot.pickle" in refused(tmp_path)
    assert refused(empty) == "empty.pickle is empty; nothing was written into it."
    assert "neither a memory snapshot of PyTorch nor a recording" in refused(text)
    assert refused(fifo) == f"{fifo} cannot be read: it is a FIFO, not a regular file."


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.pickle"
    file.write_bytes(b"\x80\x04")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(os, "open", refuse)
    assert refused(file) == f"{file} cannot be read: Permission denied."


LARGEST, LARGEST_TOGETHER = 450_000, 1_500_000


def files() -> Iterator[Path]:
    return (path for path in resource("samples").rglob("*") if path.is_file())


def texts(path: Path) -> Iterator[str]:
    """Every text in a sample's file."""
    if path.suffix != ".gpudash":
        yield path.read_bytes().decode("utf-8", errors="replace")
        return
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"'):
                yield from (cell for cell in row if isinstance(cell, str))
    database.close()


def test_the_samples_are_those_a_newcomer_needs() -> None:
    names = {found.name for found in samples()}
    assert names >= {"healthy-training", "out-of-memory", "transfer-sweep", "two-runs-fp32", "two-runs-bf16"}
    found = sample("healthy-training")
    assert found is not None and found.path.exists()


def test_the_samples_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in files()}
    assert max(sizes.values()) < LARGEST, sizes
    assert sum(sizes.values()) < LARGEST_TOGETHER, sizes


@pytest.mark.parametrize("path", list(files()), ids=lambda path: path.name)
def test_a_sample_tells_nothing_of_the_machine_it_was_made_on(path: Path) -> None:
    told = [platform.platform(), "/tmp/", str(ROOT), str(Path.home() / "x")[:-1]]
    for text in texts(path):
        for words in told:
            assert words not in text, text[:200]


@pytest.mark.parametrize("found", RECORDINGS, ids=lambda found: found.name)
def test_a_recording_names_neither_host_nor_user_nor_other_programs(found: SampleRecording) -> None:
    with sqlite3.connect(f"file:{found.path}?mode=ro&immutable=1", uri=True) as database:
        users = {user for (user,) in database.execute("SELECT DISTINCT user FROM process")}
        names = {name for (name,) in database.execute("SELECT DISTINCT name FROM process")}
        meta = dict(database.execute("SELECT key, value FROM meta"))
    database.close()
    assert users <= {None, "user"} and getpass.getuser() not in users
    assert names <= {None, "gpudash", "gpudash-run", "python"}
    assert meta["host"] == "sample" and platform.node() not in meta.values()


@pytest.mark.parametrize("found", RECORDINGS, ids=lambda found: found.name)
def test_a_recording_says_on_which_device_it_was_made(found: SampleRecording) -> None:
    replay = Replay(found.path)
    with replay.store.lock:
        assert replay.store.run is not None
        simulated = replay.store.run.device.startswith("sim")
    replay.close()
    assert ("SIMULATED" in found.description) == simulated
    assert ("on a CPU" in found.description) == (not simulated)


@pytest.mark.parametrize("found", RECORDINGS, ids=lambda found: found.name)
def test_opening_a_recording_leaves_it_and_its_folder_as_they_were(found: SampleRecording) -> None:
    before = hashlib.sha256(found.path.read_bytes()).hexdigest()
    beside_it = sorted(found.path.parent.iterdir())
    replay = Replay(found.path)
    with replay.store.lock:
        assert replay.store.run is not None and replay.store.run.status in ("finished", "out_of_memory")
    replay.close()
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == before
    assert sorted(found.path.parent.iterdir()) == beside_it


def test_the_report_opens_with_its_explanation_and_steps() -> None:
    (found,) = (found for found in samples() if found.path.is_dir())
    snapshot = find_file(found.path)
    assert snapshot.kind == "snapshot"
    known = sidecar_of(snapshot.path)
    assert known.steps and not known.warnings
    assert pickle.loads(snapshot.path.read_bytes())["segments"]
    assert "SIMULATED" in found.description and set(known.cards) == {0}


def test_the_sample_report_gives_the_figures_that_are_read_from_its_snapshot_today() -> None:
    (found,) = (found for found in samples() if found.path.is_dir())
    snapshot = find_file(found.path).path
    told = (snapshot.parent / "report.txt").read_text(encoding="utf-8").splitlines()[0]
    read = studied(read_snapshot(snapshot), known=sidecar_of(snapshot))[0].found.headline
    figures = " alive per step: "
    assert figures in told and told.split(figures)[1] == read.split(figures)[1]


def test_an_installation_without_samples_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*parts: str) -> Path:
        raise FileNotFoundError(parts[-1])

    monkeypatch.setattr(samples_module, "resource", missing)
    assert samples() == [] and sample("healthy-training") is None


def test_the_wheel_carries_the_samples() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried["resources/samples"] == "gpudash/_resources/samples"

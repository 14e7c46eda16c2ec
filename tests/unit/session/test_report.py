"""The report: one page that needs nothing but itself, says what the recording says, and runs nothing from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from gpudash.devices.names import Gpu
from gpudash.drawing.ghost import Ghost
from gpudash.drawing.page import page as html
from gpudash.session import report as package
from gpudash.session.predicting.ghosts import prediction_note
from gpudash.session.recordings import loading
from gpudash.session.recordings.joining import JoinedRecording
from gpudash.session.report import page, write_report
from gpudash.session.report.page import rank_table
from gpudash.telemetry.recording.recorder import Recorder, RecordingError
from gpudash.telemetry.records import (
    Marker,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    State,
    StepFinished,
    Warning,
)
from gpudash.units import GIB, MIB
from tests.unit.html_page import Page
from tests.unit.session.node_recordings import recorded
from tests.unit.session.recordings import records, write
from tests.unit.speed.made_up_times import made_up_time
from tests.unit.telemetry.copies import copied
from tests.unit.telemetry.run_ends import FAILED, RAN_OUT

EVIL = "<script>alert(1)</script>\"'&"
TICKS = 4000
"""More rows than end two pages of summaries."""


def training(name: str = "training", device: str = "cpu") -> list[Record]:
    records: list[Record] = [
        RunStarted(time_s=1.0, run_id=1, workload=name, device=device, spec={"steps": 20, "width": 64})
    ]
    for step in range(1, 21):
        time_s = 1.0 + step / 10
        used = {"used_bytes": 8 * GIB + step * MIB, "total_bytes": 16 * GIB, "process_bytes": 300 * MIB}
        cpu, states = (0.5, {}) if step != 7 else (None, {"cpu_utilisation": State.LOST})
        records.append(Sample(time_s, "host", None, {**used, "cpu_utilisation": cpu}, states))
        records.append(
            StepFinished(
                time_s=time_s, run_id=1, step=step, steps=20, seconds=0.1, loss=4.0 / step, accuracy=0.5, throughput=9.0
            )
        )
    return records


def finished(records: Sequence[Record]) -> list[Record]:
    stage = StageFinished(time_s=3.0, run_id=1, name="forward", seconds=0.5, count=20)
    warning = Warning(time_s=2.5, run_id=1, level="warning", device="host", text="cpu is 86 % full.", ratio=0.86)
    end = RunEnd(time_s=3.1, run_id=1, status="finished", seconds=2.1, steps=20, result={"parameters": 1234})
    return [*records, stage, warning, end]


def reported(folder: Path, records: Sequence[Record], name: str = "run.gpudash") -> tuple[str, Page]:
    meta = {"wall_clock_origin": "2026-11-21T10:15:00+00:00", "host_product": "AMD EPYC 9554", "host": EVIL}
    recorder = Recorder(folder / name, meta=meta)
    for record in records:
        recorder.add(record)
    recorder.close()
    assert write_report(folder / name, folder / "out.html") == []
    text = (folder / "out.html").read_text(encoding="utf-8")
    return text, Page(text)


def test_a_page_tells_run_device_status_figures_stages_warnings_spec_and_machine(tmp_path: Path) -> None:
    _, found = reported(tmp_path, finished(training()))
    for words in (
        "training on cpu",
        "2026-11-21 10:15:00 UTC",
        "Finished after 2.1 s, 20 steps.",
        "AMD EPYC 9554",
        "1\u202f234",
        "forward",
        "cpu is 86 % full.",
        "width",
        "16.0 GiB",
    ):
        assert words in found.text, words


def test_a_page_shows_memory_loss_throughput_and_utilisation_with_their_extremes(tmp_path: Path) -> None:
    text, found = reported(tmp_path, finished(training()))
    titles = re.findall(r"<figure><h3>([^<]+)", text)
    assert titles == ["Memory", "Loss (nats) and accuracy", "Throughput", "Utilisation"]
    assert "0.2 to 4" in found.text  # loss
    assert "300 MiB to 300 MiB" in found.text
    drawings = [attrs for tag, attrs in found.elements if tag == "svg" and attrs.get("role") == "img"]
    assert len(drawings) == 4
    assert "Loss (nats) and accuracy: loss at most 4" in str(drawings[1]["aria-label"])


def predicted_run(*, readable: bool = True) -> list[Record]:
    """A run on a GPU that was predicted to hold 4 GiB in each step."""
    held = np.array([1.0, 1.0, 4.0, 2.0, 1.0, 4.0, 2.0, 1.0]) * GIB
    ghost = Ghost.of({"weights": held}, ((0, 0, ""), (1, 1, "forward"), (4, 2, "forward")))
    note = prediction_note(ghost, 1.05, 1, made_up_time())
    if not readable:
        note = replace(note, details={"ghost": {"edges": "none"}})
    facts = {"nvml_index": 0, "uuid": "GPU-0", "pci_bus_id": "", "product": "A card", "total_bytes": 24 * GIB}
    gpus = Note(time_s=0.0, topic="gpus", text="", details={"gpus": [facts], "torch_names": {"cuda:0": "GPU-0"}})
    used = [
        Sample(1.0 + step / 10, "gpu", "GPU-0", {"used_bytes": 3 * GIB, "total_bytes": 24 * GIB}) for step in range(21)
    ]
    records = [gpus, *finished(training(device="cuda:0")), note, *used]
    return sorted(records, key=lambda record: record.time_s)


def test_a_run_that_was_predicted_has_that_in_its_memory_plot(tmp_path: Path) -> None:
    _, found = reported(tmp_path, predicted_run())
    memory = next(
        str(attrs["aria-label"]) for tag, attrs in found.elements if tag == "svg" and attrs.get("role") == "img"
    )
    assert memory.startswith("Memory: ") and "predicted at most 4.00 GiB" in memory
    assert "Predicted to hold 4.00 GiB at its peak" in found.text


def test_a_run_stands_beside_the_time_that_was_predicted_of_its_steps(tmp_path: Path) -> None:
    _, found = reported(tmp_path, predicted_run())
    assert "predicted 0.31 s ± 0.06, took " in found.text
    assert "and to take 0.31 s ± 0.06 a step." in found.text


def test_a_prediction_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    _, found = reported(tmp_path, predicted_run(readable=False))
    assert not any("predicted at most" in str(attrs.get("aria-label")) for _, attrs in found.elements)


def test_the_loss_of_a_validation_has_a_curve_of_its_own(tmp_path: Path) -> None:
    records = training()
    told = StepFinished(time_s=2.05, run_id=1, step=10, steps=20, seconds=None, val_loss=7.5)
    text, found = reported(tmp_path, finished([*records, told, replace(told, time_s=2.95, val_loss=5.25)]))
    titles = re.findall(r"<figure><h3>([^<]+)", text)
    assert titles == ["Memory", "Loss (nats) and accuracy", "Throughput", "Utilisation"]
    drawings = [attrs for tag, attrs in found.elements if tag == "svg" and attrs.get("role") == "img"]
    assert "training loss at most 4" in str(drawings[1]["aria-label"])
    assert "validation loss at most 7.5" in str(drawings[1]["aria-label"])


def test_a_gap_breaks_the_line_and_a_peak_of_one_sample_is_drawn(tmp_path: Path) -> None:
    records = training()
    peak = Sample(2.05, "host", None, {"used_bytes": 15 * GIB, "total_bytes": 16 * GIB, "process_bytes": 300 * MIB})
    text, found = reported(tmp_path, finished([*records, peak]))
    utilisation = text[text.index("<h3>Utilisation") :]
    curve = utilisation[utilisation.rindex('class="line c-green" d="') :].split('"')[3]
    assert curve.count("M") == 2
    assert "15.0 GiB" in found.text


def test_a_copy_shorter_than_a_pixel_stands_on_the_axis(tmp_path: Path) -> None:
    copy = copied(2.0, 10**9, 1e-6)
    text, _ = reported(tmp_path, finished([*training(), copy]))
    transfers = text[text.index("<h3>Transfer bandwidth") : text.index("<h3>Utilisation")]
    pulse = transfers[transfers.rindex('class="line c-green" d="') :].split('"')[3]
    heights = [float(point.split(",")[1]) for point in re.findall(r"[\d.]+,[\d.]+", pulse)]
    assert heights[0] == heights[-1] == max(heights)
    assert min(heights) < 40


def test_nothing_comes_from_elsewhere_and_no_script_is_needed(tmp_path: Path) -> None:
    text, found = reported(tmp_path, finished(training()))
    assert found.count("script") == found.count("link") == found.count("img") == found.count("iframe") == 0
    assert not [attrs for _, attrs in found.elements if {"src", "href", "xlink:href"} & set(attrs)]
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_whatever_a_recording_holds_is_told_as_text(tmp_path: Path) -> None:
    failed = replace(
        FAILED, time_s=3.0, error=EVIL, message=EVIL, remedy=EVIL, seconds=2.0, steps=20, details=f"Traceback {EVIL}"
    )
    records = [
        *training(EVIL, EVIL),
        Note(time_s=2.0, run_id=1, topic=EVIL, text=EVIL),
        Warning(time_s=2.0, run_id=1, level="warning", device=EVIL, text=EVIL),
        Marker(time_s=2.0, label=EVIL),
        StageFinished(time_s=2.0, run_id=1, name=EVIL, seconds=1.0, dtype=EVIL, remark=EVIL, from_device=EVIL),
        failed,
    ]
    text, found = reported(tmp_path, records, name="<img src=x>.gpudash")
    assert found.count("script") == found.count("img") == 0
    assert "<script" not in text
    assert EVIL in found.text
    assert f"Traceback {EVIL}" in found.text


def test_a_simulated_device_says_so_on_title_and_speeds(tmp_path: Path) -> None:
    records = training(device="sim:0")
    started = records[0]
    assert isinstance(started, RunStarted)
    records[0] = RunStarted(
        time_s=1.0, run_id=1, workload="training", device="sim:0", spec=started.spec, simulated=True
    )
    text, found = reported(tmp_path, finished(records))
    assert '<h1>training on sim:0 <span class="simulated">SIMULATED</span></h1>' in text
    assert "Throughput (SIMULATED)" in found.text


def test_an_out_of_memory_without_explanation_tells_message_and_remedy(tmp_path: Path) -> None:
    ending = replace(RAN_OUT, time_s=3.0, error="cuda", message="It was full.", remedy="Halve it.", seconds=2, steps=9)
    _, found = reported(tmp_path, [*training(), ending])
    assert "Out of memory after 2.0 s" in found.text
    assert "It was full. Halve it." in found.text
    assert "out of memory" in found.text  # the mark


def test_a_recording_without_a_run_shows_the_machine(tmp_path: Path) -> None:
    samples = [record for record in training() if isinstance(record, Sample)]
    text, found = reported(tmp_path, samples)
    assert "Watched, no run" in found.text
    assert re.findall(r"<figure><h3>([^<]+)", text) == ["Memory", "Utilisation"]


def test_a_recording_without_a_run_shows_every_gpu(tmp_path: Path) -> None:
    gpu = {"uuid": "GPU-1", "product": "RTX 4090", "nvml_index": 0, "total_bytes": 24 * GIB, "pci_bus_id": "0"}
    gpus = [{**asdict(Gpu(**gpu))}, {**asdict(Gpu(**{**gpu, "uuid": "GPU-2", "nvml_index": 1}))}]  # type: ignore[arg-type]
    readings = [
        Sample(number / 10, "gpu", uuid, {"used_bytes": 5 * GIB, "total_bytes": 24 * GIB, "gpu_utilisation": 0.5})
        for number in range(1, 20)
        for uuid in ("GPU-1", "GPU-2")
    ]
    text, found = reported(tmp_path, [Note(time_s=0.0, topic="gpus", text="", details={"gpus": gpus}), *readings])
    assert re.findall(r"<figure><h3>([^<]+)", text) == ["Memory", "Utilisation"] * 2
    assert "GPU 1, RTX 4090" in found.text


def test_an_empty_recording_says_that_there_is_nothing_to_draw(tmp_path: Path) -> None:
    _, found = reported(tmp_path, [])
    assert "There are no readings to draw." in found.text


def test_of_many_runs_the_newest_are_told(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(1, page.MOST_RUNS + 3):
        records.append(RunStarted(time_s=float(number), run_id=number, workload=f"run{number}", device="cpu", spec={}))
        records.append(RunEnd(time_s=number + 0.5, run_id=number, status="finished", seconds=0.5, steps=0, result={}))
    text, found = reported(tmp_path, records)
    assert f"The newest {page.MOST_RUNS} of {page.MOST_RUNS + 2} runs are shown here." in found.text
    assert "2. run2 on cpu" in found.text  # the contents name all
    assert 'id="run-2"' not in text
    assert 'id="run-3"' in text


def test_a_page_of_several_runs_has_contents_that_lead_to_them(tmp_path: Path) -> None:
    recorder = Recorder(
        tmp_path / "run.gpudash", meta={"run 2 title": EVIL, "run 2 tags": "wide", "run 2 note": "to beat"}
    )
    for number, width in ((1, 1024), (2, 64)):
        began = 10.0 * number
        recorder.add(
            RunStarted(
                time_s=began, run_id=number, workload="training", device="sim:0", spec={"width": width}, simulated=True
            )
        )
        recorder.add(StepFinished(time_s=began + 1, run_id=number, step=1, steps=1, seconds=1.0, loss=0.5))
        recorder.add(RunEnd(time_s=began + 2, run_id=number, status="finished", seconds=2.0, steps=1, result={}))
    recorder.close()
    out = tmp_path / "run.html"
    write_report(recorder.path, out)
    found = Page(out.read_text())
    links = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
    ids = [attributes.get("id") for tag, attributes in found.elements if tag == "h2"]
    assert links == ["#run-1", "#run-2"]
    assert [f"#{name}" for name in ids if name] == links
    words = " ".join(found.label)
    assert "1. training width 1024 on sim:0" in words
    assert words.count("SIMULATED") >= 4
    assert f"2. {EVIL}" in words
    assert "to beat" in words
    assert "script" not in {tag for tag, _attributes in found.elements}


def test_a_run_shows_no_loss_of_the_run_before_or_after_it(tmp_path: Path) -> None:
    records = finished(training())
    began = records[-1].time_s + 0.01
    records += [
        copied(began - 0.005, 10**9, 1e-3),
        RunStarted(time_s=began, run_id=2, workload="pipeline", device="cpu", spec={}),
        Sample(began + 0.05, "host", None, {"used_bytes": 9 * GIB, "total_bytes": 16 * GIB}, {}),
        RunEnd(time_s=began + 0.1, run_id=2, status="finished", seconds=0.1, steps=0, result={}),
    ]
    text, found = reported(tmp_path, records)
    first, second = text.split('<h2 id="run-2">')
    assert "Loss (nats) and accuracy" in first
    assert "Loss (nats) and accuracy" not in second and "Transfer bandwidth" not in second
    assert "Memory" in second
    assert "tags" not in found.label  # nobody has tagged a run, so there is no column for it


def test_a_mark_that_was_taken_back_is_not_drawn(tmp_path: Path) -> None:
    marks = [Marker(time_s=1.5, label="kept"), Marker(time_s=1.6, label="gone")]
    text, _ = reported(tmp_path, finished([*training(), *marks, Marker(time_s=1.6, label="gone", category="removed")]))
    assert "kept" in text
    assert "gone" not in text


def test_a_mark_that_was_taken_back_and_made_again_is_drawn(tmp_path: Path) -> None:
    mark = Marker(time_s=1.6, label="again")
    text, _ = reported(
        tmp_path, finished([*training(), mark, Marker(time_s=1.6, label="again", category="removed"), mark])
    )
    assert text.count(">again<") == 1


def test_a_report_that_breaks_off_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported(tmp_path, finished(training()))
    before = (tmp_path / "out.html").read_bytes()

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "report", full)
    with pytest.raises(RecordingError, match=r"out\.html cannot be written \(No space left on device\)"):
        package.write_report(tmp_path / "run.gpudash", tmp_path / "out.html", force=True)
    assert (tmp_path / "out.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "run.gpudash"]


@pytest.mark.parametrize(
    ("out", "words"), [("out.html", "exists already"), ("run.gpudash", "is the recording itself"), (".", "is a folder")]
)
def test_a_target_that_may_not_be_replaced_is_refused(tmp_path: Path, out: str, words: str) -> None:
    reported(tmp_path, finished(training()))
    source = (tmp_path / "run.gpudash").read_bytes()
    with pytest.raises(RecordingError, match=words):
        write_report(tmp_path / "run.gpudash", tmp_path / out, force=out == "run.gpudash")
    assert (tmp_path / "run.gpudash").read_bytes() == source


def written(recording: Path, out: Path) -> str:
    write_report(recording, out)
    return out.read_text()


def test_each_rank_has_a_curve_and_a_row(tmp_path: Path) -> None:
    page = written(recorded(tmp_path / "one.gpudash", (0, 1)), tmp_path / "report.html")
    for words in ("Memory by rank", "Step time by rank", "Loss by rank", "<h3>Ranks</h3>", "rank 1 at most"):
        assert words in page
    assert "of the ranks" not in page


@pytest.mark.parametrize("nodes", [((0, 1, 2), (3, 4))])
def test_many_ranks_have_an_envelope(tmp_path: Path, nodes: tuple[tuple[int, ...], ...]) -> None:
    paths = [recorded(tmp_path / f"{ranks[0]}.gpudash", ranks, world_size=5) for ranks in nodes]
    joined = JoinedRecording(paths)
    page = written(joined.path, tmp_path / "report.html")
    joined.remove()
    assert "highest of the ranks" in page and "rank 4 at most" not in page


def test_a_run_without_ranks_has_neither(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={})
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="watch", device="cpu", spec={}))
    recorder.add(RunEnd(time_s=2.0, run_id=1, status="finished", seconds=1.0, steps=0, result={}))
    recorder.close()
    page = written(recorder.path, tmp_path / "report.html")
    assert "by rank" not in page and "<h3>Ranks</h3>" not in page


def test_what_a_foreign_recording_says_of_ranks_is_text_and_nothing_else() -> None:
    row = {"rank": "<b>", "host": "<script>", "device": None, "step_seconds_median": "1", "peak_used_bytes": True}
    found = html("ranks", rank_table({"ranks": [row, "x"], "parameters_equal": False}))
    assert "<script>" not in found and "&lt;script&gt;" in found and "<b>" not in found
    assert "<p>The parameters are NOT equal across the ranks.</p>" in found
    assert rank_table({"ranks": "x"}) == [] == rank_table(None)


def plots_of(text: str) -> list[tuple[str, list[str]]]:
    """Title of each plot and, by curve, its range as the legend tells it."""
    figures = re.findall(r"<figure>.*?</figure>", text)
    return [(re.findall("<h3>([^<]+)", figure)[0], re.findall(r"</svg>([^<]+ <b>[^<]+)", figure)) for figure in figures]


def test_a_long_recording_shows_the_plots_of_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.gpudash"
    write(path, records(TICKS))
    write_report(path, tmp_path / "whole.html")
    monkeypatch.setattr(loading, "WHOLE_ROWS", 1000)
    monkeypatch.setattr(loading, "TAIL_ROWS", 500)
    monkeypatch.setattr(page, "SHARP_S", 60.0)
    write_report(path, tmp_path / "paged.html")
    whole, paged = ((tmp_path / name).read_text(encoding="utf-8") for name in ("whole.html", "paged.html"))
    titles = ["Memory", "Loss (nats) and accuracy", "Throughput", "Transfer bandwidth", "Utilisation"]
    assert [title for title, _ in plots_of(paged)] == titles
    assert plots_of(paged) == plots_of(whole)
    assert "peak of the whole GPU" in paged


def test_memory_is_drawn_as_bands_the_inner_over_the_outer(tmp_path: Path) -> None:
    path = tmp_path / "run.gpudash"
    write(path, records(400))
    write_report(path, tmp_path / "run.html")
    memory = re.findall(r"<figure>.*?</figure>", (tmp_path / "run.html").read_text(encoding="utf-8"))[0]
    drawn = re.findall(r'<path class="(fill|line) c-(\w+)', memory.split('role="img"')[1])
    assert drawn[:3] == [("fill", "grey"), ("fill", "blue"), ("fill", "cyan")]
    assert drawn[3:6] == [("line", "cyan"), ("line", "blue"), ("line", "grey")]

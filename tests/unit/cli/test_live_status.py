"""The status line of a watched program: what it says, and that it fits in a line of the terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.text import Text

from gpudash.cli.terminal.live_status import LiveStatus, fitting, rendered, status_parts
from gpudash.cli.terminal.report import progress_parts
from gpudash.session import Session
from gpudash.telemetry.records import RunStarted, Sample, StepFinished

PARTS = ["step 120", "loss 2.312", "sim:0 5.12 of 8.00 GiB, full in 24 s", "11.2 steps/s", "Loss D 0.7"]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_it_never_fills_a_line_of_the_terminal(width: int) -> None:
    text = Text.from_ansi(rendered([*PARTS, "損失 " * 60], width)).plain
    assert cell_len(text) < width
    assert text.startswith("gpudash step 120") if width > 20 else text == "gpudash step 120"
    assert ("full in 24 s" in text, "Loss D" in text) == (width >= 80, width == 200)


def test_it_tells_step_losses_memory_and_rate() -> None:
    session = Session()
    session.store.apply(RunStarted(time_s=0.5, run_id=1, workload="watch", device="cpu", spec={}))
    told = {"losses": {"D\x1b loss": 0.5}, "val_loss": 2.5, "throughput": 4.0}
    session.store.apply(StepFinished(time_s=1.0, run_id=1, step=7, steps=0, seconds=None, **told))
    session.store.apply(Sample(1.0, "host", None, {"process_bytes": 3 * 2**30}))
    parts = status_parts(session)
    assert parts == ["step 7", "val loss 2.5", "cpu 3.00 GiB", "4 steps/s", "D\x1b loss 0.5"]
    assert "\x1b loss" not in rendered(parts, 80)


def test_while_the_need_of_a_run_is_found_out_it_tells_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.store.apply(RunStarted(time_s=0.5, run_id=1, workload="watch", device="sim:0", spec={}))
    monkeypatch.setattr(type(session.runs), "finding_need_s", 12.3)
    assert status_parts(session) == ["finding out what the whole run needs: 12 s", "Ctrl+C leaves it"]
    assert cell_len(Text.from_ansi(rendered(status_parts(session), 80)).plain) < 80


def test_without_a_terminal_there_is_none_and_a_notice_is_a_line_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveStatus(quiet=False) as status:
        assert status.descriptor is None
        status.notice("gpudash: a notice")
    assert capsys.readouterr() == ("", "gpudash: a notice\n")


def test_the_progress_line_of_a_run_tells_memory_and_rate_too() -> None:
    session = Session()
    session.store.apply(RunStarted(time_s=0.5, run_id=1, workload="training", device="cpu", spec={}))
    session.store.apply(StepFinished(time_s=1.0, run_id=1, step=7, steps=200, seconds=None, loss=2.5, throughput=40))
    session.store.apply(Sample(1.0, "host", None, {"process_bytes": 3 * 2**30}))
    parts = progress_parts(session, session.store.run)
    assert [parts[0], *parts[-3:]] == ["step 7/200", "loss 2.500", "cpu 3.00 GiB", "40.0 items/s"]
    assert fitting(parts, 15) == parts[:1]
    assert progress_parts(session, session.store.run, brief=True) == ["7/200", *parts[1:]]

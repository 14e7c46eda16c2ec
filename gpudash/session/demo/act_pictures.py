"""The steps of a scene as pictures, by the kind of its acts: lines, runs side by side, copies, rungs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpudash.devices.names import shown_name
from gpudash.drawing.stages import StageBlock, StageChart, StageColumn, size_text
from gpudash.session.demo.answers import SAME_LOSS, copied_bytes, run_loss, run_speed, speed_ratio, speedup
from gpudash.session.demo.ladder import RungResult, ladder, ladder_pictures, state_of
from gpudash.session.demo.pictures import (
    CodeLine,
    LineScript,
    LineState,
    StagePanel,
    StagePicture,
    Tone,
    code_of,
    empty_chart,
    instead,
    pictures_of,
)
from gpudash.session.demo.scenes import LinesAct, PlayedScene, Result, Run, RunAct, Scene
from gpudash.units import MIB, format_bytes, format_count, format_duration
from gpudash.workloads.lines.trace import LinesTrace

COPIES_REACH = 16.0 * MIB
"""Bytes that the axis of copies reaches from the start, so that it stays as it is while columns appear."""

PEAKS_REACH = 48.0 * MIB
"""Bytes that the axis of peaks reaches from the start, likewise."""

LEAST_DIFFERENCE = 0.0001
"""Relative difference of losses below which only this bound is stated."""


SAYS_NO_SPEED = "simulated: says nothing about speed"


def line_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """The steps of lines acts, one act after the other."""
    found: list[StagePicture] = []
    for place, act in enumerate(scene.acts):
        if not isinstance(act, LinesAct):
            continue
        script = replace(act.script, title=scene.title, question=scene.subject)
        if place < len(played.results):
            found += _of_lines(act, script, played.results[place])
            if place == scene.answered_by and found:
                found[-1] = replace(found[-1], answers=True)
        elif place == len(played.results):
            corner = f"limit {format_bytes(act.limit)} · simulated"
            sentence = played.waiting or "The lines are running…"
            code = code_of(act.source.splitlines())
            titles = ("before", *(f"line {line.number}" for line in code), "after")
            chart = empty_chart(float(act.limit), titles)
            found.append(
                StagePicture(script.title, script.question, corner, code, "IN MEMORY", chart=chart, sentence=sentence)
            )
    return found


def _of_lines(act: LinesAct, script: LineScript, result: Result) -> list[StagePicture]:
    if not isinstance(result, LinesTrace):
        sentence = result if isinstance(result, str) else ""
        return [StagePicture(script.title, script.question, code=code_of(act.source.splitlines()), sentence=sentence)]
    found = pictures_of(result, script)
    if act.is_mistake and result.failure is None and found:
        found[-1] = replace(found[-1], tone="wrong", remark=instead(script))
    return found


def copy_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Bytes copied, one column for each placement of the batches."""

    def drawn(acts: Sequence[RunAct], runs: Sequence[Run | None], at: int) -> StagePicture:
        known = runs[: at + 1]
        blocks = [
            StageBlock("copied", float(copied_bytes(run)), "h2d" if place < 2 else "d2h") if run else None
            for place, run in enumerate(known)
        ]
        chart = StageChart("COPIED IN 60 STEPS", (), None, "the same training each time", reaches=COPIES_REACH)
        picture = _with_columns(StagePicture(scene.title, blocks_title="COPIED", chart=chart), acts, blocks, at)
        code = [replace(line, warns=place == 2 and bool(line.figure)) for place, line in enumerate(picture.code)]
        sentence, tone, remark = _copy_sentence(acts, known, at, played)
        return replace(picture, code=tuple(code), sentence=sentence, tone=tone, remark=remark)

    return _of_runs(scene, played, drawn)


def _with_columns(
    picture: StagePicture, acts: Sequence[RunAct], known: Sequence[StageBlock | None], at: int
) -> StagePicture:
    """A picture whose chart has one column a run, with each size beside the run's line and as a block.

    Args:
        picture: its chart still without columns.
        acts: the runs.
        known: the block of each run so far, its name what is counted; ``None`` for one without a figure.
        at: index of the current run.
    """
    assert picture.chart is not None
    code, columns = [], []
    for place, act in enumerate(acts):
        block = known[place] if place < len(known) else None
        state = state_of(place, at)
        figure = size_text(block.bytes) if block else ""
        code.append(CodeLine(str(place + 1), act.code, figure, state, room="000 MiB"))
        columns.append(StageColumn(act.label, (replace(block, remark=""),) if block else (), state))
    chart = replace(picture.chart, columns=tuple(columns))
    columns = [replace(one, figure=chart.figure(one.bytes) if one.blocks else " ") for one in columns]
    cards = [replace(block, name=act.label) for act, block in zip(acts, known, strict=False) if block]
    return replace(picture, code=tuple(code), chart=replace(chart, columns=tuple(columns)), blocks=tuple(cards))


def precision_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """The peak of each precision as a column, its loss beside it."""

    def drawn(acts: Sequence[RunAct], runs: Sequence[Run | None], at: int) -> StagePicture:
        chart = StageChart("PEAK OF TENSORS", (), None, "the same training each time", reaches=PEAKS_REACH)
        picture = StagePicture(scene.title, blocks_title="AT THE PEAK", chart=chart)
        known = [_peak_block(run) for run in runs[: at + 1]]
        picture = _with_columns(picture, acts, known, at)
        sentence, tone, remark = _training_sentence(acts, runs, at, played, precisions)
        block = known[at] if at < len(known) else None
        if block is not None and at + 1 < len(acts):
            sentence = f"{acts[at].label} takes {size_text(block.bytes)} at its peak."
        return replace(picture, sentence=sentence, tone=tone, remark=remark)

    return _of_runs(scene, played, drawn)


def _peak_block(run: Run | None) -> StageBlock | None:
    if run is None or run["memory"]["peak_allocated_bytes"] is None:
        return None
    loss = run_loss(run)
    remark = "" if loss is None else f"loss {loss:.4f}"
    return StageBlock("peak", float(run["memory"]["peak_allocated_bytes"]), "activations", remark=remark)


def _of_runs(
    scene: Scene,
    played: PlayedScene,
    drawn: Callable[[Sequence[RunAct], Sequence[Run | None], int], StagePicture],
    corner: str = "",
) -> list[StagePicture]:
    """A picture for each finished run, and one for the next."""
    runs = _runs(played)
    acts = [act for act in scene.acts if isinstance(act, RunAct)]
    pictures = []
    for at in range(min(len(runs) + 1, len(acts))):
        picture = drawn(acts, runs, at)
        code = picture.code or tuple(
            CodeLine(str(place + 1), act.code, "", state_of(place, at)) for place, act in enumerate(acts)
        )
        pictures.append(replace(picture, question=scene.subject, corner=corner or _corner(played), code=code))
    return pictures


def _copy_sentence(
    acts: Sequence[RunAct], known: Sequence[Run | None], at: int, played: PlayedScene
) -> tuple[str, Tone, str]:
    if at >= len(known):
        return played.waiting or f"Training, the batches copied {acts[at].label}…", "plain", _progress(acts[at], played)
    run = known[at]
    if run is None:
        return _problem(played, at), "wrong", ""
    size, steps = size_text(copied_bytes(run)), format_count(run["steps"])
    if at == 2 and known[1] is not None and copied_bytes(known[1]):
        ratio = copied_bytes(run) / copied_bytes(known[1])
        return f"{size} crossed, {ratio:.1f} times as much as one way: every batch comes back, every step.", "warn", ""
    return f"Copied {acts[at].label}, {size} crossed in {steps} steps.", "plain", ""


def _progress(act: RunAct, played: PlayedScene) -> str:
    """How far the current run has come, by its steps; "" before the first."""
    steps = getattr(act.spec, "steps", 0)
    if played.running is None or not steps:
        return ""
    return f"step {format_count(played.running['steps'])} of {format_count(steps)}"


def panel_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Runs side by side: a panel for each, with its loss and its figures."""

    def drawn(acts: Sequence[RunAct], runs: Sequence[Run | None], at: int) -> StagePicture:
        panels = []
        for place, act in enumerate(acts):
            run: Run | None = None
            if place < len(runs) and place <= at:
                run = runs[place]
            elif place == at:
                run = played.running
            panels.append(_panel(act, run, state_of(place, at)))
        sentence, tone, remark = _training_sentence(acts, runs, at, played, both_trained)
        return StagePicture(scene.title, panels=tuple(panels), sentence=sentence, tone=tone, remark=remark)

    return _of_runs(scene, played, drawn)


def _panel(act: RunAct, run: Run | None, state: LineState) -> StagePanel:
    steps = int(getattr(act.spec, "steps", 0))
    if run is None:
        return StagePanel(act.label, (), steps, (), state)
    peak = run["memory"]["peak_allocated_bytes"]
    loss = run_loss(run)
    figures = []
    if loss is not None:
        figures.append(("loss", f"{loss:.4f}"))
    where = ", CPU" if run["simulated"] or run["device"] == "cpu" else ""
    figures.append((f"items/s{where}", run_speed(run) if run["status"] == "finished" else "–"))
    if peak is not None:
        figures.append(("peak", format_bytes(peak)))
    return StagePanel(act.label, tuple(run.get("losses", ())), steps, tuple(figures), state)


def _training_sentence(
    acts: Sequence[RunAct],
    runs: Sequence[Run | None],
    at: int,
    played: PlayedScene,
    compare: Callable[[Sequence[Run]], tuple[str, Tone, str]],
) -> tuple[str, Tone, str]:
    if at >= len(runs):
        return played.waiting or f"Training: {acts[at].label}…", "plain", _progress(acts[at], played)
    run = runs[at]
    if run is None:
        return _problem(played, at), "wrong", ""
    if at + 1 < len(acts) or any(found is None for found in runs):
        loss = run_loss(run)
        outcome = f"Loss {loss:.3f} after {format_count(run['steps'])} steps" if loss is not None else "No loss"
        return f"{outcome}: {acts[at].label}.", "plain", ""
    return compare([found for found in runs if found is not None])


def both_trained(runs: Sequence[Run]) -> tuple[str, Tone, str]:
    """Whether both devices reach the same loss; which is faster only if both are real."""
    before, after = run_loss(runs[0]), run_loss(runs[1])
    if before is None or after is None:
        return "A run was stopped, so there is nothing to compare.", "plain", ""
    agreeing = abs(after - before) <= SAME_LOSS * abs(before)
    same = "the same within 1 %" if agreeing else "not the same"
    first, second = shown_name(runs[0]["device"]), shown_name(runs[1]["device"])
    losses = f"{before:.3f} on {first} and {after:.3f} on {second}"
    if f"{before:.3f}" == f"{after:.3f}":
        losses = f"{before:.3f} on both"
    sentence = f"Loss {losses}: {same}."
    if runs[1]["simulated"]:
        return sentence, "good" if agreeing else "warn", SAYS_NO_SPEED
    ratio = speed_ratio(runs)
    if ratio is None:
        return sentence, "good", ""
    return sentence, "good", f"GPU {ratio:.1f} times as fast"


def precisions(runs: Sequence[Run]) -> tuple[str, Tone, str]:
    """The memory of bf16, the loss of both, and on a real device what bf16 does to the speed."""
    peaks = [run["memory"]["peak_allocated_bytes"] for run in runs]
    losses = list(map(run_loss, runs))
    if None in peaks or None in losses:
        return "Not every run has a peak and a loss, so there is nothing to compare.", "plain", ""
    share = 1 - peaks[1] / peaks[0]
    worst = max(abs((loss or 0.0) - (losses[0] or 0.0)) / abs(losses[0] or 1.0) for loss in losses[1:])
    memory = f"bf16 takes {share:.0%} less memory than fp32".replace("%", " %")
    if share < 0:
        memory = f"bf16 takes {-share:.0%} more memory than fp32".replace("%", " %")
    losses_text = f"losses differ by {worst:.2%} at most".replace("%", " %")
    if worst < LEAST_DIFFERENCE:
        losses_text = "losses differ by less than 0.01 %"
    ratio = speed_ratio(runs)
    remark = SAYS_NO_SPEED
    if not runs[1]["simulated"]:
        remark = "" if ratio is None else f"bf16 {ratio:.1f} times as fast"
    return f"{memory}; {losses_text}.", "good", remark


def rung_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """The predicted rungs."""
    model, rungs, _specs = ladder()
    results = [result for result in played.results if isinstance(result, RungResult)]
    found = ladder_pictures(scene.title, scene.subject, rungs, results, model)
    if found and played.waiting and len(results) < len(rungs):
        found[-1] = replace(found[-1], sentence=played.waiting)
    return found


def _runs(played: PlayedScene) -> list[Run | None]:
    """The finished runs; ``None`` for one that did not complete."""
    found: list[Run | None] = []
    for result in played.results:
        whole = isinstance(result, Mapping) and result["status"] == "finished"
        found.append(result if whole and isinstance(result, Mapping) else None)
    return found


def _problem(played: PlayedScene, at: int) -> str:
    """Why an act failed, in a sentence."""
    result = played.results[at]
    if isinstance(result, str):
        return result
    if isinstance(result, Mapping):
        if result["status"] == "cancelled":
            return "The run was stopped."
        return str((result["error"] or {}).get("message") or "The run did not come to its end.")
    return "It could not be played."


def _corner(played: PlayedScene) -> str:
    if played.simulated:
        return f"{played.device} · simulated: the CPU computes"
    if played.device == "cpu":
        return "CPU, without a card"
    return shown_name(played.device)


def comparison_pictures(scene: Scene, played: PlayedScene) -> list[StagePicture]:
    """Comparisons of this CPU with a predicted card: a panel for each, with both times and their ratio."""

    def drawn(acts: Sequence[RunAct], runs: Sequence[Run | None], at: int) -> StagePicture:
        panels = []
        for place, act in enumerate(acts):
            run = None
            if place < min(len(runs), at + 1):
                run = runs[place]
            panels.append(StagePanel(act.label, figures=_comparison_figures(run), state=state_of(place, at)))
        sentence = played.waiting or f"Measuring on this CPU: {acts[at].label}…"
        tone: Tone = "plain"
        if at < len(runs):
            sentence, tone = _comparison_sentence(played, runs, at)
        return StagePicture(scene.title, panels=tuple(panels), sentence=sentence, tone=tone)

    return _of_runs(scene, played, drawn, "CPU measured · card predicted")


def _comparison_figures(run: Run | None) -> tuple[tuple[str, str], ...]:
    ratio = None if run is None else speedup(run)
    if run is None or ratio is None:
        return ()
    result = run["result"]
    times = "–"
    if ratio >= 0.05:
        times = f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
    return (
        ("this CPU, measured", format_duration(result["measured"]["step_seconds"])),
        (f"{result['card']['name']}, predicted", format_duration(result["card"]["time"]["median_s"])),
        ("as fast as this CPU", times),
    )


def _comparison_sentence(played: PlayedScene, runs: Sequence[Run | None], at: int) -> tuple[str, Tone]:
    run = runs[at]
    if run is None:
        return _problem(played, at), "wrong"
    return str(run["result"].get("headline") or "Nothing could be predicted."), "plain"
